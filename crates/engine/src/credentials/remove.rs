//! `credential_remove`.

use oubliette_model::{Access, quoted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The credential.
    name: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    name: String,
    removed: bool,
    /// The names of projects that still refer to it: agents that start there fail until it is added
    /// again or their `credential_refs` are changed.
    projects: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Remove;

impl Operation for Remove {
    const NAME: &'static str = "credential_remove";
    const ABOUT: &'static str = "Remove a credential; running agents keep it.\n\n\
         The result names the projects that still refer to it.";
    const ACCESS: Access = Access::Admin;
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Destroys;
    type Params = Params;
    type Output = Output;

    fn reach(_: &Params) -> Reach {
        Reach::everywhere()
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<Output> {
        let name = params.name;
        if engine.settings().credentials.contains_key(&name) {
            return Err(EngineError::invalid(format!(
                "{} is defined in the server's configuration; remove [credentials.{name}] there and \
                 restart the server",
                quoted(&name)
            )));
        }
        let credentials = engine.credentials();
        if credentials.find(&name).is_none() || !credentials.state().remove(&name).await? {
            return Err(EngineError::NotFound {
                what: "credential",
                id: name,
                hint: "`credential_list` shows the credentials",
            });
        }
        engine.gateway().refresh();
        let references = credentials.references().await?.into_iter();
        let projects = references.filter(|(of, _)| *of == name);
        Ok(Output {
            projects: projects.map(|(_, project)| project).collect(),
            name,
            removed: true,
        })
    }
}
