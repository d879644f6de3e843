//! Which runtime is used, and why.
//!
//! Never none: where nothing isolates, nothing is chosen.

use std::fmt;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;

use crate::{Apple, Docker, DockerSettings, Home, Result, Runtime, RuntimeError};

/// What the configuration asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wanted {
    /// The best that works on this machine.
    #[default]
    Auto,
    Sandbox,
    /// Docker or Podman.
    Docker,
    Apple,
}

impl Wanted {
    const ALL: [Self; 4] = [Self::Auto, Self::Sandbox, Self::Docker, Self::Apple];

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Sandbox => "sandbox",
            Self::Docker => "docker",
            Self::Apple => "apple",
        }
    }

    /// What is tried, best first.
    fn order(self, system: System) -> &'static [Self] {
        match (self, system) {
            (Self::Auto, System::MacOs) => &[Self::Apple, Self::Docker],
            (Self::Auto, System::Other) => &[Self::Sandbox, Self::Docker],
            (Self::Sandbox, _) => &[Self::Sandbox],
            (Self::Docker, _) => &[Self::Docker],
            (Self::Apple, _) => &[Self::Apple],
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|wanted| wanted.name() == text);
        found.ok_or_else(|| {
            format!("`{text}` is no runtime; there are `auto`, `sandbox`, `docker` and `apple`")
        })
    }
}

/// A runtime and the sentence that says why it is this one.
#[derive(Debug)]
pub struct Chosen<T = Arc<dyn Runtime>> {
    pub runtime: T,
    pub reason: String,
}

/// Finds the runtime that is wanted. `sandbox` is the embedded one if its probe passed, or what
/// stands in its way.
pub async fn choose(
    wanted: Wanted,
    home: &Home,
    docker: &DockerSettings,
    sandbox: Result<Arc<dyn Runtime>>,
) -> Result<Chosen> {
    let mut sandbox = Some(sandbox);
    let system = if cfg!(target_os = "macos") {
        System::MacOs
    } else {
        System::Other
    };
    let mut attempt = |candidate: Wanted| -> Attempt<Arc<dyn Runtime>> {
        let (home, docker) = (home.clone(), docker.clone());
        match candidate {
            Wanted::Docker => Box::pin(async move {
                let docker = Docker::connect(home, &docker).await?;
                let about = docker.about();
                Ok((Arc::new(docker) as Arc<dyn Runtime>, about))
            }),
            Wanted::Apple => Box::pin(async {
                let apple = Apple::connect(home).await?;
                let about = apple.about();
                Ok((Arc::new(apple) as Arc<dyn Runtime>, about))
            }),
            Wanted::Auto | Wanted::Sandbox => {
                let sandbox = sandbox.take().unwrap_or_else(|| {
                    Err(RuntimeError::Failed("It was tried already.".to_owned()))
                });
                Box::pin(async {
                    sandbox.map(|runtime| (runtime, "the embedded sandbox".to_owned()))
                })
            }
        }
    };
    first(wanted, system, &mut attempt).await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    MacOs,
    Other,
}

/// A candidate on its way: the runtime and what it calls itself.
type Attempt<T> = Pin<Box<dyn Future<Output = Result<(T, String)>> + Send>>;

async fn first<T>(
    wanted: Wanted,
    system: System,
    attempt: &mut (dyn FnMut(Wanted) -> Attempt<T> + Send),
) -> Result<Chosen<T>> {
    let mut failed: Vec<(Wanted, RuntimeError)> = Vec::new();
    for candidate in wanted.order(system) {
        match attempt(*candidate).await {
            Ok((runtime, about)) => {
                let reason = reason(wanted, &about, &failed);
                return Ok(Chosen { runtime, reason });
            }
            Err(error) => failed.push((*candidate, error)),
        }
    }
    // One that was asked for by name fails with its own words.
    if wanted != Wanted::Auto
        && let Some((_, error)) = failed.pop()
    {
        return Err(error);
    }
    Err(RuntimeError::Unavailable(format!(
        "No runtime can be used, and agents are never run without one. {}",
        obstacles(&failed)
    )))
}

fn reason(wanted: Wanted, about: &str, failed: &[(Wanted, RuntimeError)]) -> String {
    match (wanted, failed) {
        (Wanted::Auto, []) => format!("Using {about}, the best that works on this machine."),
        (Wanted::Auto, failed) => format!("Using {about}. {}", obstacles(failed)),
        (named, _) => format!("Using {about}, because the configuration says `{named}`."),
    }
}

fn obstacles(failed: &[(Wanted, RuntimeError)]) -> String {
    let sentences: Vec<String> = failed
        .iter()
        .map(|(candidate, error)| format!("Not `{candidate}`: {error}"))
        .collect();
    sentences.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chooses where only `working` work.
    async fn choice(wanted: Wanted, system: System, working: &[Wanted]) -> Result<Chosen<Wanted>> {
        let mut attempt = |candidate: Wanted| -> Attempt<Wanted> {
            let works = working.contains(&candidate);
            Box::pin(async move {
                if works {
                    Ok((candidate, format!("{candidate} 1.0")))
                } else {
                    let why = format!("There is no {candidate}.");
                    Err(RuntimeError::Unavailable(why))
                }
            })
        };
        first(wanted, system, &mut attempt).await
    }

    #[tokio::test]
    async fn automatic_means_the_best_that_works_and_says_what_does_not() {
        use Wanted::{Apple, Auto, Docker, Sandbox};
        let best = choice(Auto, System::Other, &[Sandbox, Docker, Apple]).await;
        let best = best.unwrap();
        assert_eq!(best.runtime, Sandbox);
        assert_eq!(
            best.reason,
            "Using sandbox 1.0, the best that works on this machine."
        );
        let second = choice(Auto, System::Other, &[Docker, Apple]).await.unwrap();
        assert_eq!(second.runtime, Docker);
        assert_eq!(
            second.reason,
            "Using docker 1.0. Not `sandbox`: There is no sandbox."
        );
        let mac = choice(Auto, System::MacOs, &[Sandbox, Docker, Apple]).await;
        assert_eq!(mac.unwrap().runtime, Apple);
        let mac = choice(Auto, System::MacOs, &[Sandbox, Docker]).await;
        assert_eq!(mac.unwrap().runtime, Docker);
    }

    #[tokio::test]
    async fn nothing_is_chosen_where_nothing_isolates() {
        let none = choice(Wanted::Auto, System::Other, &[Wanted::Apple]).await;
        let none = none.unwrap_err().to_string();
        for part in ["never run without", "no sandbox", "no docker"] {
            assert!(none.contains(part), "{none}");
        }
    }

    #[tokio::test]
    async fn a_named_runtime_is_that_one_or_an_error() {
        let named = choice(Wanted::Docker, System::Other, &[Wanted::Docker]).await;
        let reason = named.unwrap().reason;
        assert!(reason.contains("configuration says `docker`"), "{reason}");
        let missing = choice(Wanted::Docker, System::Other, &[Wanted::Sandbox]).await;
        assert_eq!(missing.unwrap_err().to_string(), "There is no docker.");
    }

    #[test]
    fn names_are_read_and_others_refused() {
        for wanted in Wanted::ALL {
            assert_eq!(wanted.to_string().parse(), Ok(wanted));
        }
        let error = "podman".parse::<Wanted>().unwrap_err();
        assert!(error.contains("`docker`"), "{error}");
    }
}
