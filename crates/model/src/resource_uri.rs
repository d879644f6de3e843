//! The addresses of what MCP clients read as resources.

use std::fmt::{self, Write};
use std::str::FromStr;

use crate::{InvalidValue, ProjectId, SessionId, WorkspaceId, quoted};

const SCHEME: &str = "oubliette://";
const GUIDE: &str = "guide";

/// A resource. A token may read it if it may call the operation that returns the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResourceUri {
    /// `oubliette://guide`: how to use the tools.
    Guide,
    /// `oubliette://sessions/{id}/events`
    SessionEvents(SessionId),
    /// `oubliette://sessions/{id}/events/{index}`: all of one event.
    SessionEvent { session: SessionId, index: i64 },
    /// `oubliette://projects/{id}/commands/{exec_id}/{stdout|stderr}`: all that was kept of what a command
    /// wrote.
    CommandOutput {
        project: ProjectId,
        exec_id: String,
        stream: OutputStream,
    },
    /// `oubliette://sessions/{id}/diff`, as `session_diff` takes it.
    SessionDiff {
        session: SessionId,
        turn: Option<u32>,
        from_turn: Option<u32>,
        to_turn: Option<u32>,
        path: Option<String>,
        cursor: Option<String>,
    },
    /// `oubliette://projects/{id}/workspaces/{id}/files/{path}`: a file from a byte on.
    WorkspaceFile {
        project: ProjectId,
        workspace: WorkspaceId,
        /// As `workspace_read` takes it.
        path: String,
        offset: u64,
    },
}

/// A stream of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

impl OutputStream {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

impl fmt::Display for ResourceUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        match self {
            Self::Guide => f.write_str(GUIDE),
            Self::SessionEvents(session) => write!(f, "sessions/{session}/events"),
            Self::SessionEvent { session, index } => write!(f, "sessions/{session}/events/{index}"),
            Self::CommandOutput {
                project,
                exec_id,
                stream,
            } => {
                let exec_id = encode(exec_id, "");
                write!(
                    f,
                    "projects/{project}/commands/{exec_id}/{}",
                    stream.as_str()
                )
            }
            Self::SessionDiff {
                session,
                turn,
                from_turn,
                to_turn,
                path,
                cursor,
            } => {
                write!(f, "sessions/{session}/diff")?;
                let number = |number: &Option<u32>| number.map(|number| number.to_string());
                let values = [
                    ("turn", number(turn)),
                    ("from_turn", number(from_turn)),
                    ("to_turn", number(to_turn)),
                    ("path", path.clone()),
                    ("cursor", cursor.clone()),
                ];
                let mut separator = '?';
                for (name, value) in values {
                    let Some(value) = value else { continue };
                    write!(f, "{separator}{name}={}", encode(&value, ""))?;
                    separator = '&';
                }
                Ok(())
            }
            Self::WorkspaceFile {
                project,
                workspace,
                path,
                offset,
            } => {
                let path = encode(path, "/");
                write!(f, "projects/{project}/workspaces/{workspace}/files/{path}")?;
                match offset {
                    0 => Ok(()),
                    offset => write!(f, "?offset={offset}"),
                }
            }
        }
    }
}

impl FromStr for ResourceUri {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        parse(text)
            .ok_or_else(|| InvalidValue(format!("{} is not the URI of a resource", quoted(text))))
    }
}

fn parse(text: &str) -> Option<ResourceUri> {
    let rest = text.strip_prefix(SCHEME)?;
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if let Some(rest) = path.strip_prefix("sessions/") {
        return match rest.split_once('/')? {
            (session, "events") if query.is_empty() => {
                Some(ResourceUri::SessionEvents(session.parse().ok()?))
            }
            (session, "diff") => parse_diff(session.parse().ok()?, query),
            (session, rest) if query.is_empty() => Some(ResourceUri::SessionEvent {
                session: session.parse().ok()?,
                index: parse_index(rest.strip_prefix("events/")?)?,
            }),
            _ => None,
        };
    }
    if rest == GUIDE {
        return Some(ResourceUri::Guide);
    }
    if let Some(output) = parse_output(path).filter(|_| query.is_empty()) {
        return Some(output);
    }
    let mut parts = path.strip_prefix("projects/")?.splitn(5, '/');
    let project = parts.next()?.parse().ok()?;
    let is_workspace = parts.next()? == "workspaces";
    let workspace = parts.next()?.parse().ok()?;
    let is_file = parts.next()? == "files";
    let path = decode(parts.next()?)?;
    let offset = match query {
        "" => 0,
        query => query.strip_prefix("offset=")?.parse().ok()?,
    };
    (is_workspace && is_file && !path.is_empty()).then_some(ResourceUri::WorkspaceFile {
        project,
        workspace,
        path,
        offset,
    })
}

/// A number without a sign: one event has one URI.
fn parse_index(text: &str) -> Option<i64> {
    let is_number = text.bytes().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

fn parse_output(path: &str) -> Option<ResourceUri> {
    let mut parts = path.strip_prefix("projects/")?.split('/');
    let project = parts.next()?.parse().ok()?;
    let is_command = parts.next()? == "commands";
    let exec_id = decode(parts.next()?)?;
    let stream = match parts.next()? {
        "stdout" => OutputStream::Stdout,
        "stderr" => OutputStream::Stderr,
        _ => return None,
    };
    let is_whole = parts.next().is_none();
    (is_command && is_whole && !exec_id.is_empty()).then_some(ResourceUri::CommandOutput {
        project,
        exec_id,
        stream,
    })
}

fn parse_diff(session: SessionId, query: &str) -> Option<ResourceUri> {
    let (mut turn, mut from_turn, mut to_turn) = (None, None, None);
    let (mut path, mut cursor) = (None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=')?;
        let value = decode(value)?;
        match name {
            "turn" => turn = Some(value.parse().ok()?),
            "from_turn" => from_turn = Some(value.parse().ok()?),
            "to_turn" => to_turn = Some(value.parse().ok()?),
            "path" => path = Some(value),
            "cursor" => cursor = Some(value),
            _ => return None,
        }
    }
    Some(ResourceUri::SessionDiff {
        session,
        turn,
        from_turn,
        to_turn,
        path,
        cursor,
    })
}

/// Escapes everything but letters, digits, `-._~` and what is named.
fn encode(text: &str, unescaped: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        let is_plain = byte.is_ascii_alphanumeric()
            || b"-._~".contains(&byte)
            || unescaped.as_bytes().contains(&byte);
        if is_plain {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            // `from_str_radix` takes a sign.
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn file(path: &str, offset: u64) -> ResourceUri {
        ResourceUri::WorkspaceFile {
            project: ProjectId::new(Uuid::from_u128(1)),
            workspace: WorkspaceId::default(),
            path: path.to_owned(),
            offset,
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            path in "\\PC{1,40}",
            path_of_command in "\\PC{1,40}",
            offset in any::<u64>(),
            turn in any::<Option<u32>>(),
            cursor in any::<Option<String>>(),
        ) {
            let file = file(&path, offset);
            prop_assert_eq!(file.to_string().parse(), Ok(file));
            let diff = ResourceUri::SessionDiff {
                session: SessionId::new(Uuid::from_u128(2)),
                turn,
                from_turn: turn,
                to_turn: None,
                path: Some(path),
                cursor,
            };
            prop_assert_eq!(diff.to_string().parse(), Ok(diff));
            let output = ResourceUri::CommandOutput {
                project: ProjectId::new(Uuid::from_u128(1)),
                exec_id: path_of_command,
                stream: OutputStream::Stderr,
            };
            prop_assert_eq!(output.to_string().parse(), Ok(output));
            let event = ResourceUri::SessionEvent {
                session: SessionId::new(Uuid::from_u128(2)),
                index: i64::from(turn.unwrap_or_default()),
            };
            prop_assert_eq!(event.to_string().parse(), Ok(event));
        }

        #[test]
        fn no_text_makes_it_panic(text in "oubliette://(sessions|projects)/[-0-9a-f%?&=/a-z]{0,120}") {
            let _ = text.parse::<ResourceUri>();
        }
    }

    #[test]
    fn uris_are_legible_and_others_are_refused() {
        let id = Uuid::from_u128(1);
        let text =
            format!("oubliette://projects/{id}/workspaces/default/files/src/a%20b%3F.rs?offset=7");
        assert_eq!(file("src/a b?.rs", 7).to_string(), text);
        let session = SessionId::new(id);
        let events = ResourceUri::SessionEvents(session);
        let text = format!("oubliette://sessions/{session}/events");
        assert_eq!(text.parse(), Ok(events));
        assert_eq!("oubliette://guide".parse(), Ok(ResourceUri::Guide));
        for wrong in [
            "",
            "oubliette://",
            "file:///etc/passwd",
            &format!("oubliette://sessions/{session}"),
            &format!("oubliette://sessions/{session}/events?x=1"),
            &format!("oubliette://sessions/{session}/events/-1"),
            &format!("oubliette://sessions/{session}/events/1/2"),
            &format!("oubliette://projects/{id}/commands/a/stdin"),
            &format!("oubliette://projects/{id}/commands//stdout"),
            "oubliette://guide?x",
            &format!("oubliette://sessions/{session}/diff?turn=x"),
            &format!("oubliette://projects/{id}/workspaces/default/files/"),
            &format!("oubliette://projects/{id}/workspaces/default/files/a%+1"),
            &format!("oubliette://projects/{id}/workspaces/default/files/a%ff"),
            &format!("oubliette://projects/{id}/workspaces/default/files/a?offset=-1"),
            &format!("oubliette://projects/{id}/workspaces/../../x/files/a"),
        ] {
            assert!(wrong.parse::<ResourceUri>().is_err(), "{wrong}");
        }
    }
}
