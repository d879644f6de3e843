//! Clients of the product in both eras of the protocol, and the load that many of them make.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Legacy, Modern, Server};

use crate::{Call, Connection, Sample};

/// How the protocol is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// No session, replies in JSON.
    Modern,
    /// A session, replies as event streams.
    Legacy,
}

impl Era {
    pub fn version(self) -> &'static str {
        match self {
            Self::Modern => Modern::VERSION,
            Self::Legacy => Legacy::VERSION,
        }
    }
}

/// A connection and the call it repeats.
#[derive(Debug)]
pub struct Client {
    pub connection: Connection,
    pub call: Call,
}

impl Client {
    /// A client of the server; in the legacy era with a session of its own.
    pub fn connect(
        server: &Server,
        era: Era,
        method: &str,
        mut params: Value,
        check: fn(&Value) -> bool,
    ) -> Self {
        let mut connection = Connection::open(address(server));
        let mut head = format!(
            "POST /mcp HTTP/1.1\r\nauthorization: Bearer {}\r\n\
             accept: application/json, text/event-stream\r\n",
            server.admin_key()
        );
        match era {
            Era::Modern => {
                params["_meta"] = json!({
                    "io.modelcontextprotocol/protocolVersion": era.version(),
                    "io.modelcontextprotocol/clientInfo": { "name": "bench", "version": "0" },
                    "io.modelcontextprotocol/clientCapabilities": {},
                });
                head += &format!("mcp-method: {method}\r\n");
                if let Some(name) = params["name"].as_str() {
                    head += &format!("mcp-name: {name}\r\n");
                }
            }
            Era::Legacy => {
                let session = initialize(&mut connection, &head);
                head += &format!("mcp-session-id: {session}\r\n");
            }
        }
        head += &format!("mcp-protocol-version: {}\r\n", era.version());
        Self {
            connection,
            call: Call::new(&head, method, &params, check),
        }
    }

    /// A client that calls a tool.
    pub fn of_tool(server: &Server, era: Era, tool: &str, arguments: &Value) -> Self {
        let params = json!({ "name": tool, "arguments": arguments });
        Self::connect(server, era, "tools/call", params, |reply| {
            let result = &reply["result"];
            result["structuredContent"].is_object() && result["isError"] != true
        })
    }

    /// Calls once; how long the reply was.
    pub fn run(&mut self) -> usize {
        self.call.run(&mut self.connection)
    }
}

/// Where the server listens.
pub fn address(server: &Server) -> SocketAddr {
    server.base().trim_start_matches("http://").parse().unwrap()
}

/// Opens a session; its id.
fn initialize(connection: &mut Connection, head: &str) -> String {
    let mut post = |headers: &str, body: Value, status: u16| {
        let body = body.to_string();
        let request = format!(
            "{head}{headers}host: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let reply = connection.send(request.as_bytes());
        assert_eq!(reply.status, status);
        reply.header("mcp-session-id").map(str::to_owned)
    };
    let params = json!({
        "protocolVersion": Legacy::VERSION,
        "capabilities": {},
        "clientInfo": { "name": "bench", "version": "0" },
    });
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
    let session = post("", hello, 200).expect("no session was opened");
    let headers = format!(
        "mcp-session-id: {session}\r\nmcp-protocol-version: {}\r\n",
        Legacy::VERSION
    );
    let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    post(&headers, ready, 202);
    session
}

/// All clients repeat their calls at once, each as soon as its reply is there, for some time.
pub fn load(clients: &mut [Client], time: Duration) -> Sample {
    let begin = Barrier::new(clients.len());
    let one = |client: &mut Client| {
        let mut latencies = Vec::with_capacity(1 << 14);
        begin.wait();
        let started = Instant::now();
        let mut now = started;
        while now - started < time {
            client.run();
            let done = Instant::now();
            latencies.push(done - now);
            now = done;
        }
        latencies
    };
    let latencies = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter_mut()
            .map(|client| scope.spawn(|| one(client)))
            .collect();
        let latencies = threads.into_iter().map(|thread| thread.join().unwrap());
        latencies.flatten().collect()
    });
    Sample::new(latencies, time)
}
