//! What a session has changed, by the checkpoints of the server. The container is not asked: it could say
//! anything.

use oubliette_engine::NO_CHECKPOINT;
use serde_json::{Map, Value, json};

use super::super::reconnecting::ReconnectingClient;
use super::Checkout;
use crate::cli::client::parameters;
use crate::cli::transcript::describe_changed;
use crate::failure::Failure;

/// What a session has changed, for people and programs.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct ChangedFiles {
    /// None if the server has no checkpoint of the last turn.
    counts: Option<Counts>,
    /// Whether it has changed the files here.
    pub(in crate::cli) is_here: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    files: u64,
    added: u64,
    removed: u64,
}

/// Asks what a session has changed in its turns, and records whether there is anything to take. None if the
/// session did not work on this checkout.
pub(in crate::cli) async fn changed(
    checkout: &Checkout<'_>,
    client: &ReconnectingClient<'_>,
    session_id: &str,
    turns: u64,
) -> Result<Option<ChangedFiles>, Failure> {
    let session = {
        let file = checkout.open_record()?;
        match file.record.find(session_id)?.cloned() {
            Some(session) => session,
            None => return Ok(None),
        }
    };
    let of_session = parameters(json!({ "session_id": session_id, "stat": true }));
    let counts = count(client, of_session, turns).await?;
    if session.is_mounted() {
        return Ok(Some(ChangedFiles {
            counts,
            is_here: true,
        }));
    }
    let is_unchanged = counts.is_some_and(|counts| counts.files == 0);
    let taken = if is_unchanged {
        Some(session.sent)
    } else if session.taken.is_some() {
        let of_turn = json!({ "session_id": session_id, "stat": true, "turn": turns });
        let of_turn = count(client, parameters(of_turn), turns).await?;
        let is_same = of_turn.is_some_and(|counts| counts.files == 0);
        session.taken.filter(|_| is_same)
    } else {
        None
    };
    let mut file = checkout.open_record()?;
    file.record.set_taken(session_id, taken.as_deref());
    file.record.set_unchanged(session_id, is_unchanged);
    // The user has started a turn since, and expects other work.
    file.record.set_seen(session_id, None);
    file.save()?;
    Ok(Some(ChangedFiles {
        counts,
        is_here: false,
    }))
}

/// Counts the files of a diff that reaches to the last turn; None if there is none.
async fn count(
    client: &ReconnectingClient<'_>,
    mut page: Map<String, Value>,
    turns: u64,
) -> Result<Option<Counts>, Failure> {
    let mut counts = Counts::default();
    loop {
        let mut result = match client.call("session_diff", &page).await {
            Err(Failure::Failed(text)) if text.contains(NO_CHECKPOINT) => return Ok(None),
            result => result?,
        };
        if result.get("to_turn").and_then(Value::as_u64) != Some(turns) {
            return Ok(None);
        }
        let files = result.get("files").and_then(Value::as_array);
        for file in files.into_iter().flatten() {
            let lines = |name: &str| file.get(name).and_then(Value::as_u64).unwrap_or(0);
            counts.files += 1;
            counts.added += lines("added");
            counts.removed += lines("removed");
        }
        match result.remove("next_cursor") {
            Some(cursor) => page.insert("cursor".to_owned(), cursor),
            None => return Ok(Some(counts)),
        };
    }
}

impl ChangedFiles {
    pub(in crate::cli) fn is_nothing(&self) -> bool {
        self.counts.is_some_and(|counts| counts.files == 0)
    }

    pub(in crate::cli) fn describe(&self) -> String {
        let place = if self.is_here && !self.is_nothing() {
            " here"
        } else {
            ""
        };
        match describe_changed(&self.to_json()) {
            Some(changed) => format!("{changed}{place}"),
            None => "no checkpoint, see the changes with diff".to_owned(),
        }
    }

    pub(in crate::cli) fn to_json(&self) -> Value {
        match self.counts {
            Some(Counts {
                files,
                added,
                removed,
            }) => json!({ "files": files, "added": added, "removed": removed }),
            None => Value::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_described_with_their_lines_and_place() {
        let describe = |counts, is_here| ChangedFiles { counts, is_here }.describe();
        let counts = |files| {
            Some(Counts {
                files,
                added: 10,
                removed: 1,
            })
        };
        assert_eq!(describe(counts(3), false), "3 files changed, +10 −1");
        assert_eq!(describe(counts(1), true), "1 file changed, +10 −1 here");
        assert_eq!(describe(Some(Counts::default()), true), "no files changed");
        let unknown = describe(None, false);
        assert!(unknown.starts_with("no checkpoint"), "{unknown}");
    }
}
