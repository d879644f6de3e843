//! The language of prompts: one command a line, each starting with a slash; everything else is text.
//!
//! The whole prompt is parsed before its first line is executed, so that an error in the last line
//! does not leave half of the prompt executed.

use std::time::Duration;

use serde_json::{Map, Value};

/// How often one line may be executed; nested repetitions multiply.
const MAX_REPEATS: u32 = 1_000_000;
const MAX_SLEEP_SECONDS: f64 = 86_400.0;
const MAX_FLOOD_UPDATES: u32 = 1_000_000;

/// The commands, with arguments and description, in the form that clients show.
pub(crate) const COMMANDS: [(&str, &str, &str); 14] = [
    ("sh", "COMMAND", "run a shell command"),
    ("tool", "NAME {json}", "call a tool of an MCP server"),
    ("say", "TEXT", "stream text"),
    ("sleep", "SECONDS", "wait"),
    (
        "later",
        "SECONDS TEXT",
        "stream text after a time, also when the turn is over",
    ),
    ("ask", "TEXT", "ask for permission"),
    ("repeat", "N LINE", "execute a line N times"),
    ("usage", "IN OUT USD", "report usage"),
    ("fail", "TEXT", "end the turn with an error"),
    ("exit", "CODE", "end the process"),
    ("hang", "", "stop answering, even to cancel"),
    ("flood", "N", "send N updates at once"),
    ("garbage", "[TEXT]", "write a line that is not a message"),
    ("stderr", "TEXT", "write to standard error"),
];

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScriptLine {
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
    Later(Duration, String),
    Ask(String),
    Usage(Usage),
    Fail(String),
    Exit(i32),
    Hang,
    Flood(u32),
    Garbage(String),
    Stderr(String),
    /// Text that is not a command; the agent describes its workspace.
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
pub(crate) struct ScriptError {
    line: usize,
    problem: String,
}

/// Parses a prompt. Consecutive lines of text are one text.
pub(crate) fn parse(prompt: &str) -> Result<Vec<ScriptLine>, ScriptError> {
    let mut lines: Vec<ScriptLine> = Vec::new();
    for (index, line) in prompt.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let parsed = parse_line(line.trim()).map_err(|problem| ScriptError {
            line: index + 1,
            problem,
        })?;
        match (&parsed, lines.last_mut()) {
            (
                ScriptLine {
                    times: 1,
                    action: Action::Text(more),
                },
                Some(ScriptLine {
                    times: 1,
                    action: Action::Text(text),
                }),
            ) => {
                text.push('\n');
                text.push_str(more);
            }
            _ => lines.push(parsed),
        }
    }
    if lines.is_empty() {
        // A prompt without text gets an answer, too.
        lines.push(ScriptLine {
            times: 1,
            action: Action::Text(String::new()),
        });
    }
    Ok(lines)
}

fn parse_line(mut line: &str) -> Result<ScriptLine, String> {
    let mut times: u32 = 1;
    while let Some(rest) = command_arguments(line, "repeat") {
        let (count, repeated) = split_first_word(rest);
        let count: u32 = parse_number(count, "/repeat", "a count", "/repeat 3 /say hello")?;
        if repeated.is_empty() {
            return Err(
                "/repeat needs a line after its count, as in `/repeat 3 /say hello`".into(),
            );
        }
        times = times
            .checked_mul(count)
            .filter(|times| *times <= MAX_REPEATS)
            .ok_or_else(|| format!("/repeat executes a line at most {MAX_REPEATS} times"))?;
        line = repeated;
    }
    Ok(ScriptLine {
        times,
        action: parse_action(line)?,
    })
}

fn parse_action(line: &str) -> Result<Action, String> {
    let name = line.split_whitespace().next().unwrap_or_default();
    let Some(name) = name.strip_prefix('/') else {
        return Ok(Action::Text(line.to_owned()));
    };
    let rest = command_arguments(line, name).unwrap_or_default();
    let text = || match rest {
        "" => Err(format!("/{name} needs something after it")),
        rest => Ok(rest.to_owned()),
    };
    Ok(match name {
        "sh" => Action::Shell(text()?),
        "tool" => {
            let tool = text()?;
            let (name, arguments) = split_first_word(&tool);
            Action::Tool {
                name: name.to_owned(),
                arguments: parse_object(arguments)?,
            }
        }
        "say" => Action::Say(text()?),
        "sleep" => Action::Sleep(parse_seconds(rest, "/sleep", "/sleep 1.5")?),
        "later" => {
            let (seconds, text) = split_first_word(rest);
            let time = parse_seconds(seconds, "/later", "/later 2 done")?;
            if text.is_empty() {
                return Err("/later needs a text after its seconds, as in `/later 2 done`".into());
            }
            Action::Later(time, text.to_owned())
        }
        "ask" => Action::Ask(text()?),
        "usage" => Action::Usage(parse_usage(rest)?),
        "fail" => Action::Fail(text()?),
        "exit" => Action::Exit(match rest {
            "" => 0,
            code => parse_number::<u8>(code, "/exit", "a code from 0 to 255", "/exit 1")?.into(),
        }),
        "hang" => Action::Hang,
        "flood" => {
            let count = parse_number(rest, "/flood", "a count", "/flood 1000")?;
            if count > MAX_FLOOD_UPDATES {
                return Err(format!("/flood sends at most {MAX_FLOOD_UPDATES} updates"));
            }
            Action::Flood(count)
        }
        "garbage" => Action::Garbage(match rest {
            "" => "this line is {no message".to_owned(),
            rest => rest.to_owned(),
        }),
        "stderr" => Action::Stderr(text()?),
        // A path, or a command of another agent.
        _ => Action::Text(line.to_owned()),
    })
}

/// The arguments of a command, if the line is that command.
fn command_arguments<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let rest = line.strip_prefix('/')?.strip_prefix(name)?;
    (rest.is_empty() || rest.starts_with(char::is_whitespace)).then(|| rest.trim())
}

/// The first word and the rest.
fn split_first_word(text: &str) -> (&str, &str) {
    let (first, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (first, rest.trim())
}

fn parse_number<T: std::str::FromStr>(
    text: &str,
    command: &str,
    what: &str,
    example: &str,
) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{command} needs {what}, as in `{example}`, and got `{text}`"))
}

fn parse_seconds(text: &str, command: &str, example: &str) -> Result<Duration, String> {
    let seconds: f64 = parse_number(text, command, "a number of seconds", example)?;
    if !(0.0..=MAX_SLEEP_SECONDS).contains(&seconds) {
        return Err(format!("{command} takes 0 to {MAX_SLEEP_SECONDS} seconds"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn parse_usage(text: &str) -> Result<Usage, String> {
    let example = "/usage 1200 80 0.004";
    let parts: Vec<&str> = text.split_whitespace().collect();
    let [input, output, usd] = parts[..] else {
        return Err(format!(
            "/usage needs tokens in, tokens out and US dollars, as in `{example}`"
        ));
    };
    // u32, so that a sum of a million counts fits into u64.
    let tokens =
        |text| parse_number::<u32>(text, "/usage", "a count of tokens", example).map(u64::from);
    let usage = Usage {
        input: tokens(input)?,
        output: tokens(output)?,
        usd: parse_number(usd, "/usage", "an amount of US dollars", example)?,
    };
    if !(0.0..=1e6).contains(&usage.usd) {
        return Err("/usage takes 0 to 1000000 US dollars".into());
    }
    Ok(usage)
}

fn parse_object(text: &str) -> Result<Map<String, Value>, String> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text).map_err(|error| {
        format!(
            "/tool needs a JSON object after the name, as in `/tool echo {{\"text\": \"hi\"}}` ({error})"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn actions(prompt: &str) -> Vec<Action> {
        let lines = parse(prompt).unwrap();
        assert!(lines.iter().all(|line| line.times == 1), "{lines:?}");
        lines.into_iter().map(|line| line.action).collect()
    }

    fn problem(prompt: &str) -> String {
        parse(prompt).unwrap_err().to_string()
    }

    #[test]
    fn every_command_is_parsed() {
        let arguments = json!({ "text": "a b" }).as_object().unwrap().clone();
        let usage = Usage {
            input: 1200,
            output: 80,
            usd: 0.004,
        };
        let tool = |name: &str, arguments| Action::Tool {
            name: name.to_owned(),
            arguments,
        };
        let cases = [
            ("/sh echo  hi | cat", Action::Shell("echo  hi | cat".into())),
            ("/tool echo", tool("echo", Map::new())),
            ("/tool a_b {\"text\": \"a b\"}", tool("a_b", arguments)),
            ("/say hello", Action::Say("hello".into())),
            ("/sleep 0.25", Action::Sleep(Duration::from_millis(250))),
            (
                "/later 2 it is done",
                Action::Later(Duration::from_secs(2), "it is done".into()),
            ),
            ("/ask may I?", Action::Ask("may I?".into())),
            ("/usage 1200 80 0.004", Action::Usage(usage)),
            ("/fail so it is", Action::Fail("so it is".into())),
            ("/exit 3", Action::Exit(3)),
            ("/exit", Action::Exit(0)),
            ("/hang", Action::Hang),
            ("/flood 10", Action::Flood(10)),
            ("/garbage }{", Action::Garbage("}{".into())),
            ("/stderr oh", Action::Stderr("oh".into())),
        ];
        for (line, action) in cases {
            assert_eq!(actions(line), [action], "{line}");
        }
    }

    #[test]
    fn other_lines_are_text_and_consecutive_ones_are_joined() {
        assert_eq!(
            actions("what is here?\n\n  and there?\n/say x\n/etc/passwd is a path"),
            [
                Action::Text("what is here?\nand there?".into()),
                Action::Say("x".into()),
                Action::Text("/etc/passwd is a path".into()),
            ]
        );
        assert_eq!(actions(" \n"), [Action::Text(String::new())]);
        assert_eq!(actions("/shell x"), [Action::Text("/shell x".into())]);
    }

    #[test]
    fn repetitions_multiply() {
        let lines = parse("/repeat 3 /repeat 4 /say x").unwrap();
        assert_eq!(lines[0].times, 12);
        assert_eq!(lines[0].action, Action::Say("x".into()));
        assert_eq!(parse("/repeat 0 /exit 1").unwrap()[0].times, 0);
        assert!(problem("/repeat 1000 /repeat 1001 /say x").contains("at most 1000000 times"));
    }

    #[test]
    fn an_error_names_its_line_and_an_example() {
        let cases = [
            (
                "/say a\n\n/sleep long",
                "line 3: /sleep needs a number of seconds",
            ),
            ("/sleep -1", "0 to 86400"),
            ("/sleep NaN", "0 to 86400"),
            ("/later 2", "/later needs a text"),
            ("/sh", "/sh needs something after it"),
            ("/tool", "/tool needs something after it"),
            ("/tool x [1]", "needs a JSON object after the name"),
            ("/tool x {", "needs a JSON object after the name"),
            ("/repeat x /say a", "/repeat needs a count"),
            ("/repeat 3", "/repeat needs a line"),
            ("/usage 1 2", "`/usage 1200 80 0.004`"),
            ("/usage 1 -2 0", "a count of tokens"),
            ("/usage 1 2 inf", "0 to 1000000 US dollars"),
            ("/exit 256", "a code from 0 to 255"),
            ("/flood 1000001", "at most 1000000 updates"),
        ];
        for (prompt, expected) in cases {
            let problem = problem(prompt);
            assert!(problem.contains(expected), "{prompt}: {problem}");
            assert!(problem.ends_with("nothing of this prompt was done"));
        }
    }

    #[test]
    fn every_listed_command_is_parsed() {
        for (name, ..) in COMMANDS {
            let alone = format!("/{name}");
            let parsed = parse(&alone);
            assert!(
                !matches!(&parsed, Ok(lines) if matches!(lines[0].action, Action::Text(_))),
                "{alone} is parsed as text"
            );
        }
    }

    proptest! {
        #[test]
        fn any_prompt_is_parsed_or_rejected(prompt in "(/?[a-z]{0,6}[ \t\n{}\"0-9.]{0,4}){0,12}|\\PC{0,60}") {
            if let Ok(lines) = parse(&prompt) {
                prop_assert!(!lines.is_empty());
                prop_assert!(lines.iter().all(|line| line.times <= MAX_REPEATS));
            }
        }
    }
}
