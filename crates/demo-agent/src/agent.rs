//! The agent's side of the protocol: its requests and its open sessions.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

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
use parking_lot::Mutex;
use tokio_util::codec::{FramedRead, LinesCodec};

use crate::journal::Journal;
use crate::output::Output;
use crate::script;
use crate::session::{Mode, Session};
use crate::turn::{SentFiles, Turn};

const MAX_LINE_BYTES: usize = 64 * 1024 * 1024;

/// Serves a client until it closes its side.
pub(crate) async fn serve(
    output: Arc<Output>,
    sink: impl Sink<String, Error = io::Error> + Send + 'static,
) -> Result<(), Error> {
    let lines = LinesCodec::new_with_max_length(MAX_LINE_BYTES);
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
            async move |_: InitializeRequest, responder, _| {
                responder.respond(initialize_response())
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: NewSessionRequest, responder, connection| {
                let session = match creating.create(request, &connection) {
                    Ok(session) => session,
                    Err(error) => return responder.respond_with_error(error),
                };
                let response = NewSessionResponse::new(session.id().clone()).modes(session.modes());
                responder.respond(response)?;
                connection.spawn(send_commands(session))
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
                            let response = LoadSessionResponse::new().modes(session.modes());
                            responder.respond(response)?;
                            send_commands(session).await
                        }
                        Err(error) => responder.respond_with_error(journal_read_error(&error)),
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
                connection.spawn(send_commands(session))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: SetSessionModeRequest, responder, _| {
                let set = switching.find(&request.session_id).and_then(|session| {
                    let mode = Mode::from_name(&request.mode_id.0).ok_or_else(|| {
                        let message = format!(
                            "there is no mode `{}`; use ask, each or auto",
                            request.mode_id.0
                        );
                        Error::new(ErrorCode::INVALID_PARAMS, message)
                    })?;
                    session
                        .set_mode(mode)
                        .map_err(|error| journal_write_error(&error))
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
                let (text, files) = split_prompt(&request.prompt);
                let lines = match script::parse(&text) {
                    Ok(lines) => lines,
                    Err(error) => {
                        let error = Error::new(ErrorCode::INVALID_PARAMS, error.to_string());
                        return responder.respond_with_error(error);
                    }
                };
                let token = match session.start_turn(&text) {
                    Ok(Some(token)) => token,
                    Ok(None) => {
                        let message = "a turn is running in this session; cancel it or wait";
                        let error = Error::new(ErrorCode::INVALID_REQUEST, message);
                        return responder.respond_with_error(error);
                    }
                    Err(error) => return responder.respond_with_error(journal_write_error(&error)),
                };
                connection.spawn(async move {
                    let request_cancelled = responder.cancellation();
                    let cancelled = async {
                        tokio::select! {
                            () = token.cancelled() => {}
                            () = request_cancelled.cancelled() => {}
                        }
                    };
                    let outcome = Turn::new(&session, files).run(&lines, cancelled).await;
                    session.end_turn();
                    responder.respond_with_result(outcome)
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
        let journal = Journal::create(&id).map_err(|error| journal_write_error(&error))?;
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
            io::ErrorKind::NotFound => session_not_found(&id),
            _ => journal_read_error(&error),
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
            .map(stdio_server)
            .collect::<Result<Vec<_>, _>>()?;
        let session = Session::open(
            id.clone(),
            directory,
            servers,
            journal,
            connection.clone(),
            self.output.clone(),
        );
        let session = Arc::new(session.map_err(|error| journal_read_error(&error))?);
        if let Some(previous) = self.open.lock().insert(id, session.clone()) {
            previous.cancel();
        }
        Ok(session)
    }

    fn find(&self, id: &SessionId) -> Result<Arc<Session>, Error> {
        let session = self.open.lock().get(id).cloned();
        session.ok_or_else(|| session_not_found(id))
    }
}

fn initialize_response() -> InitializeResponse {
    let capabilities = AgentCapabilities::new()
        .load_session(true)
        .prompt_capabilities(PromptCapabilities::new().embedded_context(true).image(true))
        .session_capabilities(SessionCapabilities::new().resume(SessionResumeCapabilities::new()));
    let name = Implementation::new("oubliette-demo-agent", env!("CARGO_PKG_VERSION"))
        .title("Demo agent".to_owned());
    InitializeResponse::new(ProtocolVersion::V1)
        .agent_capabilities(capabilities)
        .agent_info(name)
}

/// Sends the list of commands to the client.
async fn send_commands(session: Arc<Session>) -> Result<(), Error> {
    let commands = script::COMMANDS.map(|(name, hint, description)| {
        let input = (!hint.is_empty())
            .then(|| AvailableCommandInput::Unstructured(UnstructuredCommandInput::new(hint)));
        AvailableCommand::new(name, description).input(input)
    });
    let update = AvailableCommandsUpdate::new(commands.to_vec());
    session
        .send(SessionUpdate::AvailableCommandsUpdate(update))
        .await;
    Ok(())
}

/// The text of a prompt, and the number of its other content blocks.
fn split_prompt(prompt: &[ContentBlock]) -> (String, SentFiles) {
    let texts: Vec<&str> = prompt
        .iter()
        .filter_map(|block| match block {
            ContentBlock::Text(text) => Some(text.text.as_str()),
            _ => None,
        })
        .collect();
    let is_image = |block: &&ContentBlock| matches!(block, ContentBlock::Image(_));
    let images = prompt.iter().filter(is_image).count();
    let files = SentFiles {
        attachments: prompt.len() - texts.len() - images,
        images,
    };
    (texts.join("\n"), files)
}

fn stdio_server(server: McpServer) -> Result<McpServerStdio, Error> {
    match server {
        McpServer::Stdio(server) => Ok(server),
        _ => Err(Error::new(
            ErrorCode::INVALID_PARAMS,
            "the demo agent starts MCP servers on stdio only; give one with a command",
        )),
    }
}

fn session_not_found(id: &SessionId) -> Error {
    let message = format!("there is no session `{}`", id.0);
    Error::new(ErrorCode::RESOURCE_NOT_FOUND, message)
}

fn journal_write_error(error: &io::Error) -> Error {
    let message = format!(
        "cannot write the conversation to $HOME/.oubliette-demo: {error}; set HOME to a \
         directory that can be written"
    );
    Error::new(ErrorCode::INTERNAL_ERROR, message)
}

fn journal_read_error(error: &io::Error) -> Error {
    let message = format!("cannot read the conversation in $HOME/.oubliette-demo: {error}");
    Error::new(ErrorCode::INTERNAL_ERROR, message)
}
