//! Tests of setup for every client of the table, and the files they start with.

mod clients;
mod file;
mod merge;
mod refusal;
mod stdio;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use jsonc_parser::{ParseOptions, cst::CstRootNode};
use tempfile::TempDir;
use toml_edit::DocumentMut;

use super::{
    Change, ConfigScope, Connection, SERVER, SetupError,
    clients::{CLIENTS, Client, Content, Format},
    inspect, names, plan, plan_removal,
};

const URL: &str = "http://127.0.0.1:7433/mcp";
const TOKEN: &str = "oub_Zq81secret";
const OLD_TOKEN: &str = "oub_Wx92former";

fn connection(token: &str) -> Connection {
    Connection::Http {
        url: URL.to_owned(),
        token: token.to_owned(),
    }
}

/// The clients that take a URL.
fn http_clients() -> impl Iterator<Item = &'static Client> {
    CLIENTS.iter().filter(|client| !client.is_stdio_only())
}

fn client(name: &str) -> &'static Client {
    CLIENTS.iter().find(|client| client.name == name).unwrap()
}

/// One client, with a home directory of its own.
struct Case {
    client: &'static Client,
    home: TempDir,
    path: PathBuf,
}

impl Case {
    fn new(client: &'static Client) -> Self {
        let home = tempfile::tempdir().unwrap();
        let path = client
            .path(&ConfigScope::User, home.path(), &|_| None)
            .unwrap();
        Self { client, home, path }
    }

    fn with(client: &'static Client, text: &str) -> Self {
        let case = Self::new(client);
        case.write(text);
        case
    }

    fn write(&self, text: &str) {
        fs::create_dir_all(self.path.parent().unwrap()).unwrap();
        fs::write(&self.path, text).unwrap();
    }

    fn read(&self) -> String {
        fs::read_to_string(&self.path).unwrap()
    }

    fn plan_with(&self, token: &str) -> Result<Change, SetupError> {
        let (name, home) = (self.client.name, self.home.path());
        plan(
            name,
            &ConfigScope::User,
            home,
            &|_| None,
            &connection(token),
        )
    }

    fn plan(&self) -> Result<Change, SetupError> {
        self.plan_with(TOKEN)
    }

    fn set_up(&self) -> Change {
        let change = self.plan().unwrap();
        change.apply().unwrap();
        change
    }

    /// Checks the file with other parsers than the code under test.
    fn assert_complete(&self) {
        let text = self.read();
        for field in self.client.entry {
            let mut keys = vec![self.client.servers, SERVER];
            keys.extend(field.key.within);
            keys.push(field.key.name);
            let expected = match field.content {
                Content::Text(text) => serde_json::json!(text),
                Content::Flag(flag) => serde_json::json!(flag),
                Content::Url => serde_json::json!(URL),
                Content::Bearer => serde_json::json!(format!("Bearer {TOKEN}")),
                Content::Program | Content::Arguments | Content::CommandLine => continue,
            };
            let found = value_at(self.client.format, &text, &keys);
            assert_eq!(found, Some(expected), "{keys:?} in\n{text}");
        }
    }
}

fn value_at(format: Format, text: &str, keys: &[&str]) -> Option<serde_json::Value> {
    let text = text.trim_start_matches('\u{feff}');
    match format {
        Format::Json => {
            let root = CstRootNode::parse(text, &ParseOptions::default()).unwrap();
            root.to_serde_value()?
                .pointer(&format!("/{}", keys.join("/")))
                .cloned()
        }
        Format::Toml => {
            let document: DocumentMut = text.parse().unwrap();
            let mut item = document.as_item();
            for key in keys {
                item = item.get(key)?;
            }
            let flag = item.as_bool().map(serde_json::Value::from);
            flag.or_else(|| item.as_str().map(serde_json::Value::from))
        }
    }
}

/// A file written by hand, with another server, its secret, comments and odd spacing.
fn hand_written(client: &Client) -> String {
    let servers = client.servers;
    match client.format {
        Format::Json => format!(
            r#"// kept by hand
{{
    "theme"  :  "dark", // as I like it
    "{servers}": {{
        /* not ours */
        "other": {{"command": "x", "env": {{"KEY": "hunter2"}}}}, // foreign
        // the end of the servers
    }},
    "list": [1,2,  3],
}}
"#
        ),
        Format::Toml => format!(
            r#"# kept by hand
model   =   "m" # as I like it

[{servers}.other] # foreign
command = "x"
env = {{KEY='hunter2'}}

# about the list
[list]
of = [1,2,  3]
# the end of the file
"#
        ),
    }
}

/// An outdated entry of ours, with keys that we do not set.
fn outdated_entry(client: &Client) -> String {
    let servers = client.servers;
    let headers = headers(client);
    match client.format {
        Format::Json => format!(
            r#"{{
  "{servers}": {{
    "oubliette": {{
      // moved since
      "url": "http://127.0.0.1:1/mcp", // here
      "timeout": 5,
      "{headers}": {{
        "X-Team": "a",
        "Authorization": "Bearer {OLD_TOKEN}"
      }}
    }}
  }}
}}
"#
        ),
        Format::Toml => format!(
            r#"[{servers}.oubliette]
# moved since
url = "http://127.0.0.1:1/mcp" # here
timeout = 5

[{servers}.oubliette.{headers}]
X-Team = "a"
Authorization = "Bearer {OLD_TOKEN}"
"#
        ),
    }
}

/// The map of headers in our entry.
fn headers(client: &Client) -> &'static str {
    let field = client.entry.iter().find(|field| field.key.within.is_some());
    field.and_then(|field| field.key.within).unwrap()
}

/// An entry of ours with one key, in the client's format.
fn entry_with(client: &Client, key: &str, value: &str) -> String {
    let servers = client.servers;
    match client.format {
        Format::Json => format!(r#"{{"{servers}": {{"oubliette": {{"{key}": {value}}}}}}}"#),
        Format::Toml => format!("[{servers}.oubliette]\n{key} = {value}\n"),
    }
}

fn assert_keeps_lines(before: &str, after: &str) {
    let mut lines = after.lines();
    for line in before.lines() {
        assert!(lines.any(|kept| kept == line), "{line:?} lost in\n{after}");
    }
}

fn files_in(directory: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name()).collect()
}
