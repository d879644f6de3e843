//! Chores of this repository, run as `cargo xtask <chore>`: `tidy` checks what the compiler
//! cannot, `docs` writes the generated pages, `dist` builds what is given to people. Nothing here is part of the product.
#![allow(
    clippy::print_stdout,
    reason = "a chore talks to the person who started it; the lint guards the server's stdout"
)]

mod dist;
mod docs;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask <chore>

  tidy           check dependency edges, file sizes, doc paths, wording and licences
  docs           write the generated documentation
  docs --check   fail if the generated documentation is not up to date
  dist           build the release binaries and the stand-alone client, with an archive
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["tidy"] => tidy::run(),
        ["dist"] => dist::run(),
        ["docs"] => docs::run(false),
        ["docs", "--check"] => docs::run(true),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [] => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
        _ => {
            eprint!("There is no chore `{}`.\n\n{USAGE}", words.join(" "));
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
