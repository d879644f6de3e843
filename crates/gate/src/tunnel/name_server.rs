//! The resolver of a container. A name that rules allow gets an address of the container itself; nothing is looked
//! up outside before a program connects, so that questions carry nothing out.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use oubliette_model::Host;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Tunnel, listeners};
use crate::dns::{Code, Question, TYPE_A};
use crate::protocol::RefusalKind;

/// A program asks again after this time; the address stays the same.
const TTL_SECONDS: u32 = 60;
const MAX_QUERY_BYTES: usize = 512;
/// Questions by datagram that are being answered; others get lost, and programs repeat them.
const MAX_PENDING_QUESTIONS: usize = 256;
const MAX_STREAMS: usize = 32;
const STREAM_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a refused name is remembered: programs ask for several kinds of addresses, and ask again.
const REFUSAL_LIFETIME: Duration = Duration::from_secs(2);
/// For the gate to say whether a name that has an address may still be reached.
const KNOWN_NAME_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_REMEMBERED_REFUSALS: usize = 1024;
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

struct NameServer {
    tunnel: Rc<Tunnel>,
    refused: RefCell<HashMap<String, Instant>>,
}

/// Answers questions on these sockets.
pub(super) fn start(
    tunnel: &Rc<Tunnel>,
    datagrams: Vec<std::net::UdpSocket>,
    streams: Vec<std::net::TcpListener>,
) -> io::Result<()> {
    let server = Rc::new(NameServer {
        tunnel: tunnel.clone(),
        refused: RefCell::default(),
    });
    for socket in datagrams {
        let socket = Rc::new(UdpSocket::from_std(socket)?);
        tokio::task::spawn_local(serve_datagrams(server.clone(), socket));
    }
    for listener in streams {
        let listener = TcpListener::from_std(listener)?;
        tokio::task::spawn_local(serve_streams(server.clone(), listener));
    }
    Ok(())
}

async fn serve_datagrams(server: Rc<NameServer>, socket: Rc<UdpSocket>) {
    let places = Rc::new(Semaphore::new(MAX_PENDING_QUESTIONS));
    let mut buffer = [0; MAX_QUERY_BYTES];
    loop {
        let Ok((read, peer)) = socket.recv_from(&mut buffer).await else {
            tokio::time::sleep(RETRY_INTERVAL).await;
            continue;
        };
        let query = buffer[..read].to_vec();
        let (server, socket) = (server.clone(), socket.clone());
        listeners::run_bounded(&places, async move {
            if let Some(reply) = server.answer(&query).await {
                let _ = socket.send_to(&reply, peer).await;
            }
        });
    }
}

async fn serve_streams(server: Rc<NameServer>, listener: TcpListener) {
    let places = Rc::new(Semaphore::new(MAX_STREAMS));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let server = server.clone();
                listeners::run_bounded(&places, async move {
                    let _ = timeout(STREAM_TIMEOUT, server.serve_stream(stream)).await;
                });
            }
            Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
        }
    }
}

impl NameServer {
    async fn serve_stream(&self, mut stream: TcpStream) -> io::Result<()> {
        loop {
            let length = usize::from(stream.read_u16().await?);
            if length > MAX_QUERY_BYTES {
                return Ok(());
            }
            let mut query = vec![0; length];
            stream.read_exact(&mut query).await?;
            let Some(reply) = self.answer(&query).await else {
                return Ok(());
            };
            stream
                .write_u16(u16::try_from(reply.len()).unwrap_or_default())
                .await?;
            stream.write_all(&reply).await?;
        }
    }

    async fn answer(&self, query: &[u8]) -> Option<Vec<u8>> {
        let question = Question::parse(query)?;
        let found = match question.host() {
            Some(Host::Name(name)) => self.find(&name).await,
            // `localhost`.
            Some(Host::Address(_)) => Ok(Ipv4Addr::LOCALHOST),
            None => Err(Code::NoSuchName),
        };
        match found {
            // Only IPv4 has addresses inside; the name has no other records.
            Ok(address) if question.kind == TYPE_A => {
                question.reply(Code::Ok, &[address], TTL_SECONDS)
            }
            Ok(_) => question.reply(Code::Ok, &[], 0),
            Err(code) => question.reply(code, &[], 0),
        }
    }

    async fn find(&self, name: &str) -> Result<Ipv4Addr, Code> {
        let tunnel = &self.tunnel;
        if name.ends_with(".localhost") {
            return Ok(Ipv4Addr::LOCALHOST);
        }
        if self.was_just_refused(name) {
            return Err(Code::NoSuchName);
        }
        let looking_up = tunnel.gate.look_up(name);
        let found = if tunnel.names.contains(name) {
            // Known names keep working while the gate is away: their connections wait for it.
            match timeout(KNOWN_NAME_TIMEOUT, looking_up).await {
                Ok(found) => found,
                Err(_) => return Ok(tunnel.names.address_of(name)),
            }
        } else {
            looking_up.await
        };
        match found {
            Ok(ports) => {
                let address = tunnel.names.address_of(name);
                listeners::listen_for(tunnel, address, &ports);
                Ok(address)
            }
            Err(refusal) if refusal.kind == RefusalKind::Denied => {
                self.remember_refusal(name);
                Err(Code::NoSuchName)
            }
            Err(_) if tunnel.names.contains(name) => Ok(tunnel.names.address_of(name)),
            Err(_) => Err(Code::ServerFailure),
        }
    }

    fn was_just_refused(&self, name: &str) -> bool {
        let refused = self.refused.borrow();
        refused
            .get(name)
            .is_some_and(|at| at.elapsed() < REFUSAL_LIFETIME)
    }

    fn remember_refusal(&self, name: &str) {
        let mut refused = self.refused.borrow_mut();
        if refused.len() >= MAX_REMEMBERED_REFUSALS {
            refused.retain(|_, at| at.elapsed() < REFUSAL_LIFETIME);
        }
        if refused.len() < MAX_REMEMBERED_REFUSALS {
            refused.insert(name.to_owned(), Instant::now());
        }
    }
}
