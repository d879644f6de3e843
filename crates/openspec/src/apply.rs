//! The instructions for applying a change: its tasks, what blocks them, and what to read first.

use oubliette_model::{FileKind, FileTree, ReadError};
use std::collections::{BTreeMap, HashSet};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::outputs::{self, OutputError};
use crate::project::Project;
use crate::schema::{self, Artifact, Schema};
use crate::settings::Config;
use crate::{MAX_TASKS, METADATA_FILE, checkbox, delta, nested, trim_js_whitespace};

/// The output of `openspec instructions apply --json`, with the same field names.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct ApplyInstructions {
    change_name: String,
    /// The directory of the change, as agents see it.
    change_dir: String,
    schema_name: String,
    /// The files to read first, by artifact.
    #[schemars(with = "BTreeMap<String, Vec<String>>")]
    context_files: Map<String, Value>,
    progress: Progress,
    tasks: Vec<Task>,
    task_tracking_configured: bool,
    /// Task files that could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unavailable_tracking_files: Vec<UnavailableFile>,
    state: State,
    /// Required artifacts that do not exist yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing_artifacts: Vec<String>,
    /// The missing artifacts and their missing dependencies, in build order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing_prerequisites: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    instruction: String,
    /// The `context` of the project's `config.yaml`.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    operation_guidance: Vec<String>,
}

#[derive(Debug, Default, Clone, Copy, Serialize, JsonSchema)]
#[schemars(inline)]
struct Progress {
    total: usize,
    complete: usize,
    remaining: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Task {
    id: String,
    description: String,
    done: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct UnavailableFile {
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

/// Why a change has no instructions.
#[derive(Debug, PartialEq, Eq)]
pub enum ApplyError {
    NotFound,
    /// A sentence for people.
    Unreadable(String),
}

impl From<ReadError> for ApplyError {
    fn from(error: ReadError) -> Self {
        Self::Unreadable(format!("the change cannot be read: {error}"))
    }
}

impl From<OutputError> for ApplyError {
    fn from(error: OutputError) -> Self {
        Self::Unreadable(format!("the files of the change cannot be found: {error}"))
    }
}

/// Whether a change can have that name.
fn is_valid_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && !name.contains(['/', '\\', '\0'])
        && name != "archive"
}

pub fn apply_instructions(
    tree: &dyn FileTree,
    name: &str,
) -> Result<ApplyInstructions, ApplyError> {
    if !is_valid_name(name) {
        return Err(ApplyError::NotFound);
    }
    let project = Project::open(tree)?;
    let changes_dir = project.changes_dir.as_ref().ok_or(ApplyError::NotFound)?;
    let directory = match tree.find(&format!("{changes_dir}/{name}")) {
        Ok(found) if found.kind == FileKind::Directory => found.path,
        Ok(_) | Err(ReadError::NotFound(_) | ReadError::DanglingLink) => {
            return Err(ApplyError::NotFound);
        }
        Err(error) => return Err(error.into()),
    };
    let entries = tree.list(&directory)?;
    if let Some(nested) = nested::find_changes(&project, &directory, name, &entries)? {
        return Err(ApplyError::Unreadable(nested::warning(name, &nested)));
    }
    let change = LoadedChange::load(&project, name, directory)?;
    let instructions = change.into_instructions(project.config)?;
    tree.check_limits()?;
    Ok(instructions)
}

/// A change with the files of its artifacts.
struct LoadedChange<'a> {
    tree: &'a dyn FileTree,
    name: &'a str,
    directory: String,
    schema_name: String,
    schema: std::rc::Rc<Schema>,
    /// The files of each artifact, in the order of the schema.
    files: Vec<Vec<String>>,
    /// Artifacts that the change declares as not needed.
    skipped: HashSet<String>,
}

impl<'a> LoadedChange<'a> {
    fn load(project: &Project<'a>, name: &'a str, directory: String) -> Result<Self, ApplyError> {
        let workflow = project
            .workflow(&directory)
            .map_err(ApplyError::Unreadable)?;
        let tree = project.tree;
        let artifacts = &workflow.schema.artifacts;
        let files: Vec<Vec<String>> = artifacts
            .iter()
            .map(|artifact| outputs::files(tree, &directory, &artifact.generates))
            .collect::<Result<_, _>>()?;
        let skip_specs = workflow
            .metadata
            .is_some_and(|metadata| metadata.skip_specs);
        let is_skipped = |(artifact, files): &(&Artifact, &Vec<String>)| {
            skip_specs && artifact.generates_specs() && files.is_empty()
        };
        let skipped = artifacts.iter().zip(&files).filter(is_skipped);
        Ok(Self {
            skipped: skipped.map(|(artifact, _)| artifact.id.clone()).collect(),
            tree,
            name,
            directory,
            schema_name: workflow.schema_name,
            files,
            schema: workflow.schema,
        })
    }

    /// Whether an artifact exists or is not needed.
    fn is_complete(&self, artifact: &Artifact, files: &[String]) -> bool {
        !files.is_empty() || self.skipped.contains(&artifact.id)
    }

    fn into_instructions(self, config: Config) -> Result<ApplyInstructions, ApplyError> {
        let pairs = || self.schema.artifacts.iter().zip(&self.files);
        let completed: HashSet<&str> = pairs()
            .filter(|(artifact, files)| self.is_complete(artifact, files))
            .map(|(artifact, _)| artifact.id.as_str())
            .collect();
        let required = self.schema.required_artifacts();
        let missing: Vec<String> = required
            .iter()
            .filter(|id| !completed.contains(**id))
            .map(ToString::to_string)
            .collect();
        let prerequisites = schema::missing_artifacts(&self.schema, &required, &completed);
        let container_path = |path: &String| self.tree.container_path(path);
        let context_files = pairs()
            .filter(|(_, files)| !files.is_empty())
            .map(|(artifact, files)| {
                let files: Vec<String> = files.iter().map(container_path).collect();
                (artifact.id.clone(), json!(files))
            })
            .collect();
        let tracked = self.read_tracked_tasks()?;
        let (state, mut instruction) = self.state(&missing, &prerequisites, &tracked);
        if !tracked.unavailable.is_empty() {
            let lines: Vec<_> = tracked
                .unavailable
                .iter()
                .map(|file| format!("- {}: {}", file.path, file.reason))
                .collect();
            instruction += "\nTask completion is not verified because tracking evidence was \
                            unavailable:\n";
            instruction += &lines.join("\n");
        }
        Ok(ApplyInstructions {
            change_name: self.name.to_owned(),
            change_dir: container_path(&self.directory),
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

    /// Reads the tasks from the files that the schema tracks.
    fn read_tracked_tasks(&self) -> Result<TrackedTasks, ApplyError> {
        let apply = self.schema.apply.as_ref();
        let mut tracked = TrackedTasks {
            pattern: apply.and_then(|apply| apply.tracks.clone()),
            exists: false,
            items: Vec::new(),
            unavailable: Vec::new(),
            progress: Progress::default(),
        };
        let Some(pattern) = &tracked.pattern else {
            return Ok(tracked);
        };
        let files = outputs::files(self.tree, &self.directory, pattern)?;
        tracked.exists = !files.is_empty();
        for file in files {
            match self.tree.read(&file) {
                Ok(text) => checkbox::parse_tasks(&text).for_each(|task| tracked.add(task)),
                Err(error @ ReadError::LimitReached(_)) => return Err(error.into()),
                Err(error) => tracked.unavailable.push(UnavailableFile {
                    path: self.tree.container_path(&file),
                    reason: error.to_string(),
                }),
            }
        }
        if tracked.progress.total > MAX_TASKS {
            return Err(ApplyError::Unreadable(format!(
                "the change has more than {MAX_TASKS} tasks; split it"
            )));
        }
        Ok(tracked)
    }

    /// The state of the change and the instruction for it, in the command's words.
    fn state(
        &self,
        missing: &[String],
        prerequisites: &[String],
        tracked: &TrackedTasks,
    ) -> (State, String) {
        let custom = self
            .schema
            .apply
            .as_ref()
            .and_then(|apply| apply.instruction.as_deref())
            .map(trim_js_whitespace);
        let custom_or = |default: &str| custom.unwrap_or(default).to_owned();
        if !missing.is_empty() {
            let build_order = if prerequisites.len() > missing.len() {
                format!(
                    "\nNot created yet, in build order: {}. Build the ones this change needs before \
                     applying - the schema says which are conditional.",
                    prerequisites.join(", ")
                )
            } else {
                String::new()
            };
            let only = match prerequisites {
                [only] => Some(only.as_str()),
                _ => None,
            };
            let hint = self.creation_hint(only, prerequisites.len() > 1);
            let text = format!(
                "Cannot apply this change yet. Missing artifacts: {}.{build_order}\n{hint}",
                missing.join(", ")
            );
            return (State::Blocked, text);
        }
        let Some(pattern) = &tracked.pattern else {
            return (
                State::Ready,
                custom_or("All required artifacts complete. Proceed with implementation."),
            );
        };
        let path = pattern.trim_end_matches('/');
        let file = path.rsplit('/').next().unwrap_or_default();
        let made_by = self
            .schema
            .artifacts
            .iter()
            .find(|artifact| artifact.generates == *pattern)
            .map(|artifact| artifact.id.as_str());
        let hint = self.creation_hint(made_by, false);
        if !tracked.exists {
            let text = format!("The {file} file is missing and must be created.\n{hint}");
            return (State::Blocked, text);
        }
        if tracked.items.is_empty() {
            let text = if tracked.unavailable.is_empty() {
                format!(
                    "The {file} file exists but contains no tasks to work on.\nAdd tasks to {file}, \
                     or rebuild it: {hint}"
                )
            } else {
                "No readable task descriptions are available.".to_owned()
            };
            return (State::Blocked, text);
        }
        if tracked.unavailable.is_empty() && tracked.progress.remaining == 0 {
            let text = "All tasks are complete! This change is ready to be archived.\nConsider \
                        running tests and reviewing the changes before archiving.";
            return (State::AllDone, text.to_owned());
        }
        let default = "Read context files, work through pending tasks, mark complete as you \
                        go.\nPause if you hit blockers or need clarification.";
        (State::Ready, custom_or(default))
    }

    /// Names the command that creates an artifact.
    fn creation_hint(&self, artifact: Option<&str>, many: bool) -> String {
        let verb = if many {
            "Create each with"
        } else {
            "Create it with"
        };
        let (name, target) = (self.name, artifact.unwrap_or("<artifact>"));
        format!(
            "{verb} `openspec instructions {target} --change {name}` (`openspec status --change \
             {name}` shows what is left)."
        )
    }

    /// Problems of a change that do not block it, in the command's words.
    fn warnings(&self, state: State) -> Result<Vec<String>, ApplyError> {
        let pairs = self.schema.artifacts.iter().zip(&self.files);
        let of_specs: Vec<_> = pairs.filter(|(one, _)| one.generates_specs()).collect();
        let skips_specs = of_specs
            .iter()
            .any(|(one, _)| self.skipped.contains(&one.id));
        if state == State::Blocked || of_specs.is_empty() || skips_specs {
            return Ok(Vec::new());
        }
        let name = self.name;
        let misplaced = delta::find_misplaced(self.tree, &format!("{}/specs", self.directory))?;
        let mut warnings: Vec<String> = misplaced
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
                .container_path(&format!("{}/{METADATA_FILE}", self.directory));
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

/// The contents of the files that track tasks.
struct TrackedTasks {
    pattern: Option<String>,
    exists: bool,
    items: Vec<Task>,
    unavailable: Vec<UnavailableFile>,
    /// Counts all checkboxes; `items` leaves out those without a text.
    progress: Progress,
}

impl TrackedTasks {
    fn add(&mut self, task: checkbox::Task<'_>) {
        self.progress.total += 1;
        if task.done {
            self.progress.complete += 1;
        } else {
            self.progress.remaining += 1;
        }
        if !task.description.is_empty() && self.items.len() < MAX_TASKS {
            self.items.push(Task {
                id: (self.items.len() + 1).to_string(),
                description: task.description.to_owned(),
                done: task.done,
            });
        }
    }
}
