//! Placeholders for credentials of git hosts.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use oubliette_model::{ApiKey, BranchPattern};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::super::grants::{GrantedSecret, placeholder_id};

/// A placeholder of one start of an agent, and the credential of a git host that it stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitGrant {
    /// The hash of the placeholder, in hexadecimal digits.
    pub placeholder: String,
    /// With a port if it is not the usual one.
    pub host: String,
    /// The address that the host stands for.
    pub upstream: String,
    /// The repository, or the path above those that the credential is for; empty for all of the host.
    pub path: String,
    pub user: String,
    pub secret: GrantedSecret,
    /// The branches that may be pushed.
    pub push_branches: Vec<BranchPattern>,
}

impl GitGrant {
    /// What the host gets as `Authorization`, without the name of the scheme.
    pub(super) fn basic(&self) -> String {
        let text = format!("{}:{}", self.user, self.secret.reveal());
        BASE64_STANDARD.encode(text)
    }
}

#[derive(Debug)]
struct Entry {
    session: String,
    container: String,
    grant: Arc<GitGrant>,
}

/// The grants of all sessions.
#[derive(Debug, Default)]
pub(crate) struct GitGrants {
    by_placeholder: Mutex<HashMap<String, Entry>>,
}

impl GitGrants {
    /// Replaces the grants of a session.
    pub(crate) fn set(&self, session: &str, container: &str, grants: Vec<GitGrant>) {
        let mut all = self.by_placeholder.lock();
        all.retain(|_, entry| entry.session != session);
        for grant in grants {
            let entry = Entry {
                session: session.to_owned(),
                container: container.to_owned(),
                grant: Arc::new(grant),
            };
            all.insert(entry.grant.placeholder.clone(), entry);
        }
    }

    pub(crate) fn remove_container(&self, container: &str) {
        let mut all = self.by_placeholder.lock();
        all.retain(|_, entry| entry.container != container);
    }

    /// The grant of a placeholder in a container.
    pub(super) fn find(&self, key: &str, container: &str) -> Option<Arc<GitGrant>> {
        let key: ApiKey = key.parse().ok()?;
        let all = self.by_placeholder.lock();
        let entry = all.get(&placeholder_id(&key))?;
        (entry.container == container).then(|| entry.grant.clone())
    }
}
