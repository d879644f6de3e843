//! Whether everything that is built may be passed on under this project's licences: each package
//! states an SPDX expression that can be satisfied with permissive licences alone.

use super::Problem;
use super::packages::Licensed;
use super::tree::Tree;

const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Where problems are reported: it lists everything that is built.
pub(super) const LOCK_FILE: &str = "Cargo.lock";

pub(super) fn check(packages: &[Licensed], tree: &Tree) -> Vec<Problem> {
    let lock = tree.text(LOCK_FILE).unwrap_or_default();
    packages
        .iter()
        .filter_map(|package| {
            let message = objection(package)?;
            let line = locked_line(lock, package);
            Some(Problem::new(LOCK_FILE, line, message))
        })
        .collect()
}

fn objection(package: &Licensed) -> Option<String> {
    let (name, version) = (&package.name, &package.version);
    let Some(licence) = &package.licence else {
        return Some(format!(
            "{name} {version} states no licence: replace it by a package that does, or set `license` if it is ours."
        ));
    };
    match is_satisfiable(licence) {
        Ok(true) => None,
        Ok(false) => Some(format!(
            "{name} {version} is licensed {licence}, which is not permissive enough: replace it, or add the licence to ALLOWED in xtask/src/tidy/licences.rs if it asks no more than those."
        )),
        Err(reason) => Some(format!(
            "The licence of {name} {version}, {licence}, cannot be read: {reason}. Find out what is meant, or replace the package."
        )),
    }
}

fn locked_line(lock: &str, package: &Licensed) -> usize {
    let name = format!("name = \"{}\"", package.name);
    let version = format!("version = \"{}\"", package.version);
    let lines: Vec<&str> = lock.lines().collect();
    let entry = lines.windows(2).position(|pair| pair == [&name, &version]);
    entry.map_or(1, |index| index + 1)
}

/// Whether allowed licences are enough for an expression.
fn is_satisfiable(expression: &str) -> Result<bool, String> {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let mut terms = Terms {
        words: spaced.split_whitespace().collect(),
        at: 0,
    };
    let satisfiable = terms.any()?;
    match terms.next() {
        None => Ok(satisfiable),
        Some(extra) => Err(format!("`{extra}` is not expected there")),
    }
}

/// The words of an expression and how far they are read. `AND` binds closer than `OR`.
struct Terms<'a> {
    words: Vec<&'a str>,
    at: usize,
}

impl<'a> Terms<'a> {
    fn any(&mut self) -> Result<bool, String> {
        let mut satisfiable = self.all()?;
        while self.take("OR") {
            satisfiable |= self.all()?;
        }
        Ok(satisfiable)
    }

    fn all(&mut self) -> Result<bool, String> {
        let mut satisfiable = self.one()?;
        while self.take("AND") {
            satisfiable &= self.one()?;
        }
        Ok(satisfiable)
    }

    fn one(&mut self) -> Result<bool, String> {
        let licence = match self.next() {
            Some("(") => {
                let satisfiable = self.any()?;
                return match self.take(")") {
                    true => Ok(satisfiable),
                    false => Err("a parenthesis is not closed".to_owned()),
                };
            }
            Some(word @ (")" | "AND" | "OR" | "WITH")) => {
                return Err(format!("`{word}` stands where a licence should"));
            }
            Some(licence) => licence,
            None => return Err("a licence is missing at its end".to_owned()),
        };
        if !self.take("WITH") {
            return Ok(ALLOWED.contains(&licence));
        }
        let exception = self.next().ok_or("no exception follows `WITH`")?;
        Ok(ALLOWED.contains(&format!("{licence} WITH {exception}").as_str()))
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at) == Some(&word);
        self.at += usize::from(found);
        found
    }

    fn next(&mut self) -> Option<&'a str> {
        let word = self.words.get(self.at).copied();
        self.at += 1;
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_permissive_choice_is_enough() {
        for expression in [
            "MIT",
            "MIT-0",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "MIT OR Apache-2.0 OR LGPL-2.1-or-later",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
            "MIT AND BSD-3-Clause OR GPL-2.0-only",
        ] {
            assert_eq!(is_satisfiable(expression), Ok(true), "{expression}");
        }
    }

    #[test]
    fn every_part_of_a_conjunction_must_be_permissive() {
        for expression in [
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "(MIT OR Apache-2.0) AND LGPL-2.1-only",
            "GPL-2.0-only WITH Classpath-exception-2.0",
            "GPL-2.0-only OR MIT AND LGPL-2.1-only",
        ] {
            assert_eq!(is_satisfiable(expression), Ok(false), "{expression}");
        }
    }

    #[test]
    fn nonsense_is_refused_not_guessed() {
        for expression in [
            "",
            "MIT OR",
            "(MIT",
            "MIT)",
            "MIT Apache-2.0",
            "OR MIT",
            "MIT WITH",
        ] {
            assert!(is_satisfiable(expression).is_err(), "{expression}");
        }
    }

    #[test]
    fn problems_point_into_the_lock_file() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"a\"\nversion = \"2.0.0\"\n";
        let package = |version: &str, licence: Option<&str>| Licensed {
            name: "a".to_owned(),
            version: version.to_owned(),
            licence: licence.map(str::to_owned),
        };
        let packages = [package("1.0.0", Some("MIT")), package("2.0.0", None)];
        let problems = check(&packages, &Tree::example(&[(LOCK_FILE, lock)]));
        let lines: Vec<usize> = problems.iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [6]);
    }
}
