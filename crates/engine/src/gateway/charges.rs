//! Counts what the gate's journal says that calls of models took.
//!
//! The offset of what was read is stored with what it says, so that a killed server loses nothing and counts nothing
//! twice.

use std::collections::BTreeMap;

use oubliette_gate::gateway::{CHARGES_DIR, Charge, read_charges, remove_read_charges};
use oubliette_model::{SessionId, Usage};
use oubliette_store::SessionCharge;

use super::Gateway;
use super::prices::cost_of;
use crate::{EngineError, Result};

impl Gateway<'_> {
    /// Counts everything that is in the journal now.
    pub(crate) async fn count_charges(self) -> Result<()> {
        let _counting = self.state().counting.lock().await;
        let store = self.engine.store();
        let directory = self.engine.settings().data_dir.join(CHARGES_DIR);
        loop {
            let after = store.charges_read().await?;
            let path = directory.clone();
            let reading = tokio::task::spawn_blocking(move || read_charges(&path, after));
            let (charges, read) = reading.await.map_err(EngineError::fault)??;
            if read == after {
                self.free_counted(after);
                return Ok(());
            }
            let charges = self.price(charges);
            let now = self.engine.now();
            let charged = store.add_charges(charges, after, read, now).await?;
            self.free_counted(read);
            for one in charged {
                let subscriptions = self.engine.sessions().subscriptions();
                subscriptions.notify_log(one.session, one.root_id);
                self.engine.sessions().wake_running(one.session);
            }
            let path = directory.clone();
            let removing = tokio::task::spawn_blocking(move || remove_read_charges(&path, read));
            if let Ok(Err(error)) = removing.await {
                tracing::warn!(%error, "could not remove charges that were counted");
            }
        }
    }

    /// Adds up what the sessions are charged.
    fn price(self, charges: Vec<Charge>) -> Vec<SessionCharge> {
        let configured = &self.engine.settings().models;
        let mut sessions: BTreeMap<SessionId, SessionCharge> = BTreeMap::new();
        for charge in charges {
            // Not one of this server's.
            let Ok(session) = charge.session.parse() else {
                continue;
            };
            let Charge {
                model,
                answered_by,
                tokens,
                is_estimate,
                ..
            } = charge;
            let own = |name: &str| configured.get(name).copied();
            let (cost_usd, is_known) = cost_of(&model, answered_by.as_deref(), tokens, own);
            let usage = Usage {
                input_tokens: tokens.input + tokens.cache_read + tokens.cache_write,
                output_tokens: tokens.output,
                cached_tokens: tokens.cache_read,
                thought_tokens: tokens.thoughts,
                unpriced_turns: u32::from(!is_known),
            };
            if usage.is_zero() {
                continue;
            }
            let total = sessions.entry(session).or_insert_with(|| SessionCharge {
                session,
                usage: Usage::default(),
                cost_usd: 0.0,
                model: None,
                is_estimate: false,
            });
            total.usage = total.usage.saturating_add(usage);
            total.cost_usd += cost_usd;
            total.is_estimate |= is_estimate;
            total.model = answered_by
                .or(Some(model))
                .filter(|model| !model.is_empty());
        }
        sessions.into_values().collect()
    }
}
