//! `credential_list`.

use oubliette_model::{Access, BaseUrl};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Credential;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    credentials: Vec<CredentialView>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct CredentialView {
    name: String,
    kind: String,
    /// `stored` with its value, a reference to a variable (`env`) or a `file`, or `config`: defined in
    /// the server's configuration.
    source: &'static str,
    /// The variable or file that a reference names.
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_url: Option<BaseUrl>,
    /// The names of the projects that refer to it.
    projects: Vec<String>,
    /// Why it cannot be used now.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Debug)]
pub(crate) struct List;

impl Operation for List {
    const NAME: &'static str = "credential_list";
    const ABOUT: &'static str = "List credentials, without values.\n\n\
         Their kinds, where they come from and the projects that use them.";
    const ACCESS: Access = Access::Admin;
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(_: &Params) -> Reach {
        Reach::everywhere()
    }

    async fn run(engine: &Engine, _: &Actor, _: Params, _: Call) -> Result<Output> {
        let references = engine.credentials().references().await?;
        let view = |(name, credential, is_configured): (String, Credential, bool)| {
            let users = references.iter().filter(|(of, _)| *of == name);
            let reference = match (&credential.env, &credential.file) {
                (Some(variable), _) => Some(variable.clone()),
                (None, Some(path)) => Some(path.display().to_string()),
                (None, None) => None,
            };
            CredentialView {
                source: match (is_configured, &credential.env, &credential.file) {
                    (true, ..) => "config",
                    (false, Some(_), _) => "env",
                    (false, None, Some(_)) => "file",
                    (false, None, None) => "stored",
                },
                reference,
                projects: users.map(|(_, project)| project.clone()).collect(),
                problem: credential.read().err().map(|error| error.to_string()),
                name,
                kind: credential.kind,
                base_url: credential.base_url,
            }
        };
        let all = engine.credentials().all().into_iter();
        Ok(Output {
            credentials: all.map(view).collect(),
        })
    }
}
