//! Tickets: each permits one transfer of a large file, for a short time and without a key.
//!
//! They are in memory only, by their hashes. A restart of the server ends them.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use oubliette_model::{ApiKey, KeyHash, ProjectId, TokenId, WorkspaceId};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;

use crate::tokens::generate_key;
use crate::{Actor, Result};

/// How long a transfer can be started.
const TICKET_LIFETIME: SignedDuration = SignedDuration::from_mins(15);
/// How many tickets of one token are kept; the oldest makes room for a new one.
const MAX_TICKETS_PER_TOKEN: usize = 100;
const MAX_TICKETS: usize = 10_000;
/// How many transfers one token may have at the same time.
const MAX_TRANSFERS_PER_TOKEN: usize = 16;

/// The path of the route that takes tickets.
const URL_PREFIX: &str = "/files/";

/// What a ticket permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TicketUse {
    Download,
    /// With the permission bits that the call asked for.
    Upload {
        mode: Option<u16>,
    },
}

impl TicketUse {
    fn is_upload(self) -> bool {
        matches!(self, Self::Upload { .. })
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    /// Who asked for it.
    pub(crate) actor: Actor,
    pub(crate) project_id: ProjectId,
    pub(crate) workspace_id: WorkspaceId,
    /// Relative to the workspace.
    pub(crate) path: Vec<u8>,
    pub(crate) permits: TicketUse,
}

/// A ticket as its caller gets it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct TicketView {
    /// Where to send the request, relative to the address of the server if it begins with a slash. Needs no
    /// key: anyone who has it can make the transfer.
    url: String,
    expires_at: String,
}

/// Why a ticket cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unusable {
    /// Unknown, used, expired, or for the other direction.
    NotFound,
    /// A transfer with it is under way.
    InUse,
    TooManyTransfers,
}

#[derive(Debug)]
struct Entry {
    ticket: Arc<Ticket>,
    expires_at: Timestamp,
    is_in_use: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Tickets {
    entries: Mutex<HashMap<KeyHash, Entry>>,
}

impl Tickets {
    pub(super) fn issue(&self, ticket: Ticket, now: Timestamp) -> Result<TicketView> {
        let key = generate_key()?;
        let expires_at = now + TICKET_LIFETIME;
        let token = ticket.actor.token_id;
        let entry = Entry {
            ticket: Arc::new(ticket),
            expires_at,
            is_in_use: false,
        };
        let mut entries = self.entries.lock();
        entries.retain(|_, entry| entry.is_in_use || entry.expires_at > now);
        let of_token = entries.values().filter(|entry| entry.is_of(token)).count();
        if of_token >= MAX_TICKETS_PER_TOKEN {
            remove_oldest(&mut entries, |entry| entry.is_of(token));
        } else if entries.len() >= MAX_TICKETS {
            remove_oldest(&mut entries, |_| true);
        }
        entries.insert(key.hash(), entry);
        Ok(TicketView {
            url: format!("{URL_PREFIX}{}", key.reveal()),
            expires_at: expires_at.to_string(),
        })
    }

    /// Begins a transfer.
    pub(super) fn take(
        self: &Arc<Self>,
        text: &str,
        is_upload: bool,
        now: Timestamp,
    ) -> Result<TakenTicket, Unusable> {
        let hash = text.parse::<ApiKey>().map_err(|_| Unusable::NotFound)?;
        let hash = hash.hash();
        let mut entries = self.entries.lock();
        let found = entries.get(&hash).filter(|entry| {
            (entry.is_in_use || entry.expires_at > now)
                && entry.ticket.permits.is_upload() == is_upload
        });
        let token = found.ok_or(Unusable::NotFound)?.ticket.actor.token_id;
        let transfers = entries
            .values()
            .filter(|entry| entry.is_in_use && entry.is_of(token));
        let has_room = transfers.count() < MAX_TRANSFERS_PER_TOKEN;
        let entry = entries.get_mut(&hash).ok_or(Unusable::NotFound)?;
        if entry.is_in_use {
            return Err(Unusable::InUse);
        }
        if !has_room {
            return Err(Unusable::TooManyTransfers);
        }
        entry.is_in_use = true;
        Ok(TakenTicket {
            tickets: self.clone(),
            hash,
            ticket: entry.ticket.clone(),
        })
    }
}

impl Entry {
    fn is_of(&self, token: TokenId) -> bool {
        self.ticket.actor.token_id == token
    }
}

/// Removes the ticket that expires first of those that are not in use.
fn remove_oldest(entries: &mut HashMap<KeyHash, Entry>, is_meant: impl Fn(&Entry) -> bool) {
    let oldest = entries
        .iter()
        .filter(|(_, entry)| !entry.is_in_use && is_meant(entry))
        .min_by_key(|(_, entry)| entry.expires_at);
    if let Some(hash) = oldest.map(|(hash, _)| *hash) {
        entries.remove(&hash);
    }
}

/// A ticket with which a transfer is under way. It can be used again when this is dropped, unless it was
/// spent.
#[derive(Debug)]
pub(super) struct TakenTicket {
    tickets: Arc<Tickets>,
    hash: KeyHash,
    pub(super) ticket: Arc<Ticket>,
}

impl TakenTicket {
    /// Ends the ticket.
    pub(super) fn spend(self) {
        self.tickets.entries.lock().remove(&self.hash);
    }
}

impl Drop for TakenTicket {
    fn drop(&mut self) {
        if let Some(entry) = self.tickets.entries.lock().get_mut(&self.hash) {
            entry.is_in_use = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use oubliette_model::Scope;
    use uuid::Uuid;

    use super::*;

    fn ticket(token: u128, permits: TicketUse) -> Ticket {
        Ticket {
            actor: Actor {
                token_id: TokenId::new(Uuid::from_u128(token)),
                scope: Scope::Admin,
                session: None,
                unattached: false,
                address: None,
            },
            project_id: ProjectId::new(Uuid::from_u128(1)),
            workspace_id: WorkspaceId::default(),
            path: b"file".to_vec(),
            permits,
        }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn issue(tickets: &Tickets, token: u128, permits: TicketUse) -> String {
        let issued = tickets.issue(ticket(token, permits), now()).unwrap();
        issued.url.strip_prefix(URL_PREFIX).unwrap().to_owned()
    }

    #[test]
    fn a_ticket_is_for_one_transfer_at_a_time_until_it_is_spent() {
        let tickets = Arc::new(Tickets::default());
        let download = issue(&tickets, 1, TicketUse::Download);
        assert_eq!(
            tickets.take(&download, true, now()).unwrap_err(),
            Unusable::NotFound,
            "it permits no upload"
        );
        let taken = tickets.take(&download, false, now()).unwrap();
        assert_eq!(
            tickets.take(&download, false, now()).unwrap_err(),
            Unusable::InUse
        );
        drop(taken);
        tickets.take(&download, false, now()).unwrap().spend();
        for gone in [&*download, "", "oub_", &"x".repeat(10_000)] {
            let taken = tickets.take(gone, false, now());
            assert_eq!(taken.unwrap_err(), Unusable::NotFound);
        }
        assert!(tickets.entries.lock().is_empty());
    }

    #[test]
    fn a_ticket_expires_but_a_transfer_under_way_goes_on() {
        let tickets = Arc::new(Tickets::default());
        let upload = issue(&tickets, 1, TicketUse::Upload { mode: None });
        let late = now() + TICKET_LIFETIME;
        let taken = tickets.take(&upload, true, now()).unwrap();
        issue(&tickets, 1, TicketUse::Download);
        assert_eq!(
            tickets.take(&upload, true, late).unwrap_err(),
            Unusable::InUse
        );
        drop(taken);
        assert_eq!(
            tickets.take(&upload, true, late).unwrap_err(),
            Unusable::NotFound
        );
    }

    #[test]
    fn the_oldest_ticket_of_a_token_makes_room_and_transfers_are_counted() {
        let tickets = Arc::new(Tickets::default());
        let other = issue(&tickets, 2, TicketUse::Download);
        let kept: Vec<String> = (0..MAX_TICKETS_PER_TOKEN + 5)
            .map(|_| issue(&tickets, 1, TicketUse::Download))
            .collect();
        assert_eq!(tickets.entries.lock().len(), MAX_TICKETS_PER_TOKEN + 1);
        let usable = kept
            .iter()
            .filter_map(|ticket| tickets.take(ticket, false, now()).ok());
        let taken: Vec<TakenTicket> = usable.collect();
        assert_eq!(taken.len(), MAX_TRANSFERS_PER_TOKEN);
        assert!(tickets.take(&other, false, now()).is_ok());
        drop(taken);
    }
}
