//! `oubliette run --mount`: the agent works in the user's directory itself, on this machine.

use oubliette_model::WorkspaceId;
use serde_json::{Value, json};

use super::record::{RecordFile, SentSession};
use super::{Checkout, create_project};
use crate::cli::confirm;
use crate::cli::names;
use crate::cli::reconnecting::ReconnectingClient;
use crate::failure::Failure;
use crate::terminal::printable;

/// A project that works in the directory, for a session that is yet to be started. Until `started`, other
/// commands of this checkout wait.
pub(in crate::cli) struct Mounted {
    project_id: String,
    file: RecordFile,
}

impl Checkout<'_> {
    /// The project that works in this directory. Before the first one is created, the user must agree.
    pub(in crate::cli) async fn mount(
        &self,
        client: &ReconnectingClient<'_>,
        has_agreed: bool,
    ) -> Result<Mounted, Failure> {
        let root = self.root();
        let shown = printable(&root.display().to_string());
        if root.to_str().is_none() {
            return Err(Failure::new(format!(
                "{shown} has a name that is not UTF-8 and cannot be mounted; leave out --mount"
            )));
        }
        let file = self.open_record()?;
        let projects = names::all_rows("project", &client.current()).await?;
        let is_here =
            |row: &&serde_json::Map<String, Value>| row.get("mount") == Some(&json!(root));
        let project_id = match projects.iter().find(is_here) {
            Some(found) => {
                let id = found.get("project_id").and_then(Value::as_str);
                id.unwrap_or_default().to_owned()
            }
            None => {
                require_agreement(&shown, has_agreed)?;
                create_project(client, &self.project_names(), Some(root)).await?
            }
        };
        if root.join(".git").is_file() {
            eprintln!(
                "note: the repository of {shown} is in another directory, which the container does not see: git \
                 does not work there"
            );
        }
        Ok(Mounted { project_id, file })
    }
}

/// Says what is given up, and asks at a terminal.
fn require_agreement(shown: &str, has_agreed: bool) -> Result<(), Failure> {
    eprintln!(
        "With --mount the agent works in {shown} itself, not on a copy: it changes your files at once, it can \
         read everything there, also .git, secrets and what git ignores, and `oubliette session rewind` is the only \
         way back, which does not cover what git ignores."
    );
    if has_agreed {
        return Ok(());
    }
    if !confirm::can_ask() {
        return Err(Failure::new(
            "nothing was started: without a terminal, say with --yes that the agent may do that, or leave out \
             --mount",
        ));
    }
    if confirm::ask("Let the agent work there?")? {
        Ok(())
    } else {
        Err(Failure::new("nothing was started"))
    }
}

impl Mounted {
    /// The parameters of a session that works in the directory.
    pub(in crate::cli) fn spawn_parameters(&self) -> [(String, Value); 2] {
        [
            ("project_id".to_owned(), json!(self.project_id)),
            ("workspace_id".to_owned(), json!(WorkspaceId::DEFAULT)),
        ]
    }

    /// Records the session that works in the directory.
    pub(in crate::cli) fn started(mut self, session_id: &str) -> Result<(), Failure> {
        self.file.record.put(SentSession {
            session_id: session_id.to_owned(),
            workspace_id: WorkspaceId::DEFAULT.to_owned(),
            mounted_project: Some(self.project_id),
            ..SentSession::default()
        });
        self.file.save()
    }
}
