//! Runs a command in a container with a stream as its input and another for its output.
//!
//! The calls are those of `container exec -i`: they carry offsets, so that each can be repeated after the
//! server was restarted.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::super::reconnecting::ReconnectingClient;
use crate::failure::Failure;

const EXEC_OPERATION: &str = "container_exec";
const CALL_WAIT_SECONDS: f64 = 50.0;
/// Maximum input in one call. Each call is one round trip.
const MAX_CHUNK_BYTES: usize = 2 << 20;
/// How much of what a command writes to its stderr is kept, from the end.
const MAX_STDERR_BYTES: usize = 16 << 10;

/// A workspace of a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) project_id: String,
    pub(super) workspace_id: String,
}

/// How a command ended.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) exit_code: Option<i64>,
    /// The end of its stderr.
    pub(super) stderr: String,
}

impl Finished {
    /// An error if the command failed, with its last words.
    pub(super) fn success(&self, what: &str) -> Result<(), Failure> {
        if self.exit_code == Some(0) {
            return Ok(());
        }
        let lines: Vec<&str> = self
            .stderr
            .lines()
            .filter(|line| !line.is_empty())
            .collect();
        let why = match lines.as_slice() {
            [] => format!(
                "the command in the container ended with {:?}",
                self.exit_code
            ),
            lines => lines[lines.len().saturating_sub(3)..].join("; "),
        };
        Err(Failure::new(format!("{what}: {why}")))
    }
}

/// Runs a command: `input` until its end is its standard input, and its output goes to `output`.
pub(super) async fn run(
    client: &ReconnectingClient<'_>,
    place: &Place,
    argv: &[&str],
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
) -> Result<Finished, Failure> {
    let command = RemoteCommand {
        client,
        common: Map::from_iter([
            ("project_id".to_owned(), json!(place.project_id)),
            ("workspace_id".to_owned(), json!(place.workspace_id)),
            ("exec_id".to_owned(), json!(uuid::Uuid::new_v4())),
            ("encoding".to_owned(), json!("base64")),
        ]),
    };
    let start = command.params(json!({ "command": argv, "wait_seconds": 0, "offsets": {} }));
    let started = client.call(EXEC_OPERATION, &start).await?;
    if started.get("running") == Some(&Value::Bool(false)) {
        // It could not be started, and says why.
        return Ok(finished(&started, decoded(&started, "stderr")));
    }
    tokio::select! {
        result = command.receive(output) => result,
        failure = command.send(input) => Err(failure),
    }
}

struct RemoteCommand<'a> {
    client: &'a ReconnectingClient<'a>,
    /// The parameters of every call.
    common: Map<String, Value>,
}

impl RemoteCommand<'_> {
    fn params(&self, specific: Value) -> Map<String, Value> {
        let mut params = self.common.clone();
        if let Value::Object(specific) = specific {
            params.extend(specific);
        }
        params
    }

    /// Writes the output until the command has ended.
    async fn receive(&self, mut output: impl AsyncWrite + Unpin) -> Result<Finished, Failure> {
        let mut offsets = json!({ "stdout": 0, "stderr": 0 });
        let mut stderr = Vec::new();
        loop {
            let call = json!({ "offsets": offsets, "wait_seconds": CALL_WAIT_SECONDS });
            let result = self.client.call(EXEC_OPERATION, &self.params(call)).await?;
            stderr.extend(decoded(&result, "stderr"));
            let excess = stderr.len().saturating_sub(MAX_STDERR_BYTES);
            stderr.drain(..excess);
            let written = output.write_all(&decoded(&result, "stdout")).await;
            // A reader that has gone has failed, and says why itself.
            if written.is_err() {
                self.kill().await;
            }
            if result.get("running") != Some(&Value::Bool(true)) {
                let _ = output.shutdown().await;
                return Ok(finished(&result, stderr));
            }
            offsets = result.get("offsets").cloned().unwrap_or(offsets);
        }
    }

    /// Sends the input; returns only if that fails.
    async fn send(&self, mut input: impl AsyncRead + Unpin) -> Failure {
        let mut offset = 0u64;
        let (mut bytes, mut is_last) = (Vec::new(), false);
        loop {
            while bytes.len() < MAX_CHUNK_BYTES && !is_last {
                bytes.reserve(MAX_CHUNK_BYTES - bytes.len());
                match input.read_buf(&mut bytes).await {
                    Ok(0) => is_last = true,
                    Ok(_) if is_idle(&mut input, &mut bytes).await => break,
                    Ok(_) => {}
                    Err(error) => return Failure::with_cause("cannot read what is sent", &error),
                }
            }
            let call = self.params(json!({
                "stdin": STANDARD.encode(&bytes), "offsets": { "stdin": offset },
                "close_stdin": is_last, "wait_seconds": CALL_WAIT_SECONDS,
            }));
            let result = match self.client.call(EXEC_OPERATION, &call).await {
                Ok(result) => result,
                Err(failure) => return failure,
            };
            let taken = result
                .get("offsets")
                .and_then(|offsets| offsets.get("stdin")?.as_u64())
                .map_or(0, |end| end.saturating_sub(offset));
            offset += taken;
            let taken = usize::try_from(taken)
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            bytes.drain(..taken);
            let is_running = result.get("running") == Some(&Value::Bool(true));
            if (is_last && bytes.is_empty()) || !is_running {
                // `receive` sees the end of the command.
                return std::future::pending().await;
            }
        }
    }

    async fn kill(&self) {
        let call = json!({ "signal": "kill", "offsets": {}, "wait_seconds": 0 });
        let _ = self.client.call(EXEC_OPERATION, &self.params(call)).await;
    }
}

/// Whether nothing more can be read at once; otherwise more was read.
async fn is_idle(input: &mut (impl AsyncRead + Unpin), bytes: &mut Vec<u8>) -> bool {
    let more = std::pin::pin!(input.read_buf(bytes));
    futures_util::FutureExt::now_or_never(more).is_none()
}

fn decoded(result: &Map<String, Value>, name: &str) -> Vec<u8> {
    let text = result.get(name).and_then(Value::as_str).unwrap_or_default();
    STANDARD.decode(text).unwrap_or_default()
}

fn finished(result: &Map<String, Value>, stderr: Vec<u8>) -> Finished {
    Finished {
        exit_code: result.get("exit_code").and_then(Value::as_i64),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    }
}
