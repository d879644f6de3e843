//! How an agent signs in: with which credential it would, where it only says that it does not, and the
//! tokens that it refreshes itself.

use std::sync::Arc;

use oubliette_agent::FailureCause;
use oubliette_model::{Network, quoted};

use super::SessionActor;
use super::home::PROJECT_HOME;
use super::start::StartError;
use crate::SupervisorLink;
use crate::containers::ContainerScope;
use crate::credentials::{MAX_VALUE_BYTES, SignIn, sign_in_advice};
use crate::gateway::GatewaySignIn;
use crate::sessions::redactor::Redactor;

impl SessionActor<'_> {
    /// Whether the agent is started with a key to sign in with: a credential, or its variable in the
    /// project's environment.
    pub(super) fn has_key(&self, sign_in: &SignIn) -> bool {
        let env = &self.project.settings.env;
        let mut variables = self.agent.credentials.values();
        let is_given = !sign_in.env.is_empty() || variables.any(|name| env.contains_key(name));
        is_given && sign_in.login.is_none()
    }

    /// Replaces the keys of an agent by placeholders, in a container that has a gateway. A key must not get into one
    /// that should have a gateway and says that it has none.
    pub(super) async fn use_gateway(
        &mut self,
        link: &SupervisorLink,
        sign_in: &mut SignIn,
    ) -> Result<GatewaySignIn, StartError> {
        self.process.model_id = None;
        if !link.has_gateway() {
            let network = self.engine.containers().network_setting(&self.project);
            let has_keys = !sign_in.keys.is_empty() || !sign_in.model_keys.is_empty();
            if network.await? == Network::Policy && has_keys {
                return Err(StartError::Failed(
                    "the container was started before its project had the network `policy`, or by an earlier version, \
                     and has no gateway to models; stop it with `oubliette container stop`, and the next message \
                     starts it anew"
                        .to_owned(),
                ));
            }
            return Ok(GatewaySignIn::default());
        }
        let model = self.chosen_model();
        let gateway = self.engine.gateway();
        let mut replaced = gateway.replace_keys(&self.agent, model.as_deref(), sign_in)?;
        gateway.add_git_hosts(&self.project, &mut replaced)?;
        self.process.model_id.clone_from(&replaced.model_id);
        Ok(replaced)
    }

    /// The error of an agent in words, with what to do about it.
    pub(super) fn with_advice(&self, error: &str) -> String {
        let reason = oubliette_agent::failure_reason(error);
        let Some(cause) = FailureCause::of(&reason) else {
            return reason;
        };
        match cause.advice() {
            Some(advice) => format!("{}; {advice}", reason.trim_end_matches('.')),
            None => self.with_sign_in_hint(reason.trim_end_matches('.').to_owned()),
        }
    }

    /// Adds to the error of an agent whose key is missing or not accepted how it would sign in.
    fn with_sign_in_hint(&self, error: String) -> String {
        let kinds: Vec<&str> = self.agent.credential_kinds().collect();
        if kinds.is_empty() {
            return error;
        }
        let name = &self.agent.name;
        if let Some((model, path)) = self.own_model_in_use(&error) {
            return format!(
                "{error}; the provider of the model {} does not accept the key that the settings of `{name}` \
                 have for it: correct it in `{PROJECT_HOME}/{path}` in the container",
                quoted(&model)
            );
        }
        let settings = &self.project.settings;
        let credentials = self.engine.credentials();
        let used = settings.credential_refs.iter().find_map(|name| {
            let kind = credentials.find(name)?.kind;
            kinds.contains(&kind.as_str()).then_some((name, kind))
        });
        if let Some((used, kind)) = used {
            return format!(
                "{error}; the provider does not accept the credential {} of the project: replace it with \
                 `oubliette credential add {used} --kind {kind}`",
                quoted(used)
            );
        }
        let mut variables = self.agent.credentials.values();
        if let Some(variable) = variables.find(|name| settings.env.contains_key(*name)) {
            return format!(
                "{error}; the provider does not accept `{variable}` in the `env` of the project"
            );
        }
        match sign_in_advice(&self.project, &self.agent) {
            Some(advice) => format!("{error}; {advice}"),
            None => error,
        }
    }

    /// The model in use, with the file of its key, if the user has added it to the agent's own settings. None
    /// if the error is that the agent itself is not signed in.
    fn own_model_in_use(&self, error: &str) -> Option<(String, &'static str)> {
        let own = self.agent.sign_in.own_models?;
        let mut variables = self.agent.credentials.values();
        if variables.any(|name| error.contains(name.as_str())) {
            return None;
        }
        let used = || self.session.choices.used_model.clone();
        let model = self.chosen_model().or_else(used)?;
        (own.is_own)(&model).then_some((model, own.settings_path))
    }

    /// Keeps the login file of the agent if the agent has refreshed its tokens.
    pub(super) async fn keep_refreshed_login(&self) {
        if self.agent.sign_in.login_files.is_empty() {
            return;
        }
        let credentials = self.engine.credentials();
        let Ok(sign_in) = credentials.sign_in(&self.project, &self.agent) else {
            return;
        };
        let Some(given) = sign_in.login else {
            return;
        };
        let workspace = &self.session.workspace_id;
        let scope = ContainerScope::of_workspace(&self.project, workspace);
        let files = self.engine.files();
        let path = given.file.path;
        let found = files.read_session_file(
            self.project.id,
            scope.workspace(),
            self.session.id,
            path,
            MAX_VALUE_BYTES,
        );
        let kept = match found.await {
            Ok(Some(text)) => {
                let kept = credentials.keep_refreshed(self.project.id, &given, &text);
                kept.await
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = kept {
            tracing::warn!(session = %self.session.id, %error, "could not keep a refreshed login");
        }
    }

    /// Redacts also what was added to the credentials since the agent was started.
    pub(super) async fn update_redactor(&mut self) {
        let generation = self.engine.credentials().generation();
        if self.process.credential_generation == generation {
            return;
        }
        self.process.credential_generation = generation;
        // It may refer to other credentials by now.
        if let Ok(Some(project)) = self.engine.store().project(self.project.id).await {
            self.project = project;
        }
        let known: Vec<_> = self.redactor.secrets().cloned().collect();
        let redactor = Redactor::with_others(self.engine, &self.project, known.into_iter());
        self.redactor = Arc::new(redactor);
        self.step.events.set_redactor(self.redactor.clone());
    }
}
