//! A client that sends requests and does not read what the server answers, on a connection with small
//! buffers.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use oubliette_test_harness::scaled;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

use crate::Server;

const RECEIVE_BUFFER_BYTES: u32 = 4096;
const READ_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct StalledReader {
    stream: TcpStream,
    host: String,
    key: String,
}

impl StalledReader {
    pub async fn connect(server: &Server, key: &str) -> Self {
        let host = server.base().trim_start_matches("http://").to_owned();
        let address: SocketAddr = host.parse().unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES).unwrap();
        Self {
            stream: socket.connect(address).await.unwrap(),
            host,
            key: key.to_owned(),
        }
    }

    /// Sends a request to the MCP endpoint. `headers` are lines without their ends.
    pub async fn send(&mut self, method: &str, headers: &[String], body: Option<&Value>) {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut request = format!(
            "{method} /mcp HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
             accept: application/json, text/event-stream\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n",
            self.host,
            self.key,
            body.len()
        );
        for header in headers {
            request += &format!("{header}\r\n");
        }
        let request = format!("{request}\r\n{body}");
        self.stream.write_all(request.as_bytes()).await.unwrap();
    }

    /// How many bytes the server has given to the kernel that this client did not receive.
    pub fn unsent_bytes(&self) -> u64 {
        let port = self.stream.local_addr().unwrap().port();
        let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let mut lines = connections.lines().map(|line| line.split_whitespace());
        let queues = lines.find_map(|mut fields| {
            let remote = fields.nth(2)?;
            remote
                .ends_with(&format!(":{port:04X}"))
                .then(|| fields.nth(1))?
        });
        let (unsent, _) = queues.expect("no connection").split_once(':').unwrap();
        u64::from_str_radix(unsent, 16).unwrap()
    }

    /// Reads everything until the server closes the connection.
    pub async fn read_to_end(self) -> String {
        let mut stream = self.stream.into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(scaled(READ_TIMEOUT))).unwrap();
        let reading = tokio::task::spawn_blocking(move || {
            let mut bytes = Vec::new();
            stream
                .read_to_end(&mut bytes)
                .expect("the server keeps the connection open");
            String::from_utf8_lossy(&bytes).into_owned()
        });
        reading.await.unwrap()
    }
}
