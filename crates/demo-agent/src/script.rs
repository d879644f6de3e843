//! The language of prompts: one command a line, each begun with a slash; everything else is text.
//!
//! A prompt is read whole before any of it is done, so that a mistake in its last line does not
//! leave half of it behind.

use std::time::Duration;

use serde_json::{Map, Value};

/// How often one line may be repeated, nested repetitions multiplied.
const MOST_REPEATS: u32 = 1_000_000;
const LONGEST_SLEEP: f64 = 86_400.0;
const MOST_FLOOD: u32 = 1_000_000;

/// The commands, with their arguments and what they do, as clients may show them.
pub(crate) const COMMANDS: [(&str, &str, &str); 13] = [
    ("sh", "COMMAND", "run a shell command"),
    ("tool", "NAME {json}", "call a tool of an MCP server"),
    ("say", "TEXT", "stream text"),
    ("sleep", "SECONDS", "wait"),
    ("ask", "TEXT", "ask for permission"),
    ("repeat", "N LINE", "do a line N times"),
    ("usage", "IN OUT USD", "report usage"),
    ("fail", "TEXT", "end the turn with an error"),
    ("exit", "CODE", "end the process"),
    ("hang", "", "stop answering, even to cancel"),
    ("flood", "N", "send N updates at once"),
    ("garbage", "[TEXT]", "write a line that is no message"),
    ("stderr", "TEXT", "write to standard error"),
];

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    pub(crate) times: u32,
    pub(crate) action: Action,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    Shell(String),
    Tool {
        name: String,
        arguments: Map<String, Value>,
    },
    Say(String),
    Sleep(Duration),
    Ask(String),
    Usage(Usage),
    Fail(String),
    Exit(i32),
    Hang,
    Flood(u32),
    Garbage(String),
    Stderr(String),
    /// What the agent answers itself.
    Text(String),
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Usage {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) usd: f64,
}

#[derive(Debug, PartialEq, thiserror::Error)]
#[error("line {line}: {problem}; nothing of this prompt was done")]
pub(crate) struct Mistake {
    line: usize,
    problem: String,
}

/// Reads a prompt. Lines of text that follow each other are one text.
pub(crate) fn parse(prompt: &str) -> Result<Vec<Line>, Mistake> {
    let mut lines: Vec<Line> = Vec::new();
    for (index, line) in prompt.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let read = parse_line(line.trim()).map_err(|problem| Mistake {
            line: index + 1,
            problem,
        })?;
        match (&read, lines.last_mut()) {
            (
                Line {
                    times: 1,
                    action: Action::Text(more),
                },
                Some(Line {
                    times: 1,
                    action: Action::Text(text),
                }),
            ) => {
                text.push('\n');
                text.push_str(more);
            }
            _ => lines.push(read),
        }
    }
    if lines.is_empty() {
        // A prompt of pictures alone, or of nothing, wants an answer too.
        lines.push(Line {
            times: 1,
            action: Action::Text(String::new()),
        });
    }
    Ok(lines)
}

fn parse_line(mut line: &str) -> Result<Line, String> {
    let mut times: u32 = 1;
    while let Some(rest) = command(line, "repeat") {
        let (count, repeated) = split(rest);
        let count: u32 = number(count, "/repeat", "a count", "/repeat 3 /say hello")?;
        if repeated.is_empty() {
            return Err(
                "/repeat needs a line after its count, as in `/repeat 3 /say hello`".into(),
            );
        }
        times = times
            .checked_mul(count)
            .filter(|times| *times <= MOST_REPEATS)
            .ok_or_else(|| format!("/repeat does a line at most {MOST_REPEATS} times"))?;
        line = repeated;
    }
    Ok(Line {
        times,
        action: parse_action(line)?,
    })
}

fn parse_action(line: &str) -> Result<Action, String> {
    let name = line.split_whitespace().next().unwrap_or_default();
    let Some(name) = name.strip_prefix('/') else {
        return Ok(Action::Text(line.to_owned()));
    };
    let rest = command(line, name).unwrap_or_default();
    let text = || match rest {
        "" => Err(format!("/{name} needs something after it")),
        rest => Ok(rest.to_owned()),
    };
    Ok(match name {
        "sh" => Action::Shell(text()?),
        "tool" => {
            let tool = text()?;
            let (name, arguments) = split(&tool);
            Action::Tool {
                name: name.to_owned(),
                arguments: object(arguments)?,
            }
        }
        "say" => Action::Say(text()?),
        "sleep" => Action::Sleep(seconds(rest)?),
        "ask" => Action::Ask(text()?),
        "usage" => Action::Usage(usage(rest)?),
        "fail" => Action::Fail(text()?),
        "exit" => Action::Exit(match rest {
            "" => 0,
            code => number::<u8>(code, "/exit", "a code from 0 to 255", "/exit 1")?.into(),
        }),
        "hang" => Action::Hang,
        "flood" => {
            let count = number(rest, "/flood", "a count", "/flood 1000")?;
            if count > MOST_FLOOD {
                return Err(format!("/flood sends at most {MOST_FLOOD} updates"));
            }
            Action::Flood(count)
        }
        "garbage" => Action::Garbage(match rest {
            "" => "this line is {no message".to_owned(),
            rest => rest.to_owned(),
        }),
        "stderr" => Action::Stderr(text()?),
        // A path, or a command of another agent: not ours to refuse.
        _ => Action::Text(line.to_owned()),
    })
}

/// What follows a command's name, if the line is that command.
fn command<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let rest = line.strip_prefix('/')?.strip_prefix(name)?;
    (rest.is_empty() || rest.starts_with(char::is_whitespace)).then(|| rest.trim())
}

/// The first word and the rest.
fn split(text: &str) -> (&str, &str) {
    let (first, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (first, rest.trim())
}

fn number<T: std::str::FromStr>(
    text: &str,
    command: &str,
    what: &str,
    example: &str,
) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{command} needs {what}, as in `{example}`, and got `{text}`"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = number(text, "/sleep", "a number of seconds", "/sleep 1.5")?;
    if !(0.0..=LONGEST_SLEEP).contains(&seconds) {
        return Err(format!("/sleep takes 0 to {LONGEST_SLEEP} seconds"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn usage(text: &str) -> Result<Usage, String> {
    let example = "/usage 1200 80 0.004";
    let parts: Vec<&str> = text.split_whitespace().collect();
    let [input, output, usd] = parts[..] else {
        return Err(format!(
            "/usage needs tokens in, tokens out and US dollars, as in `{example}`"
        ));
    };
    // Far beyond any real count, and sums of a million of them still fit.
    let tokens = |text| number::<u32>(text, "/usage", "a count of tokens", example).map(u64::from);
    let usage = Usage {
        input: tokens(input)?,
        output: tokens(output)?,
        usd: number(usd, "/usage", "an amount of US dollars", example)?,
    };
    if !(0.0..=1e6).contains(&usage.usd) {
        return Err("/usage takes 0 to 1000000 US dollars".into());
    }
    Ok(usage)
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text).map_err(|error| {
        format!(
            "/tool needs a JSON object after the name, as in `/tool echo {{\"text\": \"hi\"}}` ({error})"
        )
    })
}
