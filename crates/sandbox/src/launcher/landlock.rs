//! A second layer of protection behind the namespaces: no process inside can make devices, change
//! mounts, or reach abstract sockets and processes of the host, even with the host's network.

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::report::Landlock;

/// Applies as much as the kernel supports. It is never the only protection, so a kernel without
/// Landlock is reported and not an error.
pub(super) fn apply() -> Landlock {
    match restrict() {
        Ok(RulesetStatus::FullyEnforced) => Landlock::Full,
        Ok(RulesetStatus::PartiallyEnforced) => Landlock::Partial,
        Ok(RulesetStatus::NotEnforced) | Err(_) => Landlock::Off,
    }
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
