//! Developer commands of this repository, run as `cargo xtask <command>`: `tidy` checks rules that the
//! compiler cannot, `docs` writes the generated pages, `dist` builds the release archives, `record`
//! draws terminal sessions for the documents. Nothing here is part of the product.
#![allow(
    clippy::print_stdout,
    reason = "these commands print to a person's terminal; the lint protects the server's stdout"
)]

mod dist;
mod docs;
mod record;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask <command>

  tidy           check crate layers, file sizes, wording and dead paths in documents
  docs           write the generated documentation
  docs --check   fail if the generated documentation is not up to date
  dist           build the release binaries and the stand-alone client, with an archive
       --target TRIPLE   for another machine, by cargo-zigbuild; may be repeated
       --all             for Linux on x86_64 and aarch64 and macOS on aarch64
       --check           only compile, link and check, in the development profile
  record NAME    run docs/recordings/NAME.txt in a terminal and draw docs/recordings/NAME.svg;
                 with a directory after it: with the binaries there, not those of a new release build
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["tidy"] => tidy::run(),
        ["dist", ref options @ ..] => dist::run(options),
        ["record", name] => record::run(name, None),
        ["record", name, binaries] => record::run(name, Some(binaries)),
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
            eprint!("Unknown command `{}`.\n\n{USAGE}", words.join(" "));
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

/// The root of the repository.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
