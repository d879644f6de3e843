//! Which agents a project may name.

use crate::Settings;

/// The agents that Oubliette knows by itself.
const KNOWN: [&str; 6] = ["demo", "droid", "opencode", "claude", "codex", "gemini"];

/// Every agent that a project may name: the known ones and those of the configuration.
pub(crate) fn names(settings: &Settings) -> Vec<&str> {
    let configured = settings.agents.keys().map(String::as_str);
    let mut names: Vec<&str> = KNOWN.into_iter().chain(configured).collect();
    names.sort_unstable();
    names.dedup();
    names
}
