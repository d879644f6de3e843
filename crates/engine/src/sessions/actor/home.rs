//! The home directory of an agent: one for each session, below the home of the project's container.
//!
//! It has links to what the project's home has, so that caches and tools are shared, copies of the
//! user's settings for the agent, and nothing of another session's state or logins. Sessions of older
//! versions, whose agents keep their conversation in the project's home, stay there.
//!
//! The plan is made here. The client in the container makes the home of it, in the agent's own process.

mod by_commands;

use std::collections::BTreeSet;

use oubliette_agent::catalogue;
use oubliette_wire::{FileFormat, HomeFile, HomePlan, HomeReport};

use super::SessionActor;
use super::start::StartError;
use crate::containers::process::ProcessError;
use crate::credentials::GivenLogin;
use crate::files::SESSION_HOMES_DIR;
use crate::git::COMMIT_MESSAGE_HOOK;

/// The home of the container's other processes.
pub(super) const PROJECT_HOME: &str = "/root";

impl SessionActor<'_> {
    /// None for a directory of a person that is mounted: its repository keeps its hooks.
    fn commit_hook(&self) -> String {
        let is_mounted = self.session.workspace_id.is_default()
            && self.engine.files().mounted_path(self.project.id).is_some();
        if is_mounted {
            String::new()
        } else {
            COMMIT_MESSAGE_HOOK.to_owned()
        }
    }

    /// What the home of the agent has.
    pub(super) fn home_plan(
        &self,
        login: Option<&GivenLogin>,
        settings_files: Vec<HomeFile>,
    ) -> HomePlan {
        let owned = |path: &&'static str| (*path).to_owned();
        let layout = &self.agent.home;
        let agents = catalogue();
        let private = agents.iter().flat_map(|agent| agent.home.private);
        let private = private.chain([&SESSION_HOMES_DIR, &".config", &".local"]);
        let private = private.chain([&".local/share", &".local/state"]);
        let ours = self.agent.restricted(self.autonomy(), &self.tools()).files;
        let removed = ours.iter().map(|file| file.path.as_str());
        // Also those that this session needs no longer.
        let removed = removed.chain(self.agent.restrictions.paths.iter().copied());
        let removed = removed.chain(self.agent.files.keys().map(String::as_str));
        // A login of an earlier start does not outlive its credential.
        let removed = removed.chain(self.agent.sign_in.login_files.iter().map(|file| file.path));
        // Nor do keys of servers, and placeholders.
        let removed = removed.chain(self.agent.mcp_file.map(|file| file.path));
        let removed = removed.chain(settings_files.iter().map(|file| file.path.as_str()));
        let removed: BTreeSet<&str> = removed.collect();
        let removed = removed.into_iter().map(str::to_owned).collect();
        let configured = self.agent.files.iter();
        let configured =
            configured.map(|(path, text)| HomeFile::new(path, FileFormat::Whole, text));
        let settings = login.into_iter().flat_map(|login| login.file.settings);
        let settings =
            settings.map(|(path, format, content)| HomeFile::new(*path, *format, *content));
        let login_file = login
            .map(|login| HomeFile::new(login.file.path, FileFormat::Whole, login.text.reveal()));
        let files = configured.chain(ours).chain(settings).chain(login_file);
        let files: Vec<HomeFile> = files.chain(settings_files.iter().cloned()).collect();
        let leftovers = layout.leftovers.iter();
        HomePlan {
            shared: PROJECT_HOME.to_owned(),
            own: format!("{SESSION_HOMES_DIR}/{}", self.session.id),
            resumed: self.session.agent_session_id.is_some(),
            private: private.map(owned).collect(),
            copied: layout.copied.iter().map(owned).collect(),
            removed,
            leftovers: leftovers
                .map(|(path, marker)| ((*path).to_owned(), (*marker).to_owned()))
                .collect(),
            files,
            requires_own: login.is_some(),
            commit_hook: self.commit_hook(),
        }
    }

    /// Takes the first line of the output, in which the client reports the agent's home.
    pub(super) fn take_home_report(&mut self, line: Option<&[u8]>) -> Result<(), StartError> {
        let report = line.and_then(|line| serde_json::from_slice::<HomeReport>(line).ok());
        Err(match report {
            Some(HomeReport::Ready(home)) if home == self.agent_home() => return Ok(()),
            Some(HomeReport::Ready(home)) if home == PROJECT_HOME => {
                if let Some(live) = &mut self.process.live {
                    live.home = Some(home);
                }
                return Ok(());
            }
            Some(HomeReport::Failed(reason)) => {
                StartError::Failed(format!("the agent's home could not be prepared: {reason}"))
            }
            Some(HomeReport::Shared) => shared_home_error(),
            Some(HomeReport::NotFound(message)) => {
                self.start_failure(ProcessError::ProgramNotFound(message))
            }
            Some(HomeReport::Denied(message)) => {
                self.start_failure(ProcessError::ProgramNotExecutable(message))
            }
            Some(HomeReport::Ready(_)) | None => StartError::Failed(
                "the agent's home could not be prepared: the client in the container sent an \
                 unexpected report"
                    .to_owned(),
            ),
        })
    }

    /// The home of the running agent.
    pub(super) fn agent_home(&self) -> &str {
        let live = self.process.live.as_ref();
        live.and_then(|live| live.home.as_deref())
            .unwrap_or(PROJECT_HOME)
    }
}

fn shared_home_error() -> StartError {
    StartError::Failed(
        "the session is of an older version, whose agents share a home, and gets no login; start \
         a new session"
            .to_owned(),
    )
}
