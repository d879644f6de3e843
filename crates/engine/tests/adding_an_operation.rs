//! The example of the contributors' guide, which quotes this file: an operation from nothing.

use oubliette_engine::operations::{Effect, Entry, Face, Operation, Reach};
use oubliette_engine::{Actor, Call, Engine, Result};
use oubliette_model::{Access, Mode, ProjectId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

// The comments on fields are the descriptions that models and `--help` show.
#[derive(Deserialize, JsonSchema)]
struct Params {
    /// The project, as `project_list` shows it.
    project_id: ProjectId,
    /// How to greet; `hello` if absent.
    greeting: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Output {
    project_id: ProjectId,
    text: String,
}

struct Greet;

impl Operation for Greet {
    const NAME: &'static str = "project_greet";
    const ABOUT: &'static str = "Greet a project by its name. Changes nothing.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    // What the call is about: permission is decided on it before `run` is reached.
    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<Output> {
        let project = engine.project(params.project_id).await?;
        let greeting = params.greeting.as_deref().unwrap_or("hello");
        Ok(Output {
            project_id: project.id,
            text: format!("{greeting}, {}", project.name),
        })
    }
}

#[test]
fn the_operation_describes_itself() {
    let entry = Entry::of::<Greet>();
    assert_eq!((entry.noun(), entry.verb()), ("project", "greet"));
    assert!(entry.requires("project_id") && !entry.requires("greeting"));
}
