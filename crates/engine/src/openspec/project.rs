//! What the changes of a project share, read once for a call.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::schema::{self, Schema};
use super::settings::{self, Config, Metadata};
use super::{CHANGES, DEFAULT_SCHEMA};
use crate::files::{Lost, Tree};

#[derive(Debug)]
pub(super) struct Project<'a> {
    pub(super) tree: &'a Tree,
    pub(super) config: Config,
    /// Where its changes are, without links; none if there are none.
    pub(super) changes: Option<String>,
    names: OnceCell<Vec<String>>,
    schemas: RefCell<HashMap<String, Result<Rc<Schema>, String>>>,
}

/// How a change is worked on.
#[derive(Debug)]
pub(super) struct Workflow {
    pub(super) name: String,
    pub(super) schema: Rc<Schema>,
    pub(super) metadata: Option<Metadata>,
}

impl<'a> Project<'a> {
    /// # Errors
    /// If there is something that cannot be read as a list of changes.
    pub(super) fn open(tree: &'a Tree) -> Result<Self, Lost> {
        let changes = match tree.find(CHANGES) {
            Ok(found) => Some(found.path),
            // A project without OpenSpec, whatever else has that name.
            Err(Lost::Absent(_)) => None,
            Err(lost) => match tree.is_directory("openspec") {
                true => return Err(lost),
                false => None,
            },
        };
        Ok(Self {
            tree,
            config: settings::config(tree),
            changes,
            names: OnceCell::new(),
            schemas: RefCell::default(),
        })
    }

    /// The workflow of the change in a directory. The error is a sentence for people.
    pub(super) fn workflow(&self, directory: &str) -> Result<Workflow, String> {
        let names = || &**self.names.get_or_init(|| schema::names(self.tree));
        let metadata = settings::metadata(self.tree, directory, names)?;
        let own = metadata.as_ref().map(|metadata| &metadata.schema);
        let name = own.or(self.config.schema.as_ref()).cloned();
        let name = name.unwrap_or_else(|| DEFAULT_SCHEMA.to_owned());
        let mut schemas = self.schemas.borrow_mut();
        let schema = schemas
            .entry(name.clone())
            .or_insert_with(|| schema::find(self.tree, &name, names).map(Rc::new));
        Ok(Workflow {
            schema: schema.clone()?,
            name,
            metadata,
        })
    }
}
