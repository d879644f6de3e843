//! `image_rebuild`.

use oubliette_model::{Access, Mode, ProjectId, nearest, quoted};
use oubliette_store::Project;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::spec::container_type;
use crate::error::did_you_mean;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Progress, Result};

/// How much of the end of a build's log is returned, at least.
const MAX_LOG_BYTES: usize = 64 << 10;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// From `project_options`.
    container_type: Option<String>,
    /// Rebuild only this project's containers.
    project_id: Option<ProjectId>,
    /// Also while commands or sessions run; they are killed.
    force: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    container_type: String,
    /// The image that was built, if the runtime has images.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    /// How many containers were removed; the next use creates them again.
    containers_removed: usize,
    /// The end of the build's log.
    log: String,
}

#[derive(Debug)]
pub(crate) struct Rebuild;

impl Operation for Rebuild {
    const NAME: &'static str = "image_rebuild";
    const ABOUT: &'static str = "Rebuild a container image and replace its containers; files of projects stay.\n\n\
         From its Dockerfile. The next use of the containers creates them again. If the runtime has no \
         images, everything that was installed in the containers is deleted. Refused while a container is \
         in use, unless `force`.";
    const ACCESS: Access = Access::Global(Mode::Write);
    const FACE: Face = Face::Standalone;
    const EFFECT: Effect = Effect::Destroys;
    const OPEN_WORLD: bool = true;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            project: params.project_id,
            ..Reach::default()
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let containers = engine.containers();
        let runtime = containers.runtime().await?;
        let (container_type, projects) = affected_projects(engine, actor, &params).await?;
        let force = params.force.unwrap_or(false);
        for project in &projects {
            let of_project = containers.of_project(project.id).await?;
            if !force
                && of_project
                    .iter()
                    .any(|id| engine.container_state().is_in_use(id))
            {
                return Err(EngineError::Failed(format!(
                    "the container of project `{}` is in use; wait until its commands and sessions \
                     end, or use `force` to kill them",
                    project.name
                )));
            }
        }
        let log = Mutex::new(String::new());
        let image = if runtime.capabilities().images {
            let source = containers.image_source(container_type.clone());
            let on_line = |line: &str| append_log_line(&log, &call, line);
            let _lock = engine.container_state().lock_image(&container_type).await;
            Some(runtime.build_image(&source, &on_line).await?)
        } else {
            None
        };
        let mut ids = Vec::new();
        for project in &projects {
            ids.extend(containers.of_project(project.id).await?);
        }
        let mut containers_removed = 0;
        for id in ids {
            let _lock = engine.container_state().lock_container(&id).await;
            // A container that was used while the image was built keeps running; its next start uses
            // the new image.
            if !force && engine.container_state().is_in_use(&id) {
                continue;
            }
            if runtime.inspect(&id).await?.is_some() {
                runtime.remove(&id).await?;
                engine.container_state().mark_ended(&id);
                containers_removed += 1;
            }
        }
        Ok(Output {
            container_type,
            image,
            containers_removed,
            log: log.into_inner(),
        })
    }
}

/// The container type that is rebuilt, and the projects whose containers are removed.
async fn affected_projects(
    engine: &Engine,
    actor: &Actor,
    params: &Params,
) -> Result<(String, Vec<Project>)> {
    match (&params.container_type, params.project_id) {
        (None, Some(id)) => {
            let project = engine.project(id).await?;
            Ok((container_type(&project), vec![project]))
        }
        (Some(name), None) => {
            let types = &engine.settings().container_types;
            if !types.contains_key(name) {
                let near = nearest(name, types.keys().map(String::as_str));
                return Err(EngineError::invalid(format!(
                    "unknown container type {}{}",
                    quoted(name),
                    did_you_mean(near)
                )));
            }
            let visible = actor.visible();
            let mut projects = Vec::new();
            let mut after = None;
            loop {
                let page = engine
                    .store()
                    .projects(visible, after.as_deref(), 1000)
                    .await?;
                projects.extend(
                    page.rows
                        .into_iter()
                        .filter(|row| container_type(row) == *name),
                );
                after = page.next;
                if after.is_none() {
                    return Ok((name.clone(), projects));
                }
            }
        }
        _ => Err(EngineError::invalid(
            "give exactly one of `container_type` and `project_id`",
        )),
    }
}

fn append_log_line(log: &Mutex<String>, call: &Call, line: &str) {
    let mut log = log.lock();
    log.push_str(line);
    log.push('\n');
    if log.len() > 2 * MAX_LOG_BYTES {
        let start = log.ceil_char_boundary(log.len() - MAX_LOG_BYTES);
        log.drain(..start);
    }
    call.progress(Progress {
        done: log.len() as f64,
        total: None,
        message: line.to_owned(),
    });
}
