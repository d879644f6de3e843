//! What `oubliette run` says at the end: the session, its cost, what it has changed, and what to do next.

use serde_json::{Map, Value, json};

use crate::cli::access::Access;
use crate::cli::checkout::{self, ChangedFiles, Checkout};
use crate::cli::follow::FollowEnd;
use crate::cli::permission::dollars;
use crate::cli::reconnecting::ReconnectingClient;
use crate::failure::Failure;
use crate::terminal;

pub(super) struct Summary {
    session: String,
    found: Map<String, Value>,
    changed: Option<ChangedFiles>,
}

impl Summary {
    pub(super) async fn read(
        client: &ReconnectingClient<'_>,
        checkout: Option<&Checkout<'_>>,
        session: &str,
    ) -> Self {
        let get = Map::from_iter([("session_id".to_owned(), json!(session))]);
        let found = client.current().call("session_get", get).await;
        let found = found.unwrap_or_default();
        let turns = found.get("turns").and_then(Value::as_u64).unwrap_or(0);
        let changed = match checkout {
            Some(checkout) => {
                match Box::pin(checkout::changed(checkout, client, session, turns)).await {
                    Ok(changed) => changed,
                    Err(failure) => {
                        failure.print();
                        None
                    }
                }
            }
            None => None,
        };
        Self {
            session: session.to_owned(),
            found,
            changed,
        }
    }

    /// One line, and the next commands, on stderr.
    pub(super) fn print(&self, access: &Access) {
        let mut parts = vec![format!("session {}", self.session)];
        match self.found.get("cost_usd").and_then(Value::as_f64) {
            Some(cost) if cost > 0.0 => parts.push(dollars(cost)),
            _ => {}
        }
        parts.extend(self.changed.as_ref().map(ChangedFiles::describe));
        eprintln!("\n{}", parts.join(" · "));
        let command = access.command();
        let changed = self
            .changed
            .as_ref()
            .filter(|changed| !changed.is_nothing());
        if changed.is_some_and(|changed| changed.is_here) {
            let session = &self.session;
            eprintln!("  {command} diff     see the changes");
            eprintln!(
                "  {command} session rewind {session} --turn 0 --what files    take them back"
            );
        } else if changed.is_some() {
            eprintln!("  {command} diff     see the changes");
            eprintln!("  {command} apply    merge them into the files here");
            eprintln!("  {command} fetch    get them as a branch");
        }
        if self.changed.is_some() {
            eprintln!("  {command} run --continue \"…\"");
        } else {
            eprintln!("  {command} session message {} \"…\"", self.session);
        }
    }

    pub(super) fn print_json(&self, stopped: &FollowEnd) {
        let (stop_reason, error) = match stopped {
            FollowEnd::TurnEnded(completion) => {
                (json!(completion.stop_reason), json!(completion.error))
            }
            FollowEnd::Detached => (Value::Null, Value::Null),
        };
        let text = match stopped {
            FollowEnd::TurnEnded(completion) => json!(completion.text),
            FollowEnd::Detached => Value::Null,
        };
        let field = |name: &str| self.found.get(name).cloned().unwrap_or_default();
        let result = json!({
            "session_id": self.session, "project_id": field("project_id"),
            "workspace_id": field("workspace_id"), "status": field("status"), "text": text,
            "stop_reason": stop_reason, "error": error, "cost_usd": field("cost_usd"),
            "changed": self.changed.as_ref().map(ChangedFiles::to_json),
        });
        terminal::print_json(&result);
    }
}

/// The exit code of a turn whose result is printed as JSON.
pub(super) fn exit_quietly(stopped: FollowEnd) -> Result<(), Failure> {
    match stopped {
        FollowEnd::TurnEnded(completion) => match completion.stop_reason.as_str() {
            "end_turn" => Ok(()),
            "cancelled" => Err(Failure::Exit(130)),
            _ => Err(Failure::Exit(1)),
        },
        FollowEnd::Detached => Err(Failure::Exit(130)),
    }
}
