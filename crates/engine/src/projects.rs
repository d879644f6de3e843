//! Projects: their operations, and the verbs that several operations share.

pub(crate) mod changes;
pub(crate) mod create;
pub(crate) mod delete;
mod fields;
pub(crate) mod get;
pub(crate) mod list;
mod openspec;
pub(crate) mod options;
mod purge;
pub(crate) mod push;
pub(crate) mod tasks;
pub(crate) mod update;
mod view;

use oubliette_model::{ProjectName, quoted};

use crate::{Actor, Engine, EngineError};

/// Handle for the verbs of projects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Projects<'a> {
    pub(crate) engine: &'a Engine,
}

impl Projects<'_> {
    /// The error for a name that another project has, with its id if the actor can see that project.
    async fn already_exists(self, actor: &Actor, name: &ProjectName) -> EngineError {
        let store = self.engine.store();
        let found = store.projects_matching(actor.visible(), name.as_str(), None, 1);
        let hint = match found.await.unwrap_or_default().first() {
            Some(project) => format!(
                ": {} has the id {}; use it, or choose another name",
                quoted(name.as_str()),
                project.id
            ),
            None => String::new(),
        };
        EngineError::AlreadyExists {
            what: "project",
            hint,
        }
    }
}
