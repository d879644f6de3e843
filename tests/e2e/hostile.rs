//! Attacks: agents, tokens and network clients that try to get more than they were given.

mod backups;
mod chain;
mod docker;
mod exhaustion;
mod grants;
mod limits;
mod narrowing;
mod protected_paths;
mod relay_exhaustion;
mod revocation;
mod revoked_owners;
mod sandbox;
mod secrets;
mod server_identity;
mod stored_bytes;
mod terminal_text;
mod trees;
