//! A second layer of protection behind the namespaces: no process inside can make devices, change
//! mounts, or reach abstract sockets and processes of the host, even with the host's network. With the
//! host's network, no process inside can bind the ports of the server.

use std::io;
use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::report::Landlock;
use crate::sys;

/// Applies as much as the kernel supports. It is never the only protection, so a kernel without
/// Landlock is reported and not an error.
pub(super) fn apply() -> Landlock {
    match restrict() {
        Ok(RulesetStatus::FullyEnforced) => Landlock::Full,
        Ok(RulesetStatus::PartiallyEnforced) => Landlock::Partial,
        Ok(RulesetStatus::NotEnforced) | Err(_) => Landlock::Off,
    }
}

/// Applies the rules for ports. After the others: a later domain contains a copy of every rule.
pub(super) fn apply_ports(rules: Option<BorrowedFd<'_>>) -> io::Result<()> {
    rules.map_or(Ok(()), sys::apply_port_rules)
}

fn restrict() -> Result<RulesetStatus, RulesetError> {
    let all = AccessFs::from_all(ABI::V6);
    let allowed = all & !(AccessFs::MakeChar | AccessFs::MakeBlock);
    let Ok(root) = PathFd::new("/") else {
        return Ok(RulesetStatus::NotEnforced);
    };
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(ABI::V6))?
        .create()?
        .add_rule(PathBeneath::new(root, allowed))?
        .restrict_self()?;
    Ok(status.ruleset)
}
