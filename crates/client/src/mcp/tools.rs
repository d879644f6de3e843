//! Which tools the agent has at the moment, and who hears when that changes.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oubliette_wire::{CallerTools, ToolEntry, ToolList, caller_tool_name};
use rmcp::model::Tool;
use rmcp::service::{Peer, RoleServer};
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, watch};

use super::base;
use super::settings::Settings;

/// How the names of Oubliette's own tools begin here.
pub(super) const PREFIX: &str = "oubliette_";

/// The tools of every source.
pub(super) struct Tools {
    has_session: bool,
    has_key: bool,
    known: watch::Sender<Known>,
    changed: Notify,
    peer: Mutex<Option<Peer<RoleServer>>>,
}

/// What the server has said so far.
#[derive(Default)]
struct Known {
    caller: Option<CallerTools>,
    oubliette: Option<Vec<ToolEntry>>,
}

/// What a tool's name means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meant {
    Base(&'static str),
    /// A tool of the caller, by the caller's own name for it.
    Caller(String),
    /// A tool of Oubliette, without the prefix.
    Oubliette(String),
}

impl Tools {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            has_session: settings.session.is_some(),
            has_key: settings.api_key.is_some(),
            known: watch::Sender::new(Known::default()),
            changed: Notify::new(),
            peer: Mutex::new(None),
        }
    }

    /// Waits until the server has said what there is.
    pub(super) async fn complete(&self) {
        let mut known = self.known.subscribe();
        let complete = |known: &Known| {
            (known.caller.is_some() || !self.has_session)
                && (known.oubliette.is_some() || !self.has_key)
        };
        let _ = known.wait_for(complete).await;
    }

    pub(super) fn set_caller(&self, tools: CallerTools) {
        self.set(|known| {
            let before = known.caller.replace(tools);
            before != known.caller
        });
    }

    pub(super) fn set_oubliette(&self, list: ToolList) {
        self.set(|known| {
            let before = known.oubliette.replace(list.tools);
            before != known.oubliette
        });
    }

    fn set(&self, change: impl FnOnce(&mut Known) -> bool) {
        let mut differs = false;
        self.known.send_modify(|known| differs = change(known));
        if differs {
            self.changed.notify_one();
        }
    }

    /// From now on the agent hears of changes.
    pub(super) fn introduce(&self, peer: Peer<RoleServer>) {
        *lock(&self.peer) = Some(peer);
    }

    /// Tells the agent of changes, for ever. What has changed before it asked needs no telling,
    /// and telling it does no harm.
    pub(super) async fn announce(&self) {
        loop {
            self.changed.notified().await;
            let peer = lock(&self.peer).clone();
            if let Some(peer) = peer {
                let _ = peer.notify_tool_list_changed().await;
            }
        }
    }

    pub(super) fn list(&self) -> Vec<Tool> {
        let known = self.known.borrow();
        let mut tools = match self.has_session {
            true => base::tools(),
            false => Vec::new(),
        };
        for entry in known.oubliette.iter().flatten() {
            tools.push(tool(format!("{PREFIX}{}", entry.name), entry));
        }
        if let Some(CallerTools {
            caller_id: Some(caller),
            tools: own,
        }) = &known.caller
        {
            for entry in own {
                let name = caller_tool_name(caller, &entry.name);
                // A name has one meaning: the first.
                if tools.iter().all(|tool| tool.name != name) {
                    tools.push(tool(name, entry));
                }
            }
        }
        tools
    }

    /// What somebody who calls a tool by this name means.
    pub(super) fn meant(&self, name: &str) -> Option<Meant> {
        if self.has_session
            && let Some(base) = base::NAMES.into_iter().find(|base| *base == name)
        {
            return Some(Meant::Base(base));
        }
        if self.has_key
            && let Some(rest) = name.strip_prefix(PREFIX)
        {
            return Some(Meant::Oubliette(rest.to_owned()));
        }
        let known = self.known.borrow();
        let caller = known.caller.as_ref()?;
        let id = caller.caller_id.as_deref()?;
        let own = caller.tools.iter();
        let mut own = own.filter(|entry| caller_tool_name(id, &entry.name) == name);
        own.next().map(|entry| Meant::Caller(entry.name.clone()))
    }
}

fn tool(name: String, entry: &ToolEntry) -> Tool {
    let schema = entry.input_schema.clone();
    let schema = schema.unwrap_or_else(empty_schema);
    let mut tool = Tool::new(name, "", Arc::new(schema));
    tool.description = entry.description.clone().map(Cow::Owned);
    tool
}

fn empty_schema() -> Map<String, Value> {
    match json!({ "type": "object", "properties": {} }) {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
