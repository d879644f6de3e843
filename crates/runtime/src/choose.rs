//! Which runtime is used, and why. Without a runtime that isolates, none is chosen.

use std::fmt;
use std::sync::Arc;

use crate::drivers::{AUTO, NONE};
use crate::{
    OpenedRuntime, Platform, Result, Runtime, RuntimeDriver, RuntimeError, RuntimeSettings,
};

/// The value of `runtime` in the configuration.
#[derive(Debug, Clone, Copy, Default)]
pub enum RuntimeChoice {
    /// The first of the drivers that works on this machine.
    #[default]
    Auto,
    /// Containers are disabled.
    None,
    Driver(&'static RuntimeDriver),
}

impl RuntimeChoice {
    /// Reads a name of the configuration; the error lists the known ones.
    pub fn parse(name: &str, drivers: &'static [RuntimeDriver]) -> Result<Self, String> {
        match name {
            AUTO => Ok(Self::Auto),
            NONE => Ok(Self::None),
            _ => drivers
                .iter()
                .find(|driver| driver.name == name)
                .map(Self::Driver)
                .ok_or_else(|| unknown(name, drivers)),
        }
    }

    /// The drivers to try, best first.
    fn candidates(
        self,
        drivers: &'static [RuntimeDriver],
        platform: Platform,
    ) -> Vec<&'static RuntimeDriver> {
        match self {
            Self::Auto => drivers
                .iter()
                .filter(|driver| driver.auto_on.contains(&platform))
                .collect(),
            Self::None => Vec::new(),
            Self::Driver(driver) => vec![driver],
        }
    }
}

impl fmt::Display for RuntimeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => AUTO,
            Self::None => NONE,
            Self::Driver(driver) => driver.name,
        })
    }
}

fn unknown(name: &str, drivers: &[RuntimeDriver]) -> String {
    let names = [AUTO]
        .into_iter()
        .chain(drivers.iter().map(|driver| driver.name))
        .chain([NONE]);
    let known: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    let hint = if name == "podman" {
        "; `docker` also uses Podman"
    } else {
        ""
    };
    format!(
        "unknown runtime `{name}`; known: {}{hint}",
        known.join(", ")
    )
}

/// A runtime, and the sentence that says why it was chosen.
#[derive(Debug)]
pub struct ChosenRuntime<T = Arc<dyn Runtime>> {
    pub runtime: T,
    pub reason: String,
}

/// Opens the runtime of a choice.
pub async fn choose(
    choice: RuntimeChoice,
    drivers: &'static [RuntimeDriver],
    settings: &RuntimeSettings,
) -> Result<ChosenRuntime> {
    let candidates = choice.candidates(drivers, Platform::current());
    first_working(choice, &candidates, |driver| (driver.open)(settings)).await
}

async fn first_working<T, F>(
    choice: RuntimeChoice,
    candidates: &[&'static RuntimeDriver],
    open: impl Fn(&'static RuntimeDriver) -> F,
) -> Result<ChosenRuntime<T>>
where
    F: Future<Output = Result<OpenedRuntime<T>>>,
{
    let mut failed: Vec<(&str, RuntimeError)> = Vec::new();
    for driver in candidates {
        match open(driver).await {
            Ok(OpenedRuntime {
                runtime,
                description,
            }) => {
                let reason = reason(choice, &description, &failed);
                return Ok(ChosenRuntime { runtime, reason });
            }
            Err(error) => failed.push((driver.name, error)),
        }
    }
    Err(match (choice, failed.pop()) {
        // The error of the one runtime that was asked for says the most.
        (RuntimeChoice::Driver(_), Some((_, error))) => error,
        (RuntimeChoice::None, _) => {
            RuntimeError::Unsupported(format!("containers are disabled (`runtime = \"{NONE}\"`)"))
        }
        (_, last) => {
            failed.extend(last);
            RuntimeError::Unavailable(format!(
                "No runtime works on this machine, and agents never run without one. {}",
                describe_failures(&failed)
            ))
        }
    })
}

fn reason(choice: RuntimeChoice, description: &str, failed: &[(&str, RuntimeError)]) -> String {
    match (choice, failed) {
        (RuntimeChoice::Auto, []) => {
            format!("Using {description}, the preferred runtime on this machine.")
        }
        (RuntimeChoice::Auto, failed) => {
            format!("Using {description}. {}", describe_failures(failed))
        }
        (named, _) => format!("Using {description}, because the configuration says `{named}`."),
    }
}

fn describe_failures(failed: &[(&str, RuntimeError)]) -> String {
    let sentences: Vec<String> = failed
        .iter()
        .map(|(name, error)| format!("Not `{name}`: {error}"))
        .collect();
    sentences.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DRIVERS;

    /// Chooses on a machine where only `working` can be opened.
    async fn choose_among(
        name: &str,
        platform: Platform,
        working: &[&str],
    ) -> Result<ChosenRuntime<&'static str>> {
        let choice = RuntimeChoice::parse(name, DRIVERS).unwrap();
        let candidates = choice.candidates(DRIVERS, platform);
        first_working(choice, &candidates, async |driver| {
            let name = driver.name;
            if !working.contains(&name) {
                let why = format!("There is no {name}.");
                return Err(RuntimeError::Unavailable(why));
            }
            Ok(OpenedRuntime {
                runtime: name,
                description: format!("{name} 1.0"),
            })
        })
        .await
    }

    #[tokio::test]
    async fn auto_is_the_first_that_works_and_gives_reasons_against_the_others() {
        let all = ["sandbox", "docker", "apple"];
        let best = choose_among("auto", Platform::Linux, &all).await.unwrap();
        assert_eq!(best.runtime, "sandbox");
        assert_eq!(
            best.reason,
            "Using sandbox 1.0, the preferred runtime on this machine."
        );
        let second = choose_among("auto", Platform::Linux, &["docker", "apple"]).await;
        let second = second.unwrap();
        assert_eq!(second.runtime, "docker");
        assert_eq!(
            second.reason,
            "Using docker 1.0. Not `sandbox`: There is no sandbox."
        );
        let mac = choose_among("auto", Platform::MacOs, &all).await;
        assert_eq!(mac.unwrap().runtime, "apple");
        let mac = choose_among("auto", Platform::MacOs, &["sandbox", "docker"]).await;
        assert_eq!(mac.unwrap().runtime, "docker");
    }

    #[tokio::test]
    async fn nothing_is_chosen_where_nothing_isolates() {
        let none = choose_among("auto", Platform::Linux, &["apple"]).await;
        let none = none.unwrap_err().to_string();
        for part in ["never run without", "no sandbox", "no docker"] {
            assert!(none.contains(part), "{none}");
        }
    }

    #[tokio::test]
    async fn a_named_runtime_is_that_one_or_its_error() {
        let named = choose_among("docker", Platform::Linux, &["docker"]).await;
        let reason = named.unwrap().reason;
        assert!(reason.contains("configuration says `docker`"), "{reason}");
        let missing = choose_among("docker", Platform::Linux, &["sandbox"]).await;
        assert_eq!(missing.unwrap_err().to_string(), "There is no docker.");
    }

    #[tokio::test]
    async fn none_disables_containers() {
        let none = choose_among("none", Platform::Linux, &["sandbox"]).await;
        let error = none.unwrap_err().to_string();
        assert_eq!(error, "containers are disabled (`runtime = \"none\"`)");
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        let error = RuntimeChoice::parse("podman", DRIVERS).unwrap_err();
        assert_eq!(
            error,
            "unknown runtime `podman`; known: `auto`, `sandbox`, `apple`, `docker`, `none`; `docker` also \
             uses Podman"
        );
        for name in ["auto", "sandbox", "none"] {
            let choice = RuntimeChoice::parse(name, DRIVERS).unwrap();
            assert_eq!(choice.to_string(), name);
        }
    }
}
