//! The gate's control socket: what the server tells the gate, and what the gate tells the server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use oubliette_model::NetworkRules;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::container::Gate;
use crate::gateway;
use crate::lines::{LineReader, write_line};
use crate::questions::{Answer, Question};

/// A registration has a few hundred patterns.
pub(crate) const MAX_CONTROL_LINE_BYTES: usize = 4 << 20;
/// Denials that wait for the server.
const MAX_QUEUED_DENIALS: usize = 256;

/// A container whose connections the gate takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    pub container: String,
    pub project: String,
    /// The directory on the host that the container sees as `/mcp`.
    pub directory: PathBuf,
    pub rules: NetworkRules,
    /// The revision of the project that the rules are of. The server sends no older ones after newer ones.
    #[serde(default)]
    pub version: i64,
}

/// A connection that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    pub container: String,
    pub host: String,
    pub port: u16,
    pub reason: String,
}

/// What a gate is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateStatus {
    pub pid: u32,
    /// Which binary it runs.
    pub build: String,
    pub containers: Vec<String>,
    /// How many connections are open.
    pub streams: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ControlRequest {
    Status,
    /// A name server to use instead of the system's resolver.
    Configure {
        #[serde(default)]
        resolver: Option<SocketAddr>,
    },
    /// Adds a container, or changes its rules.
    Set(Registration),
    Remove {
        container: String,
    },
    /// Removes all other containers.
    Keep {
        containers: Vec<String>,
    },
    /// Sends denials from now on.
    Subscribe,
    /// Sends the open questions now and whenever they change. A server that does not send this gets none.
    SubscribeQuestions,
    Answer {
        question: String,
        answer: Answer,
    },
    /// Makes the connection one about the gateway to models, whose messages are others.
    Gateway,
    Stop {
        /// Not while connections are open.
        only_if_idle: bool,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ControlReply {
    Status(GateStatus),
    Done,
    Failed {
        reason: String,
    },
    /// Not a reply: sent at any time to subscribers.
    Denied(Denial),
    /// The same: all questions that are open.
    Questions(Vec<Question>),
}

/// Serves one connection of a server or command.
pub(crate) async fn serve(gate: Arc<Gate>, stream: UnixStream) {
    let own = rustix::process::geteuid().as_raw();
    let is_permitted = stream
        .peer_cred()
        .is_ok_and(|peer| peer.uid() == own || peer.uid() == 0);
    if !is_permitted {
        return;
    }
    let (reader, mut writer) = stream.into_split();
    let mut requests = LineReader::new(reader, MAX_CONTROL_LINE_BYTES);
    let (sender, mut denials) = mpsc::channel(MAX_QUEUED_DENIALS);
    let mut questions = gate.questions_changed.subscribe();
    let mut sends_questions = false;
    loop {
        let reply = tokio::select! {
            request = requests.next::<ControlRequest>() => match request {
                Ok(Some(ControlRequest::Gateway)) => break,
                Ok(Some(ControlRequest::SubscribeQuestions)) => {
                    sends_questions = true;
                    questions.mark_changed();
                    ControlReply::Done
                }
                Ok(Some(request)) => handle(&gate, request, &sender).await,
                Ok(None) => return,
                // Of a later version: the rest of the stream is still in lines.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => ControlReply::Failed {
                    reason: format!("this gate does not know the request: {error}"),
                },
                Err(_) => return,
            },
            Some(denial) = denials.recv() => ControlReply::Denied(denial),
            Ok(()) = questions.changed(), if sends_questions => {
                ControlReply::Questions(gate.open_questions())
            }
        };
        if write_line(&mut writer, &reply).await.is_err() {
            return;
        }
    }
    gateway::link::serve(&gate, requests, writer).await;
}

async fn handle(
    gate: &Arc<Gate>,
    request: ControlRequest,
    denials: &mpsc::Sender<Denial>,
) -> ControlReply {
    match request {
        // Taken before.
        ControlRequest::Gateway | ControlRequest::SubscribeQuestions => ControlReply::Done,
        ControlRequest::Answer { question, answer } => {
            gate.answer(&question, &answer);
            ControlReply::Done
        }
        ControlRequest::Status => ControlReply::Status(gate.status()),
        ControlRequest::Configure { resolver } => {
            gate.resolver.set_server(resolver);
            ControlReply::Done
        }
        ControlRequest::Set(registration) => match gate.set(registration) {
            Ok(()) => ControlReply::Done,
            Err(error) => ControlReply::Failed {
                reason: error.to_string(),
            },
        },
        ControlRequest::Remove { container } => {
            gate.remove(&container);
            ControlReply::Done
        }
        ControlRequest::Keep { containers } => {
            gate.keep(&containers);
            ControlReply::Done
        }
        ControlRequest::Subscribe => {
            gate.subscribe(denials.clone());
            ControlReply::Done
        }
        ControlRequest::Stop { only_if_idle } => {
            let streams = gate.status().streams;
            if only_if_idle && streams > 0 {
                let reason = format!("{streams} connections are open");
                return ControlReply::Failed { reason };
            }
            gate.stopping.cancel();
            ControlReply::Done
        }
    }
}
