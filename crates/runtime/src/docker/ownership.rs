//! Files that the server's user may not remove, because a process in a container made them as another
//! user: a container of its own, in which only the client runs, gives them to the server's user.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use bollard::models::{ContainerCreateBody, ContainerInspectResponse, HostConfig};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, ListImagesOptions,
    StartContainerOptions,
};

use super::create_request::bind;
use super::engine::{QUERY_TIMEOUT, RETRY_INTERVAL, with_timeout};
use super::{CHANGE_TIMEOUT, Docker};
use crate::names::{CONTAINER_LABEL, DATA_DIR_LABEL, PROJECT_LABEL};
use crate::{ContainerId, Result, RuntimeError};

/// Enough for millions of files.
const WALK_TIMEOUT: Duration = Duration::from_secs(600);
const PROGRAM: &str = "/oubliette-client";
const FILES: &str = "/files";

impl Docker {
    /// Gives everything in a directory to the server's user; false if that user is root, who may
    /// remove everything.
    pub(super) async fn give_to_server(&self, directory: &Path, client: &Path) -> Result<bool> {
        let ids = self.engine.user_ids;
        let (uid, gid) = if ids.is_rootless { (0, 0) } else { ids.server };
        if ids.server.0 == 0 {
            return Ok(false);
        }
        let id = ContainerId::derive(0, &directory.to_string_lossy());
        let name = self.names.container_name(&id);
        // What a server that died left, if there is any.
        self.remove_container(&name, true).await?;
        let body = ContainerCreateBody {
            user: Some("0:0".to_owned()),
            entrypoint: Some(vec![PROGRAM.to_owned()]),
            cmd: Some(
                ["own", &format!("{uid}:{gid}"), FILES]
                    .map(str::to_owned)
                    .into(),
            ),
            image: Some(self.any_image().await?),
            working_dir: Some("/".to_owned()),
            // With the labels of a container without a project, which recovery removes.
            labels: Some(HashMap::from([
                (DATA_DIR_LABEL.to_owned(), self.names.hash().to_owned()),
                (CONTAINER_LABEL.to_owned(), id.to_string()),
                (PROJECT_LABEL.to_owned(), String::new()),
            ])),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                mounts: Some(vec![
                    bind(directory, Path::new(FILES), false)?,
                    bind(client, Path::new(PROGRAM), true)?,
                ]),
                cap_drop: Some(vec!["ALL".to_owned()]),
                cap_add: Some(
                    ["CHOWN", "DAC_OVERRIDE", "FOWNER"]
                        .map(str::to_owned)
                        .into(),
                ),
                security_opt: Some(if self.engine.selinux {
                    vec!["no-new-privileges".to_owned(), "label=disable".to_owned()]
                } else {
                    vec!["no-new-privileges".to_owned()]
                }),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let ran = self.run_to_end(&name, body).await;
        self.remove_container(&name, true).await?;
        ran.map(|()| true)
    }

    async fn run_to_end(&self, name: &str, body: ContainerCreateBody) -> Result<()> {
        let api = &self.engine.api;
        let failed = |error| self.engine.to_runtime_error(error);
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let creation = api.create_container(Some(options), body);
        with_timeout(CHANGE_TIMEOUT, creation)
            .await
            .map_err(failed)?;
        let start = api.start_container(name, None::<StartContainerOptions>);
        with_timeout(CHANGE_TIMEOUT, start).await.map_err(failed)?;
        let waiting = async {
            loop {
                let inspect = || api.inspect_container(name, None::<InspectContainerOptions>);
                let found = self.engine.query(inspect).await.map_err(failed)?;
                if let Some(code) = exit_code(&found) {
                    return Ok::<_, RuntimeError>(code);
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        };
        let code = tokio::time::timeout(WALK_TIMEOUT, waiting).await;
        match code.map_err(RuntimeError::fault)?? {
            0 => Ok(()),
            code => {
                let log = with_timeout(QUERY_TIMEOUT, self.read_logs(name, 5)).await;
                let log = log.unwrap_or_default();
                Err(RuntimeError::Failed(format!(
                    "Files of a container could not be given to the server's user (exit code {code}): \
                     {}",
                    log.trim()
                )))
            }
        }
    }

    /// Any image of the engine: the client is a static program. That of another data directory is the last choice, because
    /// it may be removed at any moment.
    async fn any_image(&self) -> Result<String> {
        let listing = || self.engine.api.list_images(None::<ListImagesOptions>);
        let images = self.engine.query(listing).await;
        let mut images = images.map_err(|error| self.engine.to_runtime_error(error))?;
        let own = self.names.hash();
        images.sort_by_key(|image| match image.labels.get(DATA_DIR_LABEL) {
            Some(of) if of == own => 0,
            None => 1,
            Some(_) => 2,
        });
        let first = images.into_iter().next().map(|image| image.id);
        first.ok_or_else(|| {
            RuntimeError::Failed(
                "The engine has no image, and needs one to give files of containers to the server's \
                 user."
                    .to_owned(),
            )
        })
    }
}

/// None while the container runs.
fn exit_code(found: &ContainerInspectResponse) -> Option<i64> {
    let state = found.state.as_ref()?;
    let has_ended = state.running == Some(false) && state.finished_at.as_deref()? > "0002";
    has_ended.then_some(state.exit_code?)
}
