//! Workflows: which artifacts a change has, what each needs, and what work on it follows.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use super::yaml::{self, Value};
use super::{DEFAULT_SCHEMA, by_units, is_within, normalised};
use crate::files::{Kind, Tree};

const PLACE: &str = "openspec/schemas";
const MOST_ARTIFACTS: usize = 1000;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Schema {
    pub(super) artifacts: Vec<Artifact>,
    pub(super) apply: Option<Phase>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Artifact {
    pub(super) id: String,
    /// The path or pattern of its files, from the directory of the change.
    pub(super) generates: String,
    pub(super) requires: Vec<String>,
}

/// How a change is carried out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Phase {
    pub(super) requires: Vec<String>,
    pub(super) tracks: Option<String>,
    pub(super) instruction: Option<String>,
}

impl Artifact {
    /// Whether it says how specifications change.
    pub(super) fn is_of_specs(&self) -> bool {
        normalised(&self.generates.replace('\\', "/")).starts_with("specs/")
    }
}

impl Schema {
    /// The one that comes with OpenSpec.
    fn standard() -> Self {
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
            apply: Some(Phase {
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

    pub(super) fn artifact(&self, id: &str) -> Option<&Artifact> {
        self.artifacts.iter().find(|artifact| artifact.id == id)
    }

    /// What the tasks of a change are counted in.
    pub(super) fn tracked(&self) -> Option<&Artifact> {
        let tracks = self.apply.as_ref().and_then(|apply| apply.tracks.as_ref());
        match tracks {
            Some(tracks) => self
                .artifacts
                .iter()
                .find(|artifact| artifact.generates == *tracks),
            None => self.artifact("tasks"),
        }
    }

    /// What must be there before work begins.
    pub(super) fn required(&self) -> Vec<&str> {
        match &self.apply {
            Some(apply) => apply.requires.iter().map(String::as_str).collect(),
            None => self.artifacts.iter().map(|one| one.id.as_str()).collect(),
        }
    }

    /// The artifacts in the order in which they can be made; the order of the file decides between
    /// those that could be next.
    pub(super) fn build_order(&self) -> Vec<&str> {
        let ids = self.artifacts.iter().map(|one| one.id.as_str());
        let index: HashMap<&str, usize> = ids.zip(0..).collect();
        let mut waits: Vec<usize> = Vec::new();
        let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); self.artifacts.len()];
        for (own, artifact) in self.artifacts.iter().enumerate() {
            waits.push(artifact.requires.len());
            for needed in &artifact.requires {
                if let Some(needed) = index.get(needed.as_str()) {
                    waiting[*needed].push(own);
                }
            }
        }
        let roots = (0..waits.len()).filter(|one| waits[*one] == 0);
        let mut ready: BinaryHeap<Reverse<usize>> = roots.map(Reverse).collect();
        let mut order = Vec::new();
        while let Some(Reverse(next)) = ready.pop() {
            order.push(self.artifacts[next].id.as_str());
            for other in &waiting[next] {
                waits[*other] -= 1;
                if waits[*other] == 0 {
                    ready.push(Reverse(*other));
                }
            }
        }
        order
    }
}

/// The workflow of a name; `names` are those there are. The error is a sentence for people.
pub(super) fn find<'a>(
    tree: &Tree,
    name: &str,
    names: impl Fn() -> &'a [String],
) -> Result<Schema, String> {
    let name = name
        .strip_suffix(".yaml")
        .or_else(|| name.strip_suffix(".yml"))
        .unwrap_or(name);
    let drive = name.as_bytes();
    let is_drive = drive.len() > 1 && drive[0].is_ascii_alphabetic() && drive[1] == b':';
    let is_name = !name.contains(['/', '\\', '\0']) && !matches!(name, "" | "." | "..");
    if is_name && !is_drive && has(tree, name) {
        let path = format!("{PLACE}/{name}/schema.yaml");
        let text = tree.read(&path);
        let text = text.map_err(|lost| format!("`{path}` cannot be read: {lost}"))?;
        return parse(&text).map_err(|wrong| format!("`{path}` is not a schema: {wrong}"));
    }
    match name {
        DEFAULT_SCHEMA => Ok(Schema::standard()),
        _ => Err(format!(
            "there is no schema `{name}`; those there are: {}",
            names().join(", ")
        )),
    }
}

/// Whether a project has a schema of its own of that name.
fn has(tree: &Tree, name: &str) -> bool {
    let directory = tree.find(&format!("{PLACE}/{name}"));
    let file = tree.find(&format!("{PLACE}/{name}/schema.yaml"));
    directory.is_ok_and(|directory| file.is_ok_and(|file| is_within(&directory.path, &file.path)))
}

/// The names of all workflows that changes of the project can have.
pub(super) fn names(tree: &Tree) -> Vec<String> {
    let mut names = vec![DEFAULT_SCHEMA.to_owned()];
    for entry in tree.list(PLACE).unwrap_or_default() {
        let name = entry.name;
        let is_passing = [".fork-staging-", ".init-staging-"]
            .iter()
            .any(|start| name.starts_with(start))
            || [".fork-backup-", ".init-backup-"]
                .iter()
                .any(|part| name.contains(part));
        let is_directory = match entry.kind {
            Kind::Directory => true,
            Kind::Link => tree.is_directory(&format!("{PLACE}/{name}")),
            _ => false,
        };
        let file = format!("{PLACE}/{name}/schema.yaml");
        if is_directory && !is_passing && name != DEFAULT_SCHEMA && tree.find(&file).is_ok() {
            names.push(name);
        }
    }
    names.sort_by(|a, b| by_units(a, b));
    names
}

fn parse(text: &str) -> Result<Schema, String> {
    let raw = yaml::parse(text)?;
    let named = raw.get("name").and_then(Value::as_text);
    named
        .filter(|name| !name.is_empty())
        .ok_or("`name` must be a text")?;
    match raw.get("version") {
        Some(Value::Number(version)) if *version >= 1.0 && version.fract() == 0.0 => {}
        _ => return Err("`version` must be a whole number".to_owned()),
    }
    optional_text(&raw, "description")?;
    let Some(Value::List(items)) = raw.get("artifacts") else {
        return Err("`artifacts` must be a list".to_owned());
    };
    if !(1..=MOST_ARTIFACTS).contains(&items.len()) {
        return Err(format!("`artifacts` must have 1 to {MOST_ARTIFACTS}"));
    }
    let artifacts: Vec<Artifact> = items.iter().map(artifact).collect::<Result<_, _>>()?;
    let apply = raw.get("apply").map(phase).transpose()?;
    let schema = Schema { artifacts, apply };
    check_references(&schema)?;
    Ok(schema)
}

fn artifact(raw: &Value) -> Result<Artifact, String> {
    let id = raw.get("id").and_then(Value::as_text).unwrap_or_default();
    if id.is_empty() {
        return Err("an artifact has no `id`".to_owned());
    }
    let wrong = |what: &str| format!("the artifact `{id}` needs {what}");
    let path = |name: &str| {
        let path = raw.get(name).and_then(Value::as_text);
        path.filter(|path| is_inside(path))
            .ok_or_else(|| wrong(&format!("a relative path as `{name}`")))
    };
    let generates = path("generates")?.to_owned();
    path("template")?;
    raw.get("description")
        .and_then(Value::as_text)
        .ok_or_else(|| wrong("a `description`"))?;
    optional_text(raw, "instruction")?;
    let requires = match raw.get("requires") {
        None => Some(Vec::new()),
        Some(list) => list.as_texts(),
    };
    Ok(Artifact {
        id: id.to_owned(),
        generates,
        requires: requires.ok_or_else(|| wrong("a list of names as `requires`"))?,
    })
}

fn phase(raw: &Value) -> Result<Phase, String> {
    let requires = raw.get("requires").and_then(Value::as_texts);
    let requires = requires.filter(|requires| !requires.is_empty());
    let tracks = match raw.get("tracks") {
        None | Some(Value::Null) => None,
        Some(Value::Text(path)) if is_inside(path) => Some(path.clone()),
        Some(_) => return Err("`apply.tracks` must be a relative path".to_owned()),
    };
    Ok(Phase {
        requires: requires.ok_or("`apply.requires` must be a list of names")?,
        tracks,
        instruction: optional_text(raw, "instruction")?,
    })
}

fn optional_text(raw: &Value, name: &str) -> Result<Option<String>, String> {
    match raw.get(name) {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("`{name}` must be a text")),
    }
}

/// Whether a path, by its looks, stays in the directory it starts from.
fn is_inside(path: &str) -> bool {
    let bytes = path.as_bytes();
    let is_drive = bytes.len() > 1 && bytes[0].is_ascii_alphabetic() && bytes[1] == b':';
    !path.is_empty()
        && !is_drive
        && !path.starts_with(['/', '\\'])
        && !path.contains('\0')
        && path.split(['/', '\\']).all(|part| part != "..")
}

fn check_references(schema: &Schema) -> Result<(), String> {
    let mut ids = HashSet::new();
    for artifact in &schema.artifacts {
        if !ids.insert(artifact.id.as_str()) {
            return Err(format!("the artifact `{}` comes twice", artifact.id));
        }
    }
    let own = schema.artifacts.iter().flat_map(|one| &one.requires);
    let apply = schema.apply.iter().flat_map(|apply| &apply.requires);
    if let Some(unknown) = own.chain(apply).find(|id| !ids.contains(id.as_str())) {
        return Err(format!("`{unknown}` is required but is no artifact"));
    }
    if schema.build_order().len() < schema.artifacts.len() {
        return Err("its artifacts require each other in a circle".to_owned());
    }
    Ok(())
}

/// Which of the artifacts that some need, directly or not, are still to be made; in build order.
pub(super) fn missing(
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
    let order = schema.build_order().into_iter();
    order
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
    fn a_schema_is_read_and_ordered() {
        let schema = parse(GOOD).unwrap();
        assert_eq!(schema.build_order(), ["a", "b"]);
        assert_eq!(schema.tracked(), None);
        assert_eq!(missing(&schema, &["b"], &HashSet::new()), ["a", "b"]);
        assert_eq!(missing(&schema, &["b"], &HashSet::from(["a"])), ["b"]);
        let standard = Schema::standard();
        let order = ["proposal", "specs", "design", "tasks"];
        assert_eq!(standard.build_order(), order);
        assert_eq!(standard.tracked().unwrap().id, "tasks");
    }

    #[test]
    fn what_is_wrong_with_a_schema_is_said() {
        for (from, to, word) in [
            ("version: 1", "version: 1.5", "version"),
            ("b.md", "../b.md", "generates"),
            ("b.md", "/b.md", "generates"),
            ("[a]", "[c]", "`c`"),
            ("{requires: [b]", "{requires: []", "apply.requires"),
            ("tracks: ~", "tracks: 1", "apply.tracks"),
            ("id: a", "id: b", "twice"),
            ("t.md}", "t.md, requires: [b]}", "circle"),
            ("name: mine", "name: ''", "name"),
        ] {
            let wrong = parse(&GOOD.replace(from, to)).unwrap_err();
            assert!(wrong.contains(word), "{to}: {wrong}");
        }
    }
}
