//! What would happen to a connection, without making one.

use oubliette_model::{Host, NetworkRules, Verdict};

use crate::Resolver;
use crate::host_address::is_local;

/// Decides as the gate does. A name is looked up only if the rules allow it.
pub async fn check(
    rules: &NetworkRules,
    resolver: &Resolver,
    host: &Host,
    port: u16,
) -> Result<Verdict, String> {
    let verdict = rules.decide(host, port);
    if !verdict.is_allowed {
        return Ok(verdict);
    }
    let addresses = match host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => resolver.lookup(name).await?,
    };
    let mut refusal = None;
    for address in addresses {
        let decided = rules.decide_address(host, port, address, is_local(address));
        if decided.is_allowed {
            return Ok(verdict);
        }
        refusal = Some(decided);
    }
    Ok(refusal.unwrap_or(verdict))
}
