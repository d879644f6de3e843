//! What the model does. Lines of the user's last message are its script:
//!
//! - `use bash: COMMAND` calls the shell tool, whatever the agent calls it;
//! - `use tool NAME {json}` calls the tool whose name is or ends with NAME, after a `ToolSearch`
//!   where the agent keeps its tools back;
//! - `say TEXT` answers with the text;
//! - `stall` never ends the answer that it is in, and `hold` ends it when the test lets it;
//!   `fail STATUS` is an HTTP error.
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
const SEARCH: &str = "ToolSearch";

/// One answer of the model.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) text: String,
    pub(super) call: Option<Call>,
    /// Before its end: all of the text has been sent.
    pub(super) pause: Option<Pause>,
    pub(super) fail: Option<u16>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Pause {
    Stall,
    Hold,
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
    Tool(String, Map<String, Value>),
    Say(String),
    Pause(Pause),
    Fail(u16),
}

pub(super) fn reply(conversation: &Conversation) -> Reply {
    if conversation.wants_json {
        // The reply that Gemini's router expects.
        let choice = json!({ "reasoning": "It is simple.", "model_choice": "flash" });
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
    let Entry::User(message) = &entries[start] else {
        return Reply::default();
    };
    let message = without_reminders(message);
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
    let id = |step: usize| format!("call_{messages}_{step}");
    let mut step = 0;
    let mut pause = None;
    for line in lines {
        let is_call = matches!(line, Line::Bash(_) | Line::Tool(..));
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
            Line::Pause(Pause::Stall) => {
                return Reply {
                    text: texts.join("\n"),
                    pause: Some(Pause::Stall),
                    ..Reply::default()
                };
            }
            Line::Pause(hold) => {
                pause = Some(hold);
                continue;
            }
            Line::Fail(status) => {
                return Reply {
                    fail: Some(status),
                    ..Reply::default()
                };
            }
            Line::Bash(command) => {
                let shell = |tool: &&Tool| SHELLS.contains(&tool.name.as_str());
                let Some(tool) = conversation.tools.iter().find(shell) else {
                    return text_reply(format!(
                        "There is no shell; {}",
                        names(&conversation.tools)
                    ));
                };
                (tool, shell_arguments(tool, command))
            }
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
        pause,
        ..text_reply(texts.join("\n"))
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
    if let Some(rest) = line.strip_prefix("use tool ") {
        let (name, arguments) = rest.trim().split_once(' ').unwrap_or((rest.trim(), "{}"));
        let arguments = serde_json::from_str(arguments).ok()?;
        return Some(Line::Tool(name.to_owned(), arguments));
    }
    if let Some(text) = line.strip_prefix("say ") {
        return Some(Line::Say(text.to_owned()));
    }
    if let Some(status) = line.strip_prefix("fail ") {
        return status.trim().parse().ok().map(Line::Fail);
    }
    match line {
        "stall" => Some(Line::Pause(Pause::Stall)),
        "hold" => Some(Line::Pause(Pause::Hold)),
        _ => None,
    }
}

/// A message without the reminders that the agent adds for the model.
fn without_reminders(message: &str) -> String {
    let mut kept = String::new();
    let mut rest = message;
    while let Some((before, after)) = rest.split_once("<system-reminder>") {
        kept.push_str(before);
        rest = after
            .split_once("</system-reminder>")
            .map_or("", |(_, rest)| rest);
    }
    kept + rest
}

/// The arguments of the shell tool: some agents take the command as a list of words.
fn shell_arguments(tool: &Tool, command: String) -> Map<String, Value> {
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

/// A tool by its name, or by the end of it: agents put a prefix before the tools of a server.
fn find<'a>(tools: &'a [Tool], name: &str) -> Option<&'a Tool> {
    let end = format!("_{name}");
    let exact = tools.iter().find(|tool| tool.name == name);
    exact.or_else(|| tools.iter().find(|tool| tool.name.ends_with(&end)))
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
    let full = word(&conversation.body, &format!("_{name}"))?;
    let query = Map::from_iter([("query".to_owned(), format!("select:{full}").into())]);
    Some((tool, query))
}

/// A word of a request that has this ending.
fn word(value: &Value, end: &str) -> Option<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match value {
        Value::String(text) => text
            .split(|c| !is_word(c))
            .find(|word| word.ends_with(end))
            .map(str::to_owned),
        Value::Array(values) => values.iter().find_map(|value| word(value, end)),
        Value::Object(fields) => fields.values().find_map(|value| word(value, end)),
        _ => None,
    }
}

fn names(tools: &[Tool]) -> String {
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    format!("there are: {}", names.join(", "))
}
