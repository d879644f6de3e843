//! `credential_add`.

use std::path::PathBuf;

use oubliette_agent::LoginFile;
use oubliette_model::{Access, BaseUrl, CredentialName, MIN_SECRET_BYTES, Secret, nearest, quoted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Credential, MAX_VALUE_BYTES, credential_kinds};
use crate::error::did_you_mean;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result, Settings, UNKNOWN_CREDENTIAL_KIND, agents};

const MAX_REFERENCE_BYTES: usize = 4096;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// 1-64 lowercase letters, digits, `._-`.
    ///
    /// What projects call it in `credential_refs` or `git_credential`.
    name: CredentialName,
    /// For example `anthropic`, `claude_oauth`, `git`, `ssh_key`.
    ///
    /// Providers: `anthropic`, `openai`, `gemini`, `openrouter` and others; logins: `claude_oauth`,
    /// `codex_auth`, `opencode_auth`; also `factory`.
    kind: String,
    /// The secret.
    ///
    /// It is stored on the server and never shown.
    value: Option<Secret>,
    /// Variable of the server that has it.
    ///
    /// Read each time it is used.
    env: Option<String>,
    /// File on the server that has it.
    ///
    /// Read each time it is used.
    file: Option<PathBuf>,
    /// Gateway, or host for `git`.
    ///
    /// http or https. For `git` it is the only host that the credential is sent to.
    base_url: Option<BaseUrl>,
    /// User name, for `git`.
    username: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    name: CredentialName,
    kind: String,
    /// Whether there was one of that name, which is replaced.
    replaced: bool,
    /// The agents that take it.
    agents: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Add;

impl Operation for Add {
    const NAME: &'static str = "credential_add";
    const ABOUT: &'static str = "Store or replace a key or login: give `value`, `env` or `file`.\n\n\
         Agents that start from now on use it, and those with the network `policy` at once, in the projects that name it in `credential_refs`.";
    const ACCESS: Access = Access::Admin;
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        // A reference can be to any secret of the server, for example to its admin key.
        let reference = params.env.as_ref().map(|_| "env");
        Reach {
            restricted: reference.or(params.file.as_ref().map(|_| "file")),
            ..Reach::everywhere()
        }
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<Output> {
        let settings = engine.settings();
        let name = params.name.as_str().to_owned();
        if settings.credentials.contains_key(&name) {
            return Err(EngineError::invalid(format!(
                "{} is defined in the server's configuration, in [credentials.{name}]; change it there or \
                 choose another name",
                quoted(&name)
            )));
        }
        let agents = check_kind(settings, &params)?;
        let value = params.value.map(Secret::into_trimmed);
        let credential = Credential {
            value: match params.kind.as_str() {
                // Without a newline at its end a private key is refused by ssh.
                "ssh_key" => value.map(|key| Secret::new(format!("{}\n", key.reveal()))),
                _ => value,
            },
            kind: params.kind,
            username: params.username,
            env: params.env,
            file: params.file,
            base_url: params.base_url,
        };
        check_source(&credential)?;
        check_value(&credential, login_file(settings, &credential.kind))?;
        let kind = credential.kind.clone();
        let replaced = engine.credentials().state().put(&name, credential).await?;
        engine.gateway().refresh();
        Ok(Output {
            name: params.name,
            kind,
            replaced,
            agents,
        })
    }
}

/// Checks the kind and whether the other parameters fit it; returns the agents that take it.
fn check_kind(settings: &Settings, params: &Params) -> Result<Vec<String>> {
    let kind = params.kind.as_str();
    let kinds = credential_kinds(settings);
    if !kinds.contains(kind) {
        let known: Vec<&str> = kinds.iter().map(String::as_str).collect();
        let near = nearest(kind, known.iter().copied());
        let (hint, the) = match near {
            Some(_) => (did_you_mean(near), " The"),
            None => (String::new(), "; the"),
        };
        return Err(EngineError::invalid(format!(
            "{UNKNOWN_CREDENTIAL_KIND} {}{hint}{the} kinds are `{}`",
            quoted(kind),
            known.join("`, `")
        )));
    }
    let is_git = kind == "git";
    if params.username.is_some() && !is_git {
        return Err(EngineError::invalid(
            "`username` is only for credentials of the kind `git`",
        ));
    }
    let agents = agents::all(settings);
    let takes_address = agents.iter().any(|agent| {
        agent
            .sign_in
            .gateways
            .iter()
            .any(|gateway| gateway.kind == kind)
    });
    if params.base_url.is_some() && !takes_address && !is_git {
        return Err(EngineError::invalid(format!(
            "no agent takes another address for credentials of the kind `{kind}`; for a model of your own \
             with `droid` see `customModels` in docs/agents.md"
        )));
    }
    let takers = agents
        .into_iter()
        .filter(|agent| agent.takes_credential(kind));
    Ok(takers.map(|agent| agent.name).collect())
}

fn login_file(settings: &Settings, kind: &str) -> Option<LoginFile> {
    let agents = agents::all(settings);
    let mut files = agents.iter().filter_map(|agent| agent.login_file(kind));
    files.next().copied()
}

fn check_source(credential: &Credential) -> Result<()> {
    let given = [
        credential.value.is_some(),
        credential.env.is_some(),
        credential.file.is_some(),
    ];
    if given.into_iter().filter(|given| *given).count() != 1 {
        return Err(EngineError::invalid(
            "give exactly one of `value`, `env` and `file`",
        ));
    }
    if let Some(name) = &credential.env {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || name.len() > 200 || !name.chars().all(is_word) {
            return Err(EngineError::invalid(
                "`env` is the name of a variable, not a value",
            ));
        }
    }
    if let Some(path) = &credential.file
        && (!path.is_absolute() || path.as_os_str().len() > MAX_REFERENCE_BYTES)
    {
        return Err(EngineError::invalid(
            "`file` must be the absolute path of a file on the server",
        ));
    }
    let username = credential.username.as_deref().unwrap_or("x");
    if username.is_empty() || username.len() > 200 || username.chars().any(char::is_control) {
        return Err(EngineError::invalid(
            "`username` must have 1 to 200 characters, without control characters",
        ));
    }
    Ok(())
}

/// Checks a value without showing any of it.
fn check_value(credential: &Credential, login: Option<LoginFile>) -> Result<()> {
    let Some(value) = credential.value.as_ref().map(Secret::reveal) else {
        return Ok(());
    };
    let refuse = |why: String| Err(EngineError::invalid(format!("the value is refused: {why}")));
    if value.len() > MAX_VALUE_BYTES {
        return refuse(format!("it has more than {} KiB", MAX_VALUE_BYTES >> 10));
    }
    if value.len() < MIN_SECRET_BYTES {
        return refuse(format!(
            "it has less than {MIN_SECRET_BYTES} bytes and could not be hidden in what agents write"
        ));
    }
    if let Some(login) = login {
        return match (login.parse)(value) {
            Ok(_) => Ok(()),
            Err(why) => refuse(why.to_owned()),
        };
    }
    let is_line = !value.chars().any(char::is_control);
    if credential.kind == "ssh_key" {
        if !value.starts_with("-----BEGIN ") || value.contains('\0') {
            return refuse("it must be a private key, which starts with `-----BEGIN `".to_owned());
        }
    } else if !is_line {
        return refuse("it must be one line, without control characters".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(kind: &str, value: &str) -> Credential {
        Credential {
            kind: kind.to_owned(),
            username: None,
            env: None,
            file: None,
            value: Some(Secret::new(value)),
            base_url: None,
        }
    }

    #[test]
    fn values_are_bounded_and_fit_their_kind_and_errors_hide_them() {
        let settings = Settings::defaults("/tmp".as_ref());
        let check = |kind: &str, value: &str| {
            check_value(&credential(kind, value), login_file(&settings, kind))
        };
        assert!(check("anthropic", "sk-ant-hunter2").is_ok());
        let key =
            "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----\n";
        assert!(check("ssh_key", key).is_ok());
        let long = "hunter2".repeat(MAX_VALUE_BYTES);
        for (kind, value) in [
            ("anthropic", "hunter2"),
            ("anthropic", "sk-hunter2\nsecond"),
            ("anthropic", "sk-hunter2\0"),
            ("anthropic", long.as_str()),
            ("ssh_key", "hunter2 hunter2"),
            ("codex_auth", "{\"tokens\":\"hunter2\"}"),
        ] {
            let error = check(kind, value).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_credential_is_a_value_or_one_reference() {
        let value = credential("anthropic", "sk-ant-hunter2");
        assert!(check_source(&value).is_ok());
        let both = Credential {
            env: Some("KEY".to_owned()),
            ..value.clone()
        };
        assert!(check_source(&both).is_err());
        let reference = |env: Option<&str>, file: Option<&str>| Credential {
            value: None,
            env: env.map(str::to_owned),
            file: file.map(PathBuf::from),
            ..value.clone()
        };
        assert!(check_source(&reference(Some("KEY_2"), None)).is_ok());
        assert!(check_source(&reference(None, Some("/run/key"))).is_ok());
        for (env, file) in [
            (None, None),
            (Some(""), None),
            (Some("sk-ant-x"), None),
            (None, Some("key")),
            (None, Some("../key")),
        ] {
            assert!(check_source(&reference(env, file)).is_err());
        }
    }
}
