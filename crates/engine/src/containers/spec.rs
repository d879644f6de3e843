//! The specification of a container: mounts, image, network, limits and PID 1.

use std::collections::BTreeMap;
use std::path::PathBuf;

use oubliette_model::{Network, ProjectSettings, WorkspaceId};
use oubliette_runtime::{ContainerId, ContainerLimits, ContainerSpec, ImageSource, Init, Mount};
use oubliette_store::{Container, Project};
use oubliette_wire::{
    CLIENT_PATH, EGRESS_SOCKET_PATH, EGRESS_SOCKET_VARIABLE, LOOPBACK_PORTS_VARIABLE,
    RELAY_DIR_PATH,
};

use super::{ContainerScope, Containers};
use crate::workspaces::path_in_container;
use crate::{EngineError, Result};

/// The environment variable with the key that the supervisor authenticates itself with.
pub(super) const CONTAINER_KEY_VARIABLE: &str = "OUBLIETTE_CONTAINER_KEY";
const DEFAULT_CONTAINER_TYPE: &str = "base";
const NO_POLICY_REASON: &str = "it needs a socket of this machine in the container, which macOS `container`, engines on other \
                                machines and `docker.channel` do not have";

/// A container to create.
#[derive(Debug)]
pub(crate) struct ContainerPlan<'a> {
    pub(crate) project: &'a Project,
    pub(crate) scope: ContainerScope,
    pub(crate) id: ContainerId,
    /// Mounts of the project's files, if they are not those of the scope.
    pub(crate) mounts: Option<Vec<Mount>>,
    /// Another container whose files are among the mounts.
    pub(crate) users_of: Option<ContainerId>,
}

/// The type of a project's containers.
pub(super) fn container_type(project: &Project) -> String {
    let own = project.settings.container_type.clone();
    own.unwrap_or_else(|| DEFAULT_CONTAINER_TYPE.to_owned())
}

impl Containers<'_> {
    /// Stores a new key for the container and returns its specification.
    pub(super) async fn container_spec(self, plan: ContainerPlan<'_>) -> Result<ContainerSpec> {
        let ContainerPlan {
            project,
            scope,
            id,
            mounts,
            users_of,
        } = plan;
        let engine = self.engine;
        let settings = engine.settings();
        let key = crate::tokens::generate_key()?;
        let container = Container {
            id: id.to_string(),
            project_id: project.id,
            workspace_id: scope.workspace.clone(),
            key: key.hash(),
            created_at: engine.now(),
        };
        if !engine.store().put_container(&container).await? {
            return Err(match &scope.workspace {
                Some(workspace) => EngineError::NotFound {
                    what: "workspace",
                    id: workspace.to_string(),
                    hint: "`workspace_list` lists the workspaces",
                },
                None => EngineError::project_not_found(project.id),
            });
        }
        // After the row is stored: files of a project that was deleted meanwhile must not be created
        // again, and a deletion from here on waits for the lock of the container.
        let (mut mounts, protected) = match mounts {
            // A workspace that is being made is not protected yet.
            Some(mounts) => (mounts, Vec::new()),
            None => (
                self.mounts(project, &scope).await?,
                self.protected_paths(project, &scope).await?,
            ),
        };
        self.listen(&id).await?;
        let mounts_socket = self.mounts_sockets().await?;
        if mounts_socket {
            // Read-only: processes in the container can connect to the socket, but not replace it.
            mounts.push(mount(self.make_relay_dir(&id)?, RELAY_DIR_PATH, true));
        }
        let agents = settings.data_dir.join("agents");
        std::fs::create_dir_all(&agents)?;
        mounts.push(mount(agents, crate::agents::INSTALLED_AGENTS_DIR, true));
        mounts.push(self.mount_git_config(project)?);
        for path in &settings.containers.read_only_paths {
            mounts.push(Mount {
                host: path.clone(),
                inside: path.clone(),
                read_only: true,
                owner: None,
            });
        }
        let own = &project.settings;
        let mut env = BTreeMap::from([
            ("OUBLIETTE_CONTAINER_ID".to_owned(), id.to_string()),
            (CONTAINER_KEY_VARIABLE.to_owned(), key.reveal().to_owned()),
        ]);
        let network = self.network(project).await?;
        if network == Network::Policy {
            let socket = EGRESS_SOCKET_PATH.to_owned();
            env.insert(EGRESS_SOCKET_VARIABLE.to_owned(), socket);
            let ports = engine.network().rules_of(project).loopback_ports();
            if !ports.is_empty() {
                let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
                env.insert(LOOPBACK_PORTS_VARIABLE.to_owned(), ports.join(","));
            }
        }
        if !mounts_socket {
            env.insert("OUBLIETTE_CARRIED".to_owned(), "1".to_owned());
        }
        Ok(ContainerSpec {
            id,
            project: project.id.to_string(),
            image: self.image_source(container_type(project)),
            mounts,
            protected,
            hostname: "oubliette".to_owned(),
            network,
            limits: ContainerLimits {
                memory_bytes: Some(
                    u64::from(own.limits.memory_mb.unwrap_or(settings.limits.memory_mb)) << 20,
                ),
                cpus: Some(own.limits.cpus.unwrap_or(settings.limits.cpus)),
                processes: Some(
                    own.limits
                        .max_processes
                        .unwrap_or(settings.limits.max_processes),
                ),
                disk_bytes: settings
                    .limits
                    .disk_of(&own.limits)
                    .map(|mb| u64::from(mb) << 20),
            },
            users_of,
            init: Init {
                binary: settings.client.clone(),
                inside: PathBuf::from(CLIENT_PATH),
                args: vec!["init".to_owned()],
                env,
            },
        })
    }

    /// The image that the configuration names for the containers of a project.
    pub(crate) fn configured_image(self, project: &Project) -> Option<String> {
        let types = &self.engine.settings().container_types;
        types.get(&container_type(project))?.image.clone()
    }

    pub(super) fn image_source(self, container_type: String) -> ImageSource {
        let types = &self.engine.settings().container_types;
        let source = types.get(&container_type).cloned().unwrap_or_default();
        ImageSource {
            name: container_type,
            image: source.image,
            dockerfile: source.dockerfile,
            build_args: source.build_args,
        }
    }

    /// The network that the containers of a project get when they start.
    pub(crate) async fn network_setting(self, project: &Project) -> Result<Network> {
        self.network_of(&project.settings).await
    }

    /// The same, of settings that may not be stored.
    pub(crate) async fn network_of(self, settings: &ProjectSettings) -> Result<Network> {
        if let Some(chosen) = self.chosen_network(settings) {
            return Ok(chosen);
        }
        let runtime = self.runtime().await?;
        Ok(runtime.capabilities().networks.default_network())
    }

    /// The same without waiting for a runtime; none if the runtime decides and is not known yet.
    pub(crate) fn known_network(self, settings: &ProjectSettings) -> Option<Network> {
        let decided = || self.state().networks().map(|(_, it)| it.default_network());
        self.chosen_network(settings).or_else(decided)
    }

    fn chosen_network(self, settings: &ProjectSettings) -> Option<Network> {
        settings.network.or(self.engine.settings().network.default)
    }

    /// Why containers of projects that choose no network reach more than their policy allows, if they do.
    pub(crate) fn missing_policy(self, settings: &ProjectSettings) -> Option<String> {
        let (runtime, networks) = self.state().networks()?;
        let is_missing = !networks.policy && self.chosen_network(settings).is_none();
        is_missing.then(|| {
            let network = match networks.default_network() {
                Network::Bridge => "bridge",
                _ => "host",
            };
            format!(
                "the runtime `{runtime}` has no network `policy` here, so that the project's containers have `{network}`, \
                 which no `network_policy` applies to; {NO_POLICY_REASON}"
            )
        })
    }

    async fn network(self, project: &Project) -> Result<Network> {
        let network = self.network_setting(project).await?;
        let runtime = self.runtime().await?;
        let capabilities = runtime.capabilities();
        let supported = capabilities.networks;
        let is_supported = match network {
            Network::None => supported.none,
            Network::Host => supported.host,
            Network::Bridge => supported.bridge,
            Network::Policy => supported.policy,
        };
        if is_supported {
            return Ok(network);
        }
        if network == Network::Policy {
            return Err(EngineError::invalid(format!(
                "the runtime `{}` has no network `policy` here: {NO_POLICY_REASON}; use another network",
                capabilities.name
            )));
        }
        Err(EngineError::invalid(format!(
            "the runtime `{}` does not support that network; `project_options` lists the networks it \
             supports",
            capabilities.name
        )))
    }

    /// Mounts of the project's files: those of all workspaces, or those of one.
    async fn mounts(self, project: &Project, scope: &ContainerScope) -> Result<Vec<Mount>> {
        let files = self.engine.files();
        let default = WorkspaceId::default();
        let own = scope.workspace.as_ref().unwrap_or(&default);
        let inside = path_in_container(own);
        let workspace = self.mount_workspace(project, own, &inside, false).await?;
        let home = files.create_home_dir(project.id, own).await?;
        let mut mounts = vec![workspace, mount(home, "/root", false)];
        if scope.workspace.is_none() {
            let all = files.project_dir(project.id).join("workspaces");
            mounts.push(mount(all, "/workspaces", false));
        }
        Ok(mounts)
    }

    /// The mount of a workspace. A person's own directory keeps its owner.
    pub(crate) async fn mount_workspace(
        self,
        project: &Project,
        workspace: &WorkspaceId,
        inside: &str,
        read_only: bool,
    ) -> Result<Mount> {
        let files = self.engine.files();
        if workspace.is_default()
            && let Some(mounted) = files.mounted_dir(project.id).await?
        {
            return Ok(Mount {
                owner: Some(mounted.owner),
                ..mount(mounted.path, inside, read_only)
            });
        }
        let directory = files.workspace_dir(project.id, workspace);
        Ok(mount(directory, inside, read_only))
    }
}

pub(crate) fn mount(host: PathBuf, inside: &str, read_only: bool) -> Mount {
    Mount {
        host,
        inside: PathBuf::from(inside),
        read_only,
        owner: None,
    }
}
