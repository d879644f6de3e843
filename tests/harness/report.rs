//! What the runner prints: a line per test, the output of those that failed, why tests were ignored,
//! and the closing line in the form that other tools read.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::time::Instant;

use crate::process::{Finished, Outcome};

/// A file to which the time of every test is appended: `seconds<TAB>binary::path`.
const TIMES: &str = "OUBLIETTE_TEST_TIMES";
/// Set to `fail` where every test has to run, for example in CI.
const IGNORED: &str = "OUBLIETTE_TEST_IGNORED";

#[derive(Debug)]
pub(crate) struct Report {
    started: Instant,
    passed: usize,
    failed: BTreeMap<String, (String, Finished)>,
    /// How many tests were ignored, by reason.
    ignored: BTreeMap<String, usize>,
    show_output: bool,
}

impl Report {
    pub(crate) fn start(tests: usize, show_output: bool) -> Self {
        let plural = if tests == 1 { "" } else { "s" };
        println!("\nrunning {tests} test{plural}");
        Self {
            started: Instant::now(),
            passed: 0,
            failed: BTreeMap::new(),
            ignored: BTreeMap::new(),
            show_output,
        }
    }

    pub(crate) fn add_ignored(&mut self, path: &str, reason: String) {
        println!("test {path} ... ignored, {reason}");
        *self.ignored.entry(reason).or_default() += 1;
    }

    pub(crate) fn add(&mut self, path: &str, finished: Finished) {
        let seconds = finished.duration.as_secs_f64();
        append_time(path, seconds);
        match &finished.outcome {
            Outcome::Passed => {
                println!("test {path} ... ok <{seconds:.3}s>");
                self.passed += 1;
                if self.show_output && !finished.output.is_empty() {
                    println!("---- {path} ----\n{}", finished.output);
                }
            }
            Outcome::Failed(why) => {
                println!("test {path} ... FAILED <{seconds:.3}s> {why}");
                self.failed.insert(path.to_owned(), (why.clone(), finished));
            }
        }
    }

    /// Prints the end of the report; whether every test that ran passed, and every test ran if all
    /// have to.
    pub(crate) fn finish(self, filtered_out: usize) -> bool {
        let all_must_run = std::env::var_os(IGNORED).is_some_and(|value| value == "fail");
        let is_ok = self.failed.is_empty() && (self.ignored.is_empty() || !all_must_run);
        if !self.failed.is_empty() {
            println!("\nfailures:");
            for (path, (why, finished)) in &self.failed {
                println!("\n---- {path} ----\n{}{why}", finished.output);
            }
            println!("\nfailures:");
            for path in self.failed.keys() {
                println!("    {path}");
            }
        }
        let result = if is_ok { "ok" } else { "FAILED" };
        println!(
            "\ntest result: {result}. {} passed; {} failed; {} ignored; 0 measured; \
             {filtered_out} filtered out; finished in {:.2}s",
            self.passed,
            self.failed.len(),
            self.ignored.values().sum::<usize>(),
            self.started.elapsed().as_secs_f64()
        );
        for (reason, count) in &self.ignored {
            println!("{count} ignored: {reason}");
        }
        if all_must_run && !self.ignored.is_empty() {
            println!("{IGNORED}=fail: no test may be ignored here");
        }
        println!();
        is_ok
    }
}

fn append_time(path: &str, seconds: f64) {
    let Some(file) = std::env::var_os(TIMES) else {
        return;
    };
    let file = OpenOptions::new().create(true).append(true).open(file);
    let line = format!("{seconds:.3}\t{}::{path}\n", binary_name());
    if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
        eprintln!("the time of {path} is not recorded: {error}");
    }
}

/// The name of the test binary without the hash that cargo appends.
fn binary_name() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let (name, _) = name.rsplit_once('-').unwrap_or((&name, ""));
    name.to_owned()
}
