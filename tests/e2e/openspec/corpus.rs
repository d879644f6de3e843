//! Workspaces for the comparison with the command: random ones, and handwritten special cases.

use std::fs::{self, FileTimes, OpenOptions};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use support::Random;

/// The files of a workspace.
#[derive(Debug, Default, Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    files: Vec<(String, Vec<u8>)>,
    directories: Vec<String>,
    links: Vec<(String, String)>,
    /// The modification times of the files in milliseconds since 1970, repeated in turn.
    times: Vec<u64>,
}

impl Case {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    pub(crate) fn file(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((path.to_owned(), content.into()));
        self
    }

    /// A file of the change `c`.
    pub(crate) fn change_file(self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.file(&format!("openspec/changes/c/{path}"), content)
    }

    pub(crate) fn directory(mut self, path: &str) -> Self {
        self.directories.push(path.to_owned());
        self
    }

    pub(crate) fn link(mut self, path: &str, target: &str) -> Self {
        self.links.push((path.to_owned(), target.to_owned()));
        self
    }

    /// Sets the modification times of the files, in turn: milliseconds since 1970.
    pub(crate) fn at_times(mut self, times: &[u64]) -> Self {
        self.times = times.to_vec();
        self
    }

    /// Writes the files into a workspace.
    pub(crate) fn write(&self, top: &Path) {
        let made = |path: &str| {
            let path = top.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        };
        for path in &self.directories {
            fs::create_dir_all(top.join(path)).unwrap();
        }
        for (index, (path, content)) in self.files.iter().enumerate() {
            let path = made(path);
            // A random case may have both a file and a directory of that name.
            if path.is_dir() {
                continue;
            }
            fs::write(&path, content).unwrap();
            if let Some(time) = self.times.get(index % self.times.len().max(1)) {
                // Not a whole number of milliseconds, so that rounding shows.
                let more = [499_000, 499_950, 500_000][usize::try_from(time % 3).unwrap()];
                let time = Duration::from_millis(*time) + Duration::from_nanos(more);
                let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + time);
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.set_times(times).unwrap();
            }
        }
        for (path, target) in &self.links {
            symlink(target, made(path)).unwrap();
        }
    }

    /// The YAML files, which are the most likely cause of a difference.
    pub(crate) fn yaml_files(&self) -> Vec<(&str, String)> {
        let files = self.files.iter();
        files
            .filter(|(path, _)| path.ends_with("ml"))
            .map(|(path, content)| (path.as_str(), String::from_utf8_lossy(content).into_owned()))
            .collect()
    }

    /// The names of changes to ask for: existing ones, and some that do not exist.
    pub(crate) fn changes(&self, top: &Path) -> Vec<String> {
        let names = fs::read_dir(top.join("openspec/changes"));
        let names = names.into_iter().flatten().flatten();
        let mut names: Vec<String> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names.truncate(8);
        if self.name.ends_with('0') {
            names.extend(["missing", "..", "a/b", ""].map(str::to_owned));
        }
        names
    }
}

/// Lines of a task list, valid and invalid.
const LINES: &[&str] = &[
    "# Tasks",
    "## 1. Set up",
    "- [ ] 1.1 Do this",
    "- [x] 1.2 Did that",
    "- [X] 1.3 Did that too",
    "  - [ ] 1.3.1 Nested once",
    "\t\t- [x] 1.3.1.1 Nested twice, with tabs",
    "* [ ] with a star",
    "+ [x] with a plus",
    "1. [ ] with a number",
    "12) [x] with a bracket",
    "1234567890. [ ] with too long a number",
    "- [~] half done",
    "- [-] given up",
    "- [] nothing inside",
    "- [ x ] padded",
    "- [x]no space",
    "- [ ]",
    "- [x]   ",
    "- [WIP] not a box",
    "- [link](https://example.org)",
    "- [a](b)",
    "- [1][2]",
    "- [ ](c) blank but followed",
    "- [ ][d] blank too",
    "- [x](e) ticked and followed",
    "-[ ] close",
    "- [😀] wide",
    "- [é] narrow",
    "\u{feff}- [ ] after a mark of byte order",
    "\u{a0}- [x] after a hard space",
    "\u{85}- [x] after a next line",
    "- [ ] one\u{2028}two",
    "- [ ] tab\tinside \u{3000}",
    "- [ ] quotes \" and \\ and \u{0} and \u{7f}",
    "```",
    "~~~",
    "<!-- - [ ] hidden -->",
    "> - [ ] quoted",
    "--- [ ] ruled",
    "",
    "Some text - [ ] with a box in it",
    "- [[] bracket",
    "- []] bracket",
    "- [ ] ünïcödé 日本語 🎉",
];

const DELTAS: &[&str] = &[
    "## ADDED Requirements\n\n### Requirement: A\nIt SHALL.\n\n#### Scenario: B\n- x\n",
    "## Purpose\nNothing.\n",
    "```\n## ADDED Requirements\n```\n",
    "\u{feff}##\tremoved requirements \r\n",
    "~~~~\n~~~\n## RENAMED Requirements\n~~~~\n## MODIFIED Requirements\n",
    "",
];

const METADATA: &[&str] = &[
    "schema: spec-driven\n",
    "schema: spec-driven\ncreated: 2026-01-31\nskip_specs: true\n",
    "schema: 'spec-driven'\ncreated: \"2026-01-31\"\ngoal: A goal\naffected_areas: [a, b]\n",
    "schema: spec-driven\nskip_specs: yes\n",
    "schema: spec-driven\nskip_specs: 'true'\n",
    "schema: missing\n",
    "schema: tracked\n",
    "schema: globbed\n",
    "schema: plain\n",
    "schema: spec-driven.yaml\n",
    "schema: [spec-driven]\n",
    "schema: spec-driven\nschema: spec-driven\n",
    "schema: spec-driven\ncreated: 31.1.2026\n",
    "schema: spec-driven\ninitiative: {store: a-b, id: c}\n",
    "schema: spec-driven\ninitiative: {store: A, id: c}\n",
    "schema: spec-driven\nunknown: {a: [1, 2, {b: c}]}\n",
    "# nothing\n",
    "",
    "just a text",
    "{ not: [closed",
    "- a\n- b\n",
    "schema: &a spec-driven\ngoal: *a\n",
    "schema: >-\n  spec-driven\n",
    "%YAML 1.2\n---\nschema: spec-driven\n...\n",
    "schema: spec-driven\r\nskip_specs: true\r\n",
    "\u{feff}schema: spec-driven\n",
    "schema: spec-driven # a comment\n\n\nretire_capabilities: false\n",
    "schema: !!str spec-driven\n",
    "schema: null\n",
    "schema: spec-driven\n---\nschema: plain\n",
];

const CONFIGS: &[&str] = &[
    "schema: spec-driven\n",
    "schema: tracked\n",
    "schema: globbed\ncontext: |\n  Some context.\n  More of it.\n",
    "schema: plain\n",
    "schema: unknown\n",
    "context: '   '\n",
    "context: 5\noperations:\n  apply:\n    guidance:\n      - one\n      - ''\n      - two\n",
    "operations: {apply: {guidance: text}, other: 1}\n",
    "operations: {apply: {guidance: [a], more: b}, archive: {guidance: [c]}}\n",
    "rules: {tasks: [a]}\nschema: ''\n",
    "not: [valid",
    "- a\n",
    "text",
    "",
];

const SCHEMAS: &[(&str, &str)] = &[
    (
        "tracked",
        "name: tracked\nversion: 1\nartifacts:\n  - id: plan\n    generates: plan.md\n    description: d\n    template: t.md\n  - id: work\n    generates: work/todo.md\n    description: d\n    template: t.md\n    requires: [plan]\napply:\n  requires: [work]\n  tracks: work/todo.md\n  instruction: |\n    Do the work.\n",
    ),
    (
        "globbed",
        "name: globbed\nversion: 2\nartifacts:\n  - {id: a, generates: '**/*.md', description: d, template: t.md}\n  - {id: specs, generates: 'specs/{x,y}/*.md', description: d, template: t.md, requires: [a]}\n  - {id: todo, generates: 'lists/[a-c]?.md', description: d, template: t.md, requires: [specs, a]}\napply:\n  requires: [todo]\n  tracks: lists/[a-c]?.md\n",
    ),
    (
        "plain",
        "name: plain\nversion: 1\ndescription: x\nartifacts:\n  - id: tasks\n    generates: ./tasks.md\n    description: ''\n    template: t.md\n  - id: notes\n    generates: notes\n    description: ''\n    template: t.md\n",
    ),
];

const NAMES: &[&str] = &[
    "add-login",
    "fix-bug",
    "with space",
    "Ünïcödé",
    "日本語",
    "UPPER_case.v2",
    "a",
    "z\u{fffd}z",
    "😀",
    "quote'\"",
    ".hidden",
    "archive",
    "$(touch x)",
    "-dash",
];

/// Random workspaces.
pub(crate) fn random(random: &mut Random, count: usize) -> Vec<Case> {
    (0..count).map(|index| random_case(random, index)).collect()
}

fn pick<'a, T: ?Sized>(random: &mut Random, from: &[&'a T]) -> &'a T {
    from[usize::try_from(random.below(from.len() as u64)).unwrap()]
}

fn with_probability(random: &mut Random, percent: u64) -> bool {
    random.below(100) < percent
}

fn random_case(random: &mut Random, index: usize) -> Case {
    let mut case = Case::new(&format!("random {index}"));
    for _ in 0..4 {
        // Often equal, so that the order by name is tested.
        case.times
            .push(1_700_000_000_000 + random.below(4) * 86_400_000 + random.below(2));
    }
    if with_probability(random, 30) {
        let name = pick(random, &["config.yaml", "config.yaml", "config.yml"]);
        let config = pick(random, CONFIGS);
        let config = damaged(random, config);
        case = case.file(&format!("openspec/{name}"), config);
    }
    for (name, schema) in SCHEMAS {
        if with_probability(random, 50) {
            let schema = damaged(random, schema);
            case = case.file(&format!("openspec/schemas/{name}/schema.yaml"), schema);
        }
    }
    if with_probability(random, 80) {
        case = case.directory("openspec/specs");
    }
    for _ in 0..random.below(6) {
        case = add_random_change(random, case);
    }
    case
}

fn add_random_change(random: &mut Random, mut case: Case) -> Case {
    let mut top = format!("openspec/changes/{}", pick(random, NAMES));
    if with_probability(random, 8) {
        top += "/inner";
    }
    case = case.directory(&top);
    if with_probability(random, 40) {
        let metadata = pick(random, METADATA);
        let metadata = damaged(random, metadata);
        case = case.file(&format!("{top}/.openspec.yaml"), metadata);
    }
    for name in ["proposal.md", "design.md", "plan.md", "notes", ".dotted"] {
        if with_probability(random, 40) {
            case = case.file(&format!("{top}/{name}"), "# Text\n");
        }
    }
    for name in [
        "specs/x/spec.md",
        "specs/y/spec.md",
        "specs/y/note.md",
        "specs/stray.MD",
        "specs/stray.md",
        "specs/.hidden/spec.md",
        "specs/deep/er/spec.md",
        "specs/list.txt",
    ] {
        if with_probability(random, 25) {
            case = case.file(&format!("{top}/{name}"), pick(random, DELTAS));
        }
    }
    for name in [
        "tasks.md",
        "work/todo.md",
        "lists/a1.md",
        "lists/cc.md",
        "lists/zz.md",
    ] {
        if with_probability(random, 55) {
            let content = random_tasks(random);
            case = case.file(&format!("{top}/{name}"), content);
        } else if with_probability(random, 5) {
            case = case.directory(&format!("{top}/{name}"));
        }
    }
    case
}

/// A text that is sometimes cut off or has random characters inserted.
fn damaged(random: &mut Random, text: &str) -> String {
    let mut text: Vec<char> = text.chars().collect();
    if with_probability(random, 10) {
        text.truncate(usize::try_from(random.below(text.len() as u64 + 1)).unwrap());
    }
    if with_probability(random, 20) {
        for _ in 0..=random.below(3) {
            let at = usize::try_from(random.below(text.len() as u64 + 1)).unwrap();
            let typed = pick(
                random,
                &[":", "-", " ", "\n", "'", "[", "}", "x", "#", "1", "&", "!"],
            );
            text.splice(at..at, typed.chars());
        }
    }
    text.into_iter().collect()
}

fn random_tasks(random: &mut Random) -> Vec<u8> {
    let ending = pick(random, &["\n", "\n", "\r\n", "\r"]);
    let mut text = String::new();
    let only_done = with_probability(random, 20);
    for _ in 0..random.below(15) {
        text += if only_done {
            pick(random, &["- [x] done", "## Heading", "  * [X] done too"])
        } else {
            pick(random, LINES)
        };
        text += ending;
    }
    let mut bytes = text.into_bytes();
    if with_probability(random, 15) {
        for _ in 0..random.below(20) {
            let at = usize::try_from(random.below(bytes.len() as u64 + 1)).unwrap();
            bytes.insert(at, u8::try_from(random.below(256)).unwrap());
        }
    }
    bytes
}

/// Handwritten special cases.
pub(crate) fn handwritten() -> Vec<Case> {
    let case = Case::new;
    let every_line: String = LINES.iter().map(|line| format!("{line}\n")).collect();
    let many: String = (0..100_000)
        .map(|index| {
            let mark = if index % 3 == 0 { 'x' } else { ' ' };
            format!("- [{mark}] {index} do one more thing\n")
        })
        .collect();
    let binary: Vec<u8> = (0..20_000_u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let schema = |body: &str| format!("name: s\nversion: 1\nartifacts:\n{body}");
    let good = "  - {id: a, generates: a.md, description: d, template: t}\n";
    let with_schema = |name: &str, text: &str| {
        case(name)
            .file("openspec/schemas/s/schema.yaml", text)
            .file("openspec/config.yaml", "schema: s\n")
            .change_file("a.md", "- [ ] a\n")
            .change_file("tasks.md", "- [x] t\n")
    };
    let mut cases = vec![
        case("nothing at all"),
        case("an empty directory").directory("openspec"),
        case("a file of that name").file("openspec", "x"),
        case("only a configuration").file("openspec/config.yaml", "schema: spec-driven\n"),
        case("only an old project file").file("openspec/project.md", "# Project\n"),
        case("only specifications").file("openspec/specs/a/spec.md", "# A\n"),
        case("no changes").directory("openspec/changes"),
        case("only an archive").file(
            "openspec/changes/archive/2026-01-01-x/tasks.md",
            "- [ ] a\n",
        ),
        case("changes that are a file")
            .file("openspec/changes", "x")
            .file("openspec/config.yaml", "schema: spec-driven\n"),
        case("files among the changes")
            .file("openspec/changes/README.md", "- [ ] a\n")
            .change_file("tasks.md", "- [ ] a\n"),
        case("an empty change").directory("openspec/changes/c"),
        case("every kind of line").change_file("tasks.md", every_line.clone()),
        case("every kind of line, with returns")
            .change_file("tasks.md", every_line.replace('\n', "\r\n")),
        case("every kind of line, with returns only")
            .change_file("tasks.md", every_line.replace('\n', "\r")),
        case("a hundred thousand tasks").change_file("tasks.md", many),
        case("binary data").change_file("tasks.md", binary),
        case("an empty list").change_file("tasks.md", ""),
        case("boxes without a text").change_file("tasks.md", "- [ ]\n- [x]\n- []\n"),
        case("a list that is a directory").directory("openspec/changes/c/tasks.md"),
        case("a very long line").change_file(
            "tasks.md",
            format!("- [ ] {}\n- [x] b", "x".repeat(1 << 20)),
        ),
        case("many spaces").change_file("tasks.md", format!("- [{}] a\n", " ".repeat(100_000))),
        case("no end of line").change_file("tasks.md", "- [x] a"),
        case("UTF-16").change_file(
            "tasks.md",
            "- [x] a\n- [ ] b\n"
                .encode_utf16()
                .flat_map(u16::to_le_bytes)
                .collect::<Vec<_>>(),
        ),
        case("a change in a directory").file("openspec/changes/area/login/tasks.md", "- [ ] a\n"),
        case("changes deep in directories")
            .file("openspec/changes/area/b/c/d/tasks.md", "- [ ] a\n")
            .file("openspec/changes/area/b/x/proposal.md", "x")
            .file("openspec/changes/area/q/specs/a/spec.md", "x")
            .file("openspec/changes/area/.hidden/tasks.md", "x")
            .file("openspec/changes/deeper/1/2/3/4/tasks.md", "x"),
        case("a directory with a note beside changes")
            .file("openspec/changes/area/login/tasks.md", "- [ ] a\n")
            .file("openspec/changes/area/README", "x"),
        case("metadata that is a directory")
            .directory("openspec/changes/c/.openspec.yaml")
            .change_file("tasks.md", "- [ ] a\n"),
        case("a configuration that is a directory")
            .directory("openspec/config.yaml")
            .file("openspec/config.yml", "schema: missing\n")
            .change_file("tasks.md", "- [ ] a\n"),
        case("a long context")
            .file(
                "openspec/config.yaml",
                format!("context: {}\n", "x".repeat(50 * 1024)),
            )
            .change_file("tasks.md", "- [ ] a\n"),
        case("too long a context")
            .file(
                "openspec/config.yaml",
                format!("context: {}\n", "x".repeat(50 * 1024 + 1)),
            )
            .change_file("tasks.md", "- [ ] a\n"),
        case("everything done")
            .change_file("proposal.md", "x")
            .change_file("design.md", "x")
            .change_file("specs/a/spec.md", "x")
            .change_file("tasks.md", "- [x] a\n- [X] b\n"),
        case("a link to a list in the change")
            .change_file("real.md", "- [x] a\n- [ ] b\n")
            .link("openspec/changes/c/tasks.md", "real.md"),
        case("a link to a directory in the change")
            .change_file("real/a/spec.md", "x")
            .change_file("tasks.md", "- [x] a\n- [ ] b\n")
            .link("openspec/changes/c/specs", "real"),
        case("a link to a directory among the specifications")
            .change_file("specs/real/spec.md", "x")
            .change_file("tasks.md", "- [ ] b\n")
            .link("openspec/changes/c/specs/again", "real"),
        case("a link to nothing among the specifications")
            .change_file("specs/a/spec.md", "x")
            .change_file("tasks.md", "- [ ] b\n")
            .link("openspec/changes/c/specs/nothing.md", "nowhere"),
        case("a change that is a link")
            .file("elsewhere/tasks.md", "- [x] a\n")
            .link("openspec/changes/c", "../../elsewhere"),
        case("changes that are a link")
            .file("elsewhere/c/tasks.md", "- [x] a\n")
            .file("elsewhere/d/tasks.md", "- [ ] a\n")
            .directory("openspec/specs")
            .link("openspec/changes", "../elsewhere"),
        case("a directory that is a link")
            .file("docs/openspec/changes/c/tasks.md", "- [x] a\n")
            .file("docs/openspec/changes/c/specs/x/spec.md", "x")
            .link("openspec", "docs/openspec"),
        case("metadata that is a link to nothing")
            .change_file("tasks.md", "- [ ] a\n")
            .link("openspec/changes/c/.openspec.yaml", "nowhere"),
        case("a schema in place of the standard one")
            .file("openspec/schemas/spec-driven/schema.yaml", schema(good))
            .change_file("a.md", "- [ ] a\n"),
        case("a schema that is a link")
            .file("shared/schema.yaml", schema(good))
            .file("openspec/config.yaml", "schema: s.yml\n")
            .change_file("a.md", "- [ ] a\n")
            .link("openspec/schemas/s", "../../shared"),
        case("a schema without its file")
            .directory("openspec/schemas/s")
            .change_file(".openspec.yaml", "schema: s\n")
            .change_file("tasks.md", "- [ ] a\n"),
        case("an older time in a deeper file")
            .change_file("specs/a/spec.md", "x")
            .file("openspec/changes/b/tasks.md", "- [ ] a\n"),
    ];
    cases.extend([
        with_schema("a good schema", &schema(good)),
        with_schema("a schema without a version", &schema(good).replace("version: 1\n", "")),
        with_schema("a schema with a fractional version", &schema(good).replace("version: 1", "version: 1.5")),
        with_schema("a schema with a quoted version", &schema(good).replace("version: 1", "version: '1'")),
        with_schema("a schema that leads out", &schema(good).replace("a.md", "../a.md")),
        with_schema("a schema with an absolute path", &schema(good).replace("a.md", "/a.md")),
        with_schema("a schema with a drive", &schema(good).replace("a.md", "C:a.md")),
        with_schema("a schema that tracks nothing", &format!("{}apply: {{requires: [a], tracks: null}}\n", schema(good))),
        with_schema("a schema that tracks a file that no artifact generates", &format!("{}apply: {{requires: [a], tracks: tasks.md}}\n", schema(good))),
        with_schema("a schema that tracks a missing file", &format!("{}apply: {{requires: [a], tracks: x/y.md}}\n", schema(good))),
        with_schema("a schema that requires nothing", &format!("{}apply: {{requires: []}}\n", schema(good))),
        with_schema("a schema that requires an unknown artifact", &format!("{}apply: {{requires: [b]}}\n", schema(good))),
        with_schema("a schema with an instruction", &format!("{}apply: {{requires: [a], instruction: '  x  '}}\n", schema(good))),
        with_schema("a schema with a duplicate artifact", &schema(&good.repeat(2))),
        with_schema("a schema with a cycle", &schema("  - {id: a, generates: a.md, description: d, template: t, requires: [b]}\n  - {id: b, generates: b.md, description: d, template: t, requires: [a]}\n")),
        with_schema("a schema with specifications elsewhere", &schema("  - {id: a, generates: './specs//x.md', description: d, template: t}\n")),
        with_schema("a schema with a pattern for all files", &schema("  - {id: a, generates: '**', description: d, template: t}\n")),
        with_schema("a schema with a pattern for all names", &schema("  - {id: a, generates: '*', description: d, template: t}\n")),
        with_schema("a schema with choices", &schema("  - {id: a, generates: '{a,tasks}.md', description: d, template: t}\n")),
        with_schema("a schema with braces only", &schema("  - {id: a, generates: '{a}.md', description: d, template: t}\n")),
        with_schema("a schema with a character class", &schema("  - {id: a, generates: '[!b]*.md', description: d, template: t}\n")),
        with_schema("a schema with a negated pattern", &schema("  - {id: a, generates: '!*.md', description: d, template: t}\n")),
    ]);
    for (index, metadata) in METADATA.iter().enumerate() {
        cases.push(
            SCHEMAS
                .iter()
                .fold(
                    case(&format!("metadata {index}")),
                    |case, (name, schema)| {
                        case.file(&format!("openspec/schemas/{name}/schema.yaml"), *schema)
                    },
                )
                .change_file(".openspec.yaml", *metadata)
                .change_file("tasks.md", "- [ ] a\n- [x] b\n")
                .change_file("work/todo.md", "- [x] c\n")
                .change_file("plan.md", "x")
                .change_file("lists/a1.md", "- [x] d\n"),
        );
    }
    for (index, config) in CONFIGS.iter().enumerate() {
        cases.push(
            SCHEMAS
                .iter()
                .fold(
                    case(&format!("configuration {index}")),
                    |case, (name, schema)| {
                        case.file(&format!("openspec/schemas/{name}/schema.yaml"), *schema)
                    },
                )
                .file("openspec/config.yaml", *config)
                .change_file("tasks.md", "- [ ] a\n- [x] b\n")
                .change_file("work/todo.md", "- [x] c\n")
                .change_file("lists/a1.md", "- [x] d\n"),
        );
    }
    cases
}
