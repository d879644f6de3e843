//! `cargo run -p oubliette-fuzz -- TARGET [SECONDS] [FILE…]`: feeds what is in `corpus/TARGET`, or in the
//! files, and then mutations of it for so long, to a part of the product, and looks that it keeps its
//! promises.
//!
//! It needs no nightly compiler. What coverage is to other fuzzers, answers are here: an input with an
//! answer of a kind that was not seen before is kept and mutated further. An input that breaks a promise
//! is written to `target/fuzz-TARGET` and ends the run.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "it is a test")]
#![allow(clippy::print_stdout, reason = "it is a program")]

mod declarations;
mod frames;
mod mutate;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use support::Random;

/// The last panic of any thread: most are caught before they get anywhere.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// What a target makes of an input: kinds of answers, or the promise that was broken.
type Outcome = Result<Vec<String>, String>;

trait Target {
    fn feed(&mut self, input: &[u8], random: &mut Random) -> Outcome;

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
        [] => corpus(name),
        files => files
            .iter()
            .map(|file| std::fs::read(file).unwrap())
            .collect(),
    };
    std::panic::set_hook(Box::new(|panic| {
        *PANIC.lock().unwrap() = Some(panic.to_string());
    }));
    let mut random = Random::new();
    let (mut seen, mut fed) = (HashSet::new(), 0_u64);
    for input in inputs.clone() {
        seen.extend(tried(&mut *target, name, &input, &mut random));
        fed += 1;
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let input = target.mutate(&inputs, &mut random);
        let mut news = false;
        for kind in tried(&mut *target, name, &input, &mut random) {
            news |= seen.insert(kind);
        }
        fed += 1;
        if news && inputs.len() < 2000 {
            inputs.push(input);
        }
    }
    println!("{name}: {fed} inputs, {} kinds of answers", seen.len());
}

/// Feeds an input; the end of the run if that breaks a promise.
fn tried(target: &mut dyn Target, name: &str, input: &[u8], random: &mut Random) -> Vec<String> {
    let outcome = target.feed(input, random);
    let panicked = PANIC.lock().unwrap().take();
    let broken = match (outcome, panicked) {
        (Ok(kinds), None) => return kinds,
        (Err(broken), None) => broken,
        (_, Some(panic)) => panic,
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../target/fuzz-{name}"));
    std::fs::write(&file, input).unwrap();
    println!("{name}: {broken}\nthe input is in {}", file.display());
    std::process::exit(1);
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let mut files: Vec<_> = std::fs::read_dir(place)
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

/// An answer without what differs from one to the next: the kind of it.
fn kind_of(answer: &str) -> String {
    let mut kind = String::new();
    let mut quoted = false;
    for c in answer.chars().take(300) {
        match c {
            '`' | '"' => quoted = !quoted,
            _ if quoted || c.is_ascii_digit() => {}
            c => kind.push(c),
        }
    }
    kind
}
