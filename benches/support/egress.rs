//! A program that calls a model, downloads and opens connections, directly or from a container through the gate, and
//! measures it. A benchmark starts itself again as this program.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

const ARGUMENT: &str = "--egress-load";
const IO_TIMEOUT: Duration = Duration::from_secs(60);
const BUFFER_BYTES: usize = 256 << 10;

/// What to do. Addresses are `host:port`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum EgressLoad {
    /// One call after the other, on one connection.
    Calls {
        address: String,
        /// The request as it is sent.
        request: String,
        count: usize,
    },
    /// One response, as fast as it comes.
    Download {
        route: Route,
        request: String,
        bytes: u64,
    },
    /// Many connections that are open at the same time, each with a response.
    Connections {
        route: Route,
        request: String,
        count: usize,
    },
}

/// How an address is reached.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Route {
    pub address: String,
    /// A proxy that is asked to connect to it.
    pub proxy: Option<String>,
}

/// The times of a load in seconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct EgressTimes {
    /// Of each call, until the head of its response.
    pub first_bytes: Vec<f64>,
    /// Of each call, until its end.
    pub calls: Vec<f64>,
    pub total: f64,
}

impl EgressLoad {
    /// The arguments with which this program does it.
    pub fn arguments(&self) -> [String; 2] {
        let load = serde_json::to_string(self).unwrap();
        [ARGUMENT.to_owned(), load]
    }

    fn run(&self) -> EgressTimes {
        let started = Instant::now();
        let mut times = EgressTimes::default();
        match self {
            Self::Calls {
                address,
                request,
                count,
            } => {
                let mut stream = connect(address);
                for _ in 0..*count {
                    let called = Instant::now();
                    stream.write_all(request.as_bytes()).unwrap();
                    let (first_byte, _) = read_response(&mut stream);
                    times.first_bytes.push((first_byte - called).as_secs_f64());
                    times.calls.push(called.elapsed().as_secs_f64());
                }
            }
            Self::Download {
                route,
                request,
                bytes,
            } => {
                let mut stream = route.connect();
                stream.write_all(request.as_bytes()).unwrap();
                let (mut buffer, mut received) = (vec![0; BUFFER_BYTES], 0);
                while received < *bytes {
                    let read = stream.read(&mut buffer).unwrap();
                    assert!(read > 0, "the response ended after {received} bytes");
                    received += read as u64;
                }
            }
            Self::Connections {
                route,
                request,
                count,
            } => {
                let mut streams: Vec<TcpStream> = (0..*count).map(|_| route.connect()).collect();
                for stream in &mut streams {
                    stream.write_all(request.as_bytes()).unwrap();
                }
                for stream in &mut streams {
                    let (_, response) = read_response(stream);
                    assert!(response.ends_with(b"hello"));
                }
            }
        }
        times.total = started.elapsed().as_secs_f64();
        times
    }
}

impl Route {
    fn connect(&self) -> TcpStream {
        let Some(proxy) = &self.proxy else {
            return connect(&self.address);
        };
        let mut stream = connect(proxy);
        let address = &self.address;
        write!(
            stream,
            "CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n"
        )
        .unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head);
        assert!(head.contains(" 200 "), "{head}");
        stream
    }
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(IO_TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(IO_TIMEOUT)).unwrap();
    stream
}

/// Reads a whole response; when it began, and its bytes.
fn read_response(stream: &mut TcpStream) -> (Instant, Vec<u8>) {
    let (mut response, mut first_byte) = (Vec::new(), None);
    let mut buffer = [0; 16 << 10];
    while !is_whole(&response) {
        let read = stream.read(&mut buffer).unwrap();
        first_byte.get_or_insert_with(Instant::now);
        assert!(read > 0, "{}", String::from_utf8_lossy(&response));
        response.extend_from_slice(&buffer[..read]);
    }
    assert!(
        response.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&response)
    );
    (first_byte.unwrap(), response)
}

fn is_whole(response: &[u8]) -> bool {
    let text = String::from_utf8_lossy(response).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    match length.and_then(|length| length.trim().parse::<usize>().ok()) {
        Some(length) => body.len() >= length,
        None => body.ends_with("0\r\n\r\n"),
    }
}

/// Runs a load if this process was started for one, and prints its times. Returns whether it was.
#[allow(clippy::print_stdout, reason = "the times are its result")]
pub fn run_if_requested() -> bool {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(ARGUMENT) {
        return false;
    }
    let load: EgressLoad = serde_json::from_str(&arguments.next().unwrap()).unwrap();
    println!("{}", serde_json::to_string(&load.run()).unwrap());
    true
}
