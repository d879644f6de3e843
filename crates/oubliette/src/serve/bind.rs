//! The server's addresses. A server on one loopback address takes the other one too: clients that look up
//! `localhost` try both, and another process there would get their keys.

use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use tokio::net::TcpListener;

use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::printable;

/// Any free port may be taken on the other address.
const MAX_PORT_ATTEMPTS: usize = 16;
/// The state of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// Listens on an address; if that cannot be done, on none, and why. On another port clients would get used to an
/// address that the next server does not have, where any process could then take their keys.
pub(super) async fn network_if_free(
    address: SocketAddr,
    home: &Home,
) -> Result<(Vec<TcpListener>, Option<String>), Failure> {
    match network(address, home).await {
        Err(Failure::Failed(why)) => {
            tracing::warn!(%why, "listening only on the socket of the data directory");
            Ok((Vec::new(), Some(why)))
        }
        listening => Ok((listening?, None)),
    }
}

/// Listens on an address, and on the other loopback address if it is one.
pub(super) async fn network(address: SocketAddr, home: &Home) -> Result<Vec<TcpListener>, Failure> {
    let mut attempts = 0;
    loop {
        let first = TcpListener::bind(address).await;
        let first = first.map_err(|error| cannot_listen(address, home, &error))?;
        let port = first.local_addr().map_or(address.port(), |it| it.port());
        let Some(other) = other_loopback(address.ip()) else {
            return Ok(vec![first]);
        };
        let other = SocketAddr::new(other, port);
        attempts += 1;
        match TcpListener::bind(other).await {
            Ok(second) => return Ok(vec![first, second]),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                if address.port() != 0 || attempts >= MAX_PORT_ATTEMPTS {
                    return Err(cannot_listen(other, home, &error));
                }
            }
            // A machine without the other version of the protocol: no process can listen there.
            Err(error) => {
                tracing::debug!(%error, %other, "not listening on the other loopback address");
                return Ok(vec![first]);
            }
        }
    }
}

fn other_loopback(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(Ipv4Addr::LOCALHOST) => Some(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => Some(Ipv4Addr::LOCALHOST.into()),
        _ => None,
    }
}

fn cannot_listen(address: SocketAddr, home: &Home, error: &std::io::Error) -> Failure {
    if error.kind() != ErrorKind::AddrInUse {
        let what = format!("cannot listen on {address}; choose another with --listen");
        return Failure::with_cause(what, error);
    }
    let port = address.port();
    let process = listening_process(address);
    let other = process.as_ref().and_then(|(pid, _)| served_home(*pid));
    if let Some(other) = other {
        return Failure::new(format!(
            "the server of {} already has {address}; choose another address with --listen or `server.listen` in {}, or \
             stop that server with `{} down`",
            other.path().display(),
            home.config_file().display(),
            other.command()
        ));
    }
    let who = match process {
        Some((pid, name)) => format!("process {pid} ({name}) listens there"),
        None => format!("another process listens there; `ss -ltnp sport = :{port}` shows which"),
    };
    Failure::new(format!(
        "cannot listen on {address}: {who}. Stop it: keys that clients send to this address reach it. A \
         process in a container can outlive a server; `oubliette down` stops all containers. Or choose \
         another address with --listen, and run `oubliette mcp setup` again for each client."
    ))
}

/// The data directory that a process serves, if it is a server of this user's.
fn served_home(pid: u32) -> Option<Home> {
    let words = |file: &str| {
        let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let words = text.split(|byte| *byte == 0);
        words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect::<Vec<_>>()
    };
    let (arguments, variables) = (words("cmdline"), words("environ"));
    let value = |name: &str| {
        let mut values = variables.iter().filter_map(|it| it.strip_prefix(name));
        values.next().filter(|value| !value.is_empty())
    };
    let after = |option: &str| {
        let at = arguments.iter().position(|word| word == option)?;
        arguments.get(at + 1).map(String::as_str)
    };
    let joined = arguments
        .iter()
        .find_map(|word| word.strip_prefix("--data-dir="));
    let path = match after("--data-dir")
        .or(joined)
        .or_else(|| value("OUBLIETTE_HOME="))
    {
        Some(path) => Path::new(path).to_owned(),
        None => Path::new(value("HOME=")?).join(".oubliette"),
    };
    // A relative path is one of that process.
    let home = Home::find(Some(path.is_absolute().then_some(&*path)?)).ok()?;
    home.server_info()
        .is_some_and(|info| info.pid == pid)
        .then_some(home)
}

/// The process that listens on an address, as far as this user can see it.
fn listening_process(address: SocketAddr) -> Option<(u32, String)> {
    let table = if address.is_ipv4() { "tcp" } else { "tcp6" };
    let table = fs::read_to_string(format!("/proc/net/{table}")).ok()?;
    let inode = table
        .lines()
        .find_map(|line| listening_inode(line, address))?;
    let socket = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pid = ids.find(|pid| has_open(*pid, &socket))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, printable(name.trim())))
}

/// The inode of the socket in a line of `/proc/net/tcp` if it listens on the address, or on all of them.
fn listening_inode(line: &str, address: SocketAddr) -> Option<&str> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    let any: IpAddr = match address.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let is_there = [address.ip(), any]
        .into_iter()
        .any(|ip| *local == kernel_form(SocketAddr::new(ip, address.port())));
    (is_there && *state == LISTENING).then_some(inode)
}

/// An address as the kernel writes it: words in the byte order of the machine.
fn kernel_form(address: SocketAddr) -> String {
    let bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut text = String::new();
    for word in bytes.chunks_exact(4) {
        let word = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        let _ = write!(text, "{word:08X}");
    }
    format!("{text}:{:04X}", address.port())
}

fn has_open(pid: u32, file: &str) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    open.flatten()
        .any(|entry| fs::read_link(entry.path()).is_ok_and(|link| link == Path::new(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_loopback_addresses_are_taken_at_the_same_port() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::find(Some(directory.path())).unwrap();
        let listeners = network(SocketAddr::from(([127, 0, 0, 1], 0)), &home)
            .await
            .unwrap();
        let ports: Vec<u16> = listeners
            .iter()
            .map(|it| it.local_addr().unwrap().port())
            .collect();
        assert!(ports.iter().all(|port| *port == ports[0]), "{ports:?}");
        for listener in &listeners {
            let address = listener.local_addr().unwrap();
            let Err(Failure::Failed(sentence)) = network(address, &home).await else {
                panic!("{address} was taken twice")
            };
            let own = format!("process {} ", std::process::id());
            assert!(sentence.contains(&own), "{sentence}");
            assert!(sentence.contains("--listen"), "{sentence}");
        }
    }
}
