//! A second lock behind the namespaces: no devices can be made, no mount can change, and abstract
//! sockets and processes of the host are out of reach even with the host's network.

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::report::Landlock;

/// Applies as much as the kernel knows. It is never the only protection, so a kernel without it is
/// reported and not an error.
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
