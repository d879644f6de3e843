//! What an agent gets from the credentials of its project.

use std::collections::BTreeMap;

use oubliette_agent::{Agent, Login, LoginFile};
use oubliette_gate::gateway::Provider;
use oubliette_model::{BaseUrl, ProjectId, Secret, quoted};
use oubliette_store::Project;

use super::{Credential, Credentials};
use crate::{EngineError, Result};

#[derive(Debug, Default)]
pub(crate) struct SignIn {
    /// Secrets with their environment variables.
    pub(crate) env: Vec<(String, Secret)>,
    /// The kinds of these credentials.
    kinds: Vec<String>,
    /// Addresses with the kind and the name of their credential.
    gateways: Vec<(String, String, BaseUrl)>,
    /// The credentials of the keys above.
    pub(crate) keys: Vec<GivenKey>,
    /// Credentials that the agent can use only through the gateway of its container.
    pub(crate) model_keys: Vec<GivenKey>,
    pub(crate) login: Option<GivenLogin>,
}

/// A credential whose secret is a key.
#[derive(Debug, Clone)]
pub(crate) struct GivenKey {
    pub(crate) name: String,
    pub(crate) kind: String,
    /// The variable that the agent takes it in; empty if it takes it otherwise.
    pub(crate) variable: String,
    pub(crate) base_url: Option<BaseUrl>,
}

/// A login file with its content.
#[derive(Debug)]
pub(crate) struct GivenLogin {
    /// The name of the credential.
    name: String,
    pub(crate) file: LoginFile,
    pub(crate) text: Secret,
    login: Login,
}

impl SignIn {
    /// Has the agent send the requests for a kind to another address.
    pub(crate) fn set_address(&mut self, key: &GivenKey, url: BaseUrl) {
        self.gateways.retain(|(kind, ..)| *kind != key.kind);
        let gateway = (key.kind.clone(), key.name.clone(), url);
        self.gateways.push(gateway);
    }

    /// Requests of an agent with a gateway go to the provider of the credential. An environment with another address is
    /// an error: its user expects them there. It cannot be used, because who sets an environment need not be allowed to
    /// choose who gets the key.
    pub(crate) fn reject_other_addresses(
        &self,
        agent: &Agent,
        env: &BTreeMap<String, String>,
    ) -> Result<()> {
        for key in self.keys.iter().filter(|key| key.base_url.is_none()) {
            let row = agent
                .sign_in
                .gateways
                .iter()
                .find(|row| row.kind == key.kind);
            let Some((row, provider)) = row.zip(Provider::of_kind(&key.kind)) else {
                continue;
            };
            let Some(address) = row.find(env) else {
                continue;
            };
            let upstream = address.parse().map(|url| provider.upstream(Some(&url)));
            if upstream.is_ok_and(|upstream| upstream == provider.upstream(None)) {
                continue;
            }
            let GivenKey { name, kind, .. } = key;
            return Err(EngineError::Failed(format!(
                "`{}` in the `env` of the project or of the agent has another address than the credential {}, with \
                 which the gate sends the requests: give the address to the credential (`oubliette credential add \
                 {name} --kind {kind} --base-url URL`), and take the variable out of the `env`",
                row.setting.variable(),
                quoted(name),
            )));
        }
        Ok(())
    }

    /// Puts what the agent has to know about the providers into an environment, and the addresses of
    /// gateways.
    pub(crate) fn set_providers(
        &self,
        agent: &Agent,
        env: &mut BTreeMap<String, String>,
    ) -> Result<()> {
        let needed = agent.sign_in.kind_env.iter();
        let needed = needed.filter(|(kind, _)| self.kinds.iter().any(|used| used == kind));
        for (name, value) in needed.flat_map(|(_, variables)| *variables) {
            let set = env.entry((*name).to_owned());
            set.or_insert_with(|| (*value).to_owned());
        }
        for (kind, name, url) in &self.gateways {
            let gateway = agent.sign_in.gateways.iter().find(|row| row.kind == kind);
            let set = match gateway {
                Some(gateway) => gateway.apply(url, env),
                None => Err(format!("`{}` takes no address for `{kind}`", agent.name)),
            };
            // Otherwise the secret would be sent to the provider.
            set.map_err(|why| {
                EngineError::Failed(format!(
                    "the `base_url` of the credential {} cannot be used: {why}",
                    quoted(name)
                ))
            })?;
        }
        Ok(())
    }
}

/// How an agent signs in with a credential, and what to type for that; none if it takes none.
pub(crate) fn sign_in_advice(project: &Project, agent: &Agent) -> Option<String> {
    let kinds: Vec<&str> = agent.credential_kinds().collect();
    let (first, name) = (kinds.first()?, &agent.name);
    let quoted: Vec<String> = kinds.iter().map(|kind| format!("`{kind}`")).collect();
    Some(format!(
        "the agent `{name}` signs in with a credential of kind {}: add one with `oubliette credential add {name} \
         --kind {first}`, and its name to the project with `oubliette project update {} --credential-refs {name}`",
        quoted.join(" or "),
        shell_word(project.name.as_str()),
    ))
}

/// A name as it is written in a shell; the names of projects have no quotes in them.
fn shell_word(name: &str) -> String {
    if name.contains(' ') {
        format!("'{name}'")
    } else {
        name.to_owned()
    }
}

impl Credentials<'_> {
    /// What to do about an agent that needs a credential where its project has none. The user may have put a key into
    /// the agent's own settings, which the server does not read, so this is no error.
    pub(crate) fn missing_hint(
        self,
        project: &Project,
        agent: &Agent,
        model: Option<&str>,
    ) -> Option<String> {
        // The program of a configured command may sign in in another way.
        if !agent.sign_in.needs_credential || agent.package.is_none() {
            return None;
        }
        let own_models = agent.sign_in.own_models;
        if let (Some(own), Some(model)) = (own_models, model)
            && (own.is_own)(model)
        {
            return None;
        }
        let settings = &project.settings;
        // One that does not exist is an error when the agent starts.
        let is_usable = |name: &String| {
            let found = self.find(name);
            found.is_none_or(|found| agent.takes_credential(&found.kind))
        };
        let is_set = |variable: &String| {
            settings.env.contains_key(variable) || agent.env.contains_key(variable)
        };
        if settings.credential_refs.iter().any(is_usable) || agent.credentials.values().any(is_set)
        {
            return None;
        }
        let advice = sign_in_advice(project, agent)?;
        Some(format!(
            "the project has no credential for its agent; {advice}"
        ))
    }

    /// What an agent gets from the credentials of its project.
    pub(crate) fn sign_in(self, project: &Project, agent: &Agent) -> Result<SignIn> {
        let mut sign_in = SignIn::default();
        let mut keys = Vec::new();
        for name in &project.settings.credential_refs {
            let Some(credential) = self.find(name) else {
                return Err(EngineError::Failed(format!(
                    "the credential {} of the project does not exist; add it with `oubliette credential \
                     add`, or change the project's `credential_refs`",
                    quoted(name)
                )));
            };
            let kind = credential.kind.as_str();
            let file = agent.login_file(kind);
            let variable = agent.credentials.get(kind);
            let key = |variable: &str| GivenKey {
                name: name.clone(),
                kind: kind.to_owned(),
                variable: variable.to_owned(),
                base_url: credential.base_url.clone(),
            };
            if file.is_none() && variable.is_none() {
                let models = agent.sign_in.gateway_models;
                if models.is_some_and(|models| models.kinds.contains(&kind)) {
                    sign_in.model_keys.push(key(""));
                }
                continue;
            }
            let unusable = |why: String| {
                EngineError::Failed(format!(
                    "the credential {} cannot be used: {why}",
                    quoted(name)
                ))
            };
            // The first one counts of those that the agent takes in one variable.
            if variable.is_some_and(|variable| keys.iter().any(|(name, _)| name == variable)) {
                continue;
            }
            let secret = credential.read().map_err(|why| unusable(why.to_string()))?;
            if let Some(url) = &credential.base_url {
                let gateway = (kind.to_owned(), name.clone(), url.clone());
                sign_in.gateways.push(gateway);
            }
            match (file, variable) {
                (Some(file), _) if sign_in.login.is_none() => {
                    let login = self.newest_login(project.id, name, file, secret);
                    sign_in.login = Some(login.map_err(|why| unusable(why.to_owned()))?);
                }
                (Some(_), _) => {}
                (None, Some(variable)) => {
                    keys.push((variable.clone(), secret));
                    sign_in.keys.push(key(variable));
                    sign_in.kinds.push(kind.to_owned());
                }
                (None, None) => {}
            }
        }
        // An agent with a login and a key would use the key.
        if sign_in.login.is_none() {
            sign_in.env = keys;
        } else {
            sign_in.keys.clear();
        }
        Ok(sign_in)
    }

    fn newest_login(
        self,
        project: ProjectId,
        name: &str,
        file: &LoginFile,
        stored: Secret,
    ) -> Result<GivenLogin, &'static str> {
        let login = (file.parse)(stored.reveal())?;
        let given = |text: Secret, login: Login| GivenLogin {
            name: name.to_owned(),
            file: *file,
            text,
            login,
        };
        if let Some(text) = self.state().refreshed(project, name)
            && let Ok(refreshed) = (file.parse)(text.reveal())
            && follows(&refreshed, &login)
        {
            return Ok(given(text, refreshed));
        }
        Ok(given(stored, login))
    }

    /// Keeps the login file of an agent if the agent has refreshed it. It is kept for agents of the same
    /// project only: what a container writes is not trusted in another one.
    pub(crate) async fn keep_refreshed(
        self,
        project: ProjectId,
        given: &GivenLogin,
        found: &str,
    ) -> Result<()> {
        match (given.file.parse)(found) {
            Ok(login) if follows(&login, &given.login) => {
                let text = Secret::new(found);
                self.state()
                    .keep_refreshed(project, &given.name, text)
                    .await
            }
            _ => Ok(()),
        }
    }

    /// The secrets in the credentials of a project, as far as they can be read.
    pub(crate) fn secrets(self, project: &Project) -> Vec<Secret> {
        let settings = &project.settings;
        let names = settings.credential_refs.iter();
        let names = names.chain(&settings.git_credential);
        let mut secrets = Vec::new();
        for name in names {
            let Some(credential) = self.find(name) else {
                continue;
            };
            let refreshed = self.state().refreshed(project.id, name);
            for secret in credential.read().ok().into_iter().chain(refreshed) {
                secrets.extend(tokens_in(&credential, &secret));
                secrets.push(secret);
            }
        }
        secrets
    }
}

/// The tokens in a login file, which an agent may write one by one.
fn tokens_in(credential: &Credential, text: &Secret) -> Vec<Secret> {
    if !text.reveal().starts_with('{') {
        return Vec::new();
    }
    let agents = oubliette_agent::catalogue();
    let mut files = agents.iter();
    let file = files.find_map(|agent| agent.login_file(&credential.kind));
    let login = file.and_then(|file| (file.parse)(text.reveal()).ok());
    login.map(|login| login.secrets).unwrap_or_default()
}

/// Whether a login is a newer one of the same account.
fn follows(newer: &Login, older: &Login) -> bool {
    newer.account == older.account && newer.version > older.version
}
