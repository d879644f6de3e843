//! A page with commands: runs its `sh` blocks in order, in one shell, with a home of its own and a server that the
//! first command starts.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use oubliette_test_harness::scaled;
use support::binary;
use tempfile::TempDir;
use tokio::process::Command;

/// The commands of a page take less, also on a busy machine.
const PAGE_TIMEOUT: Duration = Duration::from_secs(200);
/// What every command has on its standard input: some of them read a key from there.
const INPUT: &str = "sk-of-a-document-0123456789\n";
/// The top of the source has `cargo run --` in its commands: that is the program that was built.
const CARGO: &str =
    "#!/bin/sh\n[ \"$1 $2\" = 'run --' ] || exit 64\nshift 2\nexec oubliette \"$@\"\n";

/// A piece of code of a page: the words behind its opening fence, and the text.
pub(super) type Piece = (String, String);

/// What is different about the lines that begin with a text. `cli/documented.rs` of the crate `oubliette` checks that
/// the command line accepts every line, also those that are not run.
pub(super) enum Rule {
    /// It is not run, for this reason.
    NotRun(&'static str),
    /// It asks on a terminal; here it gets `--yes`.
    Asks,
    /// A script that goes before it.
    Before(&'static str),
    /// A script that goes after it, and succeeds.
    After(&'static str),
}

/// A page of the documents, and what its commands need.
pub(super) struct Page {
    /// Below the top of the source.
    pub(super) name: &'static str,
    /// A script that goes before the first command.
    pub(super) setup: &'static str,
    /// Agents that the page uses: the demo agent is installed in their place.
    pub(super) agents: &'static [&'static str],
    pub(super) rules: &'static [(&'static str, Rule)],
}

pub(super) fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The pieces of code of a document.
pub(super) fn pieces(name: &str) -> Vec<Piece> {
    let text = fs::read_to_string(top().join(name)).unwrap();
    let parts: Vec<&str> = text.split("```").collect();
    let code = parts.iter().skip(1).step_by(2);
    code.map(|code| {
        let (words, text) = code.split_once('\n').unwrap();
        (words.to_owned(), text.to_owned())
    })
    .collect()
}

/// The lines of a script, those that end with a backslash with the next ones.
fn lines(script: &str) -> Vec<String> {
    let script = script.replace("\\\n", " ");
    let lines = script.lines().filter(|line| !line.trim().is_empty());
    lines.map(str::to_owned).collect()
}

impl Page {
    /// Runs all commands. Each must succeed, and a block that is followed by a `text` block must print its lines.
    pub(super) async fn run(&self) {
        let pieces = pieces(self.name);
        let home = PageHome::new(self.agents);
        let script = self.script(&pieces, home.directory.path());
        let mut shell = Command::new("bash");
        shell
            .args(["-c", &script])
            .env_clear()
            .envs(home.variables())
            .current_dir(home.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let ended = tokio::time::timeout(scaled(PAGE_TIMEOUT), shell.output()).await;
        let at = fs::read_to_string(home.log("at")).unwrap_or_default();
        let Ok(ended) = ended else {
            panic!("{}: it takes too long: {at}", self.name);
        };
        let ended = ended.unwrap();
        let block = at.split(':').next().unwrap_or_default().to_owned();
        assert!(
            ended.status.success(),
            "{}: failed: {at}\n{}{}{}",
            self.name,
            String::from_utf8_lossy(&ended.stderr),
            home.output(&block, "out"),
            home.output(&block, "err"),
        );
        for (n, pair) in pieces.windows(2).enumerate() {
            let [(sh, commands), (text, expected)] = pair else {
                unreachable!()
            };
            if sh != "sh" || text != "text" {
                continue;
            }
            let output = home.output(&n.to_string(), "out");
            for line in expected.lines() {
                assert!(
                    output.contains(line),
                    "{}: {commands}prints no {line:?}:\n{output}{}",
                    self.name,
                    home.output(&n.to_string(), "err")
                );
            }
        }
    }

    /// All commands as one script, which stops at the first that does not do what it should.
    fn script(&self, pieces: &[Piece], home: &Path) -> String {
        let logs = home.join("logs");
        let logs = logs.display();
        let mut script = format!("set -e\n{}\ncd ~\nset +e\n", self.setup);
        let mut used = vec![false; self.rules.len()];
        for (n, (_, text)) in pieces.iter().enumerate().filter(|(_, (sh, _))| sh == "sh") {
            for mut line in lines(text) {
                let rules = self.rules.iter().zip(&mut used);
                let (mut before, mut after) = (String::new(), String::new());
                let mut is_run = true;
                for ((start, rule), is_used) in rules {
                    if !line.starts_with(start) {
                        continue;
                    }
                    *is_used = true;
                    match rule {
                        Rule::NotRun(reason) => is_run = reason.is_empty(),
                        Rule::Asks => line.insert_str(start.len(), " --yes"),
                        Rule::Before(text) => before = format!("{{ {text}\n}} || exit\n"),
                        Rule::After(text) => after = format!("{{ {text}\n}} || exit\n"),
                    }
                }
                if !is_run {
                    continue;
                }
                script += &format!(
                    "cat > '{logs}/at' <<'END OF LINE'\n{n}: {line}\nEND OF LINE\n{before}{{ {line}\n}} < \
                     '{logs}/input' >> '{logs}/{n}.out' 2>> '{logs}/{n}.err' || exit\n{after}"
                );
            }
        }
        for ((start, _), is_used) in self.rules.iter().zip(used) {
            assert!(
                is_used,
                "{} has no line that begins with {start:?}",
                self.name
            );
        }
        script + "true\n"
    }
}

/// The home of a user who reads a page. Dropping it stops the server and all containers.
struct PageHome {
    directory: TempDir,
}

impl PageHome {
    fn new(agents: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["bin", "logs"] {
            fs::create_dir(at(name)).unwrap();
        }
        symlink(binary(), at("bin/oubliette")).unwrap();
        write_program(&at("bin/cargo"), CARGO);
        fs::write(at("logs/input"), INPUT).unwrap();
        fs::DirBuilder::new()
            .mode(0o700)
            .create(at(".oubliette"))
            .unwrap();
        for agent in agents {
            install_demo_as(&at(".oubliette"), agent);
        }
        Self { directory }
    }

    fn data_dir(&self) -> PathBuf {
        self.directory.path().join(".oubliette")
    }

    fn variables(&self) -> Vec<(String, String)> {
        let home = self.directory.path().display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        [
            ("PATH", format!("{home}/bin:{path}")),
            ("HOME", home),
            ("OUBLIETTE_RUNTIME", "sandbox".to_owned()),
            // Other tests run at the same time.
            ("OUBLIETTE_SERVER__LISTEN", "127.0.0.1:0".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn log(&self, name: &str) -> PathBuf {
        self.directory.path().join("logs").join(name)
    }

    fn output(&self, block: &str, stream: &str) -> String {
        fs::read_to_string(self.log(&format!("{block}.{stream}"))).unwrap_or_default()
    }
}

impl Drop for PageHome {
    fn drop(&mut self) {
        if !self.data_dir().exists() {
            return;
        }
        let down = support::cli(&self.data_dir(), ["down", "--remove", "--yes"]);
        if std::thread::panicking() {
            let log = fs::read_to_string(self.data_dir().join("server.log"));
            eprintln!("log of the server:\n{}", log.unwrap_or_default());
        } else {
            assert!(down.status.success(), "{}", support::stderr(&down));
        }
    }
}

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Puts the demo agent where `oubliette agent install` would put another one.
pub(crate) fn install_demo_as(data_dir: &Path, name: &str) {
    let agents = oubliette_agent::catalogue();
    let row = |name: &str| agents.iter().find(|agent| agent.name == name).unwrap();
    let bin = data_dir.join("agents").join(name).join("bin");
    fs::create_dir_all(&bin).unwrap();
    let program = row(name).package.unwrap().program;
    let script = format!("#!/bin/sh\nexec {}\n", row("demo").argv.join(" "));
    write_program(&bin.join(program), &script);
}
