//! Stand-ins for the network: a name server whose answers a test chooses, and web servers on loopback addresses of
//! their own.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often `/drip/N` sends a line.
const DRIP_INTERVAL: Duration = Duration::from_millis(50);

/// An address of this machine that no other test uses.
pub fn loopback_address() -> Ipv4Addr {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) as u32;
    assert!(number < 15, "a test has at most 14 addresses");
    let process = std::process::id().wrapping_mul(16).wrapping_add(number);
    // 127.96.0.0/11. None ends with 0 or 255.
    let [_, _, high, low] = process.to_be_bytes();
    let second = 96 + ((process >> 16) & 0x1f) as u8;
    Ipv4Addr::new(127, second, high, low)
}

/// The answers to the questions for a name, in turn; the last one again and again.
type Answers = Arc<Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>>;

/// A name server.
#[derive(Debug)]
pub struct NameServer {
    address: SocketAddr,
    answers: Answers,
    questions: Arc<Mutex<Vec<String>>>,
}

impl NameServer {
    pub fn start() -> Self {
        Self::start_on((Ipv4Addr::LOCALHOST, 0).into())
    }

    pub fn start_on(address: SocketAddr) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        let server = Self {
            address: socket.local_addr().unwrap(),
            answers: Answers::default(),
            questions: Arc::default(),
        };
        let (answers, questions) = (server.answers.clone(), server.questions.clone());
        std::thread::spawn(move || serve_names(&socket, &answers, &questions));
        server
    }

    /// The section of the configuration that names this server.
    pub fn config(&self) -> String {
        format!("[network]\nresolver = \"{}\"\n", self.address)
    }

    /// Gives a name these addresses.
    pub fn set(&self, name: &str, address: impl Into<IpAddr>) {
        self.set_in_turn(name, &[address.into()]);
    }

    /// Gives a name another address at each question for an IPv4 address.
    pub fn set_in_turn(&self, name: &str, addresses: &[IpAddr]) {
        let turns = addresses.iter().map(|address| vec![*address]).collect();
        self.answers.lock().unwrap().insert(name.to_owned(), turns);
    }

    /// The names that were asked for, once for each IPv4 question.
    pub fn questions(&self) -> Vec<String> {
        self.questions.lock().unwrap().clone()
    }
}

fn serve_names(socket: &UdpSocket, answers: &Answers, questions: &Mutex<Vec<String>>) {
    let mut buffer = [0; 600];
    while let Ok((read, peer)) = socket.recv_from(&mut buffer) {
        let query = &buffer[..read];
        let (mut name, mut at) = (String::new(), 12);
        while query[at] > 0 {
            let end = at + 1 + usize::from(query[at]);
            if !name.is_empty() {
                name.push('.');
            }
            name.push_str(std::str::from_utf8(&query[at + 1..end]).unwrap());
            at = end;
        }
        let is_v4 = query[at + 2] == 1;
        if is_v4 {
            questions.lock().unwrap().push(name.clone());
        }
        let mut known = answers.lock().unwrap();
        let found = known.get_mut(&name).map(|turns| {
            let next = turns.front().cloned().unwrap_or_default();
            if is_v4 && turns.len() > 1 {
                turns.pop_front();
            }
            next
        });
        let found: Vec<IpAddr> = found.unwrap_or_default();
        let records: Vec<&IpAddr> = found.iter().filter(|it| it.is_ipv4() == is_v4).collect();
        let mut reply = query[..2].to_vec();
        reply.extend([0x81, 0x80, 0, 1, 0, records.len() as u8, 0, 0, 0, 0]);
        reply.extend(&query[12..at + 5]);
        for address in records {
            reply.extend([0xc0, 12]);
            reply.extend(&query[at + 1..at + 5]);
            reply.extend([0, 0, 0, 0]);
            match address {
                IpAddr::V4(v4) => reply.extend([&[0, 4][..], &v4.octets()].concat()),
                IpAddr::V6(v6) => reply.extend([&[0, 16][..], &v6.octets()].concat()),
            }
        }
        let _ = socket.send_to(&reply, peer);
    }
}

/// A web server. `/` says which host was asked for, `/drip/N` sends a line every 50 ms for N seconds
/// and then `end`, and `/hold` never answers.
#[derive(Debug)]
pub struct WebServer {
    address: SocketAddrV4,
    connections: Arc<AtomicUsize>,
    /// The most that were open at once.
    peak: Arc<AtomicUsize>,
}

impl WebServer {
    /// On a free port of 127.0.0.1.
    pub fn on_loopback() -> Self {
        Self::start(Ipv4Addr::LOCALHOST, 0)
    }

    pub fn address(&self) -> Ipv4Addr {
        *self.address.ip()
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn start(address: Ipv4Addr, port: u16) -> Self {
        let listener = TcpListener::bind((address, port)).unwrap();
        let server = Self {
            address: match listener.local_addr().unwrap() {
                SocketAddr::V4(address) => address,
                SocketAddr::V6(_) => unreachable!(),
            },
            connections: Arc::default(),
            peak: Arc::default(),
        };
        let (total, peak, open) = (
            server.connections.clone(),
            server.peak.clone(),
            Arc::new(AtomicUsize::new(0)),
        );
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                total.fetch_add(1, Ordering::SeqCst);
                peak.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let open = open.clone();
                let serving = std::thread::Builder::new().stack_size(128 << 10);
                let serving = serving.spawn(move || {
                    let _ = serve_web(stream);
                    open.fetch_sub(1, Ordering::SeqCst);
                });
                serving.unwrap();
            }
        });
        server
    }

    /// How many connections there have been.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::SeqCst)
    }
}

fn serve_web(stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    answer_web(&mut reader, &stream)
}

fn answer_web(reader: &mut impl BufRead, mut writer: impl Write) -> std::io::Result<()> {
    let (mut line, mut path, mut host) = (String::new(), String::new(), String::new());
    while reader.read_line(&mut line)? > 2 {
        if path.is_empty() {
            path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("host:") {
            host = value.trim().to_owned();
        }
        line.clear();
    }
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n";
    match path.as_str() {
        drip if drip.starts_with("/drip/") => {
            write!(writer, "{head}\r\n")?;
            let seconds: usize = drip["/drip/".len()..].parse().unwrap();
            for number in 0..20 * seconds {
                writeln!(writer, "line {number}")?;
                writer.flush()?;
                std::thread::sleep(DRIP_INTERVAL);
            }
            writeln!(writer, "end")
        }
        "/hold" => {
            let mut rest = [0; 100];
            while reader.read(&mut rest)? > 0 {}
            Ok(())
        }
        _ => {
            let text = format!("hello from {host}\n");
            let length = text.len();
            write!(writer, "{head}Content-Length: {length}\r\n\r\n{text}")?;
            writer.flush()
        }
    }
}

/// A web server with TLS, whose certificate for a name is in `directory` as `cert.pem`.
pub fn start_tls_server(address: Ipv4Addr, name: &str, directory: &Path) {
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ])
        .args([
            "-nodes", "-days", "2", "-keyout", "key.pem", "-out", "cert.pem",
        ])
        .args([
            "-subj",
            &format!("/CN={name}"),
            "-addext",
            &format!("subjectAltName=DNS:{name}"),
        ])
        .current_dir(directory)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(made.unwrap().success());
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let certificate = CertificateDer::from_pem_file(directory.join("cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(directory.join("key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind((address, 443)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let config = config.clone();
            std::thread::spawn(move || {
                let connection = rustls::ServerConnection::new(config).unwrap();
                let mut tls = rustls::StreamOwned::new(connection, stream);
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && tls.read(&mut byte).is_ok_and(|read| read > 0)
                {
                    head.extend(byte);
                }
                let _ = answer_web(&mut &head[..], &mut tls);
                tls.conn.send_close_notify();
                let _ = tls.flush();
            });
        }
    });
}
