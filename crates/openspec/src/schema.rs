//! Schemas: the artifacts of a change, their dependencies, and the rules for applying it.

use oubliette_model::{FileKind, FileTree};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use crate::lookup::is_directory;
use crate::yaml::{self, Value};
use crate::{DEFAULT_SCHEMA, cmp_utf16, has_drive_letter, is_within, normalize_path};

const SCHEMAS_DIR: &str = "openspec/schemas";
const MAX_ARTIFACTS: usize = 1000;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Schema {
    pub(crate) artifacts: Vec<Artifact>,
    pub(crate) apply: Option<ApplyPhase>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Artifact {
    pub(crate) id: String,
    /// The path or pattern of its files, relative to the directory of the change.
    pub(crate) generates: String,
    pub(crate) requires: Vec<String>,
}

/// What must exist before a change is applied, and which file tracks its tasks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApplyPhase {
    pub(crate) requires: Vec<String>,
    pub(crate) tracks: Option<String>,
    pub(crate) instruction: Option<String>,
}

impl Artifact {
    /// Whether it consists of delta specifications.
    pub(crate) fn generates_specs(&self) -> bool {
        normalize_path(&self.generates.replace('\\', "/")).starts_with("specs/")
    }
}

impl Schema {
    /// The schema that comes with OpenSpec.
    fn spec_driven() -> Self {
        let artifact = |id: &str, generates: &str, requires: &[&str]| Artifact {
            id: id.to_owned(),
            generates: generates.to_owned(),
            requires: requires.iter().map(ToString::to_string).collect(),
        };
        Self {
            artifacts: vec![
                artifact("proposal", "proposal.md", &[]),
                artifact("specs", "specs/**/*.md", &["proposal"]),
                artifact("design", "design.md", &["proposal"]),
                artifact("tasks", "tasks.md", &["specs", "design"]),
            ],
            apply: Some(ApplyPhase {
                requires: vec!["tasks".to_owned()],
                tracks: Some("tasks.md".to_owned()),
                instruction: Some(
                    "Read context files, work through pending tasks, mark complete as you \
                     go.\nPause if you hit blockers or need clarification."
                        .to_owned(),
                ),
            }),
        }
    }

    pub(crate) fn artifact(&self, id: &str) -> Option<&Artifact> {
        self.artifacts.iter().find(|artifact| artifact.id == id)
    }

    /// The artifact that contains the tasks of a change.
    pub(crate) fn tracked_artifact(&self) -> Option<&Artifact> {
        let tracks = self.apply.as_ref().and_then(|apply| apply.tracks.as_ref());
        match tracks {
            Some(tracks) => self
                .artifacts
                .iter()
                .find(|artifact| artifact.generates == *tracks),
            None => self.artifact("tasks"),
        }
    }

    /// The artifacts that must exist before a change can be applied.
    pub(crate) fn required_artifacts(&self) -> Vec<&str> {
        match &self.apply {
            Some(apply) => apply.requires.iter().map(String::as_str).collect(),
            None => self.artifacts.iter().map(|one| one.id.as_str()).collect(),
        }
    }

    /// The artifacts in dependency order; the order of the file decides between independent ones.
    pub(crate) fn build_order(&self) -> Vec<&str> {
        let ids = self.artifacts.iter().map(|one| one.id.as_str());
        let index: HashMap<&str, usize> = ids.zip(0..).collect();
        let mut unmet_counts: Vec<usize> = Vec::new();
        let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); self.artifacts.len()];
        for (own, artifact) in self.artifacts.iter().enumerate() {
            unmet_counts.push(artifact.requires.len());
            for needed in &artifact.requires {
                if let Some(needed) = index.get(needed.as_str()) {
                    dependents[*needed].push(own);
                }
            }
        }
        let roots = (0..unmet_counts.len()).filter(|one| unmet_counts[*one] == 0);
        let mut ready: BinaryHeap<Reverse<usize>> = roots.map(Reverse).collect();
        let mut order = Vec::new();
        while let Some(Reverse(next)) = ready.pop() {
            order.push(self.artifacts[next].id.as_str());
            for dependent in &dependents[next] {
                unmet_counts[*dependent] -= 1;
                if unmet_counts[*dependent] == 0 {
                    ready.push(Reverse(*dependent));
                }
            }
        }
        order
    }
}

/// Loads a schema by name. `names` lists the existing ones. The error is a sentence for people.
pub(crate) fn load<'a>(
    tree: &dyn FileTree,
    name: &str,
    names: impl Fn() -> &'a [String],
) -> Result<Schema, String> {
    let name = name
        .strip_suffix(".yaml")
        .or_else(|| name.strip_suffix(".yml"))
        .unwrap_or(name);
    let is_name = !name.contains(['/', '\\', '\0'])
        && !matches!(name, "" | "." | "..")
        && !has_drive_letter(name);
    if is_name && is_project_schema(tree, name) {
        let path = format!("{SCHEMAS_DIR}/{name}/schema.yaml");
        let text = tree
            .read(&path)
            .map_err(|error| format!("`{path}` cannot be read: {error}"))?;
        return parse(&text).map_err(|error| format!("`{path}` is not a valid schema: {error}"));
    }
    match name {
        DEFAULT_SCHEMA => Ok(Schema::spec_driven()),
        _ => Err(format!(
            "there is no schema `{name}`; existing schemas: {}",
            names().join(", ")
        )),
    }
}

/// Whether the project defines a schema of that name.
fn is_project_schema(tree: &dyn FileTree, name: &str) -> bool {
    let directory = tree.find(&format!("{SCHEMAS_DIR}/{name}"));
    let file = tree.find(&format!("{SCHEMAS_DIR}/{name}/schema.yaml"));
    directory.is_ok_and(|directory| file.is_ok_and(|file| is_within(&directory.path, &file.path)))
}

/// The names of all schemas that changes of the project can use.
pub(crate) fn names(tree: &dyn FileTree) -> Vec<String> {
    let mut names = vec![DEFAULT_SCHEMA.to_owned()];
    for entry in tree.list(SCHEMAS_DIR).unwrap_or_default() {
        let name = entry.name;
        let is_temporary = [".fork-staging-", ".init-staging-"]
            .iter()
            .any(|start| name.starts_with(start))
            || [".fork-backup-", ".init-backup-"]
                .iter()
                .any(|part| name.contains(part));
        let is_directory = match entry.kind {
            FileKind::Directory => true,
            FileKind::Link => is_directory(tree, &format!("{SCHEMAS_DIR}/{name}")),
            _ => false,
        };
        let file = format!("{SCHEMAS_DIR}/{name}/schema.yaml");
        if is_directory && !is_temporary && name != DEFAULT_SCHEMA && tree.find(&file).is_ok() {
            names.push(name);
        }
    }
    names.sort_by(|a, b| cmp_utf16(a, b));
    names
}

fn parse(text: &str) -> Result<Schema, String> {
    let raw = yaml::parse(text)?;
    raw.get("name")
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty())
        .ok_or("`name` must be a non-empty string")?;
    match raw.get("version") {
        Some(Value::Number(version)) if *version >= 1.0 && version.fract() == 0.0 => {}
        _ => return Err("`version` must be a positive integer".to_owned()),
    }
    optional_string(&raw, "description")?;
    let Some(Value::List(items)) = raw.get("artifacts") else {
        return Err("`artifacts` must be a list".to_owned());
    };
    if !(1..=MAX_ARTIFACTS).contains(&items.len()) {
        return Err(format!(
            "`artifacts` must have 1 to {MAX_ARTIFACTS} entries"
        ));
    }
    let artifacts: Vec<Artifact> = items.iter().map(parse_artifact).collect::<Result<_, _>>()?;
    let apply = raw.get("apply").map(parse_apply_phase).transpose()?;
    let schema = Schema { artifacts, apply };
    check_references(&schema)?;
    Ok(schema)
}

fn parse_artifact(raw: &Value) -> Result<Artifact, String> {
    let id = raw.get("id").and_then(Value::as_str).unwrap_or_default();
    if id.is_empty() {
        return Err("an artifact has no `id`".to_owned());
    }
    let lacks = |what: &str| format!("the artifact `{id}` needs {what}");
    let path = |name: &str| {
        let path = raw.get(name).and_then(Value::as_str);
        path.filter(|path| is_relative_path(path))
            .ok_or_else(|| lacks(&format!("a relative path as `{name}`")))
    };
    let generates = path("generates")?.to_owned();
    path("template")?;
    raw.get("description")
        .and_then(Value::as_str)
        .ok_or_else(|| lacks("a `description`"))?;
    optional_string(raw, "instruction")?;
    let requires = match raw.get("requires") {
        None => Some(Vec::new()),
        Some(list) => list.as_strings(),
    };
    Ok(Artifact {
        id: id.to_owned(),
        generates,
        requires: requires.ok_or_else(|| lacks("a list of names as `requires`"))?,
    })
}

fn parse_apply_phase(raw: &Value) -> Result<ApplyPhase, String> {
    let requires = raw
        .get("requires")
        .and_then(Value::as_strings)
        .filter(|requires| !requires.is_empty());
    let tracks = match raw.get("tracks") {
        None | Some(Value::Null) => None,
        Some(Value::String(path)) if is_relative_path(path) => Some(path.clone()),
        Some(_) => return Err("`apply.tracks` must be a relative path".to_owned()),
    };
    Ok(ApplyPhase {
        requires: requires.ok_or("`apply.requires` must be a list of names")?,
        tracks,
        instruction: optional_string(raw, "instruction")?,
    })
}

fn optional_string(raw: &Value, name: &str) -> Result<Option<String>, String> {
    match raw.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("`{name}` must be a string")),
    }
}

/// Whether a path is relative and has no `..`; links are not considered.
fn is_relative_path(path: &str) -> bool {
    !path.is_empty()
        && !has_drive_letter(path)
        && !path.starts_with(['/', '\\'])
        && !path.contains('\0')
        && path.split(['/', '\\']).all(|part| part != "..")
}

fn check_references(schema: &Schema) -> Result<(), String> {
    let mut ids = HashSet::new();
    for artifact in &schema.artifacts {
        if !ids.insert(artifact.id.as_str()) {
            return Err(format!("duplicate artifact `{}`", artifact.id));
        }
    }
    let of_artifacts = schema.artifacts.iter().flat_map(|one| &one.requires);
    let of_apply = schema.apply.iter().flat_map(|apply| &apply.requires);
    if let Some(unknown) = of_artifacts
        .chain(of_apply)
        .find(|id| !ids.contains(id.as_str()))
    {
        return Err(format!("`{unknown}` is required but is not an artifact"));
    }
    if schema.build_order().len() < schema.artifacts.len() {
        return Err("its artifacts require each other in a cycle".to_owned());
    }
    Ok(())
}

/// The incomplete artifacts among `required` and their transitive dependencies, in build order.
pub(crate) fn missing_artifacts(
    schema: &Schema,
    required: &[&str],
    completed: &HashSet<&str>,
) -> Vec<String> {
    let by_id: HashMap<&str, &Artifact> = schema
        .artifacts
        .iter()
        .map(|artifact| (artifact.id.as_str(), artifact))
        .collect();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut queue: Vec<&str> = required.to_vec();
    while let Some(id) = queue.pop() {
        if let (true, Some(artifact)) = (seen.insert(id), by_id.get(id)) {
            queue.extend(artifact.requires.iter().map(String::as_str));
        }
    }
    schema
        .build_order()
        .into_iter()
        .filter(|id| seen.contains(id) && !completed.contains(id))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name: mine\nversion: 1\nartifacts:\n\
        - {id: b, generates: b.md, description: '', template: t.md, requires: [a]}\n\
        - {id: a, generates: 'a/*.md', description: '', template: t.md}\n\
        apply: {requires: [b], tracks: ~}\n";

    #[test]
    fn a_schema_is_parsed_and_ordered() {
        let schema = parse(GOOD).unwrap();
        assert_eq!(schema.build_order(), ["a", "b"]);
        assert_eq!(schema.tracked_artifact(), None);
        assert_eq!(
            missing_artifacts(&schema, &["b"], &HashSet::new()),
            ["a", "b"]
        );
        assert_eq!(
            missing_artifacts(&schema, &["b"], &HashSet::from(["a"])),
            ["b"]
        );
        let default = Schema::spec_driven();
        let order = ["proposal", "specs", "design", "tasks"];
        assert_eq!(default.build_order(), order);
        assert_eq!(default.tracked_artifact().unwrap().id, "tasks");
    }

    #[test]
    fn invalid_schemas_are_refused_with_the_reason() {
        for (from, to, word) in [
            ("version: 1", "version: 1.5", "version"),
            ("b.md", "../b.md", "generates"),
            ("b.md", "/b.md", "generates"),
            ("[a]", "[c]", "`c`"),
            ("{requires: [b]", "{requires: []", "apply.requires"),
            ("tracks: ~", "tracks: 1", "apply.tracks"),
            ("id: a", "id: b", "duplicate"),
            ("t.md}", "t.md, requires: [b]}", "cycle"),
            ("name: mine", "name: ''", "name"),
        ] {
            let error = parse(&GOOD.replace(from, to)).unwrap_err();
            assert!(error.contains(word), "{to}: {error}");
        }
    }
}
