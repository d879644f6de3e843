//! How agents sign in with something else than a key in a variable, how they are told of a gateway, and
//! their own commands for signing in: data of the rows of the catalogue.

use std::collections::BTreeMap;

use oubliette_model::{BaseUrl, Secret};
use oubliette_wire::FileFormat;
use serde_json::{Map, Value, json};

/// How an agent signs in, besides keys in variables.
#[derive(Debug, Clone, Copy)]
pub struct SignInMethods {
    /// The kinds of credentials that are a file in its home. With one it gets no key.
    pub login_files: &'static [LoginFile],
    /// Variables that it needs with a kind of credential, unless they are set already.
    pub kind_env: &'static [(&'static str, &'static [(&'static str, &'static str)])],
    pub gateways: &'static [Gateway],
    /// How it is told of a model by the gateway of its container, if only its settings can say so.
    pub gateway_models: Option<GatewayModels>,
    /// Models for which it finds the key in its own settings, not in a credential.
    pub own_models: Option<OwnModels>,
    /// Whether its turns fail without a credential, unless it finds a key in its own settings.
    pub needs_credential: bool,
    pub login: LoginCommand,
}

pub(crate) const UNKNOWN: SignInMethods = SignInMethods {
    login_files: &[],
    kind_env: &[],
    gateways: &[],
    gateway_models: None,
    own_models: None,
    needs_credential: false,
    login: LoginCommand::Missing("it has no command for signing in that is known"),
};

/// A kind of credential that is a file in the agent's home. The agent may write it again, with new
/// tokens.
#[derive(Debug, Clone, Copy)]
pub struct LoginFile {
    pub kind: &'static str,
    pub path: &'static str,
    /// Settings with which the agent uses the file: paths in its home, and what is merged into them.
    pub settings: &'static [(&'static str, FileFormat, &'static str)],
    /// What a text says, or why it is no such file.
    pub parse: fn(&str) -> Result<Login, &'static str>,
}

/// The content of a login file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// Whom it belongs to.
    pub account: String,
    /// Grows each time the agent writes new tokens.
    pub version: String,
    /// Every token and key in it.
    pub secrets: Vec<Secret>,
}

/// Models that the user has added to an agent's settings, with the address and the key of their provider.
#[derive(Debug, Clone, Copy)]
pub struct OwnModels {
    /// Whether a name is that of such a model.
    pub is_own: fn(&str) -> bool,
    /// The file in the container's home that has the key.
    pub settings_path: &'static str,
}

/// Credentials of which an agent learns by models in its settings. It gets them only where the key in the settings is
/// a placeholder.
#[derive(Debug, Clone, Copy)]
pub struct GatewayModels {
    pub kinds: &'static [&'static str],
    /// The file of its home with the settings.
    pub path: &'static str,
    /// The JSON that is merged into the file.
    pub settings: fn(&GatewayModel<'_>) -> Value,
    /// What the agent calls a model in it.
    pub id: fn(&str) -> String,
    /// What the agent needs besides, if it has no other key.
    pub env: &'static [(&'static str, &'static str)],
}

/// A model behind the gateway of a container.
#[derive(Debug, Clone, Copy)]
pub struct GatewayModel<'a> {
    /// The kind of the credential.
    pub kind: &'a str,
    pub model: &'a str,
    pub url: &'a str,
    pub key: &'a str,
    /// Whether it is the provider's own, and not another one with the same API.
    pub is_provider: bool,
}

/// How an agent is told that a provider's models are reached by another address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gateway {
    /// The kind of the credential that the address belongs to.
    pub kind: &'static str,
    pub setting: GatewaySetting,
    pub path: GatewayPath,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatewaySetting {
    Variable(&'static str),
    /// A field of a JSON object in a variable, by the names that lead to it.
    JsonVariable(&'static str, &'static [&'static str]),
}

/// What an agent does with the path of an address: some of them add the version of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatewayPath {
    AsGiven,
    EndsWith(&'static str),
    EndsWithout(&'static str),
}

/// The agent's own command for signing in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginCommand {
    /// It writes a file, the value of a credential of this kind.
    WritesFile {
        arguments: &'static [&'static str],
        kind: &'static str,
        path: &'static str,
    },
    /// It shows a token, the value of a credential of this kind.
    ShowsToken {
        arguments: &'static [&'static str],
        kind: &'static str,
        /// What every such token starts with.
        prefix: &'static str,
    },
    /// It has none that leaves something for a container; what to do instead.
    Missing(&'static str),
}

impl Gateway {
    /// The address that an environment has already.
    pub fn find(self, env: &BTreeMap<String, String>) -> Option<String> {
        match self.setting {
            GatewaySetting::Variable(name) => env.get(name).cloned(),
            GatewaySetting::JsonVariable(name, fields) => {
                let settings: Value = serde_json::from_str(env.get(name)?).ok()?;
                let address = fields
                    .iter()
                    .try_fold(&settings, |value, field| value.get(field))?;
                Some(address.as_str()?.to_owned())
            }
        }
    }

    /// Puts the address into an environment. The error says why it cannot.
    pub fn apply(self, url: &BaseUrl, env: &mut BTreeMap<String, String>) -> Result<(), String> {
        let url = self.path.apply(url.as_str());
        match self.setting {
            GatewaySetting::Variable(name) => {
                env.insert(name.to_owned(), url);
                Ok(())
            }
            GatewaySetting::JsonVariable(name, fields) => set_json_field(env, name, fields, &url),
        }
    }
}

impl GatewaySetting {
    /// The variable that has it.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Variable(name) | Self::JsonVariable(name, _) => name,
        }
    }
}

impl GatewayPath {
    fn apply(self, url: &str) -> String {
        match self {
            Self::AsGiven => url.to_owned(),
            Self::EndsWith(end) if url.ends_with(end) => url.to_owned(),
            Self::EndsWith(end) => format!("{url}{end}"),
            Self::EndsWithout(end) => url.strip_suffix(end).unwrap_or(url).to_owned(),
        }
    }
}

/// Sets a field of a JSON object in a variable. It is an error if the variable has something else.
pub(crate) fn set_json_field(
    env: &mut BTreeMap<String, String>,
    variable: &str,
    fields: &[&str],
    value: &str,
) -> Result<(), String> {
    let given = env.get(variable).map_or("{}", String::as_str);
    let Ok(Value::Object(mut settings)) = serde_json::from_str(given) else {
        return Err(format!("the variable `{variable}` is not a JSON object"));
    };
    set_field(&mut settings, fields, value.into());
    env.insert(variable.to_owned(), Value::Object(settings).to_string());
    Ok(())
}

fn set_field(object: &mut Map<String, Value>, fields: &[&str], value: Value) {
    match fields {
        [] => {}
        [last] => drop(object.insert((*last).to_owned(), value)),
        [first, rest @ ..] => {
            let inner = object.entry(*first).or_insert_with(|| json!({}));
            if !inner.is_object() {
                *inner = json!({});
            }
            if let Value::Object(inner) = inner {
                set_field(inner, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    #[test]
    fn one_address_serves_agents_that_want_other_paths() {
        let url: BaseUrl = "https://gateway.example.com/v1".parse().unwrap();
        let address = |agent: &str, kind: &str, given: &[(&str, &str)]| {
            let agents = catalogue();
            let agent = agents.iter().find(|row| row.name == agent).unwrap();
            let gateway = agent
                .sign_in
                .gateways
                .iter()
                .find(|row| row.kind == kind)
                .unwrap();
            let given = given
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_string()));
            let mut env = given.collect();
            gateway.apply(&url, &mut env).map(|()| env)
        };
        let claude = address("claude", "anthropic", &[]).unwrap();
        assert_eq!(claude["ANTHROPIC_BASE_URL"], "https://gateway.example.com");
        let given = [(
            "OPENCODE_CONFIG_CONTENT",
            r#"{"model":"m","provider":{"anthropic":{"name":"A"}}}"#,
        )];
        let opencode = address("opencode", "anthropic", &given).unwrap();
        let settings: Value = serde_json::from_str(&opencode["OPENCODE_CONFIG_CONTENT"]).unwrap();
        let expected = json!({ "model": "m", "provider": { "anthropic": {
            "name": "A", "options": { "baseURL": "https://gateway.example.com/v1" },
        } } });
        assert_eq!(settings, expected);
        let error = address("codex", "openai", &[("CODEX_CONFIG", "no")]).unwrap_err();
        assert_eq!(error, "the variable `CODEX_CONFIG` is not a JSON object");
    }
}
