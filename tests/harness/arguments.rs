//! The command line, as the standard test runner has it.

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Arguments {
    filters: Vec<String>,
    skipped: Vec<String>,
    is_exact: bool,
    pub(crate) list: bool,
    pub(crate) is_terse: bool,
    pub(crate) no_capture: bool,
    pub(crate) show_output: bool,
    pub(crate) test_threads: Option<usize>,
    pub(crate) only_ignored: bool,
    pub(crate) include_ignored: bool,
    /// Not of the standard runner: runs this one test or helper in this process.
    pub(crate) in_process: Option<String>,
}

impl Arguments {
    pub(crate) fn selects(&self, path: &str) -> bool {
        let matches = |filter: &String| {
            if self.is_exact {
                path == filter
            } else {
                path.contains(filter.as_str())
            }
        };
        (self.filters.is_empty() || self.filters.iter().any(matches))
            && !self.skipped.iter().any(matches)
    }
}

pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut parsed = Arguments::default();
    // `--name=value` is `--name value`.
    let mut arguments = arguments.flat_map(|argument| match argument.split_once('=') {
        Some((name, value)) if name.starts_with("--") => vec![name.to_owned(), value.to_owned()],
        _ => vec![argument],
    });
    while let Some(argument) = arguments.next() {
        let mut value = || {
            let value = arguments.next();
            value.ok_or_else(|| format!("{argument} has no value"))
        };
        match argument.as_str() {
            "--exact" => parsed.is_exact = true,
            "--skip" => parsed.skipped.push(value()?),
            "--list" => parsed.list = true,
            "--nocapture" | "--no-capture" => parsed.no_capture = true,
            "--show-output" => parsed.show_output = true,
            "--ignored" => parsed.only_ignored = true,
            "--include-ignored" => parsed.include_ignored = true,
            "-q" | "--quiet" => parsed.is_terse = true,
            "--in-process" => parsed.in_process = Some(value()?),
            "--test-threads" => {
                let threads = value()?;
                let number = threads.parse().ok().filter(|threads| *threads > 0);
                parsed.test_threads =
                    Some(number.ok_or_else(|| format!("--test-threads is {threads}"))?);
            }
            "--format" => parsed.is_terse = value()? == "terse",
            "--color" | "-Z" | "--logfile" => drop(value()?),
            "--test" | "--report-time" | "--ensure-time" => {}
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
            filter => parsed.filters.push(filter.to_owned()),
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Arguments {
        parse(arguments.iter().map(ToString::to_string)).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn filters_and_skips_select_by_part_or_exactly() {
        let arguments = parsed(&["sessions", "--skip", "crash"]);
        assert!(arguments.selects("e2e::sessions::one"));
        assert!(!arguments.selects("sessions::crashes"));
        assert!(!arguments.selects("containers"));
        let exact = parsed(&["--exact", "a::b"]);
        assert!(exact.selects("a::b") && !exact.selects("a::b::c"));
    }

    #[test]
    fn options_of_the_standard_runner_are_accepted_and_others_refused() {
        let arguments = parsed(&["--test-threads=3", "--format", "terse", "--color=always"]);
        assert_eq!(arguments.test_threads, Some(3));
        assert!(arguments.is_terse);
        for wrong in [&["--fly"][..], &["--skip"], &["--test-threads", "0"]] {
            assert!(
                parse(wrong.iter().map(ToString::to_string)).is_err(),
                "{wrong:?}"
            );
        }
    }
}
