//! Commands of this machine as tools of an agent: `oubliette run --tool NAME=CMD`.

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
const CALLER: &str = "local";
/// Bytes that a command may say.
const LONGEST: u64 = 1 << 20;
/// Of what a failed command says on the way, so much is told to the agent.
const COMPLAINT: usize = 2000;

/// The tools, and the calls of them that run.
#[derive(Debug, Default)]
pub(super) struct Tools {
    commands: BTreeMap<String, String>,
    running: JoinSet<Answer>,
    /// By request.
    calls: BTreeMap<String, AbortHandle>,
}

/// What came of a call: the parameters of `caller_tool_response`.
pub(super) type Answer = Map<String, Value>;

impl Tools {
    /// Reads `NAME=CMD`.
    pub(super) fn parse<'a>(given: impl Iterator<Item = &'a String>) -> Result<Self, Failure> {
        let mut commands = BTreeMap::new();
        for one in given {
            let (name, command) = one.split_once('=').unwrap_or_default();
            if name.is_empty() || command.trim().is_empty() {
                return Err(Failure::new(format!(
                    "--tool needs a name and a command, as in --tool 'notify=./notify.sh', not `{one}`"
                )));
            }
            if commands
                .insert(name.to_owned(), command.to_owned())
                .is_some()
            {
                return Err(Failure::new(format!("the tool {name} is given twice")));
            }
        }
        Ok(Self {
            commands,
            ..Self::default()
        })
    }

    /// What a session is told of them; none if there are none.
    pub(super) fn context(&self) -> Option<Value> {
        let tool = |(name, command): (&String, &String)| {
            let about = format!(
                "Runs `{command}` on the machine of whoever started this session, with the arguments \
                 as JSON on its input. Returns what it prints."
            );
            json!({ "name": name, "description": about, "inputSchema": { "type": "object" } })
        };
        let tools: Vec<Value> = self.commands.iter().map(tool).collect();
        (!tools.is_empty()).then(|| json!({ "caller_id": CALLER, "caller_tools": tools }))
    }

    /// Begins what an event asks for, or gives it up.
    pub(super) fn event(&mut self, event: &Value) {
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
                        Err(_) => ("error", json!("the command took too long")),
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

    /// The next answer that is ready.
    pub(super) async fn next(&mut self) -> Answer {
        loop {
            match self.running.join_next().await {
                Some(Ok(answer)) => return answer,
                // One that was given up.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}

/// A command and all it has started; they end together.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Runs a command with arguments on its input: what it printed, or why it failed.
async fn run(command: &str, arguments: &Value) -> Result<Value, String> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("the command could not be started: {error}"))?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let _group = Group(pid.and_then(Pid::from_raw));
    let (input, output, complaints) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let line = format!("{arguments}\n");
    let telling = async {
        if let Some(mut input) = input {
            // A command that does not read its input is none the worse.
            let _ = input.write_all(line.as_bytes()).await;
        }
        Ok(())
    };
    let ((), output, complaints) = tokio::try_join!(telling, all_of(output), all_of(complaints))?;
    let ended = child.wait().await.map_err(|error| error.to_string())?;
    if !ended.success() {
        let why = match complaints.trim() {
            "" => output.trim(),
            complaints => complaints,
        };
        let start = why.len().saturating_sub(COMPLAINT);
        let why = why.get(start..).unwrap_or_default();
        return Err(format!("the command failed ({ended}): {why}"));
    }
    let text = output.trim_end_matches('\n');
    Ok(serde_json::from_str(text).unwrap_or_else(|_| json!(text)))
}

async fn all_of(pipe: Option<impl AsyncRead + Unpin>) -> Result<String, String> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        let read = pipe.take(LONGEST + 1).read_to_end(&mut bytes).await;
        read.map_err(|error| error.to_string())?;
    }
    if bytes.len() as u64 > LONGEST {
        return Err(format!("the command printed more than {LONGEST} bytes"));
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
        let of = |given: &[&str]| {
            let given: Vec<String> = given.iter().map(|one| (*one).to_owned()).collect();
            Tools::parse(given.iter()).map(|tools| tools.context())
        };
        for wrong in [&["notify"][..], &["=x"], &["a="], &["a=x", "a=y"]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(of(&[]).unwrap(), None);
        let context = of(&["notify=./notify.sh --to=me"]).unwrap().unwrap();
        assert_eq!(context["caller_tools"][0]["name"], "notify");
        let about = context["caller_tools"][0]["description"].as_str().unwrap();
        assert!(about.contains("./notify.sh --to=me"));
    }
}
