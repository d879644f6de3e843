//! Shows a diff on a terminal, with the user's colours and pager. The text of the container is cleaned first:
//! git and pagers pass on what controls a terminal.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use super::git::{Git, not_started};
use crate::failure::Failure;
use crate::terminal::{self, output, printable};

/// A longer line is shown as several.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// The sequences that begin a colour, as git is configured; empty without colours.
#[derive(Debug, Default)]
struct Colors {
    meta: String,
    frag: String,
    old: String,
    new: String,
    reset: String,
}

/// Runs `git diff` with these arguments and shows what it prints; its exit code.
pub(super) fn diff<'a>(
    git: &Git,
    arguments: impl IntoIterator<Item = &'a str>,
) -> Result<Option<i32>, Failure> {
    let colors = Colors::read(git)?;
    let words = ["diff", "--no-color"].into_iter().chain(arguments);
    let mut child = git
        .command(words)
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|error| not_started(&error))?;
    let mut pager = start_pager(git)?;
    let stdin = pager.as_mut().and_then(|pager| pager.stdin.take());
    let mut output: Box<dyn Write> = match stdin {
        Some(stdin) => Box::new(std::io::BufWriter::new(stdin)),
        None => Box::new(std::io::BufWriter::new(std::io::stdout())),
    };
    if let Some(stdout) = child.stdout.take() {
        // A pager that has ended reads no more.
        if let Err(error) = clean(BufReader::new(stdout), &mut output, &colors) {
            let _ = child.kill();
            if pager.is_none() {
                terminal::note_write_error(error);
            }
        }
    }
    drop(output);
    if let Some(mut pager) = pager {
        let _ = pager.wait();
    }
    let status = child.wait().map_err(|error| not_started(&error))?;
    Ok(status.code())
}

/// Copies a diff, with colours and without anything else that controls a terminal.
fn clean(mut from: impl BufRead, to: &mut impl Write, colors: &Colors) -> std::io::Result<()> {
    let mut in_hunk = false;
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut from)
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)?
            == 0
        {
            return to.flush();
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        let text = printable(&String::from_utf8_lossy(&line));
        let color: &str = match text.as_bytes().first() {
            Some(b'@') => {
                in_hunk = true;
                &colors.frag
            }
            Some(b'+') if in_hunk => &colors.new,
            Some(b'-') if in_hunk => &colors.old,
            Some(b' ' | b'\\') | None => "",
            _ => {
                in_hunk = false;
                &colors.meta
            }
        };
        if color.is_empty() {
            writeln!(to, "{text}")?;
        } else {
            writeln!(to, "{color}{text}{}", colors.reset)?;
        }
    }
}

impl Colors {
    fn read(git: &Git) -> Result<Self, Failure> {
        // Whether standard output is a terminal is known here, not there.
        if !output::is_color_allowed() {
            return Ok(Self::default());
        }
        if git.text(["config", "--get-colorbool", "color.diff", "true"])? != "true" {
            return Ok(Self::default());
        }
        let color = |name: &str, default: &str| {
            git.text([
                "config",
                "--get-color",
                &format!("color.diff.{name}"),
                default,
            ])
        };
        Ok(Self {
            meta: color("meta", "bold")?,
            frag: color("frag", "cyan")?,
            old: color("old", "red")?,
            new: color("new", "green")?,
            reset: "\u{1b}[m".to_owned(),
        })
    }
}

/// Starts the pager that git would use for a diff; None if it would use none.
fn start_pager(git: &Git) -> Result<Option<Child>, Failure> {
    let of_diff = git.run(["config", "--get", "pager.diff"])?;
    let of_diff = String::from_utf8_lossy(&of_diff.stdout).trim().to_owned();
    let pager = match of_diff.as_str() {
        "false" | "no" | "off" | "0" => return Ok(None),
        "" | "true" | "yes" | "on" | "1" => git.text(["var", "GIT_PAGER"])?,
        _ => of_diff,
    };
    if pager.is_empty() || pager == "cat" {
        return Ok(None);
    }
    let is_program = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let mut command = if pager.chars().all(is_program) {
        Command::new(&pager)
    } else {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &pager]);
        shell
    };
    for (name, value) in [("LESS", "FRX"), ("LV", "-c")] {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    // As git does: without the pager if it cannot be started.
    Ok(command.stdin(Stdio::piped()).spawn().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_colours_and_nothing_else_that_controls_a_terminal() {
        let colors = Colors {
            meta: "<m>".to_owned(),
            frag: "<f>".to_owned(),
            old: "<o>".to_owned(),
            new: "<n>".to_owned(),
            reset: "</>".to_owned(),
        };
        let diff = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\x1b[2J\n+y\x1b]52;c;AAAA\x07\n z\u{9b}2J\n";
        let mut shown = Vec::new();
        clean(diff.as_bytes(), &mut shown, &colors).unwrap();
        let expected = "<m>diff --git a/a b/a</>\n<m>--- a/a</>\n<m>+++ b/a</>\n<f>@@ -1 +1 @@</>\n\
                        <o>-x [2J</>\n<n>+y ]52;c;AAAA </>\n z 2J\n";
        assert_eq!(String::from_utf8(shown).unwrap(), expected);
    }
}
