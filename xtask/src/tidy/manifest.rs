//! Reads as much TOML as a `Cargo.toml` needs: which key holds which value on which line. Cargo has
//! already refused what is not TOML, so this skips what it does not understand; checks must
//! therefore treat a missing entry as a problem, never as consent.

/// One key and its value. `serde = { workspace = true }` under `[dependencies]` is the entry
/// `dependencies`, `serde`, `workspace` with the value `true`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: Vec<String>,
    /// Without quotes if it is a string; an array as it is written.
    pub(super) value: String,
    pub(super) line: usize,
}

impl Entry {
    pub(super) fn is(&self, path: &[&str], value: &str) -> bool {
        self.path == path && self.value == value
    }
}

/// One place where a manifest declares a dependency.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Declaration {
    pub(super) line: usize,
    /// Whether the version comes from the workspace.
    pub(super) inherited: bool,
}

pub(super) fn read(text: &str) -> Vec<Entry> {
    let mut reader = Reader {
        text,
        at: 0,
        entries: Vec::new(),
    };
    reader.document();
    reader.entries
}

/// Where the dependency `key` is declared, in the table itself or for certain targets only.
pub(super) fn declarations(entries: &[Entry], table: &str, key: &str) -> Vec<Declaration> {
    let mut found: Vec<(&[String], Declaration)> = Vec::new();
    for entry in entries {
        let start = match entry.path.first().map(String::as_str) {
            Some("target") => 2,
            _ => 0,
        };
        let declared = entry.path.get(start..start + 2);
        if declared.is_none_or(|names| names != [table, key]) {
            continue;
        }
        let inherits = entry.path[start + 2..] == ["workspace"] && entry.value == "true";
        let place = &entry.path[..start + 2];
        match found.iter_mut().find(|(known, _)| *known == place) {
            Some((_, declaration)) => declaration.inherited |= inherits,
            None => found.push((
                place,
                Declaration {
                    line: entry.line,
                    inherited: inherits,
                },
            )),
        }
    }
    found
        .into_iter()
        .map(|(_, declaration)| declaration)
        .collect()
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    entries: Vec<Entry>,
}

impl<'a> Reader<'a> {
    fn document(&mut self) {
        let mut table = Vec::new();
        loop {
            self.skip_gap(&[]);
            if self.rest().is_empty() {
                return;
            }
            if self.take("[") {
                self.take("[");
                table = self.key();
                self.skip_line();
            } else {
                self.entry(&table);
            }
        }
    }

    fn entry(&mut self, table: &[String]) {
        let mut path = table.to_vec();
        path.extend(self.key());
        self.skip_spaces();
        if self.take("=") {
            self.skip_spaces();
            self.value(path);
        } else {
            self.skip_line();
        }
    }

    fn value(&mut self, path: Vec<String>) {
        if !self.take("{") {
            let line = self.line();
            let value = self.scalar();
            self.entries.push(Entry { path, value, line });
            return;
        }
        loop {
            self.skip_gap(&[',']);
            if self.take("}") || self.rest().is_empty() {
                return;
            }
            self.entry(&path);
        }
    }

    /// A dotted key, each part bare or quoted.
    fn key(&mut self) -> Vec<String> {
        let mut parts = Vec::new();
        loop {
            self.skip_spaces();
            let part = match self.string() {
                Some(quoted) => quoted,
                None => self.take_while(|c| c.is_alphanumeric() || c == '_' || c == '-'),
            };
            parts.push(part.to_owned());
            self.skip_spaces();
            if !self.take(".") {
                return parts;
            }
        }
    }

    fn scalar(&mut self) -> String {
        if let Some(string) = self.string() {
            return string.to_owned();
        }
        if self.rest().starts_with('[') {
            return self.array().to_owned();
        }
        let bare = self.take_while(|c| !matches!(c, ',' | '}' | '#' | '\n'));
        bare.trim().to_owned()
    }

    fn array(&mut self) -> &'a str {
        let start = self.at;
        let mut depth = 0;
        loop {
            self.skip_gap(&[]);
            if self.string().is_some() {
                continue;
            }
            match self.rest().chars().next() {
                None => break,
                Some('[') => depth += 1,
                Some(']') => depth -= 1,
                Some(_) => {}
            }
            self.skip_char();
            if depth == 0 {
                break;
            }
        }
        &self.text[start..self.at]
    }

    /// The inside of a string of any of the four kinds; escapes stay as they are.
    fn string(&mut self) -> Option<&'a str> {
        let quote = ["\"\"\"", "'''", "\"", "'"]
            .into_iter()
            .find(|quote| self.take(quote))?;
        let start = self.at;
        while !self.rest().is_empty() && !self.rest().starts_with(quote) {
            if quote.starts_with('"') && self.rest().starts_with('\\') {
                self.skip_char();
            }
            self.skip_char();
        }
        let inside = &self.text[start..self.at];
        self.take(quote);
        Some(inside)
    }

    /// Skips white space, line ends, comments and the given separators.
    fn skip_gap(&mut self, separators: &[char]) {
        loop {
            self.take_while(|c| c.is_whitespace() || separators.contains(&c));
            if !self.rest().starts_with('#') {
                return;
            }
            self.skip_line();
        }
    }

    fn skip_spaces(&mut self) {
        self.take_while(|c| c == ' ' || c == '\t');
    }

    fn skip_line(&mut self) {
        self.take_while(|c| c != '\n');
        self.take("\n");
    }

    fn skip_char(&mut self) {
        self.at += self.rest().chars().next().map_or(0, char::len_utf8);
    }

    fn take(&mut self, expected: &str) -> bool {
        let found = self.rest().starts_with(expected);
        if found {
            self.at += expected.len();
        }
        found
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|c| !wanted(c)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn line(&self) -> usize {
        1 + self.text[..self.at].matches('\n').count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &[&str], value: &str, line: usize) -> Entry {
        Entry {
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            value: value.to_owned(),
            line,
        }
    }

    #[test]
    fn tables_dotted_keys_and_inline_tables_read_alike() {
        let text = "\
# A comment
lints.workspace = true
[package]
name = \"a # b\" # the name
[dependencies]
one.workspace = true
two = { workspace = true, features = [
    \"x}\", # ]
    \"y\",
] }
[target.'cfg(target_os = \"linux\")'.dependencies.three]
version = '1'
";
        let expected = [
            entry(&["lints", "workspace"], "true", 2),
            entry(&["package", "name"], "a # b", 4),
            entry(&["dependencies", "one", "workspace"], "true", 6),
            entry(&["dependencies", "two", "workspace"], "true", 7),
            entry(
                &["dependencies", "two", "features"],
                "[\n    \"x}\", # ]\n    \"y\",\n]",
                7,
            ),
            entry(
                &[
                    "target",
                    "cfg(target_os = \"linux\")",
                    "dependencies",
                    "three",
                    "version",
                ],
                "1",
                12,
            ),
        ];
        assert_eq!(read(text), expected);
    }

    #[test]
    fn each_place_of_a_declaration_is_judged_alone() {
        let entries = read(
            "[dependencies]\nlibc.workspace = true\n[target.'cfg(unix)'.dependencies]\nlibc = \"0.2\"\n",
        );
        let expected = [
            Declaration {
                line: 2,
                inherited: true,
            },
            Declaration {
                line: 4,
                inherited: false,
            },
        ];
        assert_eq!(declarations(&entries, "dependencies", "libc"), expected);
        assert_eq!(declarations(&entries, "dev-dependencies", "libc"), []);
    }

    #[test]
    fn broken_text_ends() {
        for text in ["[", "a = {", "a = [1, ", "= = =", "\"", "a = \"\\", "}"] {
            read(text);
        }
    }
}
