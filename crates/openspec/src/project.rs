//! What all changes of a project share, read once per call.

use oubliette_model::{FileTree, ReadError};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use crate::lookup::is_directory;
use crate::schema::{self, Schema};
use crate::settings::{self, Config, Metadata};
use crate::{CHANGES_DIR, DEFAULT_SCHEMA};

pub(crate) struct Project<'a> {
    pub(crate) tree: &'a dyn FileTree,
    pub(crate) config: Config,
    /// The directory of the changes, with links resolved; `None` if it does not exist.
    pub(crate) changes_dir: Option<String>,
    schema_names: OnceCell<Vec<String>>,
    schemas: RefCell<HashMap<String, Result<Rc<Schema>, String>>>,
}

/// The schema that a change follows, and the change's own settings.
pub(crate) struct Workflow {
    pub(crate) schema_name: String,
    pub(crate) schema: Rc<Schema>,
    pub(crate) metadata: Option<Metadata>,
}

impl<'a> Project<'a> {
    /// # Errors
    /// If `openspec/changes` exists but cannot be read.
    pub(crate) fn open(tree: &'a dyn FileTree) -> Result<Self, ReadError> {
        let changes_dir = match tree.find(CHANGES_DIR) {
            Ok(found) => Some(found.path),
            Err(ReadError::NotFound(_)) => None,
            Err(error) if is_directory(tree, "openspec") => return Err(error),
            // The project does not use OpenSpec, even if it has a file of that name.
            Err(_) => None,
        };
        Ok(Self {
            tree,
            config: settings::load_config(tree),
            changes_dir,
            schema_names: OnceCell::new(),
            schemas: RefCell::default(),
        })
    }

    /// The workflow of the change in a directory. The error is a sentence for people.
    pub(crate) fn workflow(&self, change_dir: &str) -> Result<Workflow, String> {
        let schema_names = || &**self.schema_names.get_or_init(|| schema::names(self.tree));
        let metadata = settings::load_metadata(self.tree, change_dir, schema_names)?;
        let schema_name = metadata
            .as_ref()
            .map(|metadata| &metadata.schema)
            .or(self.config.schema.as_ref())
            .map_or(DEFAULT_SCHEMA, String::as_str)
            .to_owned();
        let mut schemas = self.schemas.borrow_mut();
        let schema = schemas
            .entry(schema_name.clone())
            .or_insert_with(|| schema::load(self.tree, &schema_name, schema_names).map(Rc::new));
        Ok(Workflow {
            schema: schema.clone()?,
            schema_name,
            metadata,
        })
    }
}
