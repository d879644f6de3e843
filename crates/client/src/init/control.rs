//! The connection on which the server asks.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use oubliette_wire::{
    Ack, CloseStdin, Exited, Fault, FaultKind, Forget, LineReader, Message, OpenStream, PROTOCOL,
    RpcError, Start, Started, StreamKind, Supervise, TerminalResize, ToSignal, codes, methods,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::futures::Notified;

use super::process::{Process, StartFault};
use super::table::{self, Table};
use super::way::{Connection, Way};
use super::{Settings, streams};

/// The id of the first request on a connection, the only one that is ours.
const INTRODUCTION: u64 = 0;

#[derive(Debug)]
pub(super) struct Control<'a> {
    way: &'a Way,
    table: &'a Rc<Table>,
}

impl Control<'_> {
    /// Serves one connection to its end. An error means that it never came to be.
    pub(super) async fn serve(settings: &Settings, way: &Way, table: &Rc<Table>) -> io::Result<()> {
        let mut connection = way.dial().await?;
        let supervise = Supervise {
            container_id: settings.container_id.clone(),
            container_key: settings.container_key.clone(),
            boot_id: table.boot_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: PROTOCOL,
            processes: table.reports(),
        };
        connection
            .write_all(&Message::request(INTRODUCTION, methods::SUPERVISE, &supervise).line())
            .await?;
        // Exits that were in the report are known; only those after it are told.
        let told = supervise
            .processes
            .into_iter()
            .filter_map(|report| report.exited);
        let told = told.map(|exited| exited.process_id).collect();
        match (Control { way, table }).answer(connection, told).await {
            true => Ok(()),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Whether the server greeted us.
    async fn answer(&self, connection: Box<dyn Connection>, mut told: Vec<String>) -> bool {
        let mut greeted = false;
        let (mut reader, mut writer) = tokio::io::split(connection);
        let mut lines = LineReader::default();
        let mut chunk = vec![0; 8 << 10];
        loop {
            // Before the look, so that what ends after it is heard of.
            let ended = self.table.ended.notified();
            // Exits that became complete since the last look.
            let mut out = Vec::new();
            for exited in self.news(&mut told) {
                out.extend(Message::notification(methods::EXITED, &exited).line());
            }
            while let Some(line) = lines.next_line() {
                let Ok(line) = line else { continue };
                let about_us = (!greeted).then(|| answer_to_introduction(&line)).flatten();
                match about_us {
                    Some(Err(_)) => return false,
                    Some(Ok(_)) => {}
                    None => out.extend(self.handle(&line).iter().flat_map(Message::line)),
                }
                greeted = true;
            }
            if !out.is_empty() && writer.write_all(&out).await.is_err() {
                return greeted;
            }
            tokio::select! {
                read = reader.read(&mut chunk) => match read {
                    Ok(0) | Err(_) => return greeted,
                    Ok(read) => lines.push(&chunk[..read]),
                },
                () = self.something_ended(ended) => {}
            }
        }
    }

    fn news(&self, told: &mut Vec<String>) -> Vec<Exited> {
        let all = self.table.all();
        told.retain(|id| all.iter().any(|process| process.id == *id));
        let new: Vec<Exited> = all
            .iter()
            .filter_map(|process| process.exited())
            .filter(|exited| !told.contains(&exited.process_id))
            .collect();
        told.extend(new.iter().map(|exited| exited.process_id.clone()));
        new
    }

    /// Returns when a process has ended, or the output of one that has ended is complete.
    async fn something_ended(&self, ended: Notified<'_>) {
        let all = self.table.all();
        let mut draining: Vec<_> = all
            .iter()
            .filter(|process| process.is_draining())
            .map(|process| Box::pin(process.drained()))
            .collect();
        let any_drained = poll_fn(|context| {
            let ready = draining
                .iter_mut()
                .any(|one| one.as_mut().poll(context).is_ready());
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

    /// Does what a line asks; the reply, if it wants one.
    fn handle(&self, line: &[u8]) -> Option<Message> {
        let message = match Message::parse(line) {
            Ok(message) => message,
            Err(answer) => return Some(*answer),
        };
        let method = message.method.as_deref()?;
        let outcome = self.perform(method, &message);
        message.id.clone().map(|id| Message::reply(id, outcome))
    }

    fn perform(&self, method: &str, message: &Message) -> Result<Value, RpcError> {
        match method {
            methods::START => {
                let start: Start = message.params()?;
                let process = self.table.start(&start).map_err(fault)?;
                let started = Started {
                    pid: process.pid,
                    streams: start.streams.len(),
                };
                start
                    .streams
                    .into_iter()
                    .for_each(|asked| self.open(process.clone(), asked));
                serde_json::to_value(started).map_err(internal)
            }
            methods::OPEN_STREAM => {
                let asked: OpenStream = message.params()?;
                self.open(self.find(&asked.process_id)?, asked);
                Ok(json!({}))
            }
            methods::SIGNAL => {
                let to: ToSignal = message.params()?;
                let signal = Signal::from_named_raw(to.signal)
                    .ok_or_else(|| RpcError::new(codes::PARAMS, "there is no such signal"))?;
                table::send(&*self.find(&to.process_id)?, signal, to.tree);
                Ok(json!({}))
            }
            methods::ACK => {
                let ack: Ack = message.params()?;
                let process = self.find(&ack.process_id)?;
                match ack.kind {
                    StreamKind::Stdout => process.stdout.acknowledge(ack.offset),
                    StreamKind::Stderr => process.stderr.acknowledge(ack.offset),
                    StreamKind::Stdin => {}
                }
                Ok(json!({}))
            }
            methods::CLOSE_STDIN => {
                let close: CloseStdin = message.params()?;
                self.find(&close.process_id)?.stdin.close_at(close.at);
                Ok(json!({}))
            }
            methods::RESIZE => {
                let resize: TerminalResize = message.params()?;
                let process = self.find(&resize.process_id)?;
                process.resize(resize.size).map_err(internal)?;
                Ok(json!({}))
            }
            methods::FORGET => {
                let forget: Forget = message.params()?;
                self.table.forget(&forget.process_id);
                Ok(json!({}))
            }
            other => Err(RpcError::new(
                codes::METHOD,
                format!("there is no method `{other}`"),
            )),
        }
    }

    fn find(&self, id: &str) -> Result<Rc<Process>, RpcError> {
        self.table.get(id).ok_or_else(|| {
            let why = format!("no process `{id}` is looked after");
            fault(StartFault {
                kind: FaultKind::NoSuchProcess,
                why,
            })
        })
    }

    fn open(&self, process: Rc<Process>, asked: OpenStream) {
        let way = self.way.clone();
        tokio::task::spawn_local(async move { streams::carry(&way, process, asked).await });
    }
}

/// What the server says about who we are, if that is what a line is.
fn answer_to_introduction(line: &[u8]) -> Option<Result<Value, RpcError>> {
    let message: Message = serde_json::from_slice(line).ok()?;
    if message.method.is_some() || message.id != Some(Value::from(INTRODUCTION)) {
        return None;
    }
    message.error.map(Err).or(message.result.map(Ok))
}

fn fault(fault: StartFault) -> RpcError {
    let data = serde_json::to_value(Fault { kind: fault.kind }).ok();
    RpcError {
        code: codes::FAILED,
        message: fault.why,
        data,
    }
}

fn internal(error: impl std::fmt::Display) -> RpcError {
    RpcError::new(codes::FAILED, error.to_string())
}
