//! The line editor of `session attach`: a prompt with history, lines that go on, and Tab for the agent's slash
//! commands.
//!
//! It reads in a thread of its own, because reading a terminal blocks. While it reads, other text is printed
//! above the prompt, by the editor itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::Mutex;
use rustyline::completion::{Completer, Pair};
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, ConditionalEventHandler, Context, Editor, Event, EventContext, EventHandler,
    ExternalPrinter, Helper, KeyCode, KeyEvent, Modifiers, RepeatCount,
};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::failure::Failure;
use crate::terminal::style::Style;
use crate::terminal::width::fit;
use crate::terminal::{self, printable};

const PROMPT: &str = "› ";
const MAX_HISTORY_LINES: usize = 1000;
/// How wide a command is shown in the list of Tab.
const MAX_CANDIDATE_COLUMNS: usize = 76;

/// What the user has typed.
#[derive(Debug)]
pub(super) enum Input {
    Message(String),
    /// Ctrl-C, and whether there was text, which is gone now.
    Interrupt {
        had_text: bool,
    },
    /// Ctrl-D on an empty line.
    End,
    Failed(String),
}

/// A slash command of the agent.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SlashCommand {
    name: String,
    about: String,
}

impl SlashCommand {
    /// The commands of a `commands` event.
    pub(super) fn of_event(event: &Value) -> Vec<Self> {
        let commands = event["commands"].as_array().into_iter().flatten();
        let text = |value: &Value| printable(value.as_str().unwrap_or_default());
        let commands = commands.map(|command| {
            let (hint, about) = (
                text(&command["input"]["hint"]),
                text(&command["description"]),
            );
            let about = format!("{hint}  {about}");
            Self {
                name: text(&command["name"]),
                about: about.trim().replace('\n', " "),
            }
        });
        commands
            .filter(|command| !command.name.is_empty())
            .collect()
    }
}

type Commands = Arc<Mutex<Vec<SlashCommand>>>;
type Printer = Box<dyn ExternalPrinter + Send>;

/// The editor, as the main thread uses it.
pub(super) struct LineEditor {
    ask: SyncSender<()>,
    inputs: mpsc::Receiver<Input>,
    /// None on a terminal without a cursor, where lines are not edited.
    printer: Option<Printer>,
    commands: Commands,
    is_reading: bool,
}

impl LineEditor {
    /// Starts the thread. Lines are kept in the file `history`, if there is one.
    pub(super) fn start(history: Option<PathBuf>) -> Result<Self, Failure> {
        let failed = |error: ReadlineError| Failure::with_cause("cannot use the terminal", &error);
        let commands = Commands::default();
        let had_text = Arc::new(AtomicBool::new(false));
        let mut editor: Editor<EditorHelper, FileHistory> = Editor::new().map_err(failed)?;
        editor.set_helper(Some(EditorHelper {
            commands: commands.clone(),
        }));
        editor
            .set_max_history_size(MAX_HISTORY_LINES)
            .map_err(failed)?;
        editor.set_auto_add_history(true);
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        // While the agent works Ctrl-D is the terminal's key for QUIT, which the editor would take for Ctrl-C.
        editor.bind_sequence(KeyEvent::ctrl('D'), Cmd::EndOfFile);
        let notice = NoticeInterrupt {
            had_text: had_text.clone(),
        };
        editor.bind_sequence(
            KeyEvent::ctrl('C'),
            EventHandler::Conditional(Box::new(notice)),
        );
        // There is none before the first message.
        if let Some(history) = &history {
            let _ = editor.load_history(history);
        }
        let printer = editor.create_external_printer().ok();
        let printer = printer.map(|printer| Box::new(printer) as Printer);
        let (ask, asked) = sync_channel(1);
        let (sender, inputs) = mpsc::channel(1);
        std::thread::spawn(move || {
            read_lines(editor, &asked, &sender, &had_text, history.as_deref());
        });
        Ok(Self {
            ask,
            inputs,
            printer,
            commands,
            is_reading: false,
        })
    }

    /// Shows the prompt, unless it is shown already.
    pub(super) fn read(&mut self) {
        if !self.is_reading {
            self.is_reading = self.ask.send(()).is_ok();
        }
    }

    /// Whether lines are edited here, and not by the terminal.
    pub(super) fn edits_lines(&self) -> bool {
        self.printer.is_some()
    }

    /// Whether the prompt is shown.
    pub(super) fn is_reading(&self) -> bool {
        self.is_reading
    }

    /// Waits for what the user types; only while the prompt is shown. Cancel-safe.
    pub(super) async fn next(&mut self) -> Input {
        if !self.is_reading {
            return std::future::pending().await;
        }
        let input = self.inputs.recv().await;
        self.is_reading = false;
        input.unwrap_or(Input::End)
    }

    /// Prints whole lines above the prompt.
    pub(super) fn print_above(&mut self, text: &str) {
        match &mut self.printer {
            Some(printer) => drop(printer.print(text.to_owned())),
            None => terminal::print(&format!("\n{text}")),
        }
    }

    /// Whether the agent has a command of this name.
    pub(super) fn has_command(&self, name: &str) -> bool {
        self.commands
            .lock()
            .iter()
            .any(|command| command.name == name)
    }

    /// Sets the commands that Tab completes.
    pub(super) fn set_commands(&self, commands: Vec<SlashCommand>) {
        *self.commands.lock() = commands;
    }
}

/// Reads one input for each request, until the main thread is gone.
fn read_lines(
    mut editor: Editor<EditorHelper, FileHistory>,
    asked: &Receiver<()>,
    sender: &mpsc::Sender<Input>,
    had_text: &AtomicBool,
    history: Option<&Path>,
) {
    let styled = Style::of_stdout().cyan(PROMPT);
    while asked.recv().is_ok() {
        had_text.store(false, Ordering::SeqCst);
        let input = match editor.readline(&(PROMPT, styled.as_str())) {
            Ok(line) => {
                if let Some(history) = history {
                    let _ = editor.append_history(history);
                }
                Input::Message(joined_lines(&line))
            }
            Err(ReadlineError::Interrupted) => Input::Interrupt {
                had_text: had_text.load(Ordering::SeqCst),
            },
            Err(ReadlineError::Eof) => Input::End,
            Err(error) => Input::Failed(error.to_string()),
        };
        if sender.blocking_send(input).is_err() {
            return;
        }
    }
}

/// A message without the marks of lines that go on.
fn joined_lines(text: &str) -> String {
    text.replace("\\\n", "\n")
}

struct EditorHelper {
    commands: Commands,
}

impl Completer for EditorHelper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        Ok(complete(&self.commands.lock(), &line[..position]))
    }
}

/// The commands that a line may begin with: where its word starts, and what can stand there.
fn complete(commands: &[SlashCommand], before: &str) -> (usize, Vec<Pair>) {
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let Some(word) = before[start..].strip_prefix('/') else {
        return (before.len(), Vec::new());
    };
    let fitting = commands
        .iter()
        .filter(|command| command.name.starts_with(word));
    let pairs = fitting.map(|command| {
        let display = format!("/{:<12} {}", command.name, command.about);
        Pair {
            display: fit(display.trim_end(), MAX_CANDIDATE_COLUMNS),
            replacement: format!("/{} ", command.name),
        }
    });
    (start, pairs.collect())
}

impl Validator for EditorHelper {
    /// A line that ends with a backslash goes on.
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if context.input().ends_with('\\') {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

impl Hinter for EditorHelper {
    type Hint = String;
}

impl Highlighter for EditorHelper {}

impl Helper for EditorHelper {}

/// Notices whether Ctrl-C removes text.
struct NoticeInterrupt {
    had_text: Arc<AtomicBool>,
}

impl ConditionalEventHandler for NoticeInterrupt {
    fn handle(
        &self,
        _: &Event,
        _: RepeatCount,
        _: bool,
        context: &EventContext<'_>,
    ) -> Option<Cmd> {
        self.had_text
            .store(!context.line().is_empty(), Ordering::SeqCst);
        Some(Cmd::Interrupt)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_beginning_of_a_line_is_completed_with_commands() {
        let event = json!({ "commands": [
            { "name": "sh", "description": "runs a\ncommand", "input": { "hint": "COMMAND" } },
            { "name": "say", "description": "streams\u{1b}[2J text" },
            { "name": "" },
        ]});
        let commands = SlashCommand::of_event(&event);
        let found = |line: &str| {
            let (start, pairs) = complete(&commands, line);
            let found: Vec<String> = pairs.into_iter().map(|pair| pair.replacement).collect();
            (start, found)
        };
        assert_eq!(
            found("/s"),
            (0, vec!["/sh ".to_owned(), "/say ".to_owned()])
        );
        assert_eq!(found("/sa"), (0, vec!["/say ".to_owned()]));
        assert_eq!(found("first\n/sh"), (6, vec!["/sh ".to_owned()]));
        assert_eq!(found("see /s").1, Vec::<String>::new());
        let (_, pairs) = complete(&commands, "/");
        assert_eq!(pairs[0].display, "/sh           COMMAND  runs a command");
        assert!(!pairs[1].display.contains('\u{1b}'));
    }

    #[test]
    fn lines_that_go_on_are_one_message() {
        assert_eq!(joined_lines("one\\\ntwo\nthree"), "one\ntwo\nthree");
    }
}
