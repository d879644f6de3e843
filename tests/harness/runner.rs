//! Which tests run, and when.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::arguments::Arguments;
use crate::process;
use crate::report::Report;
use crate::{Suite, Test};

pub(crate) fn run(suite: &Suite, arguments: &Arguments) -> ExitCode {
    if let Some(path) = &arguments.in_process {
        return process::run_here(path);
    }
    let mut all: Vec<&Test> = inventory::iter::<Test>()
        .filter(|test| !test.is_helper)
        .collect();
    all.sort_by_key(|test| test.path());
    let (selected, others): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|test| arguments.selects(&test.path()));
    if arguments.list && !arguments.only_ignored {
        list(selected.into_iter(), arguments);
        return ExitCode::SUCCESS;
    }
    let mut reasons = Reasons::new(suite);
    let (mut ignored, mut to_run): (Vec<_>, Vec<_>) = selected
        .into_iter()
        .map(|test| (test, reasons.why_ignored(test)))
        .partition(|(_, reason)| reason.is_some());
    if arguments.include_ignored || arguments.only_ignored {
        let forced = std::mem::take(&mut ignored);
        if arguments.only_ignored {
            to_run = forced;
        } else {
            to_run.extend(forced);
        }
    }
    if arguments.list {
        list(
            ignored.iter().chain(&to_run).map(|(test, _)| *test),
            arguments,
        );
        return ExitCode::SUCCESS;
    }

    let mut report = Report::start(ignored.len() + to_run.len(), arguments.show_output);
    for (test, reason) in ignored {
        report.add_ignored(&test.path(), reason.unwrap_or_default());
    }
    let report = run_all(
        suite,
        arguments,
        to_run.into_iter().map(|(test, _)| test),
        report,
    );
    if report.finish(others.len()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(101)
    }
}

fn list<'a>(tests: impl Iterator<Item = &'a Test>, arguments: &Arguments) {
    let mut paths: Vec<String> = tests.map(Test::path).collect();
    paths.sort();
    for path in &paths {
        println!("{path}: test");
    }
    if !arguments.is_terse {
        println!("\n{} tests, 0 benchmarks", paths.len());
    }
}

fn run_all<'a>(
    suite: &Suite,
    arguments: &Arguments,
    tests: impl Iterator<Item = &'a Test>,
    report: Report,
) -> Report {
    // The longest first, so that none of them is left alone at the end.
    let mut tests: Vec<&Test> = tests.collect();
    tests.sort_by_key(|test| std::cmp::Reverse(test.limit_seconds));
    if tests.is_empty() {
        return report;
    }
    let env = (suite.prepare)();
    let threads = threads(arguments);
    let (mut waiting, mut busy): (VecDeque<_>, VecDeque<_>) =
        tests.into_iter().partition(|test| test.mostly_waits);
    if threads == 1 {
        busy.append(&mut waiting);
    }
    let report = Mutex::new(report);
    let queues = [Mutex::new(busy), Mutex::new(waiting)];
    std::thread::scope(|scope| {
        for queue in &queues {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(test) = next(queue) {
                        let finished = process::run(test, &env, arguments.no_capture);
                        lock(&report).add(&test.path(), finished);
                    }
                });
            }
        }
    });
    report.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn next<'a>(queue: &Mutex<VecDeque<&'a Test>>) -> Option<&'a Test> {
    lock(queue).pop_front()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn threads(arguments: &Arguments) -> usize {
    let variable = std::env::var("RUST_TEST_THREADS").ok();
    let processors = || std::thread::available_parallelism().map_or(1, NonZero::get);
    arguments
        .test_threads
        .or_else(|| variable?.parse().ok().filter(|threads| *threads > 0))
        .unwrap_or_else(processors)
}

/// Asks the suite once per need.
struct Reasons<'a> {
    suite: &'a Suite,
    known: BTreeMap<&'static str, Option<String>>,
}

impl<'a> Reasons<'a> {
    fn new(suite: &'a Suite) -> Self {
        Self {
            suite,
            known: BTreeMap::new(),
        }
    }

    fn why_ignored(&mut self, test: &Test) -> Option<String> {
        test.needs.iter().find_map(|need| {
            let missing = self.suite.missing;
            let reason = self.known.entry(need);
            reason.or_insert_with(|| missing(need)).clone()
        })
    }
}
