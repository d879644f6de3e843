//! The token of an MCP client: found by its name, made, replaced and revoked.

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::cli::client::{Client, parameters};
use crate::cli::names;
use crate::failure::Failure;
use crate::home::{Home, MCP_CLIENTS_DIRECTORY};

/// The active tokens that have a client's name; normally one.
pub(super) struct ClientToken {
    name: String,
    active: Vec<ActiveToken>,
}

struct ActiveToken {
    id: String,
    scope: String,
}

/// A new token with its key.
pub(super) struct Minted {
    id: String,
    pub(super) key: String,
}

impl ClientToken {
    /// Fails if the caller's key is not that of an admin.
    pub(super) async fn find(client: &Client, name: &str) -> Result<Self, Failure> {
        let rows = names::all_rows("token", client).await?;
        let text = |row: &Map<String, Value>, name: &str| {
            let text = row.get(name).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let active = rows
            .iter()
            .filter(|row| text(row, "name") == name && text(row, "status") == "active")
            .map(|row| ActiveToken {
                id: text(row, "token_id"),
                scope: text(row, "scope"),
            })
            .collect();
        Ok(Self {
            name: name.to_owned(),
            active,
        })
    }

    pub(super) fn exists(&self) -> bool {
        !self.active.is_empty()
    }

    pub(super) fn scope(&self) -> Option<&str> {
        self.active.first().map(|token| token.scope.as_str())
    }

    /// Whether a key is in use that is not to be replaced: it is that of the only token with the client's name, which
    /// has the wanted scope. A key that is not known to be the token's own is replaced.
    pub(super) fn is_current(
        &self,
        key: &str,
        wanted: Option<&str>,
        home: &Home,
        client: &str,
    ) -> bool {
        let [token] = self.active.as_slice() else {
            return false;
        };
        if wanted.is_some_and(|wanted| wanted != token.scope) {
            return false;
        }
        let known = home.read_owned(&home.mcp_clients_dir().join(record_name(client)));
        known.is_ok_and(|known| known.trim() == record(&token.id, key))
    }

    pub(super) async fn mint(&self, client: &Client, scope: &str) -> Result<Minted, Failure> {
        let create = json!({ "name": self.name, "scope": scope });
        let created = client.call("token_create", parameters(create)).await?;
        let text = |name: &str| created.get(name).and_then(Value::as_str).map(str::to_owned);
        match (text("token_id"), text("key")) {
            (Some(id), Some(key)) => Ok(Minted { id, key }),
            _ => Err(Failure::new("the server has created no key")),
        }
    }

    /// Revokes the tokens that were there when they were looked for.
    pub(super) async fn revoke(&self, client: &Client) {
        for token in &self.active {
            revoke(client, &token.id).await;
        }
    }
}

impl Minted {
    /// Records which token the key is of. Not the key.
    pub(super) fn record(&self, home: &Home, client: &str) {
        let text = format!("{}\n", record(&self.id, &self.key));
        // Without it the next set-up replaces the token.
        let _ = home.write_owned(MCP_CLIENTS_DIRECTORY, &record_name(client), text.as_bytes());
    }

    pub(super) async fn revoke(&self, client: &Client) {
        revoke(client, &self.id).await;
    }
}

async fn revoke(client: &Client, id: &str) {
    let revoke = json!({ "token_id": id });
    if let Err(error) = client.call("token_revoke", parameters(revoke)).await {
        Failure::from(error).print();
    }
}

/// The id of a token and the hash of its key.
fn record(id: &str, key: &str) -> String {
    let mut text = format!("{id} ");
    for byte in Sha256::digest(key.as_bytes()) {
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn record_name(client: &str) -> String {
    format!("{client}.id")
}

/// Forgets the key of a client, and which token it is of.
pub(super) fn forget(home: &Home, client: &str) {
    let _ = std::fs::remove_file(key_file(home, client));
    let _ = std::fs::remove_file(home.mcp_clients_dir().join(record_name(client)));
}

/// Where the key of a client that starts `oubliette mcp stdio` is.
pub(super) fn key_file(home: &Home, name: &str) -> PathBuf {
    home.mcp_clients_dir().join(key_file_name(name))
}

fn key_file_name(name: &str) -> String {
    format!("{name}.token")
}

pub(super) fn write_key(home: &Home, name: &str, key: &str) -> Result<(), Failure> {
    home.prepare()?;
    let file = key_file(home, name);
    home.write_owned(
        MCP_CLIENTS_DIRECTORY,
        &key_file_name(name),
        format!("{key}\n").as_bytes(),
    )
    .map_err(|error| Failure::with_cause(format!("cannot write {}", file.display()), &error))
}

pub(super) fn read_key(home: &Home, name: &str) -> Result<String, Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let key = if name.chars().all(is_plain) {
        home.read_owned(&key_file(home, name)).ok()
    } else {
        None
    };
    key.map(|key| key.trim().to_owned()).ok_or_else(|| {
        Failure::new(format!(
            "there is no token for the client `{name}`; make one with `{} mcp setup {name}`",
            home.command()
        ))
    })
}
