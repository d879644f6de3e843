//! What is to be done for a change: its tasks, what they need, and what to read first.

use std::collections::{BTreeMap, HashSet};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::project::Project;
use super::schema::{self, Artifact, Schema};
use super::{METADATA, MOST_TASKS, checkbox, delta, nested, outputs, trim};
use crate::files::{Kind, Lost, Tree};

/// Named and written as the command does.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub(crate) struct Apply {
    change_name: String,
    /// Where agents see it.
    change_dir: String,
    schema_name: String,
    /// What to read first: the files of each artifact.
    #[schemars(with = "BTreeMap<String, Vec<String>>")]
    context_files: Map<String, Value>,
    progress: Progress,
    tasks: Vec<Item>,
    task_tracking_configured: bool,
    /// Files with tasks that could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unavailable_tracking_files: Vec<Unavailable>,
    state: State,
    /// Artifacts that work cannot begin without.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing_artifacts: Vec<String>,
    /// Those and what they need in turn, in the order in which they can be made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing_prerequisites: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    instruction: String,
    /// What the project says about itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    operation_guidance: Vec<String>,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(inline)]
struct Progress {
    total: usize,
    complete: usize,
    remaining: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Item {
    id: String,
    description: String,
    done: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Unavailable {
    path: String,
    reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum State {
    Ready,
    Blocked,
    AllDone,
}

/// Why there is nothing to say about a change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoTasks {
    NotFound,
    /// A sentence for people.
    Damaged(String),
}

impl From<Lost> for NoTasks {
    fn from(lost: Lost) -> Self {
        Self::Damaged(format!("the change cannot be read: {lost}"))
    }
}

impl From<outputs::Unclear> for NoTasks {
    fn from(unclear: outputs::Unclear) -> Self {
        Self::Damaged(format!(
            "the files of the change cannot be found: {unclear}"
        ))
    }
}

/// Whether there can be a change of that name.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && !name.contains(['/', '\\', '\0'])
        && name != "archive"
}

pub(crate) fn apply(tree: &Tree, name: &str) -> Result<Apply, NoTasks> {
    if !is_name(name) {
        return Err(NoTasks::NotFound);
    }
    let project = Project::open(tree)?;
    let changes = project.changes.as_ref().ok_or(NoTasks::NotFound)?;
    let directory = match tree.find(&format!("{changes}/{name}")) {
        Ok(found) if found.kind == Kind::Directory => found.path,
        Ok(_) | Err(Lost::Absent(_) | Lost::Dangling) => return Err(NoTasks::NotFound),
        Err(lost) => return Err(lost.into()),
    };
    let entries = tree.list(&directory)?;
    if let Some(nested) = nested::below(&project, &directory, name, &entries)? {
        return Err(NoTasks::Damaged(nested::describe(name, &nested)));
    }
    let apply = Work::look(&project, name, directory)?.describe(project.config)?;
    tree.goes_on()?;
    Ok(apply)
}

/// A change and what there is of it.
struct Work<'a> {
    tree: &'a Tree,
    name: &'a str,
    directory: String,
    schema_name: String,
    schema: std::rc::Rc<Schema>,
    /// The files of each artifact, in the order of the schema.
    files: Vec<Vec<String>>,
    /// Artifacts that the change does without.
    skipped: HashSet<String>,
}

impl<'a> Work<'a> {
    fn look(project: &Project<'a>, name: &'a str, directory: String) -> Result<Self, NoTasks> {
        let workflow = project.workflow(&directory).map_err(NoTasks::Damaged)?;
        let tree = project.tree;
        let artifacts = &workflow.schema.artifacts;
        let files: Vec<Vec<String>> = artifacts
            .iter()
            .map(|artifact| outputs::of(tree, &directory, &artifact.generates))
            .collect::<Result<_, _>>()?;
        let skips = workflow
            .metadata
            .is_some_and(|metadata| metadata.skips_specs);
        let is_skipped = |(artifact, files): &(&Artifact, &Vec<String>)| {
            skips && artifact.is_of_specs() && files.is_empty()
        };
        let skipped = artifacts.iter().zip(&files).filter(is_skipped);
        Ok(Self {
            skipped: skipped.map(|(artifact, _)| artifact.id.clone()).collect(),
            tree,
            name,
            directory,
            schema_name: workflow.name,
            files,
            schema: workflow.schema,
        })
    }

    /// Whether an artifact is there or not wanted.
    fn is_complete(&self, artifact: &Artifact, files: &[String]) -> bool {
        !files.is_empty() || self.skipped.contains(&artifact.id)
    }

    fn describe(self, config: super::settings::Config) -> Result<Apply, NoTasks> {
        let pairs = || self.schema.artifacts.iter().zip(&self.files);
        let completed: HashSet<&str> = pairs()
            .filter(|(artifact, files)| self.is_complete(artifact, files))
            .map(|(artifact, _)| artifact.id.as_str())
            .collect();
        let required = self.schema.required();
        let missing: Vec<String> = required
            .iter()
            .filter(|id| !completed.contains(**id))
            .map(ToString::to_string)
            .collect();
        let prerequisites = schema::missing(&self.schema, &required, &completed);
        let inside = |path: &String| self.tree.name_inside(path);
        let context_files = pairs()
            .filter(|(_, files)| !files.is_empty())
            .map(|(artifact, files)| {
                let files: Vec<String> = files.iter().map(inside).collect();
                (artifact.id.clone(), json!(files))
            })
            .collect();
        let tracked = self.tracked()?;
        let (state, mut instruction) = self.state(&missing, &prerequisites, &tracked);
        if !tracked.unavailable.is_empty() {
            let lines = tracked.unavailable.iter();
            let lines: Vec<_> = lines
                .map(|file| format!("- {}: {}", file.path, file.reason))
                .collect();
            instruction += "\nTask completion is not verified because tracking evidence was \
                            unavailable:\n";
            instruction += &lines.join("\n");
        }
        Ok(Apply {
            change_name: self.name.to_owned(),
            change_dir: inside(&self.directory),
            schema_name: self.schema_name.clone(),
            context_files,
            progress: tracked.progress,
            task_tracking_configured: tracked.pattern.is_some(),
            state,
            missing_artifacts: missing,
            missing_prerequisites: prerequisites,
            warnings: self.warnings(state)?,
            instruction,
            context: config.context,
            operation_guidance: config.guidance,
            tasks: tracked.items,
            unavailable_tracking_files: tracked.unavailable,
        })
    }

    /// Reads the files with the tasks.
    fn tracked(&self) -> Result<Tracked, NoTasks> {
        let apply = self.schema.apply.as_ref();
        let mut tracked = Tracked {
            pattern: apply.and_then(|apply| apply.tracks.clone()),
            exists: false,
            items: Vec::new(),
            unavailable: Vec::new(),
            progress: Progress {
                total: 0,
                complete: 0,
                remaining: 0,
            },
        };
        let Some(pattern) = &tracked.pattern else {
            return Ok(tracked);
        };
        let files = outputs::of(self.tree, &self.directory, pattern)?;
        tracked.exists = !files.is_empty();
        for file in files {
            match self.tree.read(&file) {
                Ok(text) => checkbox::tasks(&text).for_each(|task| tracked.add(task)),
                Err(Lost::TooMuch(why)) => return Err(Lost::TooMuch(why).into()),
                Err(lost) => tracked.unavailable.push(Unavailable {
                    path: self.tree.name_inside(&file),
                    reason: lost.to_string(),
                }),
            }
        }
        if tracked.progress.total > MOST_TASKS {
            return Err(NoTasks::Damaged(format!(
                "the change has more than {MOST_TASKS} tasks; divide it"
            )));
        }
        Ok(tracked)
    }

    fn state(
        &self,
        missing: &[String],
        prerequisites: &[String],
        tracked: &Tracked,
    ) -> (State, String) {
        let own = self.schema.apply.as_ref();
        let own = own.and_then(|apply| apply.instruction.as_deref()).map(trim);
        let or_own = |standard: &str| own.unwrap_or(standard).to_owned();
        if !missing.is_empty() {
            let chain = match prerequisites.len() > missing.len() {
                true => format!(
                    "\nNot created yet, in build order: {}. Build the ones this change needs before \
                     applying - the schema says which are conditional.",
                    prerequisites.join(", ")
                ),
                false => String::new(),
            };
            let only = match prerequisites {
                [only] => Some(only.as_str()),
                _ => None,
            };
            let remedy = self.remedy(only, prerequisites.len() > 1);
            let missing = missing.join(", ");
            return (
                State::Blocked,
                format!(
                    "Cannot apply this change yet. Missing artifacts: {missing}.{chain}\n{remedy}"
                ),
            );
        }
        let Some(pattern) = &tracked.pattern else {
            return (
                State::Ready,
                or_own("All required artifacts complete. Proceed with implementation."),
            );
        };
        let file = pattern.trim_end_matches('/');
        let file = file.rsplit('/').next().unwrap_or_default();
        let artifacts = self.schema.artifacts.iter();
        let made_by = artifacts
            .map(|artifact| (&artifact.generates, artifact.id.as_str()))
            .find_map(|(generates, id)| (generates == pattern).then_some(id));
        let remedy = self.remedy(made_by, false);
        if !tracked.exists {
            let text = format!("The {file} file is missing and must be created.\n{remedy}");
            return (State::Blocked, text);
        }
        if tracked.items.is_empty() {
            let text = match tracked.unavailable.is_empty() {
                false => "No readable task descriptions are available.".to_owned(),
                true => format!(
                    "The {file} file exists but contains no tasks to work on.\nAdd tasks to {file}, \
                     or rebuild it: {remedy}"
                ),
            };
            return (State::Blocked, text);
        }
        if tracked.unavailable.is_empty() && tracked.progress.remaining == 0 {
            let text = "All tasks are complete! This change is ready to be archived.\nConsider \
                        running tests and reviewing the changes before archiving.";
            return (State::AllDone, text.to_owned());
        }
        let standard = "Read context files, work through pending tasks, mark complete as you \
                        go.\nPause if you hit blockers or need clarification.";
        (State::Ready, or_own(standard))
    }

    /// The command that makes an artifact.
    fn remedy(&self, artifact: Option<&str>, many: bool) -> String {
        let verb = match many {
            true => "Create each with",
            false => "Create it with",
        };
        let (name, target) = (self.name, artifact.unwrap_or("<artifact>"));
        format!(
            "{verb} `openspec instructions {target} --change {name}` (`openspec status --change \
             {name}` shows what is left)."
        )
    }

    /// What is wrong with a change that can be worked on all the same.
    fn warnings(&self, state: State) -> Result<Vec<String>, NoTasks> {
        let pairs = self.schema.artifacts.iter().zip(&self.files);
        let of_specs: Vec<_> = pairs.filter(|(one, _)| one.is_of_specs()).collect();
        let skips = of_specs
            .iter()
            .any(|(one, _)| self.skipped.contains(&one.id));
        if state == State::Blocked || of_specs.is_empty() || skips {
            return Ok(Vec::new());
        }
        let name = self.name;
        let unread = delta::unread(self.tree, &format!("{}/specs", self.directory))?;
        let mut warnings: Vec<String> = unread
            .iter()
            .map(|file| {
                format!(
                    "specs/{} is not a capability's spec.md, so `openspec validate {name}` rejects \
                     it and archive never merges it. Move its requirements into specs/{}.",
                    file.path, file.expected
                )
            })
            .collect();
        if of_specs.iter().all(|(_, files)| files.is_empty()) {
            let target = match of_specs[..] {
                [(only, _)] => only.id.as_str(),
                _ => "<artifact-id>",
            };
            let metadata = self
                .tree
                .name_inside(&format!("{}/{METADATA}", self.directory));
            warnings.push(format!(
                "This change has no delta specs and does not declare `skip_specs: true`, so \
                 `openspec validate {name}` fails on it. Write the delta specs before implementing \
                 (`openspec instructions {target} --change {name}`), or add `skip_specs: true` to \
                 {metadata} if this change really changes no specified behavior."
            ));
        }
        Ok(warnings)
    }
}

/// What the files with the tasks say.
struct Tracked {
    pattern: Option<String>,
    exists: bool,
    items: Vec<Item>,
    unavailable: Vec<Unavailable>,
    /// Of all boxes; a box without a text is not among the tasks.
    progress: Progress,
}

impl Tracked {
    fn add(&mut self, task: checkbox::Task<'_>) {
        self.progress.total += 1;
        match task.done {
            true => self.progress.complete += 1,
            false => self.progress.remaining += 1,
        }
        if !task.description.is_empty() && self.items.len() < MOST_TASKS {
            self.items.push(Item {
                id: (self.items.len() + 1).to_string(),
                description: task.description.to_owned(),
                done: task.done,
            });
        }
    }
}
