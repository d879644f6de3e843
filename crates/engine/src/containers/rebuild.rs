//! `image_rebuild`.

use std::sync::{Mutex, PoisonError};

use oubliette_model::{Access, Mode, ProjectId, nearest, quoted};
use oubliette_runtime::ImageSource;
use oubliette_store::{Project, Visible};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lock;
use crate::error::did_you_mean;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Progress, Result};

/// What is kept of a build's log: its end.
const LOG: usize = 64 << 10;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The kind of container to rebuild; `project_options` lists them.
    container_type: Option<String>,
    /// The project whose container to rebuild, instead of a whole kind.
    project_id: Option<ProjectId>,
    /// Whether to do it although commands or sessions run; they are ended.
    force: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    container_type: String,
    /// The image that was built, where the runtime has images.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    /// Containers that were removed; the next use makes them anew.
    containers_removed: usize,
    /// The end of the build's log.
    log: String,
}

#[derive(Debug)]
pub(crate) struct Rebuild;

impl Operation for Rebuild {
    const NAME: &'static str = "image_rebuild";
    const ABOUT: &'static str = "Build the image of a kind of container anew from its Dockerfile, and have the containers \
         made from it start afresh. Where the runtime has no images, what was installed in the \
         containers is thrown away. Files of projects stay. Refused while something runs in them, \
         unless `force`.";
    const ACCESS: Access = Access::Global(Mode::Write);
    const FACE: Face = Face::Standalone;
    const EFFECT: Effect = Effect::Destroys;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            project: params.project_id,
            ..Reach::default()
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let runtime = engine.containers().runtime().await?;
        let (kind, projects) = affected(engine, actor, &params).await?;
        let force = params.force.unwrap_or(false);
        if !force {
            refuse_busy(engine, &projects).await?;
        }
        let log = Mutex::new(String::new());
        let image = match runtime.capabilities().images {
            true => {
                let source = engine.settings().container_types.get(&kind).cloned();
                let source = source.unwrap_or_default();
                let source = ImageSource {
                    name: kind.clone(),
                    image: source.image,
                    dockerfile: source.dockerfile,
                };
                let lines = |line: &str| note(&log, &call, line);
                Some(runtime.build_image(&source, &lines).await?)
            }
            false => None,
        };
        let mut containers_removed = 0;
        let mut containers = Vec::new();
        for project in &projects {
            containers.extend(engine.containers_of(project.id).await?);
        }
        for id in containers {
            let turn = engine.containers().turn(&id);
            let _turn = turn.lock().await;
            // It may have become busy while the image was built; then its next start takes the new one.
            if !force && engine.containers().is_used(&id) {
                continue;
            }
            if runtime.inspect(&id).await?.is_some() {
                runtime.remove(&id).await?;
                engine.containers().unlink(&id);
                containers_removed += 1;
            }
        }
        let log = log.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Output {
            container_type: kind,
            image,
            containers_removed,
            log,
        })
    }
}

/// Which kind is rebuilt, and whose containers go with it.
async fn affected(
    engine: &Engine,
    actor: &Actor,
    params: &Params,
) -> Result<(String, Vec<Project>)> {
    let kind_of = |project: &Project| {
        project
            .settings
            .container_type
            .clone()
            .unwrap_or_else(|| "base".to_owned())
    };
    match (&params.container_type, params.project_id) {
        (None, Some(id)) => {
            let project = engine.store().get(id).await?;
            let project = project.ok_or_else(|| EngineError::project_not_found(id))?;
            Ok((kind_of(&project), vec![project]))
        }
        (Some(kind), None) => {
            let types = &engine.settings().container_types;
            if !types.contains_key(kind) {
                let near = nearest(kind, types.keys().map(String::as_str));
                return Err(EngineError::invalid(format!(
                    "unknown container type {}{}",
                    quoted(kind),
                    did_you_mean(near)
                )));
            }
            let visible: Visible = actor.visible();
            let mut projects = Vec::new();
            let mut after = None;
            loop {
                let page = engine.store().page(visible, after.as_deref(), 1000).await?;
                projects.extend(page.rows.into_iter().filter(|row| kind_of(row) == *kind));
                after = page.next;
                if after.is_none() {
                    return Ok((kind.clone(), projects));
                }
            }
        }
        _ => Err(EngineError::invalid(
            "give either `container_type` or `project_id`",
        )),
    }
}

async fn refuse_busy(engine: &Engine, projects: &[Project]) -> Result<()> {
    for project in projects {
        let containers = engine.containers_of(project.id).await?;
        if containers.iter().any(|id| engine.containers().is_used(id)) {
            return Err(EngineError::Failed(format!(
                "something runs in the container of project `{}`; wait for its end, or use \
                 `force` to end it",
                project.name
            )));
        }
    }
    Ok(())
}

fn note(log: &Mutex<String>, call: &Call, line: &str) {
    let mut log = lock(log);
    log.push_str(line);
    log.push('\n');
    if log.len() > 2 * LOG {
        let cut = log.len() - LOG;
        let cut = (cut..log.len())
            .find(|at| log.is_char_boundary(*at))
            .unwrap_or(cut);
        log.drain(..cut);
    }
    call.progress(Progress {
        done: log.len() as f64,
        total: None,
        message: line.to_owned(),
    });
}
