//! Unnamed commands whose server died while it waited for them. They run on to their end or their time
//! limit; then `container_logs` shows their output.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use oubliette_model::ProjectId;
use oubliette_runtime::ContainerId;
use oubliette_store::Exec;
use oubliette_wire::ProcessReport;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::command::{self, AwaitedGuard, Command, Finished, MAX_COMMAND_SPOOL_BYTES};
use super::exec::{MAX_TIMEOUT_SECONDS, exit_code};
use super::process::ProcessSpec;
use super::{Containers, SupervisorLink, UNNAMED_PREFIX};
use crate::{EngineError, Result};

/// How many commands of one container are followed; further ones are killed.
const MAX_UNATTENDED_COMMANDS: usize = 128;
/// How much of each stream is kept.
const MAX_KEPT_BYTES: usize = 256 << 10;
/// How many of the last commands `container_logs` shows.
const MAX_SHOWN_COMMANDS: u32 = 20;
/// For reading the output of a command that has exited.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(60);

/// The process id of an unnamed command: what another server must know to go on with it.
#[derive(Debug, PartialEq)]
pub(super) struct UnnamedId {
    deadline: Timestamp,
    /// The size of its whole input.
    input_bytes: u64,
    unique: Uuid,
}

impl UnnamedId {
    pub(super) fn new(now: Timestamp, timeout: Duration, input_bytes: u64) -> Self {
        let timeout = SignedDuration::try_from(timeout).unwrap_or(SignedDuration::ZERO);
        Self {
            deadline: now.checked_add(timeout).unwrap_or(now),
            input_bytes,
            unique: Uuid::new_v4(),
        }
    }

    /// None for a command of the server itself, or of a server that gave no such ids.
    fn parse(process_id: &str) -> Option<Self> {
        let mut parts = process_id.strip_prefix(UNNAMED_PREFIX)?.split(' ');
        let (deadline, input, unique) = (parts.next()?, parts.next()?, parts.next()?);
        let id = Self {
            deadline: Timestamp::from_millisecond(deadline.parse().ok()?).ok()?,
            input_bytes: input.parse().ok()?,
            unique: unique.parse().ok()?,
        };
        parts.next().is_none().then_some(id)
    }
}

impl fmt::Display for UnnamedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deadline = self.deadline.as_millisecond();
        let (input, unique) = (self.input_bytes, self.unique);
        write!(f, "{UNNAMED_PREFIX}{deadline} {input} {unique}")
    }
}

/// A command that an earlier server started, and that this one follows to its end.
#[derive(Debug)]
pub(super) struct UnattendedCommand {
    id: UnnamedId,
    report: ProcessReport,
    awaited: AwaitedGuard,
}

/// What is kept of a command.
#[derive(Debug, Serialize, Deserialize)]
struct KeptOutput {
    ended_at: String,
    exit_code: Option<i32>,
    timed_out: bool,
    /// The command was killed because the server died before it had sent the whole input.
    input_lost: bool,
    truncated: bool,
    stdout: String,
    stderr: String,
}

impl Containers<'_> {
    /// Divides reported commands that no call waits for into those to follow and those to kill: those
    /// of the server itself, and those of a version that gave them no time limit.
    pub(super) fn find_unattended(
        self,
        reports: &[ProcessReport],
    ) -> (Vec<UnattendedCommand>, Vec<ProcessReport>) {
        let (mut followed, mut killed) = (Vec::new(), Vec::new());
        let unnamed = reports
            .iter()
            .filter(|report| report.process_id.starts_with(UNNAMED_PREFIX));
        for report in unnamed {
            let Some(awaited) = AwaitedGuard::try_new(self.state(), &report.process_id) else {
                continue;
            };
            match UnnamedId::parse(&report.process_id) {
                Some(id) if followed.len() < MAX_UNATTENDED_COMMANDS => {
                    followed.push(UnattendedCommand {
                        id,
                        report: report.clone(),
                        awaited,
                    });
                }
                _ => killed.push(report.clone()),
            }
        }
        (followed, killed)
    }

    /// Follows commands in tasks of their own.
    pub(super) fn follow_unattended(
        self,
        link: &Arc<SupervisorLink>,
        commands: Vec<UnattendedCommand>,
    ) {
        for command in commands {
            let (engine, link) = (self.engine.clone(), link.clone());
            self.engine.spawn(async move {
                let container = link.container().clone();
                let following = engine.containers().follow_to_end(link, command);
                tokio::select! {
                    followed = following => if let Err(error) = followed {
                        tracing::warn!(%container, %error, "lost a command of an earlier server");
                    },
                    () = engine.stopping() => {}
                }
            });
        }
    }

    async fn follow_to_end(
        self,
        link: Arc<SupervisorLink>,
        command: UnattendedCommand,
    ) -> Result<()> {
        let UnattendedCommand {
            id,
            report,
            awaited: _awaited,
        } = command;
        let (state, container) = (self.state(), link.container().clone());
        let _in_use = state.mark_in_use(&container);
        let has_exited = report.exited.is_some();
        let input_lost = !has_exited && report.stdin_received < id.input_bytes;
        let timeout = if has_exited {
            COLLECT_TIMEOUT
        } else if input_lost {
            // It waits for input that died with its server.
            Duration::ZERO
        } else {
            self.time_until(id.deadline)
        };
        let boot_id = link.boot_id().to_owned();
        let process_id = report.process_id;
        let command = Command {
            // Without a program: it finds the process, and never starts another.
            process: ProcessSpec {
                process_id: process_id.clone(),
                argv: Vec::new(),
                env: Default::default(),
                cwd: "/".to_owned(),
                terminal: None,
                max_spool_bytes: MAX_COMMAND_SPOOL_BYTES,
                isolated: false,
            },
            stdin: Vec::new(),
        };
        let never = std::future::pending();
        let finished = command::run(state, link, &command, timeout, never).await?;
        let stored = self.engine.store().container(container.as_str()).await?;
        if let Some(stored) = stored {
            let exec = Exec {
                project_id: stored.project_id,
                exec_id: format!("{}{}", kept_prefix(&container), id.unique),
                boot_id,
                started_at: self.engine.now(),
                command_hash: None,
                result: None,
            };
            let kept = kept_output(finished, input_lost, self.engine.now());
            let result = serde_json::to_string(&kept).map_err(EngineError::fault)?;
            let store = self.engine.store();
            store.add_exec(&exec, None).await?;
            let (project, exec_id) = (exec.project_id, &exec.exec_id);
            store.set_exec_result(project, exec_id, &result).await?;
        }
        // After the output is stored: until then only the supervisor has it.
        state.forget_process(&container, &process_id).await;
        Ok(())
    }

    fn time_until(self, deadline: Timestamp) -> Duration {
        let left = deadline.duration_since(self.engine.now());
        let max = Duration::from_secs_f64(MAX_TIMEOUT_SECONDS);
        Duration::try_from(left).unwrap_or(Duration::ZERO).min(max)
    }

    /// The output of the last commands of a container that outlived a server, as lines of a log.
    pub(super) async fn unattended_log(
        self,
        project: ProjectId,
        container: &ContainerId,
    ) -> Result<String> {
        let prefix = kept_prefix(container);
        let store = self.engine.store();
        let newest = store
            .finished_execs(project, &prefix, MAX_SHOWN_COMMANDS)
            .await?;
        let mut log = String::new();
        for exec in newest.iter().rev() {
            let kept = exec
                .result
                .as_deref()
                .map(serde_json::from_str::<KeptOutput>);
            if let Some(Ok(kept)) = kept {
                kept.append_to(&mut log);
            }
        }
        Ok(log)
    }
}

/// The prefix under which the outputs of a container's commands are stored. No `exec_id` has a space.
fn kept_prefix(container: &ContainerId) -> String {
    format!("output {container} ")
}

fn kept_output(finished: Finished, input_lost: bool, now: Timestamp) -> KeptOutput {
    let mut truncated = finished.truncated;
    let mut text = |bytes: &[u8]| {
        truncated |= bytes.len() > MAX_KEPT_BYTES;
        String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_KEPT_BYTES)]).into_owned()
    };
    let (stdout, stderr) = (text(&finished.stdout), text(&finished.stderr));
    KeptOutput {
        ended_at: now.to_string(),
        exit_code: finished.ended.map(exit_code),
        timed_out: finished.timed_out && !input_lost,
        input_lost,
        truncated,
        stdout,
        stderr,
    }
}

impl KeptOutput {
    fn append_to(&self, log: &mut String) {
        let how = match self.exit_code {
            _ if self.input_lost => "was killed, because its input was lost".to_owned(),
            _ if self.timed_out => "was killed at its time limit".to_owned(),
            Some(code) => format!("ended with exit code {code}"),
            None => "ended".to_owned(),
        };
        let truncated = if self.truncated { ", truncated" } else { "" };
        let at = &self.ended_at;
        log.push_str(&format!(
            "[oubliette] a command {how} after its server had ended ({at}); its output{truncated}:\n"
        ));
        for text in [&self.stdout, &self.stderr] {
            log.push_str(text);
            if !text.is_empty() && !text.ends_with('\n') {
                log.push('\n');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_carries_the_deadline_and_the_size_of_the_input() {
        let now = Timestamp::from_millisecond(1_000_000).unwrap();
        let id = UnnamedId::new(now, Duration::from_millis(2500), 7);
        assert_eq!(id.deadline, Timestamp::from_millisecond(1_002_500).unwrap());
        assert_eq!(UnnamedId::parse(&id.to_string()), Some(id));
    }

    #[test]
    fn ids_of_other_commands_are_none() {
        let unique = Uuid::new_v4();
        for other in [
            format!("exec {unique}"),
            format!("exec x 1 {unique}"),
            format!("exec 1 -1 {unique}"),
            format!("exec 1 1 {unique} more"),
            format!("exec {} 1 {unique}", i64::MAX),
            format!("named 1 1 {unique}"),
        ] {
            assert_eq!(UnnamedId::parse(&other), None, "{other}");
        }
    }
}
