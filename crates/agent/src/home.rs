//! The files that an agent reads its settings from, in a home directory of its session.

use oubliette_wire::HomeFile;

/// What of the project's home an agent gets in the home of its session.
#[derive(Debug, Clone, Default)]
pub struct HomeLayout {
    /// Where it keeps its state and its logins. No session shares them with another one.
    pub private: &'static [&'static str],
    /// Settings of the user among them, files and directories, which each session gets a copy of.
    pub copied: &'static [&'static str],
    /// What older versions left in the project's home and must not stay, each with a text that it has;
    /// an empty one for any content.
    pub leftovers: &'static [(&'static str, &'static str)],
    /// Files of ours, written at each start.
    pub files: Vec<HomeFile>,
}
