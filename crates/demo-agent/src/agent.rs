//! The agent's side of the protocol: which requests it answers, and the sessions they are about.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    AgentCapabilities, AvailableCommand, AvailableCommandInput, AvailableCommandsUpdate,
    CancelNotification, ContentBlock, Implementation, InitializeRequest, InitializeResponse,
    LoadSessionRequest, LoadSessionResponse, McpServer, McpServerStdio, NewSessionRequest,
    NewSessionResponse, PromptCapabilities, PromptRequest, ResumeSessionRequest,
    ResumeSessionResponse, SessionCapabilities, SessionId, SessionResumeCapabilities,
    SessionUpdate, SetSessionModeRequest, SetSessionModeResponse, UnstructuredCommandInput,
};
use agent_client_protocol::{
    Agent, Client, Error, ErrorCode, Lines, on_receive_notification, on_receive_request,
};
use futures_util::{Sink, StreamExt};
use tokio_util::codec::{FramedRead, LinesCodec};

use crate::journal::Journal;
use crate::output::Output;
use crate::script;
use crate::session::{Mode, Session};
use crate::turn::Turn;

/// The longest line a client may send.
const LONGEST_LINE: usize = 64 * 1024 * 1024;

/// Serves a client until it closes its side.
pub(crate) async fn serve(
    output: Arc<Output>,
    sink: impl Sink<String, Error = io::Error> + Send + 'static,
) -> Result<(), Error> {
    let lines = LinesCodec::new_with_max_length(LONGEST_LINE);
    let input =
        FramedRead::new(tokio::io::stdin(), lines).map(|line| line.map_err(io::Error::other));
    let sessions = Arc::new(Sessions {
        output,
        open: Mutex::default(),
    });
    let (creating, loading, resuming) = (sessions.clone(), sessions.clone(), sessions.clone());
    let (switching, prompting, cancelling) = (sessions.clone(), sessions.clone(), sessions);
    Agent
        .v1()
        .name("oubliette-demo-agent")
        .on_receive_request(
            async move |_: InitializeRequest, responder, _| responder.respond(introduction()),
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: NewSessionRequest, responder, connection| {
                let session = match creating.create(request, &connection) {
                    Ok(session) => session,
                    Err(error) => return responder.respond_with_error(error),
                };
                let answer = NewSessionResponse::new(session.id().clone()).modes(session.modes());
                responder.respond(answer)?;
                connection.spawn(announce(session))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: LoadSessionRequest, responder, connection| {
                let LoadSessionRequest {
                    session_id,
                    cwd,
                    mcp_servers,
                    ..
                } = request;
                let session = match loading.reopen(session_id, cwd, mcp_servers, &connection) {
                    Ok(session) => session,
                    Err(error) => return responder.respond_with_error(error),
                };
                connection.spawn(async move {
                    match session.replay().await {
                        Ok(()) => {
                            let answer = LoadSessionResponse::new().modes(session.modes());
                            responder.respond(answer)?;
                            announce(session).await
                        }
                        Err(error) => responder.respond_with_error(unreadable(&error)),
                    }
                })
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: ResumeSessionRequest, responder, connection| {
                let ResumeSessionRequest {
                    session_id,
                    cwd,
                    mcp_servers,
                    ..
                } = request;
                let session = match resuming.reopen(session_id, cwd, mcp_servers, &connection) {
                    Ok(session) => session,
                    Err(error) => return responder.respond_with_error(error),
                };
                responder.respond(ResumeSessionResponse::new().modes(session.modes()))?;
                connection.spawn(announce(session))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: SetSessionModeRequest, responder, _| {
                let set = switching.find(&request.session_id).and_then(|session| {
                    let mode = Mode::named(&request.mode_id.0).ok_or_else(|| {
                        let message = format!(
                            "there is no mode `{}`; use ask, each or auto",
                            request.mode_id.0
                        );
                        Error::new(ErrorCode::INVALID_PARAMS, message)
                    })?;
                    session.set_mode(mode).map_err(|error| unwritable(&error))
                });
                responder.respond_with_result(set.map(|()| SetSessionModeResponse::new()))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: PromptRequest, responder, connection| {
                let session = match prompting.find(&request.session_id) {
                    Ok(session) => session,
                    Err(error) => return responder.respond_with_error(error),
                };
                let (text, attachments) = read(&request.prompt);
                let lines = match script::parse(&text) {
                    Ok(lines) => lines,
                    Err(mistake) => {
                        let error = Error::new(ErrorCode::INVALID_PARAMS, mistake.to_string());
                        return responder.respond_with_error(error);
                    }
                };
                let token = match session.begin(&text) {
                    Ok(Some(token)) => token,
                    Ok(None) => {
                        let message = "a turn is running in this session; cancel it or wait";
                        let error = Error::new(ErrorCode::INVALID_REQUEST, message);
                        return responder.respond_with_error(error);
                    }
                    Err(error) => return responder.respond_with_error(unwritable(&error)),
                };
                connection.spawn(async move {
                    let withdrawn = responder.cancellation();
                    let cancelled = async {
                        tokio::select! {
                            () = token.cancelled() => {}
                            () = withdrawn.cancelled() => {}
                        }
                    };
                    let ended = Turn::new(&session, attachments)
                        .run(&lines, cancelled)
                        .await;
                    session.end();
                    responder.respond_with_result(ended)
                })
            },
            on_receive_request!(),
        )
        .on_receive_notification(
            async move |notification: CancelNotification, _| {
                if let Ok(session) = cancelling.find(&notification.session_id) {
                    session.cancel();
                }
                Ok(())
            },
            on_receive_notification!(),
        )
        .connect_to(Lines::new(sink, input))
        .await
}

struct Sessions {
    output: Arc<Output>,
    open: Mutex<HashMap<SessionId, Arc<Session>>>,
}

impl Sessions {
    fn create(
        &self,
        request: NewSessionRequest,
        connection: &ConnectionTo<Client>,
    ) -> Result<Arc<Session>, Error> {
        let id = uuid::Uuid::now_v7().simple().to_string();
        let journal = Journal::create(&id).map_err(|error| unwritable(&error))?;
        let id = SessionId::new(id);
        self.open(id, request.cwd, request.mcp_servers, journal, connection)
    }

    fn reopen(
        &self,
        id: SessionId,
        directory: PathBuf,
        servers: Vec<McpServer>,
        connection: &ConnectionTo<Client>,
    ) -> Result<Arc<Session>, Error> {
        let journal = Journal::open(&id.0).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => unknown(&id),
            _ => unreadable(&error),
        })?;
        self.open(id, directory, servers, journal, connection)
    }

    fn open(
        &self,
        id: SessionId,
        directory: PathBuf,
        servers: Vec<McpServer>,
        journal: Journal,
        connection: &ConnectionTo<Client>,
    ) -> Result<Arc<Session>, Error> {
        if !directory.is_dir() {
            let message = format!("{} is not a directory", directory.display());
            return Err(Error::new(ErrorCode::INVALID_PARAMS, message));
        }
        let servers = servers
            .into_iter()
            .map(stdio)
            .collect::<Result<Vec<_>, _>>()?;
        let session = Session::open(
            id.clone(),
            directory,
            servers,
            journal,
            connection.clone(),
            self.output.clone(),
        );
        let session = Arc::new(session.map_err(|error| unreadable(&error))?);
        if let Some(before) = self.sessions().insert(id, session.clone()) {
            before.cancel();
        }
        Ok(session)
    }

    fn find(&self, id: &SessionId) -> Result<Arc<Session>, Error> {
        self.sessions().get(id).cloned().ok_or_else(|| unknown(id))
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn introduction() -> InitializeResponse {
    let capabilities = AgentCapabilities::new()
        .load_session(true)
        .prompt_capabilities(PromptCapabilities::new().embedded_context(true))
        .session_capabilities(SessionCapabilities::new().resume(SessionResumeCapabilities::new()));
    let name = Implementation::new("oubliette-demo-agent", env!("CARGO_PKG_VERSION"))
        .title("Demo agent".to_owned());
    InitializeResponse::new(ProtocolVersion::V1)
        .agent_capabilities(capabilities)
        .agent_info(name)
}

/// Tells the client which commands there are.
async fn announce(session: Arc<Session>) -> Result<(), Error> {
    let commands = script::COMMANDS.map(|(name, hint, about)| {
        let input = (!hint.is_empty())
            .then(|| AvailableCommandInput::Unstructured(UnstructuredCommandInput::new(hint)));
        AvailableCommand::new(name, about).input(input)
    });
    let update = AvailableCommandsUpdate::new(commands.to_vec());
    session
        .send(SessionUpdate::AvailableCommandsUpdate(update))
        .await;
    Ok(())
}

/// The text of a prompt, and how many other things it holds.
fn read(prompt: &[ContentBlock]) -> (String, usize) {
    let texts: Vec<&str> = prompt
        .iter()
        .filter_map(|block| match block {
            ContentBlock::Text(text) => Some(text.text.as_str()),
            _ => None,
        })
        .collect();
    (texts.join("\n"), prompt.len() - texts.len())
}

fn stdio(server: McpServer) -> Result<McpServerStdio, Error> {
    match server {
        McpServer::Stdio(server) => Ok(server),
        _ => Err(Error::new(
            ErrorCode::INVALID_PARAMS,
            "the demo agent starts MCP servers on stdio only; give one with a command",
        )),
    }
}

fn unknown(id: &SessionId) -> Error {
    let message = format!("there is no session `{}`", id.0);
    Error::new(ErrorCode::RESOURCE_NOT_FOUND, message)
}

fn unwritable(error: &io::Error) -> Error {
    let message = format!(
        "the conversation cannot be kept in $HOME/.oubliette-demo: {error}; set HOME to a \
         directory that can be written"
    );
    Error::new(ErrorCode::INTERNAL_ERROR, message)
}

fn unreadable(error: &io::Error) -> Error {
    let message = format!("the conversation in $HOME/.oubliette-demo cannot be read: {error}");
    Error::new(ErrorCode::INTERNAL_ERROR, message)
}
