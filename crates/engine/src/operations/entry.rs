//! An operation with its types erased.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use oubliette_model::Access;
use serde_json::{Map, Value};

use super::{Effect, Face, Operation, Reach, parameters, schema};
use crate::{Actor, Call, Engine, EngineError, Result};

type OperationFuture<'a> = Pin<Box<dyn Future<Output = Result<Value>> + Send + 'a>>;
type Run = Box<dyn for<'a> FnOnce(&'a Engine, &'a Actor, Call) -> OperationFuture<'a> + Send>;

/// A call with parsed parameters: what it reaches, and how to run it.
pub(super) struct Prepared {
    pub(super) reach: Reach,
    pub(super) run: Run,
}

/// One row of the registry.
pub struct Entry {
    pub name: &'static str,
    pub about: &'static str,
    pub access: Access,
    pub face: Face,
    pub effect: Effect,
    /// Whether a call can reach other hosts.
    pub open_world: bool,
    /// The field of the result that is shown once and never stored.
    pub secret_field: Option<&'static str>,
    /// The schema of the parameters: one flat object.
    pub input: Arc<Map<String, Value>>,
    /// The schema of the result.
    pub output: Arc<Map<String, Value>>,
    pub(super) prepare: fn(&Entry, Map<String, Value>) -> Result<Prepared>,
}

impl Entry {
    pub fn from_operation<T: Operation>() -> Self {
        Self {
            name: T::NAME,
            about: T::ABOUT,
            access: T::ACCESS,
            face: T::FACE,
            effect: T::EFFECT,
            open_world: T::OPEN_WORLD,
            secret_field: T::SECRET_FIELD,
            input: Arc::new(schema::parameters_schema::<T::Params>()),
            output: Arc::new(schema::result_schema::<T::Output>()),
            prepare: prepare::<T>,
        }
    }

    /// `project` of `project_create`.
    pub fn noun(&self) -> &'static str {
        self.name
            .split_once('_')
            .map_or(self.name, |(noun, _)| noun)
    }

    /// `create` of `project_create`.
    pub fn verb(&self) -> &'static str {
        self.name.split_once('_').map_or("", |(_, verb)| verb)
    }

    /// The parameters by name, each with its schema.
    pub fn properties(&self) -> impl Iterator<Item = (&str, &Value)> {
        schema::properties(&self.input)
    }

    /// The parameters that lists of tools show.
    pub(super) fn listed_properties(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.properties()
            .filter(|(_, schema)| schema::is_listed(schema))
    }

    pub fn requires(&self, parameter: &str) -> bool {
        schema::required(&self.input).any(|name| name == parameter)
    }
}

fn prepare<T: Operation>(entry: &Entry, arguments: Map<String, Value>) -> Result<Prepared> {
    let params: T::Params = parameters::parse(Some(entry.name), &entry.input, arguments)?;
    Ok(Prepared {
        reach: T::reach(&params),
        run: Box::new(move |engine, actor, call| {
            Box::pin(async move {
                let output = T::run(engine, actor, params, call).await?;
                serde_json::to_value(output).map_err(EngineError::fault)
            })
        }),
    })
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
