//! Who may choose which network, and what an agent may give other projects: no wider network, and no more branches to push, than the projects of its own
//! tree have. Otherwise it could work there instead.

use oubliette_model::{
    Network as NetworkSetting, ProjectSettings, may_choose_network, network_is_within,
};
use oubliette_store::Project;

use super::Network;
use crate::{Actor, EngineError, Result};

impl Network<'_> {
    /// Refuses a network that only an admin may choose.
    pub(crate) fn check_choice(actor: &Actor, network: Option<NetworkSetting>) -> Result<()> {
        match network {
            Some(network) if !may_choose_network(actor.scope, actor.is_agent(), network) => {
                let reason = format!(
                    "this token (`{}`) may not choose that network, which no `network_policy` applies to; an `admin` token \
                     that is not an agent's can. Use `policy`, which is the default, or `none`",
                    actor.scope
                );
                Err(EngineError::refused_parameter("network", reason))
            }
            _ => Ok(()),
        }
    }

    /// Gives a project that an agent creates the network and the policy of the agent's own, as far as the call chose none,
    /// and refuses wider ones.
    pub(crate) async fn bound_new_project(
        self,
        actor: &Actor,
        settings: &mut ProjectSettings,
    ) -> Result<()> {
        if actor.unattached && actor.session.is_none() && settings.network.is_none() {
            // Which agent calls is unknown, and so is what its own project may reach.
            settings.network = Some(NetworkSetting::None);
            return Ok(());
        }
        let own = self.projects_of_agent(actor).await?;
        if let Some(first) = own.first() {
            let first = &first.settings;
            if settings.network.is_none() {
                let is_bounded = |it: &NetworkSetting| {
                    matches!(it, NetworkSetting::None | NetworkSetting::Policy)
                };
                settings.network = first.network.filter(is_bounded);
            }
            if settings.network_policy.is_none() {
                settings.network_policy.clone_from(&first.network_policy);
                let by_admin = &first.network_allowed_by_admin;
                settings.network_allowed_by_admin.clone_from(by_admin);
            }
            if settings.push_branches.is_none() {
                settings.push_branches.clone_from(&first.push_branches);
            }
        }
        for project in own {
            self.check_within(&project.settings, settings).await?;
            self.check_branches(&project.settings, settings)?;
        }
        Ok(())
    }

    /// Refuses a change by an agent that makes the network of a project wider than its own, or lets it push to more branches,
    /// unless it was wider before and is narrowed.
    pub(crate) async fn check_agent_bounds(
        self,
        actor: &Actor,
        before: &ProjectSettings,
        project: &Project,
    ) -> Result<()> {
        let after = &project.settings;
        if self.check_branches(before, after).is_err() {
            for own in self.projects_of_agent(actor).await? {
                self.check_branches(&own.settings, after)?;
            }
        }
        let is_changed = before.network != after.network
            || before.network_policy != after.network_policy
            || before.network_allowed_by_admin != after.network_allowed_by_admin;
        if !is_changed || self.check_within(before, after).await.is_ok() {
            return Ok(());
        }
        for own in self.projects_of_agent(actor).await? {
            self.check_within(&own.settings, after).await?;
        }
        Ok(())
    }

    async fn check_within(self, own: &ProjectSettings, wanted: &ProjectSettings) -> Result<()> {
        let (own_network, network) = (
            self.effective_network(own).await,
            self.effective_network(wanted).await,
        );
        if !network_is_within(own_network, network) {
            return Err(EngineError::refused_parameter(
                "network",
                "an agent cannot give a project a wider network than its own project has, whatever its scope; a token that \
                 is not an agent's can",
            ));
        }
        if own_network != NetworkSetting::Policy || network != NetworkSetting::Policy {
            return Ok(());
        }
        match self.rules_for(own).excess_of(&self.rules_for(wanted)) {
            None => Ok(()),
            Some(excess) => Err(EngineError::refused_parameter(
                "network_policy",
                format!(
                    "an agent cannot give a project a wider `network_policy` than its own project has, whatever its scope: \
                     {excess}. Leave it out to have the same, or narrow it"
                ),
            )),
        }
    }

    fn check_branches(self, own: &ProjectSettings, wanted: &ProjectSettings) -> Result<()> {
        let default = &self.engine.settings().projects.push_branches;
        let of = |settings: &ProjectSettings| {
            let chosen = settings.push_branches.as_ref();
            chosen.unwrap_or(default).clone()
        };
        let own = of(own);
        let excess = of(wanted)
            .into_iter()
            .find(|wanted| !own.iter().any(|own| own.covers(wanted)));
        match excess {
            None => Ok(()),
            Some(excess) => Err(EngineError::refused_parameter(
                "push_branches",
                format!(
                    "an agent cannot give a project more branches to push than its own project has, whatever its scope: \
                     `{excess}`. Leave it out to have the same"
                ),
            )),
        }
    }

    async fn effective_network(self, settings: &ProjectSettings) -> NetworkSetting {
        let containers = self.engine.containers();
        // Without a runtime there are no containers, and no agents.
        let network = containers.network_of(settings).await;
        network.unwrap_or(NetworkSetting::Policy)
    }

    /// The project of the agent that calls, and that of the first session of its tree; none if no agent calls.
    async fn projects_of_agent(self, actor: &Actor) -> Result<Vec<Project>> {
        let Some(session) = actor.session else {
            return if actor.unattached {
                Err(EngineError::refused_unattached(Some("network")))
            } else {
                Ok(Vec::new())
            };
        };
        let store = self.engine.store();
        let own = store.session(session).await?;
        let own = own.ok_or_else(|| EngineError::session_not_found(session))?;
        let root = store.session(own.root_id).await?;
        let mut ids = vec![own.project_id];
        ids.extend(root.map(|root| root.project_id));
        ids.dedup();
        let mut projects = Vec::new();
        for id in ids {
            projects.push(self.engine.project(id).await?);
        }
        Ok(projects)
    }
}
