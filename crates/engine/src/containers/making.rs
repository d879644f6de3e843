//! What a container is made of.

use std::collections::BTreeMap;
use std::path::PathBuf;

use oubliette_model::{ApiKey, Network as Reach, WorkspaceId};
use oubliette_runtime::{ContainerId, ContainerSpec, ImageSource, Init, Limits, Mount, Network};
use oubliette_store::{Container, Project};

use super::Place;
use crate::workspaces::path_in_container;
use crate::{Engine, EngineError, Result};

/// Where PID 1 finds its key.
pub(super) const KEY: &str = "OUBLIETTE_CONTAINER_KEY";
pub(super) const CLIENT: &str = "/usr/local/bin/oubliette-client";

/// A container to be made.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) project: &'a Project,
    pub(crate) place: Place,
    pub(crate) id: ContainerId,
    /// The project's files in it, if they are not those of its place.
    pub(crate) mounts: Option<Vec<Mount>>,
    /// Another container whose files are among them.
    pub(crate) users_of: Option<ContainerId>,
}

impl Engine {
    /// Gives the container a new key and says what it is made of.
    pub(super) async fn specify(&self, plan: Plan<'_>) -> Result<ContainerSpec> {
        let Plan {
            project,
            place,
            id,
            mounts,
            users_of,
        } = plan;
        let settings = self.settings();
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|e| EngineError::fault(e.to_string()))?;
        let key = ApiKey::from_random(random);
        let container = Container {
            id: id.to_string(),
            project_id: project.id,
            workspace_id: place.workspace.clone(),
            key: key.hash(),
            created_at: self.now(),
        };
        if !self.store().put_container(&container).await? {
            return Err(match &place.workspace {
                Some(workspace) => EngineError::NotFound {
                    what: "workspace",
                    id: workspace.to_string(),
                    hint: "`workspace_list` shows those there are",
                },
                None => EngineError::project_not_found(project.id),
            });
        }
        // Only now: files of a project that was deleted meanwhile must not be made again, and a
        // deletion that comes from here on waits for its turn.
        let mut mounts = match mounts {
            Some(mounts) => mounts,
            None => self.mounts(project, &place).await?,
        };
        self.open_door(&id).await?;
        let mounted = self.mounts_sockets().await?;
        if mounted {
            // Read-only: a socket can be connected to, and nobody can put another in its place.
            mounts.push(mount(self.relay_dir(&id)?, "/mcp", true));
        }
        let agents = settings.data_dir.join("agents");
        std::fs::create_dir_all(&agents)?;
        mounts.push(mount(agents, crate::agents::INSTALLED, true));
        for path in &settings.containers.read_only_paths {
            let inside = path.clone();
            mounts.push(Mount {
                host: path.clone(),
                inside,
                read_only: true,
            });
        }
        let own = &project.settings;
        let kind = own
            .container_type
            .clone()
            .unwrap_or_else(|| "base".to_owned());
        let source = settings
            .container_types
            .get(&kind)
            .cloned()
            .unwrap_or_default();
        let mut env = BTreeMap::from([
            ("OUBLIETTE_CONTAINER_ID".to_owned(), id.to_string()),
            (KEY.to_owned(), key.reveal().to_owned()),
        ]);
        if !mounted {
            env.insert("OUBLIETTE_CARRIED".to_owned(), "1".to_owned());
        }
        Ok(ContainerSpec {
            id,
            project: project.id.to_string(),
            image: ImageSource {
                name: kind,
                image: source.image,
                dockerfile: source.dockerfile,
            },
            mounts,
            hostname: "oubliette".to_owned(),
            network: self.network(own.network).await?,
            limits: Limits {
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
                inside: PathBuf::from(CLIENT),
                args: vec!["init".to_owned()],
                env,
            },
        })
    }

    async fn network(&self, asked: Option<Reach>) -> Result<Network> {
        let runtime = self.containers().runtime().await?;
        let capabilities = runtime.capabilities();
        let can = capabilities.networks;
        let (network, possible) = match asked {
            Some(Reach::None) => (Network::None, can.none),
            Some(Reach::Host) => (Network::Host, can.host),
            Some(Reach::Bridge) => (Network::Bridge, can.bridge),
            None if can.bridge => (Network::Bridge, true),
            None => (Network::Host, can.host),
        };
        if possible {
            return Ok(network);
        }
        Err(EngineError::invalid(format!(
            "the runtime `{}` cannot give a container that network; `project_options` says what it \
             can",
            capabilities.name
        )))
    }

    /// The files that a container has of its project: all of them, or those of one workspace.
    pub(super) async fn mounts(&self, project: &Project, place: &Place) -> Result<Vec<Mount>> {
        let files = self.files();
        let default = WorkspaceId::default();
        let own = place.workspace.as_ref().unwrap_or(&default);
        let (workspace, inside) = (files.workspace_dir(project.id, own), path_in_container(own));
        let home = files.create_home_dir(project.id, own).await?;
        let mut mounts = vec![
            mount(workspace.clone(), &inside, false),
            mount(home, "/root", false),
        ];
        if place.workspace.is_none() {
            let all = files.project_dir(project.id).join("workspaces");
            mounts.push(mount(all, "/workspaces", false));
        }
        let real_workspace = workspace.canonicalize()?;
        for path in &project.settings.protected_paths {
            // Only what is really inside: a link could lead anywhere.
            match workspace.join(path).canonicalize() {
                Ok(real) if real.starts_with(&real_workspace) => {
                    mounts.push(mount(real, &format!("{inside}/{path}"), true));
                }
                Ok(_) => {
                    return Err(EngineError::Failed(format!(
                        "the protected path `{path}` leads out of the workspace; take it out of \
                         `protected_paths` or remove the link"
                    )));
                }
                // There is nothing to protect yet.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(mounts)
    }
}

pub(crate) fn mount(host: PathBuf, inside: &str, read_only: bool) -> Mount {
    Mount {
        host,
        inside: PathBuf::from(inside),
        read_only,
    }
}
