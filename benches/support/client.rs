//! Clients of the product for both kinds of protocol versions, and the load that many of them make.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Legacy, Modern, Server};

use crate::{Call, Connection, Sample};

/// A kind of MCP protocol version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Without MCP sessions; replies are JSON.
    Modern,
    /// With MCP sessions; replies are event streams.
    Legacy,
}

impl Protocol {
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
    /// Connects a client; with [`Protocol::Legacy`] it opens an MCP session.
    pub fn connect(
        server: &Server,
        protocol: Protocol,
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
        match protocol {
            Protocol::Modern => {
                params["_meta"] = json!({
                    "io.modelcontextprotocol/protocolVersion": protocol.version(),
                    "io.modelcontextprotocol/clientInfo": { "name": "bench", "version": "0" },
                    "io.modelcontextprotocol/clientCapabilities": {},
                });
                head += &format!("mcp-method: {method}\r\n");
                if let Some(name) = params["name"].as_str() {
                    head += &format!("mcp-name: {name}\r\n");
                }
            }
            Protocol::Legacy => {
                let session = initialize(&mut connection, &head);
                head += &format!("mcp-session-id: {session}\r\n");
            }
        }
        head += &format!("mcp-protocol-version: {}\r\n", protocol.version());
        Self {
            connection,
            call: Call::new(&head, method, &params, check),
        }
    }

    /// A client that calls a tool.
    pub fn calling_tool(
        server: &Server,
        protocol: Protocol,
        tool: &str,
        arguments: &Value,
    ) -> Self {
        let params = json!({ "name": tool, "arguments": arguments });
        Self::connect(server, protocol, "tools/call", params, |reply| {
            let result = &reply["result"];
            result["structuredContent"].is_object() && result["isError"] != true
        })
    }

    /// Calls once. Returns the length of the reply's body.
    pub fn run(&mut self) -> usize {
        self.call.run(&mut self.connection)
    }
}

/// The address on which the server listens.
pub fn address(server: &Server) -> SocketAddr {
    server.base().trim_start_matches("http://").parse().unwrap()
}

/// Opens an MCP session and returns its id.
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
    let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
    let session = post("", initialize, 200).expect("the server opened no session");
    let headers = format!(
        "mcp-session-id: {session}\r\nmcp-protocol-version: {}\r\n",
        Legacy::VERSION
    );
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    post(&headers, initialized, 202);
    session
}

/// All clients repeat their calls concurrently, each as soon as it has its reply, for some time.
pub fn load(clients: &mut [Client], time: Duration) -> Sample {
    let start = Barrier::new(clients.len());
    let run_client = |client: &mut Client| {
        let mut latencies = Vec::with_capacity(1 << 14);
        start.wait();
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
            .map(|client| scope.spawn(|| run_client(client)))
            .collect();
        let latencies = threads.into_iter().map(|thread| thread.join().unwrap());
        latencies.flatten().collect()
    });
    Sample::new(latencies, time)
}
