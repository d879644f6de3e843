//! `cargo run -p oubliette-fuzz -- TARGET [SECONDS] [FILE…]`: runs a target with the inputs in
//! `corpus/TARGET`, or in the files, and then with mutations of them for so many seconds (60).
//!
//! It needs no nightly compiler: instead of coverage it uses replies. An input whose reply is of a new kind
//! is kept and mutated further. An input that makes the target fail is written to `target/fuzz-TARGET` and
//! ends the run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a fuzzer stops at the first failure"
)]
#![allow(clippy::print_stdout, reason = "the result is printed")]

mod declarations;
mod frames;
mod mutate;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use support::Random;

/// The last panic of any thread: tasks catch panics, so they would go unnoticed.
static LAST_PANIC: Mutex<Option<String>> = Mutex::new(None);

/// The kinds of replies to an input, or how the target failed.
type RunResult = Result<Vec<String>, String>;

const MAX_INPUTS: usize = 2000;

trait Target {
    fn run(&mut self, input: &[u8], random: &mut Random) -> RunResult;

    fn mutate(&self, inputs: &[Vec<u8>], random: &mut Random) -> Vec<u8>;
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.first().map(String::as_str).unwrap_or_default();
    let mut target: Box<dyn Target> = match name {
        "frames" => Box::new(frames::Frames::new()),
        "declarations" => Box::new(declarations::Declarations),
        _ => panic!("the targets are `frames` and `declarations`"),
    };
    let seconds = arguments.get(1).map_or(60, |text| text.parse().unwrap());
    let files = arguments.get(2..).unwrap_or_default();
    let mut inputs = match files {
        [] => read_corpus(name),
        files => files
            .iter()
            .map(|file| std::fs::read(file).unwrap())
            .collect(),
    };
    std::panic::set_hook(Box::new(|panic| {
        *LAST_PANIC.lock().unwrap() = Some(panic.to_string());
    }));
    let mut random = Random::new();
    let (mut seen_kinds, mut runs) = (HashSet::new(), 0_u64);
    for input in inputs.clone() {
        seen_kinds.extend(run_or_exit(&mut *target, name, &input, &mut random));
        runs += 1;
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let input = target.mutate(&inputs, &mut random);
        let mut is_new = false;
        for kind in run_or_exit(&mut *target, name, &input, &mut random) {
            is_new |= seen_kinds.insert(kind);
        }
        runs += 1;
        if is_new && inputs.len() < MAX_INPUTS {
            inputs.push(input);
        }
    }
    println!(
        "{name}: {runs} inputs, {} kinds of replies",
        seen_kinds.len()
    );
}

/// Runs the target with an input. A failure ends the process.
fn run_or_exit(
    target: &mut dyn Target,
    name: &str,
    input: &[u8],
    random: &mut Random,
) -> Vec<String> {
    let result = target.run(input, random);
    let panic = LAST_PANIC.lock().unwrap().take();
    let failure = match (result, panic) {
        (Ok(kinds), None) => return kinds,
        (Err(failure), None) => failure,
        (_, Some(panic)) => panic,
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../target/fuzz-{name}"));
    std::fs::write(&file, input).unwrap();
    println!("{name}: {failure}\nthe input is in {}", file.display());
    std::process::exit(1);
}

fn read_corpus(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect()
}

/// A message without its quoted values and digits, which differ from one input to the next.
fn message_kind(message: &str) -> String {
    let mut kind = String::new();
    let mut quoted = false;
    for c in message.chars().take(300) {
        match c {
            '`' | '"' => quoted = !quoted,
            _ if quoted || c.is_ascii_digit() => {}
            c => kind.push(c),
        }
    }
    kind
}
