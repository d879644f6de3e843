//! Placeholder keys and what they stand for.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use oubliette_model::ApiKey;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::git::{GitGrant, GitGrants};
use super::provider::Provider;
use super::reservations::BudgetWaits;

/// A secret on its way from the server to the gate. It is printed nowhere.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GrantedSecret(String);

impl GrantedSecret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for GrantedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}

/// A placeholder key of one start of an agent, and the key that it stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The hash of the placeholder, in hexadecimal digits.
    pub placeholder: String,
    pub provider: Provider,
    /// The address that the provider's prefix stands for.
    pub upstream: String,
    pub secret: GrantedSecret,
}

/// All grants of a session, which replace those that it had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionGrants {
    pub session: String,
    /// The only container in which the placeholders work.
    pub container: String,
    pub grants: Vec<Grant>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub git: Vec<GitGrant>,
    /// Whether the session's tree has a budget: then the server is asked before each call.
    #[serde(default)]
    pub budget: Option<BudgetWaits>,
}

/// A grant as requests find it.
#[derive(Debug)]
pub(crate) struct GrantEntry {
    pub(crate) session: String,
    pub(crate) container: String,
    pub(crate) grant: Grant,
    pub(crate) budget: Option<BudgetWaits>,
}

/// The grants of all sessions.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    pub(crate) git: GitGrants,
    by_placeholder: Mutex<HashMap<String, Arc<GrantEntry>>>,
}

impl Grants {
    pub(crate) fn set(&self, changed: SessionGrants) {
        let SessionGrants {
            session,
            container,
            grants,
            git,
            budget,
        } = changed;
        self.git.set(&session, &container, git);
        let mut all = self.by_placeholder.lock();
        all.retain(|_, entry| entry.session != session);
        for grant in grants {
            let entry = GrantEntry {
                session: session.clone(),
                container: container.clone(),
                grant,
                budget,
            };
            all.insert(entry.grant.placeholder.clone(), Arc::new(entry));
        }
    }

    /// Forgets what was granted to a container that is gone.
    pub(crate) fn remove_container(&self, container: &str) {
        self.git.remove_container(container);
        let mut all = self.by_placeholder.lock();
        all.retain(|_, entry| entry.container != container);
    }

    /// The grant of a placeholder in a container.
    pub(crate) fn find(&self, key: &str, container: &str) -> Option<Arc<GrantEntry>> {
        let key: ApiKey = key.parse().ok()?;
        let found = self
            .by_placeholder
            .lock()
            .get(&placeholder_id(&key))
            .cloned();
        found.filter(|entry| entry.container == container)
    }
}

/// What the gate and the server call a placeholder: its hash.
pub fn placeholder_id(key: &ApiKey) -> String {
    let hash = key.hash();
    hash.as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(session: &str, container: &str, keys: &[&ApiKey]) -> SessionGrants {
        let grant = |key: &&ApiKey| Grant {
            placeholder: placeholder_id(key),
            provider: Provider::OpenAi,
            upstream: "https://api.openai.com/v1".to_owned(),
            secret: GrantedSecret::new("sk-real"),
        };
        SessionGrants {
            session: session.to_owned(),
            container: container.to_owned(),
            grants: keys.iter().map(grant).collect(),
            git: Vec::new(),
            budget: None,
        }
    }

    #[test]
    fn a_placeholder_works_in_its_container_until_its_session_has_others() {
        let (first, second) = (ApiKey::from_random([1; 32]), ApiKey::from_random([2; 32]));
        let all = Grants::default();
        all.set(grants("s1", "c1", &[&first]));
        all.set(grants("s2", "c2", &[&second]));
        assert_eq!(all.find(first.reveal(), "c1").unwrap().session, "s1");
        assert!(all.find(first.reveal(), "c2").is_none());
        assert!(all.find("sk-real", "c1").is_none());
        assert!(all.find(&placeholder_id(&first), "c1").is_none());
        all.set(grants("s1", "c1", &[]));
        assert!(all.find(first.reveal(), "c1").is_none());
        all.remove_container("c2");
        assert!(all.find(second.reveal(), "c2").is_none());
    }

    #[test]
    fn a_secret_is_not_printed() {
        let text = format!("{:?}", grants("s", "c", &[&ApiKey::from_random([1; 32])]));
        assert!(!text.contains("sk-real"), "{text}");
    }
}
