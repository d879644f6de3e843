//! The tools that the agent has, and the notification when they change.

use std::borrow::Cow;
use std::sync::Arc;

use oubliette_wire::{CallerTools, ToolEntry, ToolList, caller_tool_name};
use parking_lot::Mutex;
use rmcp::model::Tool;
use rmcp::service::{Peer, RoleServer};
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, watch};

use super::base_tools;
use super::settings::Settings;

/// The prefix of the names of Oubliette's own tools.
const OUBLIETTE_PREFIX: &str = "oubliette_";

/// The tools of every source.
pub(super) struct ToolRegistry {
    has_session: bool,
    has_key: bool,
    server_tools: watch::Sender<ServerTools>,
    changed: Notify,
    /// The caller's tools that the agent has listed last.
    listed: Mutex<ListedTools>,
    confirms_lists: bool,
    /// The server may not know what is listed.
    unreported: Notify,
    peer: Mutex<Option<Peer<RoleServer>>>,
}

/// The caller's tools that the agent has listed, by their fingerprint.
#[derive(Default)]
struct ListedTools {
    known: Option<String>,
    /// Listed once by an agent that confirms lists: it lists again when it uses what it has listed before.
    unconfirmed: Option<String>,
}

/// The tools that the server has sent; a list is absent until it has arrived.
#[derive(Default)]
struct ServerTools {
    caller: Option<CallerTools>,
    oubliette: Option<Vec<ToolEntry>>,
}

/// The tool that a name stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ToolTarget {
    Base(&'static str),
    /// A tool of the caller, by the caller's own name for it.
    Caller(String),
    /// A tool of Oubliette, without the prefix.
    Oubliette(String),
}

impl ToolRegistry {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            has_session: settings.session.is_some(),
            has_key: settings.api_key.is_some(),
            server_tools: watch::Sender::new(ServerTools::default()),
            changed: Notify::new(),
            listed: Mutex::default(),
            confirms_lists: settings.confirms_lists,
            unreported: Notify::new(),
            peer: Mutex::new(None),
        }
    }

    /// Waits until every list of the server has arrived.
    pub(super) async fn wait_until_complete(&self) {
        let mut tools = self.server_tools.subscribe();
        let is_complete = |tools: &ServerTools| {
            (tools.caller.is_some() || !self.has_session)
                && (tools.oubliette.is_some() || !self.has_key)
        };
        let _ = tools.wait_for(is_complete).await;
    }

    pub(super) fn set_caller_tools(&self, new: CallerTools) {
        self.update(|tools| {
            let before = tools.caller.replace(new);
            before != tools.caller
        });
        // Also if nothing changed: it may be another connection.
        self.unreported.notify_one();
    }

    /// Records that the agent has listed the tools.
    pub(super) fn set_listed(&self) {
        let caller = self.server_tools.borrow().caller.clone();
        let Some(new) = caller.map(|caller| caller.fingerprint()) else {
            return;
        };
        let mut listed = self.listed.lock();
        let is_first = listed.known.is_none();
        let is_repeated = [&listed.known, &listed.unconfirmed].contains(&&Some(new.clone()));
        if self.confirms_lists && !is_first && !is_repeated {
            listed.unconfirmed = Some(new);
            self.changed.notify_one();
        } else {
            listed.known = Some(new);
            self.unreported.notify_one();
        }
    }

    /// Waits until the server may not know what the agent has listed, and returns that.
    pub(super) async fn next_unreported(&self) -> String {
        loop {
            self.unreported.notified().await;
            if let Some(listed) = self.listed.lock().known.clone() {
                return listed;
            }
        }
    }

    pub(super) fn set_oubliette_tools(&self, list: ToolList) {
        self.update(|tools| {
            let before = tools.oubliette.replace(list.tools);
            before != tools.oubliette
        });
    }

    fn update(&self, change: impl FnOnce(&mut ServerTools) -> bool) {
        let mut differs = false;
        self.server_tools
            .send_modify(|tools| differs = change(tools));
        if differs {
            self.changed.notify_one();
        }
    }

    /// Sets the peer that is notified of changes.
    pub(super) fn set_peer(&self, peer: Peer<RoleServer>) {
        *self.peer.lock() = Some(peer);
    }

    /// Notifies the agent of changes, forever.
    pub(super) async fn notify_changes(&self) {
        loop {
            self.changed.notified().await;
            let peer = self.peer.lock().clone();
            if let Some(peer) = peer {
                let _ = peer.notify_tool_list_changed().await;
            }
        }
    }

    pub(super) fn list(&self) -> Vec<Tool> {
        let known = self.server_tools.borrow();
        let mut tools = if self.has_session {
            base_tools::all()
        } else {
            Vec::new()
        };
        for entry in known.oubliette.iter().flatten() {
            tools.push(tool(format!("{OUBLIETTE_PREFIX}{}", entry.name), entry));
        }
        if let Some(CallerTools {
            caller_id: Some(caller),
            tools: caller_tools,
        }) = &known.caller
        {
            for entry in caller_tools {
                let name = caller_tool_name(caller, &entry.name);
                // Of tools with the same name, the first is listed and called.
                if tools.iter().all(|tool| tool.name != name) {
                    tools.push(tool(name, entry));
                }
            }
        }
        tools
    }

    pub(super) fn resolve(&self, name: &str) -> Option<ToolTarget> {
        if self.has_session
            && let Some(base) = base_tools::NAMES.into_iter().find(|base| *base == name)
        {
            return Some(ToolTarget::Base(base));
        }
        if self.has_key
            && let Some(rest) = name.strip_prefix(OUBLIETTE_PREFIX)
        {
            return Some(ToolTarget::Oubliette(rest.to_owned()));
        }
        let known = self.server_tools.borrow();
        let caller = known.caller.as_ref()?;
        let id = caller.caller_id.as_deref()?;
        let entry = caller
            .tools
            .iter()
            .find(|entry| caller_tool_name(id, &entry.name) == name)?;
        Some(ToolTarget::Caller(entry.name.clone()))
    }
}

fn tool(name: String, entry: &ToolEntry) -> Tool {
    let schema = entry.input_schema.clone().unwrap_or_else(empty_schema);
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
