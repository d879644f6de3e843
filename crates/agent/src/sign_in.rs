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
    pub gateways: &'static [Gateway],
    pub login: LoginCommand,
}

pub(crate) const UNKNOWN: SignInMethods = SignInMethods {
    login_files: &[],
    gateways: &[],
    login: LoginCommand::Missing("it has no command for signing in that is known"),
};

pub(crate) const DEMO: SignInMethods = SignInMethods {
    login: LoginCommand::Missing("it uses no model and needs no login"),
    ..UNKNOWN
};

pub(crate) const DROID: SignInMethods = SignInMethods {
    login: LoginCommand::Missing(
        "its login belongs to one machine and cannot be kept for containers. Create a key at \
         https://app.factory.ai/settings/api-keys",
    ),
    ..UNKNOWN
};

pub(crate) const CLAUDE: SignInMethods = SignInMethods {
    login_files: &[],
    gateways: &[claude_gateway("anthropic"), claude_gateway("claude_oauth")],
    login: LoginCommand::ShowsToken {
        arguments: &["--cli", "setup-token"],
        kind: "claude_oauth",
        prefix: "sk-ant-oat",
    },
};

const CODEX_LOGIN: &str = ".codex/auth.json";

pub(crate) const CODEX: SignInMethods = SignInMethods {
    login_files: &[LoginFile {
        kind: "codex_auth",
        path: CODEX_LOGIN,
        settings: &[(
            ".codex/config.toml",
            FileFormat::Toml,
            "cli_auth_credentials_store = \"file\"\n",
        )],
        parse: parse_codex_login,
    }],
    // It ignores `OPENAI_BASE_URL`.
    gateways: &[Gateway {
        kind: "openai",
        setting: GatewaySetting::JsonVariable("CODEX_CONFIG", &["openai_base_url"]),
        path: GatewayPath::AsGiven,
    }],
    login: LoginCommand::WritesFile {
        arguments: &["cli", "login", "--device-auth"],
        kind: "codex_auth",
        path: CODEX_LOGIN,
    },
};

pub(crate) const GEMINI: SignInMethods = SignInMethods {
    login_files: &[],
    gateways: &[gemini_gateway("gemini"), gemini_gateway("google")],
    login: LoginCommand::Missing(
        "it signs in with a key. Create one at https://aistudio.google.com/apikey",
    ),
};

const OPENCODE_LOGIN: &str = ".local/share/opencode/auth.json";
const V1: GatewayPath = GatewayPath::EndsWith("/v1");
const V1_BETA: GatewayPath = GatewayPath::EndsWith("/v1beta");

pub(crate) const OPENCODE: SignInMethods = SignInMethods {
    login_files: &[LoginFile {
        kind: "opencode_auth",
        path: OPENCODE_LOGIN,
        settings: &[],
        parse: parse_opencode_login,
    }],
    gateways: &[
        opencode_gateway(
            "anthropic",
            &["provider", "anthropic", "options", "baseURL"],
            V1,
        ),
        opencode_gateway(
            "gemini",
            &["provider", "google", "options", "baseURL"],
            V1_BETA,
        ),
        opencode_gateway(
            "google",
            &["provider", "google", "options", "baseURL"],
            V1_BETA,
        ),
        opencode_gateway(
            "openai",
            &["provider", "openai", "options", "baseURL"],
            GatewayPath::AsGiven,
        ),
        opencode_gateway(
            "openrouter",
            &["provider", "openrouter", "options", "baseURL"],
            GatewayPath::AsGiven,
        ),
        opencode_gateway(
            "opencode",
            &["provider", "opencode", "options", "baseURL"],
            GatewayPath::AsGiven,
        ),
    ],
    login: LoginCommand::WritesFile {
        arguments: &["auth", "login"],
        kind: "opencode_auth",
        path: OPENCODE_LOGIN,
    },
};

const fn claude_gateway(kind: &'static str) -> Gateway {
    Gateway {
        kind,
        setting: GatewaySetting::Variable("ANTHROPIC_BASE_URL"),
        path: GatewayPath::EndsWithout("/v1"),
    }
}

const fn gemini_gateway(kind: &'static str) -> Gateway {
    Gateway {
        kind,
        setting: GatewaySetting::Variable("GOOGLE_GEMINI_BASE_URL"),
        path: GatewayPath::EndsWithout("/v1beta"),
    }
}

const fn opencode_gateway(
    kind: &'static str,
    fields: &'static [&'static str],
    path: GatewayPath,
) -> Gateway {
    Gateway {
        kind,
        setting: GatewaySetting::JsonVariable("OPENCODE_CONFIG_CONTENT", fields),
        path,
    }
}

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
    /// Puts the address into an environment. The error says why it cannot.
    pub fn apply(self, url: &BaseUrl, env: &mut BTreeMap<String, String>) -> Result<(), String> {
        let url = self.path.apply(url.as_str());
        match self.setting {
            GatewaySetting::Variable(name) => {
                env.insert(name.to_owned(), url);
                Ok(())
            }
            GatewaySetting::JsonVariable(name, fields) => {
                let given = env.get(name).map_or("{}", String::as_str);
                let Ok(Value::Object(mut settings)) = serde_json::from_str(given) else {
                    return Err(format!("the variable `{name}` is not a JSON object"));
                };
                set_field(&mut settings, fields, url.into());
                env.insert(name.to_owned(), Value::Object(settings).to_string());
                Ok(())
            }
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

/// `auth.json` of Codex, after `codex login` with a ChatGPT plan.
pub(crate) fn parse_codex_login(text: &str) -> Result<Login, &'static str> {
    const EXPECTED: &str =
        "it must be the file `auth.json` that `codex login` writes, with `tokens`";
    let file: Value = serde_json::from_str(text).map_err(|_| EXPECTED)?;
    let field = |value: &Value, name: &str| {
        let text = value.get(name).and_then(Value::as_str);
        text.filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let tokens = file.get("tokens").ok_or(EXPECTED)?;
    let access = field(tokens, "access_token").ok_or(EXPECTED)?;
    let refresh = field(tokens, "refresh_token").ok_or(EXPECTED)?;
    let others = [field(tokens, "id_token"), field(&file, "OPENAI_API_KEY")];
    let secrets = [access, refresh]
        .into_iter()
        .chain(others.into_iter().flatten());
    // Times of one zone; without its letter, a time with a fraction follows the one without.
    let refreshed = field(&file, "last_refresh").unwrap_or_default();
    Ok(Login {
        account: field(tokens, "account_id").unwrap_or_default(),
        version: refreshed.trim_end_matches('Z').to_owned(),
        secrets: secrets.map(Secret::new).collect(),
    })
}

/// `auth.json` of OpenCode, after `opencode auth login`: a key or tokens for each provider.
pub(crate) fn parse_opencode_login(text: &str) -> Result<Login, &'static str> {
    const EXPECTED: &str =
        "it must be the file `auth.json` that `opencode auth login` writes, with a provider";
    let file: Map<String, Value> = serde_json::from_str(text).map_err(|_| EXPECTED)?;
    if file.is_empty() || !file.values().all(|entry| entry["type"].is_string()) {
        return Err(EXPECTED);
    }
    let secrets = file.values().flat_map(|entry| {
        let fields = ["key", "access", "refresh", "token"];
        fields.into_iter().filter_map(|name| entry[name].as_str())
    });
    let expires = file.values().filter_map(|entry| entry["expires"].as_u64());
    let providers: Vec<&str> = file.keys().map(String::as_str).collect();
    Ok(Login {
        account: providers.join(" "),
        version: format!("{:020}", expires.max().unwrap_or_default()),
        secrets: secrets.map(Secret::new).collect(),
    })
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

    #[test]
    fn login_files_are_recognised_and_their_tokens_known() {
        let text = r#"{"OPENAI_API_KEY":null,"tokens":{"id_token":"i","access_token":"a","refresh_token":"r","account_id":"me"},"last_refresh":"2026-01-01T00:00:00.5Z"}"#;
        let login = parse_codex_login(text).unwrap();
        assert_eq!(login.account, "me");
        assert_eq!(login.secrets.len(), 3);
        let later = parse_codex_login(&text.replace("00.5Z", "01Z")).unwrap();
        let earlier = parse_codex_login(&text.replace("00.5Z", "00Z")).unwrap();
        assert!(earlier.version < login.version && login.version < later.version);
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"tokens":{}}"#,
            r#"{"OPENAI_API_KEY":"sk"}"#,
        ] {
            assert!(parse_codex_login(bad).is_err(), "{bad}");
        }
        let text = r#"{"anthropic":{"type":"oauth","access":"a","refresh":"r","expires":12},"openai":{"type":"api","key":"k"}}"#;
        let login = parse_opencode_login(text).unwrap();
        assert_eq!(login.account, "anthropic openai");
        assert_eq!(login.secrets.len(), 3);
        for bad in ["", "[]", "{}", r#"{"tokens":{}}"#] {
            assert!(parse_opencode_login(bad).is_err(), "{bad}");
        }
    }
}
