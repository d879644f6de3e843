//! Looks names up: with the system's resolver, or with a name server that the configuration names.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufRead, Read};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use crate::dns::{Answers, Question, TYPE_A, TYPE_AAAA};

/// At once, for questions that no container asks. The system's resolver has a thread for each.
const MAX_PENDING_LOOKUPS: usize = 16;
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// A datagram can get lost.
const DATAGRAM_TIMEOUT: Duration = Duration::from_secs(2);
const DATAGRAM_ATTEMPTS: usize = 2;
const MAX_DATAGRAM_BYTES: usize = 4096;
const HOSTS_FILE: &str = "/etc/hosts";
const MAX_HOSTS_FILE_BYTES: u64 = 4 << 20;
/// Of one name.
const MAX_ADDRESSES: usize = 32;

/// Looks names up, a bounded number at once. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Resolver {
    server: Arc<Mutex<Option<SocketAddr>>>,
    pending: Arc<Semaphore>,
}

impl Resolver {
    /// With a name server, or with the system's resolver.
    pub fn of_server(server: Option<SocketAddr>) -> Self {
        Self::new(server, MAX_PENDING_LOOKUPS)
    }

    pub(crate) fn new(server: Option<SocketAddr>, max_pending: usize) -> Self {
        Self {
            server: Arc::new(Mutex::new(server)),
            pending: Arc::new(Semaphore::new(max_pending)),
        }
    }

    pub(crate) fn set_server(&self, server: Option<SocketAddr>) {
        *self.server.lock() = server;
    }

    /// The addresses of a name; the error is a sentence for people.
    pub async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        let looking_up = async {
            let permit = self.pending.clone().acquire_owned().await;
            let permit = permit.map_err(io::Error::other)?;
            let server = *self.server.lock();
            match server {
                Some(server) => {
                    let _permit = permit;
                    ask_server(server, name).await
                }
                None => {
                    let name = name.to_owned();
                    // The thread cannot be stopped, so it keeps its permit after a timeout.
                    let blocking = tokio::task::spawn_blocking(move || {
                        let _permit = permit;
                        ask_system(&name, Path::new(HOSTS_FILE))
                    });
                    blocking.await.map_err(io::Error::other)?
                }
            }
        };
        let mut found = tokio::time::timeout(LOOKUP_TIMEOUT, looking_up)
            .await
            .map_err(|_| format!("the lookup of {name} took too long"))?
            .map_err(|error| format!("{name} could not be looked up: {error}"))?;
        let mut seen = Vec::new();
        found.retain(|address| {
            let is_new = !seen.contains(address) && seen.len() < MAX_ADDRESSES;
            if is_new {
                seen.push(*address);
            }
            is_new
        });
        if found.is_empty() {
            return Err(format!("no address is known for {name}"));
        }
        Ok(found)
    }
}

/// Asks the system's resolver for exactly this name. Without the dot, it would try the machine's search list, and find a host
/// with another name than the one that was decided about. Names with a dot at the end are not looked for in the file of
/// hosts, so this does.
fn ask_system(name: &str, hosts_file: &Path) -> io::Result<Vec<IpAddr>> {
    let listed = match std::fs::File::open(hosts_file) {
        Ok(file) => listed_addresses(name, file.take(MAX_HOSTS_FILE_BYTES))?,
        Err(_) => Vec::new(),
    };
    if !listed.is_empty() {
        return Ok(listed);
    }
    let found = (format!("{name}."), 0).to_socket_addrs()?;
    Ok(found.map(|address| address.ip()).collect())
}

/// The addresses of a name in a file of hosts.
fn listed_addresses(name: &str, hosts: impl Read) -> io::Result<Vec<IpAddr>> {
    let mut found = Vec::new();
    for line in io::BufReader::new(hosts).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let mut words = line
            .split('#')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        let address = words.next().and_then(|word| word.parse().ok());
        if let Some(address) = address
            && words.any(|word| word.trim_end_matches('.').eq_ignore_ascii_case(name))
        {
            found.push(address);
        }
    }
    Ok(found)
}

async fn ask_server(server: SocketAddr, name: &str) -> io::Result<Vec<IpAddr>> {
    let (v4, v6) = tokio::join!(ask(server, name, TYPE_A), ask(server, name, TYPE_AAAA));
    match (v4, v6) {
        (Ok(mut found), v6) => {
            found.extend(v6.unwrap_or_default());
            Ok(found)
        }
        (Err(_), Ok(found)) if !found.is_empty() => Ok(found),
        (Err(error), _) => Err(error),
    }
}

async fn ask(server: SocketAddr, name: &str, kind: u16) -> io::Result<Vec<IpAddr>> {
    let question = Question::new(random_id(), name, kind);
    let query = question
        .to_bytes()
        .ok_or_else(|| io::Error::other("the name is too long"))?;
    let local: SocketAddr = if server.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0; 16], 0).into()
    };
    for _ in 0..DATAGRAM_ATTEMPTS {
        let socket = UdpSocket::bind(local).await?;
        // From now on only datagrams of the server arrive.
        socket.connect(server).await?;
        socket.send(&query).await?;
        let receiving = receive(&socket, &question);
        match tokio::time::timeout(DATAGRAM_TIMEOUT, receiving).await {
            Ok(Ok(Answers::Addresses(found))) => return Ok(found),
            Ok(Ok(Answers::Truncated)) => return ask_by_stream(server, &question, &query).await,
            Ok(Err(error)) => return Err(error),
            Err(_) => {}
        }
    }
    Err(io::Error::other("the name server does not answer"))
}

async fn receive(socket: &UdpSocket, question: &Question) -> io::Result<Answers> {
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    loop {
        let read = socket.recv(&mut buffer).await?;
        // Others are late or forged.
        if let Some(answers) = question.answers(&buffer[..read]) {
            return answers.map_err(io::Error::other);
        }
    }
}

async fn ask_by_stream(
    server: SocketAddr,
    question: &Question,
    query: &[u8],
) -> io::Result<Vec<IpAddr>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(query.len()).map_err(io::Error::other)?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(query).await?;
    let mut reply = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut reply).await?;
    match question.answers(&reply) {
        Some(Ok(Answers::Addresses(found))) => Ok(found),
        Some(Err(why)) => Err(io::Error::other(why)),
        _ => Err(io::Error::other("a damaged reply")),
    }
}

/// Unknown to others; forged replies must also hit the port.
fn random_id() -> u16 {
    RandomState::new().build_hasher().finish() as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_hosts_is_searched_for_the_whole_name() {
        let hosts = b"127.0.0.1 localhost\n10.0.0.5\tgit.corp  Git # comment other\n::1 git.corp\nbad git\n\xff\n";
        let found = |name| listed_addresses(name, &hosts[..]).unwrap();
        assert_eq!(found("git.corp").len(), 2);
        assert_eq!(found("git"), ["10.0.0.5".parse::<IpAddr>().unwrap()]);
        assert!(found("corp").is_empty() && found("other").is_empty());
    }
}
