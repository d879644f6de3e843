//! What the model does. Lines of the user's last message are its script:
//!
//! - `use bash: COMMAND` calls the shell tool, whatever the agent calls it;
//! - `use read: PATH` and `use write: PATH TEXT` call the tools for files, or the shell and Codex's
//!   patches where there are none;
//! - `use plan: STEP` calls the tool with which the agent writes a plan;
//! - `use tool NAME {json}` calls the tool whose name is or ends with NAME, after a `ToolSearch`
//!   where the agent keeps its tools back;
//! - `say TEXT` answers with the text;
//! - `think TEXT` is a thought before it;
//! - `stall` never ends the answer that it is in, and `hold` ends it when the test lets it;
//!   `cut` breaks the connection in it, and `silence` does not even begin one;
//! - `fail STATUS` is an HTTP error for every request, also for one for a title, `fail STATUS N` one for
//!   the first N steps.
//!
//! One call is made per request; when the last one has its result, the final text quotes it. A
//! message without such a line is repeated, with a count of the user's messages.

use serde_json::{Map, Value, json};

use super::conversation::{Conversation, Entry, Tool};

const SHELLS: [&str; 7] = [
    "bash",
    "Bash",
    "Execute",
    "shell",
    "exec_command",
    "shell_command",
    "run_shell_command",
];
const READERS: [&str; 4] = ["Read", "read", "read_file", "view"];
const WRITERS: [&str; 5] = ["Create", "Write", "create", "write", "write_file"];
/// What agents put around texts that they add to a message for the model, and Oubliette around a transcript.
const REMINDERS: [&str; 3] = ["system-reminder", "current_datetime", "transcript"];
const PLANNERS: [&str; 5] = [
    "TaskCreate",
    "TodoWrite",
    "todowrite",
    "update_plan",
    "write_todos",
];
const SEARCH: &str = "ToolSearch";

/// One answer of the model.
#[derive(Debug, Default)]
pub(super) struct Reply {
    /// Which one answers: the one that was asked for.
    pub(super) model: String,
    pub(super) thought: String,
    pub(super) text: String,
    pub(super) call: Option<Call>,
    /// Before its end: all of the text has been sent.
    pub(super) pause: Option<Pause>,
    pub(super) fail: Option<Failure>,
}

/// An HTTP error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) status: u16,
    /// For how many requests; all if none is given.
    pub(super) times: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pause {
    Stall,
    Hold,
    Cut,
    Silence,
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) tool: Tool,
    pub(super) arguments: Map<String, Value>,
}

#[derive(Debug)]
enum Line {
    Bash(String),
    Read(String),
    Write(String, String),
    Plan(String),
    Tool(String, Map<String, Value>),
    Say(String),
    Pause(Pause),
    Think(String),
    Fail(Failure),
}

/// The answer to a request. `failed` says how often this turn's requests have failed.
pub(super) fn reply(conversation: &Conversation, failed: usize) -> Reply {
    let fails = |line: &str| match read(line) {
        Some(Line::Fail(failure)) => Some(failure).filter(|failure| failure.times.is_none()),
        _ => None,
    };
    if let Some(failure) = message(conversation).lines().find_map(fails) {
        return Reply {
            fail: Some(failure),
            ..Reply::default()
        };
    }
    if conversation.wants_json {
        // The replies that Gemini's router and Codex's titles expect.
        let choice = json!({
            "reasoning": "It is simple.", "model_choice": "flash", "title": "A short title",
        });
        return text_reply(choice.to_string());
    }
    if conversation.tools.is_empty() {
        return text_reply("A short title".to_owned());
    }
    let entries = &conversation.entries;
    let messages = entries.iter().filter(|entry| is_message(entry)).count();
    let Some(start) = entries.iter().rposition(is_message) else {
        return text_reply("There is no message.".to_owned());
    };
    let message = message(conversation);
    let lines: Vec<Line> = message.lines().filter_map(read).collect();
    if lines.is_empty() {
        let words: String = message.trim().chars().take(200).collect();
        return text_reply(format!("You said: {words} (message {messages})"));
    }
    let mut done = entries[start..]
        .iter()
        .filter(|entry| matches!(entry, Entry::Call { name } if name != SEARCH))
        .count();
    let searched = entries[start..]
        .iter()
        .any(|entry| matches!(entry, Entry::Call { name } if name == SEARCH));
    let mut texts: Vec<String> = Vec::new();
    let mut thoughts: Vec<String> = Vec::new();
    let id = |step: usize| format!("call_{messages}_{step}");
    let mut step = 0;
    let mut pause = None;
    for line in lines {
        let is_call = !matches!(
            line,
            Line::Say(_) | Line::Pause(_) | Line::Think(_) | Line::Fail(_)
        );
        if is_call {
            step += 1;
        }
        if done > 0 {
            // Done in an earlier answer of this turn.
            done -= usize::from(is_call);
            continue;
        }
        let (tool, given) = match line {
            Line::Say(text) => {
                texts.push(text);
                continue;
            }
            Line::Think(thought) => {
                thoughts.push(thought);
                continue;
            }
            Line::Pause(endless @ (Pause::Stall | Pause::Cut | Pause::Silence)) => {
                return Reply {
                    thought: thoughts.join("\n"),
                    text: texts.join("\n"),
                    pause: Some(endless),
                    ..Reply::default()
                };
            }
            Line::Pause(hold) => {
                pause = Some(hold);
                continue;
            }
            Line::Fail(failure) if failure.times.is_some_and(|times| failed >= times) => continue,
            Line::Fail(failure) => {
                return Reply {
                    fail: Some(failure),
                    ..Reply::default()
                };
            }
            Line::Bash(command) => match named(conversation, &SHELLS) {
                Some(tool) => (tool, shell_arguments(tool, command)),
                None => return there_is_no("shell", conversation),
            },
            Line::Read(path) => match named(conversation, &READERS) {
                Some(tool) if tool.runs_code => {
                    (tool, shell_arguments(tool, format!("cat {path}")))
                }
                Some(tool) => (tool, file_arguments(tool, path, None)),
                None => return there_is_no("tool for reading", conversation),
            },
            Line::Write(path, text) => match named(conversation, &WRITERS) {
                Some(tool) if tool.runs_code => (tool, patch_arguments(&path, &text)),
                Some(tool) => (tool, file_arguments(tool, path, Some(text))),
                None => return there_is_no("tool for writing", conversation),
            },
            Line::Plan(step) => match named(conversation, &PLANNERS) {
                Some(tool) => (tool, plan_arguments(tool, &step)),
                None => return there_is_no("tool for plans", conversation),
            },
            Line::Tool(name, given) => match find(&conversation.tools, &name) {
                Some(tool) => (tool, given),
                None => match search(conversation, &name, searched) {
                    Some((tool, query)) => {
                        return Reply {
                            call: Some(Call {
                                id: format!("{}_search", id(step)),
                                tool: tool.clone(),
                                arguments: query,
                            }),
                            ..Reply::default()
                        };
                    }
                    None => {
                        let names = names(&conversation.tools);
                        return text_reply(format!("There is no tool {name}; {names}"));
                    }
                },
            },
        };
        return Reply {
            thought: thoughts.join("\n"),
            text: texts.join("\n"),
            pause,
            call: Some(Call {
                id: id(step),
                tool: tool.clone(),
                arguments: tool.arguments(given),
            }),
            ..Reply::default()
        };
    }
    let last = entries[start..].iter().rev().find_map(|entry| match entry {
        Entry::Result(text) => Some(text),
        _ => None,
    });
    texts.extend(last.map(|result| format!("The tool said: {}", result.trim())));
    Reply {
        thought: thoughts.join("\n"),
        pause,
        ..text_reply(texts.join("\n"))
    }
}

/// The last message of the user.
pub(super) fn message(conversation: &Conversation) -> String {
    let mut entries = conversation.entries.iter().rev();
    let last = entries.find(|entry| is_message(entry));
    match last {
        Some(Entry::User(text)) => without_reminders(text),
        _ => String::new(),
    }
}

fn text_reply(text: String) -> Reply {
    Reply {
        text,
        ..Reply::default()
    }
}

fn is_message(entry: &Entry) -> bool {
    matches!(entry, Entry::User(text) if !without_reminders(text).trim().is_empty())
}

fn read(line: &str) -> Option<Line> {
    let line = line.trim();
    if let Some(command) = line.strip_prefix("use bash:") {
        return Some(Line::Bash(command.trim().to_owned()));
    }
    if let Some(path) = line.strip_prefix("use read:") {
        return Some(Line::Read(path.trim().to_owned()));
    }
    if let Some(step) = line.strip_prefix("use plan:") {
        return Some(Line::Plan(step.trim().to_owned()));
    }
    if let Some(rest) = line.strip_prefix("use write:") {
        let (path, text) = rest.trim().split_once(' ')?;
        return Some(Line::Write(path.to_owned(), text.to_owned()));
    }
    if let Some(rest) = line.strip_prefix("use tool ") {
        let (name, arguments) = rest.trim().split_once(' ').unwrap_or((rest.trim(), "{}"));
        let arguments = serde_json::from_str(arguments).ok()?;
        return Some(Line::Tool(name.to_owned(), arguments));
    }
    if let Some(text) = line.strip_prefix("say ") {
        return Some(Line::Say(text.to_owned()));
    }
    if let Some(status) = line.strip_prefix("fail ") {
        let mut numbers = status.split_whitespace();
        let status = numbers.next()?.parse().ok()?;
        let times = numbers.next().and_then(|times| times.parse().ok());
        return Some(Line::Fail(Failure { status, times }));
    }
    if let Some(thought) = line.strip_prefix("think ") {
        return Some(Line::Think(thought.to_owned()));
    }
    match line {
        "stall" => Some(Line::Pause(Pause::Stall)),
        "hold" => Some(Line::Pause(Pause::Hold)),
        "cut" => Some(Line::Pause(Pause::Cut)),
        "silence" => Some(Line::Pause(Pause::Silence)),
        _ => None,
    }
}

/// A message without the reminders that the agent adds for the model, and without the transcript of another
/// session.
fn without_reminders(message: &str) -> String {
    let mut message = message.to_owned();
    for tag in REMINDERS {
        let (start, end) = (format!("<{tag}>"), format!("</{tag}>"));
        let mut kept = String::new();
        let mut rest = message.as_str();
        while let Some((before, after)) = rest.split_once(&start) {
            kept.push_str(before);
            rest = after.split_once(&end).map_or("", |(_, rest)| rest);
        }
        message = kept + rest;
    }
    message
}

/// The arguments of the shell tool: some agents take the command as a list of words.
fn shell_arguments(tool: &Tool, command: String) -> Map<String, Value> {
    if tool.runs_code {
        let arguments = json!({ "cmd": command, "yield_time_ms": 30_000 });
        let code = format!("const r = await tools.exec_command({arguments}); text(r.output);");
        return Map::from_iter([("code".to_owned(), code.into())]);
    }
    let properties = &tool.schema["properties"];
    let name = match properties.get("cmd") {
        Some(_) => "cmd",
        None => "command",
    };
    let value = match properties[name]["type"].as_str() {
        Some("array") => json!(["sh", "-c", command]),
        _ => Value::from(command),
    };
    Map::from_iter([(name.to_owned(), value)])
}

/// A tool with one of these names, or one that runs programs.
fn named<'a>(conversation: &'a Conversation, names: &[&str]) -> Option<&'a Tool> {
    let is_named = |tool: &&Tool| tool.runs_code || names.contains(&tool.name.as_str());
    conversation.tools.iter().find(is_named)
}

fn there_is_no(what: &str, conversation: &Conversation) -> Reply {
    text_reply(format!(
        "There is no {what}; {}",
        names(&conversation.tools)
    ))
}

/// The arguments of a tool that reads or writes a file.
fn file_arguments(tool: &Tool, path: String, content: Option<String>) -> Map<String, Value> {
    let properties = &tool.schema["properties"];
    let mut names = ["file_path", "filePath", "absolute_path"].into_iter();
    let name = names.find(|name| properties.get(name).is_some());
    let path = (name.unwrap_or("path").to_owned(), Value::from(path));
    let name = match properties.get("file_text") {
        Some(_) => "file_text",
        None => "content",
    };
    let content = content.map(|text| (name.to_owned(), Value::from(text)));
    [path].into_iter().chain(content).collect()
}

/// A plan of one step.
fn plan_arguments(tool: &Tool, step: &str) -> Map<String, Value> {
    if tool.runs_code {
        let plan = json!({ "plan": [{ "step": step, "status": "in_progress" }] });
        let code = format!("const r = await tools.update_plan({plan}); text(\"planned\");");
        return Map::from_iter([("code".to_owned(), code.into())]);
    }
    match tool.name.as_str() {
        "TaskCreate" => {
            return Map::from_iter(
                ["subject", "description"].map(|name| (name.to_owned(), json!(step))),
            );
        }
        "update_plan" => {
            let plan = json!([{ "step": step, "status": "in_progress" }]);
            return Map::from_iter([("plan".to_owned(), plan)]);
        }
        _ => {}
    }
    let todos = &tool.schema["properties"]["todos"];
    let list = match todos["type"].as_str() {
        Some("string") => Value::from(format!("1. [in_progress] {step}")),
        _ => {
            let properties = todos["items"]["properties"].as_object();
            let value = |(name, schema): (&String, &Value)| {
                let value = match (name.as_str(), schema["enum"].as_array()) {
                    ("status", _) => json!("in_progress"),
                    (_, Some(values)) => values[0].clone(),
                    _ => json!(step),
                };
                (name.clone(), value)
            };
            let todo: Map<String, Value> = properties.into_iter().flatten().map(value).collect();
            json!([todo])
        }
    };
    Map::from_iter([("todos".to_owned(), list)])
}

/// A program that adds a file.
fn patch_arguments(path: &str, content: &str) -> Map<String, Value> {
    let patch = format!("*** Begin Patch\n*** Add File: {path}\n+{content}\n*** End Patch\n");
    let code = format!(
        "const r = await tools.apply_patch({}); text(r);",
        json!(patch)
    );
    Map::from_iter([("code".to_owned(), code.into())])
}

/// A tool by its name, or by the end of it: agents put a prefix before the tools of a server. The shortest,
/// because the names of some tools end with those of others.
fn find<'a>(tools: &'a [Tool], name: &str) -> Option<&'a Tool> {
    let exact = tools.iter().find(|tool| tool.name == name);
    let has_end = |tool: &&Tool| {
        let prefix = tool.name.strip_suffix(name);
        prefix.is_some_and(|prefix| prefix.ends_with(['_', '-']))
    };
    let with_end = tools.iter().filter(has_end);
    exact.or_else(|| with_end.min_by_key(|tool| tool.name.len()))
}

/// The search for a tool that the agent has named to the model and not shown.
fn search<'a>(
    conversation: &'a Conversation,
    name: &str,
    searched: bool,
) -> Option<(&'a Tool, Map<String, Value>)> {
    let tool = conversation.tools.iter().find(|tool| tool.name == SEARCH)?;
    if searched {
        return None;
    }
    let full = words(&conversation.body, &format!("_{name}"));
    let full = full.into_iter().min_by_key(String::len)?;
    let query = Map::from_iter([("query".to_owned(), format!("select:{full}").into())]);
    Some((tool, query))
}

/// The words of a request that have this ending and more before it.
fn words(value: &Value, end: &str) -> Vec<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match value {
        Value::String(text) => text
            .split(|c| !is_word(c))
            .filter(|word| word.ends_with(end))
            .map(str::to_owned)
            .collect(),
        Value::Array(values) => values.iter().flat_map(|value| words(value, end)).collect(),
        Value::Object(fields) => fields
            .values()
            .flat_map(|value| words(value, end))
            .collect(),
        _ => Vec::new(),
    }
}

fn names(tools: &[Tool]) -> String {
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    format!("there are: {}", names.join(", "))
}
