//! Checks that an installed agent starts: it must answer the first request of the Agent Client Protocol.
//! One that opens a session without signing in says which models it offers.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use oubliette_agent::{Agent, offered_models};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

/// Longer than a cold start takes on a slow disk.
const START_TIMEOUT: Duration = Duration::from_secs(90);
/// An agent that is not signed in may not answer the request for a session.
const SESSION_TIMEOUT: Duration = Duration::from_secs(20);
const MAX_LINE_BYTES: u64 = 1 << 20;
const MAX_STDERR_BYTES: i64 = 600;

/// Starts a program as an agent, in a home of its own: the models that it offers, if it says so; the
/// reason if it does not answer.
pub(super) fn check(program: &Path, agent: &Agent) -> Result<Vec<String>, String> {
    check_within(program, agent, START_TIMEOUT)
}

fn check_within(program: &Path, agent: &Agent, limit: Duration) -> Result<Vec<String>, String> {
    let failed = |error: io::Error| format!("it cannot be run: {error}");
    let home = tempfile::tempdir().map_err(failed)?;
    let mut stderr = tempfile::tempfile().map_err(failed)?;
    let child = Command::new(program)
        .args(agent.argv.iter().skip(1))
        .envs(&agent.env)
        .env("HOME", home.path())
        .current_dir(home.path())
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(stderr.try_clone().map_err(failed)?)
        .spawn()
        .map_err(failed)?;
    let mut process = Process(child);
    let answer = process.ask_models(home.path(), limit);
    drop(process);
    answer.map_err(|reason| match tail(&mut stderr) {
        said if said.is_empty() => reason,
        said => format!("{reason}; it printed: {said}"),
    })
}

/// A process that ends with all that it started.
struct Process(Child);

impl Process {
    fn ask_models(&mut self, home: &Path, limit: Duration) -> Result<Vec<String>, String> {
        let (Some(mut stdin), Some(stdout)) = (self.0.stdin.take(), self.0.stdout.take()) else {
            return Err("it has no standard input and output".to_owned());
        };
        let (sender, lines) = sync_channel(1);
        std::thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            loop {
                let mut line = Vec::new();
                let read = (&mut stdout)
                    .take(MAX_LINE_BYTES)
                    .read_until(b'\n', &mut line);
                if !read.is_ok_and(|read| read > 0) || sender.send(line).is_err() {
                    return;
                }
            }
        });
        let params = json!({ "protocolVersion": 1, "clientCapabilities": {} });
        ask(&mut stdin, &lines, "initialize", &params, limit)?;
        let params = json!({ "cwd": home, "mcpServers": [] });
        let limit = limit.min(SESSION_TIMEOUT);
        let opened = ask(&mut stdin, &lines, "session/new", &params, limit).unwrap_or_default();
        Ok(offered_models(&opened))
    }
}

/// The result of a request, whose id is its method.
fn ask(
    stdin: &mut impl Write,
    lines: &Receiver<Vec<u8>>,
    method: &str,
    params: &Value,
    limit: Duration,
) -> Result<Value, String> {
    let deadline = Instant::now() + limit;
    let request = json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": params });
    // An agent that has ended already is noticed below.
    let _ = writeln!(stdin, "{request}");
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = match lines.recv_timeout(left) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!("it did not answer within {limit:?}"));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err("it ended without an answer".to_owned());
            }
        };
        let mut message: Value = serde_json::from_slice(&line).unwrap_or_default();
        if message["id"] == method && message["result"].is_object() {
            return Ok(message["result"].take());
        }
        if message["id"] == method && message["error"].is_object() {
            return Err(format!("it answered with the error {}", message["error"]));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.0.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// The end of what a program printed, in one line.
fn tail(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let _ = file
        .seek(SeekFrom::End(-MAX_STDERR_BYTES))
        .or_else(|_| file.seek(SeekFrom::Start(0)));
    let _ = file.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn check_script(script: &str, limit: Duration) -> Result<Vec<String>, String> {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("agent");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        check_within(&program, &Agent::from_command("x", Vec::new()), limit)
    }

    #[test]
    fn an_agent_that_answers_has_started_and_may_say_its_models() {
        let start =
            "read line; echo starting; echo '{\"id\":\"initialize\",\"result\":{}}'; read line";
        let answers = [
            (
                r#""result":{"models":{"availableModels":[{"modelId":"a"}]}}"#,
                vec!["a".to_owned()],
            ),
            (r#""error":{"code":-32000,"message":"sign in"}"#, vec![]),
        ];
        for (answer, models) in answers {
            let script =
                format!("{start}; echo '{{\"id\":\"session/new\",{answer}}}'; exec sleep 600");
            assert_eq!(check_script(&script, START_TIMEOUT), Ok(models));
        }
        // One that does not answer the second request has started too, and so has one that ends.
        let silent = format!("{start}; exec sleep 600");
        assert_eq!(check_script(&silent, Duration::from_secs(1)), Ok(vec![]));
        assert_eq!(check_script(start, START_TIMEOUT), Ok(vec![]));
    }

    #[test]
    fn one_that_does_not_start_is_reported_with_what_it_printed() {
        let reason = check_script("echo no node here >&2; exit 127", START_TIMEOUT).unwrap_err();
        assert_eq!(
            reason,
            "it ended without an answer; it printed: no node here"
        );
        let reason = check_script("exec sleep 600", Duration::from_millis(200)).unwrap_err();
        assert_eq!(reason, "it did not answer within 200ms");
        let error =
            "read line; echo '{\"id\":\"initialize\",\"error\":{\"code\":1}}'; exec sleep 600";
        let reason = check_script(error, START_TIMEOUT).unwrap_err();
        assert!(reason.contains("the error {\"code\":1}"), "{reason}");
    }
}
