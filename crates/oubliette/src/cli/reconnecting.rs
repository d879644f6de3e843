//! A client that reconnects: calls are repeated until a restarted server answers them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;

use super::access::Access;
use super::client::{CallError, Client};
use crate::failure::Failure;

/// How long a server may be unreachable.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// Most servers answer again before the user needs to know.
const NOTICE_DELAY: Duration = Duration::from_secs(1);
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(20);
const MAX_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// A connection, replaced when it breaks.
#[derive(Debug)]
pub(super) struct ReconnectingClient<'a> {
    access: &'a Access,
    client: RefCell<Rc<Client>>,
    /// Counts the connections.
    generation: Cell<u64>,
    /// Held while reconnecting, so that concurrent calls share one new connection.
    reconnecting: tokio::sync::Mutex<()>,
    disconnected: Cell<bool>,
}

impl<'a> ReconnectingClient<'a> {
    pub(super) fn new(access: &'a Access, client: Client) -> Self {
        Self {
            access,
            client: RefCell::new(Rc::new(client)),
            generation: Cell::new(0),
            reconnecting: tokio::sync::Mutex::new(()),
            disconnected: Cell::new(false),
        }
    }

    /// The connection that is in use.
    pub(super) fn current(&self) -> Rc<Client> {
        self.client.borrow().clone()
    }

    /// Whether the server is unreachable now.
    pub(super) fn is_disconnected(&self) -> bool {
        self.disconnected.get()
    }

    /// Calls an operation until the server answers. The call must be idempotent.
    pub(super) async fn call(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Map<String, Value>, Failure> {
        loop {
            let (client, generation) = (self.client.borrow().clone(), self.generation.get());
            match client.call(name, arguments.clone()).await {
                Ok(result) => return Ok(result),
                Err(CallError::Rejected(failure)) => return Err(failure),
                Err(CallError::Unreachable(_)) => self.reconnect(generation).await?,
            }
        }
    }

    async fn reconnect(&self, broken: u64) -> Result<(), Failure> {
        let _guard = self.reconnecting.lock().await;
        if self.generation.get() != broken {
            return Ok(());
        }
        self.disconnected.set(true);
        let started = Instant::now();
        let (mut interval, mut notified) = (MIN_RETRY_INTERVAL, false);
        let client = loop {
            tokio::time::sleep(interval).await;
            interval = (interval * 2).min(MAX_RETRY_INTERVAL);
            match Client::reconnect(self.access).await {
                Ok(client) => break client,
                Err(CallError::Rejected(failure)) => return Err(failure),
                Err(CallError::Unreachable(failure)) if started.elapsed() > RECONNECT_TIMEOUT => {
                    return Err(failure);
                }
                Err(CallError::Unreachable(_)) => {}
            }
            if !notified && started.elapsed() > NOTICE_DELAY {
                notified = true;
                eprint!(
                    "\r\n[the server does not answer; reconnecting, press Ctrl-C to give up; `{} up` starts it]\r\n",
                    self.access.command()
                );
            }
        };
        if notified {
            eprint!("[the server is back]\r\n");
        }
        *self.client.borrow_mut() = Rc::new(client);
        self.generation.set(broken + 1);
        self.disconnected.set(false);
        Ok(())
    }
}
