//! The table of runtimes. The configuration, `serve`, `doctor` and help texts read it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::{DockerSettings, Result, Runtime, apple, docker, sandbox};

/// The runtimes of this build. `auto` tries them in this order.
pub const DRIVERS: &[RuntimeDriver] = &[sandbox::DRIVER, apple::DRIVER, docker::DRIVER];

/// One row of the table.
#[derive(Clone, Copy)]
pub struct RuntimeDriver {
    /// The value of `runtime` in the configuration, and the `name` of its capabilities.
    pub name: &'static str,
    /// One sentence for help texts: what it is and what it needs.
    pub about: &'static str,
    /// The platforms on which `auto` tries it.
    pub auto_on: &'static [Platform],
    /// Connects to it; an error says what is missing.
    pub open: for<'a> fn(&'a RuntimeSettings) -> BoxFuture<'a, Result<OpenedRuntime>>,
    /// Finds out what works on this machine, for `oubliette doctor`. Must leave nothing behind.
    pub probe: for<'a> fn(&'a RuntimeSettings) -> BoxFuture<'a, Vec<ProbeFinding>>,
}

impl fmt::Debug for RuntimeDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// What drivers are opened with.
#[derive(Debug, Clone)]
pub struct RuntimeSettings {
    pub data_dir: PathBuf,
    /// A binary whose `main` begins with `oubliette_sandbox::launcher_main`.
    pub launcher: PathBuf,
    /// The TCP ports that the server listens on, which no container may take while the server is away.
    pub server_ports: Vec<u16>,
    /// Containers are only listed, stopped and removed, which must work also where none can be started,
    /// for example for want of disk space.
    pub stop_only: bool,
    pub docker: DockerSettings,
}

/// A runtime that works, and what it calls itself, with its version.
#[derive(Debug)]
pub struct OpenedRuntime<T = Arc<dyn Runtime>> {
    pub runtime: T,
    pub description: String,
}

impl OpenedRuntime {
    pub fn new(runtime: impl Runtime + 'static, description: impl Into<String>) -> Self {
        Self {
            runtime: Arc::new(runtime),
            description: description.into(),
        }
    }
}

/// One line of `oubliette doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeFinding {
    pub kind: ProbeKind,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeKind {
    Works,
    /// Something does not work, or works in another way.
    Note,
    /// A limit of projects has no effect on this machine.
    LimitMissing,
}

impl ProbeFinding {
    pub fn new(works: bool, text: impl Into<String>) -> Self {
        Self {
            kind: if works {
                ProbeKind::Works
            } else {
                ProbeKind::Note
            },
            text: text.into(),
        }
    }

    pub fn limit_missing(text: impl Into<String>) -> Self {
        Self {
            kind: ProbeKind::LimitMissing,
            text: text.into(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    /// Also every other Unix that is not macOS.
    Linux,
    MacOs,
}

impl Platform {
    pub fn current() -> Self {
        if cfg!(target_os = "macos") {
            Self::MacOs
        } else {
            Self::Linux
        }
    }
}

/// A line for each value of `runtime`, for help texts.
pub fn help() -> String {
    let rows = DRIVERS.iter().map(|driver| (driver.name, driver.about));
    [(AUTO, "The first of the following that works.")]
        .into_iter()
        .chain(rows)
        .chain([(NONE, "No containers.")])
        .map(|(name, about)| format!("`{name}`: {about}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The value of `runtime` that tries the drivers one after the other.
pub(crate) const AUTO: &str = "auto";
/// The value of `runtime` that disables containers.
pub(crate) const NONE: &str = "none";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_is_complete_and_its_name_unique() {
        let mut names = BTreeSet::from([AUTO, NONE]);
        for driver in DRIVERS {
            let name = driver.name;
            assert!(names.insert(name), "`{name}` is used twice");
            assert!(
                !name.is_empty() && name.bytes().all(|c| c.is_ascii_lowercase()),
                "{name:?} is not a lowercase word"
            );
            assert!(driver.about.ends_with('.'), "{name}: {:?}", driver.about);
            assert!(!driver.auto_on.is_empty(), "`auto` never tries {name}");
        }
    }

    #[test]
    fn auto_tries_a_native_runtime_before_docker() {
        let tried = |platform| {
            let rows = DRIVERS
                .iter()
                .filter(|driver| driver.auto_on.contains(&platform));
            rows.map(|driver| driver.name).collect::<Vec<_>>()
        };
        assert_eq!(tried(Platform::Linux), ["sandbox", "docker"]);
        assert_eq!(tried(Platform::MacOs), ["apple", "docker"]);
    }

    #[test]
    fn the_documentation_names_every_runtime() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find(|line| line.starts_with("runtime = "));
        for driver in DRIVERS {
            assert!(line.unwrap().contains(driver.name), "{}", driver.name);
        }
    }

    #[test]
    fn the_help_names_every_runtime() {
        let help = help();
        for driver in DRIVERS {
            let line = format!("`{}`: {}", driver.name, driver.about);
            assert!(help.lines().any(|found| found == line), "{help}");
        }
    }
}
