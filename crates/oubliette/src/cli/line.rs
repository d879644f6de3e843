//! A line to the server that mends itself: calls that may be repeated go through it, and a server
//! that is started again finds them waiting.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;

use super::client::{Access, Client, NoResult};
use crate::failure::Failure;

/// How long a server may be away.
const PATIENCE: Duration = Duration::from_secs(120);
/// Before anybody is told: most servers are back by then.
const QUIET: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A connection, replaced when it breaks.
#[derive(Debug)]
pub(super) struct Line<'a> {
    access: &'a Access,
    client: RefCell<Rc<Client>>,
    /// Which connection it is.
    number: Cell<u64>,
    /// One at a time mends it; the others wait and use what it made.
    mending: tokio::sync::Mutex<()>,
    lost: Cell<bool>,
}

impl<'a> Line<'a> {
    pub(super) fn new(access: &'a Access, client: Client) -> Self {
        Self {
            access,
            client: RefCell::new(Rc::new(client)),
            number: Cell::new(0),
            mending: tokio::sync::Mutex::new(()),
            lost: Cell::new(false),
        }
    }

    /// Whether there is no server at the other end just now.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.get()
    }

    /// Calls an operation until the server has answered. The call must be one that may be repeated.
    pub(super) async fn call(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Map<String, Value>, Failure> {
        loop {
            let (client, number) = (self.client.borrow().clone(), self.number.get());
            match client.call(name, arguments.clone()).await {
                Ok(result) => return Ok(result),
                Err(NoResult::Told(failure)) => return Err(failure),
                Err(NoResult::Lost(_)) => self.mend(number).await?,
            }
        }
    }

    async fn mend(&self, broken: u64) -> Result<(), Failure> {
        let _turn = self.mending.lock().await;
        if self.number.get() != broken {
            return Ok(());
        }
        self.lost.set(true);
        let begun = Instant::now();
        let (mut pause, mut said) = (FIRST_PAUSE, false);
        let client = loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            match Client::connect(self.access).await {
                Ok(client) => break client,
                Err(NoResult::Told(failure)) => return Err(failure),
                Err(NoResult::Lost(failure)) if begun.elapsed() > PATIENCE => return Err(failure),
                Err(NoResult::Lost(_)) => {}
            }
            if !said && begun.elapsed() > QUIET {
                said = true;
                eprint!("\r\n[the server does not answer; trying again, Ctrl-C gives up]\r\n");
            }
        };
        if said {
            eprint!("[the server is back]\r\n");
        }
        *self.client.borrow_mut() = Rc::new(client);
        self.number.set(broken + 1);
        self.lost.set(false);
        Ok(())
    }
}
