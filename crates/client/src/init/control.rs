//! The control connection, on which the server sends requests.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use oubliette_wire::{
    AckOutput, CloseStdin, Exited, Forget, LineReader, Message, OpenStream, PROTOCOL_VERSION,
    ProcessFault, ProcessFaultKind, Request, ResizeTerminal, RpcError, SignalProcess, Start,
    Started, StreamKind, Supervise, codes, supervisor_methods,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::futures::Notified;

use super::process::{Process, StartError};
use super::process_table::{self, ProcessTable};
use super::server_transport::{Connection, ServerTransport};
use super::{Settings, streams};

/// The id of `supervise`, the only request that the supervisor sends.
const SUPERVISE_ID: u64 = 0;
const READ_BUFFER_BYTES: usize = 8 << 10;

#[derive(Debug)]
pub(super) struct Control<'a> {
    transport: &'a ServerTransport,
    table: &'a Rc<ProcessTable>,
}

impl Control<'_> {
    /// Connects and serves the connection to its end. An error means that the server could not be
    /// reached or did not accept the supervisor.
    pub(super) async fn serve(
        settings: &Settings,
        transport: &ServerTransport,
        table: &Rc<ProcessTable>,
    ) -> io::Result<()> {
        let mut connection = transport.connect().await?;
        let supervise = Supervise {
            container_id: settings.container_id.clone(),
            container_key: settings.container_key.clone(),
            boot_id: table.boot_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: PROTOCOL_VERSION,
            processes: table.reports(),
            gateway: settings.gate_socket.is_some(),
        };
        let request = Message::request(SUPERVISE_ID, supervisor_methods::SUPERVISE, &supervise);
        connection.write_all(&request.to_line()).await?;
        // Exits in the report are not sent again.
        let reported = supervise
            .processes
            .into_iter()
            .filter_map(|report| report.exited)
            .map(|exited| exited.process_id)
            .collect();
        let control = Control { transport, table };
        if control.handle_requests(connection, reported).await {
            Ok(())
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    /// Handles requests until the connection ends; whether the server accepted the supervisor.
    /// `reported` are the processes whose exit the server knows.
    async fn handle_requests(
        &self,
        connection: Box<dyn Connection>,
        mut reported: Vec<String>,
    ) -> bool {
        let mut accepted = false;
        let (mut reader, mut writer) = tokio::io::split(connection);
        let mut lines = LineReader::default();
        let mut buffer = vec![0; READ_BUFFER_BYTES];
        loop {
            // Registered before the exits are read, so that no later exit is missed.
            let ended = self.table.process_ended.notified();
            let mut out = Vec::new();
            for exited in self.unreported_exits(&mut reported) {
                out.extend(Message::notification(supervisor_methods::EXITED, &exited).to_line());
            }
            while let Some(line) = lines.next_line() {
                let Ok(line) = line else { continue };
                let response = (!accepted).then(|| supervise_response(&line)).flatten();
                match response {
                    Some(Err(_)) => return false,
                    Some(Ok(_)) => {}
                    None => out.extend(self.handle_line(&line).iter().flat_map(Message::to_line)),
                }
                accepted = true;
            }
            if !out.is_empty() && writer.write_all(&out).await.is_err() {
                return accepted;
            }
            tokio::select! {
                read = reader.read(&mut buffer) => match read {
                    Ok(0) | Err(_) => return accepted,
                    Ok(read) => lines.push(&buffer[..read]),
                },
                () = self.wait_for_exit(ended) => {}
            }
        }
    }

    fn unreported_exits(&self, reported: &mut Vec<String>) -> Vec<Exited> {
        let all = self.table.all();
        reported.retain(|id| all.iter().any(|process| process.id == *id));
        let new: Vec<Exited> = all
            .iter()
            .filter_map(|process| process.exited())
            .filter(|exited| !reported.contains(&exited.process_id))
            .collect();
        reported.extend(new.iter().map(|exited| exited.process_id.clone()));
        new
    }

    /// Returns when a process has ended, or all output of one that has ended was read.
    async fn wait_for_exit(&self, ended: Notified<'_>) {
        let all = self.table.all();
        let mut draining: Vec<_> = all
            .iter()
            .filter(|process| process.is_draining())
            .map(|process| Box::pin(process.drained()))
            .collect();
        let any_drained = poll_fn(|context| {
            let ready = draining
                .iter_mut()
                .any(|drained| drained.as_mut().poll(context).is_ready());
            if ready {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        tokio::select! {
            () = ended => {}
            () = any_drained => {}
        }
    }

    /// Executes the request of a line and returns the reply, if it needs one.
    fn handle_line(&self, line: &[u8]) -> Option<Message> {
        match Request::parse(line) {
            Ok(request) => {
                let request = request?;
                let outcome = self.execute(&request);
                request.id.map(|id| Message::reply(id, outcome))
            }
            Err(invalid) => Some(invalid.into()),
        }
    }

    fn execute(&self, request: &Request) -> Result<Value, RpcError> {
        match request.method.as_str() {
            supervisor_methods::START => {
                let start: Start = request.params()?;
                let process = self.table.start(&start).map_err(start_error)?;
                let started = Started {
                    pid: process.pid,
                    streams: start.streams.len(),
                };
                for stream in start.streams {
                    self.open_stream(process.clone(), stream);
                }
                serde_json::to_value(started).map_err(internal)
            }
            supervisor_methods::OPEN_STREAM => {
                let stream: OpenStream = request.params()?;
                self.open_stream(self.find(&stream.process_id)?, stream);
                Ok(json!({}))
            }
            supervisor_methods::SIGNAL => {
                let params: SignalProcess = request.params()?;
                let signal = Signal::from_named_raw(params.signal).ok_or_else(|| {
                    let why = format!("unknown signal {}", params.signal);
                    RpcError::new(codes::INVALID_PARAMS, why)
                })?;
                let process = self.find(&params.process_id)?;
                process_table::send_signal(&process, signal, params.tree);
                Ok(json!({}))
            }
            supervisor_methods::ACK => {
                let ack: AckOutput = request.params()?;
                let process = self.find(&ack.process_id)?;
                match ack.kind {
                    StreamKind::Stdout => process.stdout.acknowledge(ack.offset),
                    StreamKind::Stderr => process.stderr.acknowledge(ack.offset),
                    StreamKind::Stdin => {}
                }
                Ok(json!({}))
            }
            supervisor_methods::CLOSE_STDIN => {
                let close: CloseStdin = request.params()?;
                self.find(&close.process_id)?.stdin.close_at(close.at);
                Ok(json!({}))
            }
            supervisor_methods::RESIZE => {
                let resize: ResizeTerminal = request.params()?;
                let process = self.find(&resize.process_id)?;
                process.resize(resize.size).map_err(internal)?;
                Ok(json!({}))
            }
            supervisor_methods::FORGET => {
                let forget: Forget = request.params()?;
                self.table.forget(&forget.process_id);
                Ok(json!({}))
            }
            other => Err(RpcError::new(
                codes::METHOD_NOT_FOUND,
                format!("there is no method `{other}`"),
            )),
        }
    }

    fn find(&self, id: &str) -> Result<Rc<Process>, RpcError> {
        self.table.get(id).ok_or_else(|| {
            start_error(StartError {
                kind: ProcessFaultKind::NoSuchProcess,
                message: format!("there is no process `{id}`"),
            })
        })
    }

    fn open_stream(&self, process: Rc<Process>, request: OpenStream) {
        let transport = self.transport.clone();
        tokio::task::spawn_local(async move {
            streams::transfer(&transport, process, request).await;
        });
    }
}

/// The response to `supervise`; none if the line is another message.
fn supervise_response(line: &[u8]) -> Option<Result<Value, RpcError>> {
    let message: Message = serde_json::from_slice(line).ok()?;
    if message.method.is_some() || message.id != Some(Value::from(SUPERVISE_ID)) {
        return None;
    }
    message.into_outcome()
}

fn start_error(error: StartError) -> RpcError {
    let data = serde_json::to_value(ProcessFault { kind: error.kind }).ok();
    RpcError {
        code: codes::FAILED,
        message: error.message,
        data,
    }
}

fn internal(error: impl std::fmt::Display) -> RpcError {
    RpcError::new(codes::FAILED, error.to_string())
}
