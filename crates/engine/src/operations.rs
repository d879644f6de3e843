//! The registry of operations, and the path by which they are called.
//!
//! An operation is a type in the file of its verb. [`all`] is the list of them; MCP tools, the
//! command line, the permission of a call and `docs/operations.md` are views of that list.

mod dispatch;
mod entry;
mod find;
pub(crate) mod id_lookup;
mod once;
pub(crate) mod parameters;
pub(crate) mod schema;
mod tool_names;
pub mod tools;

use std::future::Future;
use std::sync::LazyLock;

use oubliette_model::{Access, ProjectId, ScheduleId, SessionId};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use dispatch::{FinishedCall, catch_panic};
pub use entry::Entry;
pub use find::{find, find_action};
pub(crate) use once::RunningCalls;
pub use tool_names::ToolNames;

use crate::{Actor, Call, Engine, Result};

/// One thing the server can be asked to do.
pub trait Operation: Send + Sync + 'static {
    /// `noun_verb`.
    const NAME: &'static str;
    /// The description, written for a model that chooses a tool.
    const ABOUT: &'static str;
    const ACCESS: Access;
    const FACE: Face;
    const EFFECT: Effect;
    /// Whether a call can reach other hosts.
    const OPEN_WORLD: bool = false;
    /// The field of the result that is shown once and never stored, if there is one.
    const SECRET_FIELD: Option<&'static str> = None;
    type Params: DeserializeOwned + JsonSchema + Send + 'static;
    type Output: Serialize + JsonSchema;

    /// What the call names. Permission is decided on it before `run`.
    fn reach(params: &Self::Params) -> Reach;

    fn run(
        engine: &Engine,
        actor: &Actor,
        params: Self::Params,
        call: Call,
    ) -> impl Future<Output = Result<Self::Output>> + Send;
}

/// Where an operation appears in a list of unified tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Face {
    /// As an action of its noun's tool.
    Action,
    /// As a tool of its own.
    Standalone,
}

/// What an MCP host may assume about a call before it asks its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Reads,
    /// Adds something; calling it twice adds two things or fails.
    Adds,
    /// Changes something; calling it twice has the same effect as once.
    Changes,
    /// Deletes something; calling it twice fails or has the same effect as once.
    Destroys,
    /// Runs something that may delete anything it can reach; calling it twice runs it twice.
    Runs,
}

/// What a call names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reach {
    /// The project; none if the call covers all that the token may use.
    pub project: Option<ProjectId>,
    /// The session, whose project becomes the call's.
    pub session: Option<SessionId>,
    /// The schedule; its target projects become the call's.
    pub schedule: Option<ScheduleId>,
    /// The target projects that a schedule gets.
    pub targets: Vec<ProjectId>,
    /// A given parameter that project tokens may not set.
    pub restricted: Option<&'static str>,
    /// A given parameter that agents may not set for a project that bounds their own tree.
    pub bounds_agents: Option<&'static str>,
    /// Whether the call decides a request that the session waits for, or says that its work was reviewed.
    pub decides: bool,
    /// Whether the tree of the calling agent matters: the call starts sessions, creates something that
    /// can, or responds for a caller.
    pub depends_on_tree: bool,
    /// Whether the call is about what the session has done to files: agents may make it only about sessions of
    /// their own tree.
    pub is_about_work: bool,
    /// Whether the call starts a run of the schedule.
    pub starts_run: bool,
}

impl Reach {
    pub fn everywhere() -> Self {
        Self::default()
    }

    pub fn project(id: ProjectId) -> Self {
        Self {
            project: Some(id),
            ..Self::default()
        }
    }

    pub fn session(id: SessionId) -> Self {
        Self {
            session: Some(id),
            ..Self::default()
        }
    }

    /// What a session has done to files.
    pub fn work_of(id: SessionId) -> Self {
        Self {
            is_about_work: true,
            ..Self::session(id)
        }
    }

    pub fn schedule(id: ScheduleId) -> Self {
        Self {
            schedule: Some(id),
            ..Self::default()
        }
    }
}

static ALL: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    vec![
        Entry::from_operation::<crate::projects::create::Create>(),
        Entry::from_operation::<crate::projects::list::List>(),
        Entry::from_operation::<crate::projects::get::Get>(),
        Entry::from_operation::<crate::projects::update::Update>(),
        Entry::from_operation::<crate::projects::delete::Delete>(),
        Entry::from_operation::<crate::projects::options::Options>(),
        Entry::from_operation::<crate::projects::push::Push>(),
        Entry::from_operation::<crate::containers::start::Start>(),
        Entry::from_operation::<crate::containers::stop::Stop>(),
        Entry::from_operation::<crate::containers::exec::Exec>(),
        Entry::from_operation::<crate::containers::logs::Logs>(),
        Entry::from_operation::<crate::sessions::spawn::Spawn>(),
        Entry::from_operation::<crate::sessions::message::Message>(),
        Entry::from_operation::<crate::sessions::get::Get>(),
        Entry::from_operation::<crate::sessions::list::List>(),
        Entry::from_operation::<crate::sessions::events::Events>(),
        Entry::from_operation::<crate::sessions::interrupt::Interrupt>(),
        Entry::from_operation::<crate::sessions::permit::Permit>(),
        Entry::from_operation::<crate::sessions::end::End>(),
        Entry::from_operation::<crate::sessions::cleanup::Cleanup>(),
        Entry::from_operation::<crate::sessions::diff::Diff>(),
        Entry::from_operation::<crate::sessions::review::Review>(),
        Entry::from_operation::<crate::sessions::rewind::Rewind>(),
        Entry::from_operation::<crate::sessions::fork::Fork>(),
        Entry::from_operation::<crate::workspaces::list::List>(),
        Entry::from_operation::<crate::workspaces::create::Create>(),
        Entry::from_operation::<crate::workspaces::delete::Delete>(),
        Entry::from_operation::<crate::workspaces::files::Files>(),
        Entry::from_operation::<crate::workspaces::read::Read>(),
        Entry::from_operation::<crate::workspaces::write::Write>(),
        Entry::from_operation::<crate::schedules::create::Create>(),
        Entry::from_operation::<crate::schedules::list::List>(),
        Entry::from_operation::<crate::schedules::get::Get>(),
        Entry::from_operation::<crate::schedules::update::Update>(),
        Entry::from_operation::<crate::schedules::delete::Delete>(),
        Entry::from_operation::<crate::schedules::trigger::Trigger>(),
        Entry::from_operation::<crate::schedules::history::History>(),
        Entry::from_operation::<crate::tokens::create::Create>(),
        Entry::from_operation::<crate::tokens::list::List>(),
        Entry::from_operation::<crate::tokens::revoke::Revoke>(),
        Entry::from_operation::<crate::credentials::add::Add>(),
        Entry::from_operation::<crate::credentials::list::List>(),
        Entry::from_operation::<crate::credentials::remove::Remove>(),
        Entry::from_operation::<crate::network::check::Check>(),
        Entry::from_operation::<crate::network::log::Log>(),
        Entry::from_operation::<crate::network::allow::Allow>(),
        Entry::from_operation::<crate::projects::changes::Changes>(),
        Entry::from_operation::<crate::projects::tasks::Tasks>(),
        Entry::from_operation::<crate::limits::Limits>(),
        Entry::from_operation::<crate::callers::response::Response>(),
        Entry::from_operation::<crate::containers::rebuild::Rebuild>(),
        Entry::from_operation::<crate::audit::list::List>(),
    ]
});

/// The noun of a group of operations.
#[derive(Debug)]
pub struct Noun {
    pub name: &'static str,
    /// The help text of the noun's command.
    pub summary: &'static str,
    /// The description of the noun's tool; none if each of its operations is a tool of its own.
    pub about: Option<&'static str>,
}

/// Every noun, in the order of the command line's help.
pub const NOUNS: &[Noun] = &[
    Noun {
        name: "project",
        summary: "Create, show, change and delete projects",
        about: Some("Projects with files, settings, limits and a container."),
    },
    Noun {
        name: "container",
        summary: "Run commands in a project's container",
        about: Some("The container of a project."),
    },
    Noun {
        name: "session",
        summary: "Start agents, follow, answer and end them",
        about: Some("Conversations with agents."),
    },
    Noun {
        name: "workspace",
        summary: "The directories in which agents work, and their files",
        about: Some("Directories of a project in which agents work."),
    },
    Noun {
        name: "schedule",
        summary: "Send prompts to agents at set times",
        about: Some("Prompts that are sent at set times."),
    },
    Noun {
        name: "token",
        summary: "Create, list and revoke API tokens",
        about: Some("API tokens."),
    },
    Noun {
        name: "credential",
        summary: "Keys and logins that agents and git use",
        about: Some("Keys and logins of agents and git."),
    },
    Noun {
        name: "network",
        summary: "Show and change which hosts a project's containers may reach",
        about: Some("Which hosts containers may reach."),
    },
    Noun {
        name: "config",
        summary: "Show the limits in force",
        about: None,
    },
    Noun {
        name: "caller",
        summary: "Answer an agent that calls a tool of yours",
        about: None,
    },
    Noun {
        name: "image",
        summary: "Rebuild container images",
        about: None,
    },
    Noun {
        name: "audit",
        summary: "Show who did what",
        about: None,
    },
];

/// Every operation, in the order of the documentation.
pub fn all() -> &'static [Entry] {
    &ALL
}
