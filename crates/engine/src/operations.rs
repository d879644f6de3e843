//! The one registry of operations, and the one path by which they are called.
//!
//! An operation is a type in the file of its verb. [`all`] is the list of them; MCP tools, the
//! command line, the permission of a call and `docs/operations.md` are views of that list.

mod dispatch;
mod entry;
mod lookup;
mod once;
pub(crate) mod parameters;
pub(crate) mod schema;
pub mod tools;

use std::future::Future;
use std::sync::LazyLock;

use oubliette_model::{Access, ProjectId, ScheduleId, SessionId};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use dispatch::{Called, unpanicked};
pub use entry::Entry;
pub use lookup::{find, find_action};
pub(crate) use once::Running;

use crate::{Actor, Call, Engine, Result};

/// One thing the server can be asked to do.
pub trait Operation: Send + Sync + 'static {
    /// `noun_verb`.
    const NAME: &'static str;
    /// Written for a model that must choose a tool.
    const ABOUT: &'static str;
    const ACCESS: Access;
    const FACE: Face;
    const EFFECT: Effect;
    type Params: DeserializeOwned + JsonSchema + Send + 'static;
    type Output: Serialize + JsonSchema;

    /// What the call is about, before anything is looked up.
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

/// What a host may assume about a write before it asks its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Reads,
    /// Adds something; doing it twice adds two things or fails.
    Adds,
    /// Changes something; doing it twice is the same as once.
    Changes,
    /// Takes something away for good; doing it twice fails or is the same as once.
    Destroys,
}

/// What a call is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reach {
    /// The project it names; none if it covers all that the token may touch.
    pub project: Option<ProjectId>,
    /// The session it names: its project is the call's.
    pub session: Option<SessionId>,
    /// The schedule it names: the projects of its targets are the call's.
    pub schedule: Option<ScheduleId>,
    /// The projects that a schedule is to have.
    pub targets: Vec<ProjectId>,
    /// A parameter that project tokens may not use.
    pub restricted: Option<&'static str>,
    /// Whether it decides about something that the session waits for.
    pub decides: bool,
    /// Whether it has agents begin what the schedule says.
    pub begins: bool,
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

    pub fn schedule(id: ScheduleId) -> Self {
        Self {
            schedule: Some(id),
            ..Self::default()
        }
    }
}

static ALL: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    vec![
        Entry::of::<crate::projects::create::Create>(),
        Entry::of::<crate::projects::list::List>(),
        Entry::of::<crate::projects::get::Get>(),
        Entry::of::<crate::projects::update::Update>(),
        Entry::of::<crate::projects::delete::Delete>(),
        Entry::of::<crate::projects::options::Options>(),
        Entry::of::<crate::containers::start::Start>(),
        Entry::of::<crate::containers::stop::Stop>(),
        Entry::of::<crate::containers::exec::Exec>(),
        Entry::of::<crate::containers::logs::Logs>(),
        Entry::of::<crate::sessions::spawn::Spawn>(),
        Entry::of::<crate::sessions::message::Message>(),
        Entry::of::<crate::sessions::get::Get>(),
        Entry::of::<crate::sessions::list::List>(),
        Entry::of::<crate::sessions::events::Events>(),
        Entry::of::<crate::sessions::interrupt::Interrupt>(),
        Entry::of::<crate::sessions::permit::Permit>(),
        Entry::of::<crate::sessions::end::End>(),
        Entry::of::<crate::sessions::cleanup::Cleanup>(),
        Entry::of::<crate::workspaces::list::List>(),
        Entry::of::<crate::workspaces::delete::Delete>(),
        Entry::of::<crate::schedules::create::Create>(),
        Entry::of::<crate::schedules::list::List>(),
        Entry::of::<crate::schedules::get::Get>(),
        Entry::of::<crate::schedules::update::Update>(),
        Entry::of::<crate::schedules::delete::Delete>(),
        Entry::of::<crate::schedules::trigger::Trigger>(),
        Entry::of::<crate::schedules::history::History>(),
        Entry::of::<crate::tokens::create::Create>(),
        Entry::of::<crate::tokens::list::List>(),
        Entry::of::<crate::tokens::revoke::Revoke>(),
        Entry::of::<crate::projects::changes::Changes>(),
        Entry::of::<crate::projects::tasks::Tasks>(),
        Entry::of::<crate::limits::Limits>(),
        Entry::of::<crate::callers::response::Response>(),
        Entry::of::<crate::containers::rebuild::Rebuild>(),
        Entry::of::<crate::audit::list::List>(),
    ]
});

/// What each noun's tool is for.
const NOUNS: &[(&str, &str)] = &[
    (
        "project",
        "Projects: named places for work, each with its files, settings and limits.",
    ),
    (
        "container",
        "The container of a project, in which commands and agents run.",
    ),
    (
        "session",
        "Sessions: agents at work in a project. `spawn` gives one a prompt, `events` shows what it \
         does, `message` goes on.",
    ),
    (
        "workspace",
        "Workspaces: the directories of a project in which agents work.",
    ),
    (
        "schedule",
        "Schedules: prompts that agents in projects get at set times, and the history of their runs.",
    ),
    (
        "token",
        "API tokens, their scopes and their end. Admin only.",
    ),
];

/// Every operation, in the order of the documentation.
pub fn all() -> &'static [Entry] {
    &ALL
}
