//! Commands on this machine as tools of an agent: `oubliette run --tool NAME=CMD`.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::task::{AbortHandle, JoinSet};

use crate::failure::Failure;

/// The agent sees the tools as `local_{name}`.
const CALLER_ID: &str = "local";
/// Maximum output of a command.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;
/// The agent gets this much from the end of a failed command's stderr.
const MAX_ERROR_BYTES: usize = 2000;

/// The tools and their running calls.
#[derive(Debug, Default)]
pub(super) struct LocalTools {
    commands: BTreeMap<String, String>,
    running: JoinSet<ToolResponse>,
    /// By request id.
    calls: BTreeMap<String, AbortHandle>,
}

/// The parameters of `caller_tool_response`.
pub(super) type ToolResponse = Map<String, Value>;

impl LocalTools {
    /// Reads `NAME=CMD`.
    pub(super) fn parse<'a>(given: impl Iterator<Item = &'a String>) -> Result<Self, Failure> {
        let mut commands = BTreeMap::new();
        for option in given {
            let (name, command) = option.split_once('=').unwrap_or_default();
            if name.is_empty() || command.trim().is_empty() {
                return Err(Failure::new(format!(
                    "--tool needs a name and a command, as in --tool 'notify=./notify.sh', not `{option}`"
                )));
            }
            if commands
                .insert(name.to_owned(), command.to_owned())
                .is_some()
            {
                return Err(Failure::new(format!("duplicate --tool {name}")));
            }
        }
        Ok(Self {
            commands,
            ..Self::default()
        })
    }

    /// The `context` parameter that declares the tools; none without tools.
    pub(super) fn context(&self) -> Option<Value> {
        let tool = |(name, command): (&String, &String)| {
            let about = format!(
                "Runs `{command}` on the machine of the user who started this session, with the \
                 arguments as JSON on its standard input. Returns its standard output."
            );
            json!({ "name": name, "description": about, "inputSchema": { "type": "object" } })
        };
        let tools: Vec<Value> = self.commands.iter().map(tool).collect();
        (!tools.is_empty()).then(|| json!({ "caller_id": CALLER_ID, "caller_tools": tools }))
    }

    /// Starts the call that an event requests, or aborts the call that an event cancels.
    pub(super) fn handle_event(&mut self, event: &Value) {
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        let request = text("request_id");
        match text("type").as_str() {
            "caller_tool_request" => {
                let Some(command) = self.commands.get(&text("tool")).cloned() else {
                    return;
                };
                let end: Option<Timestamp> = text("expires_at").parse().ok();
                let left = end.map(|end| end.duration_since(Timestamp::now()));
                let left = left.and_then(|left| Duration::try_from(left).ok());
                let (session, arguments) =
                    (event["session_id"].clone(), event["arguments"].clone());
                let named = request.clone();
                let call = self.running.spawn(async move {
                    let run = run(&command, &arguments);
                    let done = tokio::time::timeout(left.unwrap_or_default(), run).await;
                    let answer = match done {
                        Ok(Ok(result)) => ("result", result),
                        Ok(Err(error)) => ("error", json!(error)),
                        Err(_) => ("error", json!("the command timed out")),
                    };
                    Map::from_iter([
                        ("session_id".to_owned(), session),
                        ("request_id".to_owned(), json!(named)),
                        (answer.0.to_owned(), answer.1),
                    ])
                });
                self.calls.insert(request, call);
            }
            "caller_tool_cancelled" | "caller_tool_response" => {
                if let Some(call) = self.calls.remove(&request) {
                    call.abort();
                }
            }
            _ => {}
        }
    }

    /// Waits for the next finished call.
    pub(super) async fn next_response(&mut self) -> ToolResponse {
        loop {
            match self.running.join_next().await {
                Some(Ok(answer)) => return answer,
                // An aborted call.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}

/// Kills a command and all processes it started when dropped.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Runs a command with arguments as JSON on its input; returns its output or why it failed.
async fn run(command: &str, arguments: &Value) -> Result<Value, String> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("cannot start the command: {error}"))?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let _group = ProcessGroup(pid.and_then(Pid::from_raw));
    let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let line = format!("{arguments}\n");
    let write_input = async {
        if let Some(mut input) = input {
            // A command may ignore its input.
            let _ = input.write_all(line.as_bytes()).await;
        }
        Ok(())
    };
    let ((), output, errors) = tokio::try_join!(write_input, read_all(output), read_all(errors))?;
    let status = child.wait().await.map_err(|error| error.to_string())?;
    if !status.success() {
        let message = match errors.trim() {
            "" => output.trim(),
            errors => errors,
        };
        let start = message.len().saturating_sub(MAX_ERROR_BYTES);
        let end_of_message = message.get(start..).unwrap_or_default();
        return Err(format!("the command failed ({status}): {end_of_message}"));
    }
    let text = output.trim_end_matches('\n');
    Ok(serde_json::from_str(text).unwrap_or_else(|_| json!(text)))
}

async fn read_all(pipe: Option<impl AsyncRead + Unpin>) -> Result<String, String> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        let read = pipe
            .take(MAX_OUTPUT_BYTES + 1)
            .read_to_end(&mut bytes)
            .await;
        read.map_err(|error| error.to_string())?;
    }
    if bytes.len() as u64 > MAX_OUTPUT_BYTES {
        return Err(format!(
            "the command printed more than {MAX_OUTPUT_BYTES} bytes"
        ));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_gets_its_arguments_and_its_output_is_the_result() {
        let arguments = json!({ "n": 1 });
        assert_eq!(run("cat", &arguments).await, Ok(arguments.clone()));
        assert_eq!(
            run("echo two words", &arguments).await,
            Ok(json!("two words"))
        );
        assert_eq!(run("true", &arguments).await, Ok(json!("")));
        let failed = run("echo no luck >&2; exit 3", &arguments)
            .await
            .unwrap_err();
        assert!(
            failed.contains("no luck") && failed.contains('3'),
            "{failed}"
        );
        let long = run("yes", &arguments).await.unwrap_err();
        assert!(long.contains("more than"), "{long}");
    }

    #[test]
    fn tools_are_named_once_and_have_a_command() {
        let context_of = |given: &[&str]| {
            let given: Vec<String> = given.iter().map(|one| (*one).to_owned()).collect();
            LocalTools::parse(given.iter()).map(|tools| tools.context())
        };
        for wrong in [&["notify"][..], &["=x"], &["a="], &["a=x", "a=y"]] {
            assert!(context_of(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(context_of(&[]).unwrap(), None);
        let context = context_of(&["notify=./notify.sh --to=me"])
            .unwrap()
            .unwrap();
        assert_eq!(context["caller_tools"][0]["name"], "notify");
        let about = context["caller_tools"][0]["description"].as_str().unwrap();
        assert!(about.contains("./notify.sh --to=me"));
    }
}
