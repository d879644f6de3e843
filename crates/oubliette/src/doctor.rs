//! `oubliette doctor`: checks the data directory and what this machine can do, and says how to fix what
//! does not work.

use std::io::Write;
use std::process::Command;

use oubliette_runtime::{DRIVERS, DockerSettings};
use oubliette_store::sqlite;

use crate::client_binary;
use crate::config::Config;
use crate::containers;
use crate::failure::Failure;
use crate::home::Home;

enum Finding {
    Good(String),
    Hint(String),
    Bad(String),
}

/// Prints every finding; fails if one of them prevents Oubliette from working.
pub(crate) fn run(home: &Home) -> Result<(), Failure> {
    let findings = [
        data_directory(home),
        database(home),
        configuration(home),
        git(),
        client(),
        runtimes(home),
        server(home),
    ];
    let mut out = std::io::stdout().lock();
    let mut bad = 0;
    for finding in findings.into_iter().flatten() {
        let (mark, text) = match finding {
            Finding::Good(text) => ("ok  ", text),
            Finding::Hint(text) => ("hint", text),
            Finding::Bad(text) => {
                bad += 1;
                ("FAIL", text)
            }
        };
        let _ = writeln!(out, "{mark}  {text}");
    }
    match bad {
        0 => Ok(()),
        1 => Err(Failure::new("one problem needs your attention")),
        bad => Err(Failure::new(format!("{bad} problems need your attention"))),
    }
}

fn data_directory(home: &Home) -> Vec<Finding> {
    use std::os::unix::fs::PermissionsExt;
    let path = home.path();
    let Ok(meta) = std::fs::metadata(path) else {
        return vec![Finding::Hint(format!(
            "{} does not exist yet; `oubliette serve` creates it",
            path.display()
        ))];
    };
    let mode = meta.permissions().mode() & 0o777;
    let mut findings = vec![Finding::Good(format!("data directory {}", path.display()))];
    if mode & 0o077 != 0 {
        findings.push(Finding::Hint(format!(
            "{} can be read by others (mode {mode:o}); run `chmod 700 {}`",
            path.display(),
            path.display()
        )));
    }
    if home.database().exists() && home.admin_key().is_none() {
        findings.push(Finding::Hint(format!(
            "{} is missing or damaged; `oubliette token reset-admin` creates a new one",
            home.admin_token_file().display()
        )));
    }
    findings
}

fn database(home: &Home) -> Vec<Finding> {
    let path = home.database();
    if !path.exists() {
        return Vec::new();
    }
    vec![match sqlite::verify(&path) {
        Ok(()) => Finding::Good("the database is sound".to_owned()),
        Err(error) => Finding::Bad(error.to_string()),
    }]
}

fn configuration(home: &Home) -> Vec<Finding> {
    let config = match Config::load(&home.config_file(), std::env::vars()) {
        Ok(config) => config,
        Err(Failure::Failed(sentence)) => return vec![Finding::Bad(sentence)],
        Err(Failure::Usage(_) | Failure::Exit(_)) => return Vec::new(),
    };
    let mut findings = vec![match home.config_file() {
        file if file.exists() => Finding::Good(format!("configuration {}", file.display())),
        file => Finding::Good(format!(
            "no {}: every setting has its default value",
            file.display()
        )),
    }];
    for (name, credential) in &config.credentials {
        findings.push(match credential.read() {
            Ok(_) => Finding::Good(format!(
                "credential `{name}` ({}) can be read",
                credential.kind
            )),
            Err(error) => Finding::Bad(format!("credential `{name}`: {error}")),
        });
    }
    findings
}

fn git() -> Vec<Finding> {
    vec![match Command::new("git").arg("--version").output() {
        Ok(output) if output.status.success() => {
            let version = String::from_utf8_lossy(&output.stdout);
            Finding::Good(format!("{} for cloning", version.trim()))
        }
        _ => Finding::Hint(
            "git is not installed; without it no project can be cloned from a `remote_url`"
                .to_owned(),
        ),
    }]
}

/// The client program that containers run, if it is not this binary.
fn client() -> Vec<Finding> {
    match client_binary::find() {
        Ok(client) if std::env::current_exe().is_ok_and(|own| own == client) => Vec::new(),
        Ok(client) => vec![Finding::Good(format!(
            "containers run {}",
            client.display()
        ))],
        Err(why) => vec![Finding::Bad(why)],
    }
}

/// What each runtime of the table can do on this machine.
fn runtimes(home: &Home) -> Vec<Finding> {
    let not_probed = |error: String| {
        let text = format!("the runtimes could not be probed: {error}");
        vec![Finding::Hint(text)]
    };
    let settings = match containers::settings(home.path(), &DockerSettings::default()) {
        Ok(settings) => settings,
        Err(error) => return not_probed(error.to_string()),
    };
    let tokio = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(tokio) => tokio,
        Err(error) => return not_probed(error.to_string()),
    };
    let probes = DRIVERS
        .iter()
        .flat_map(|driver| tokio.block_on((driver.probe)(&settings)));
    probes
        .map(|finding| {
            if finding.works {
                Finding::Good(finding.text)
            } else {
                Finding::Hint(finding.text)
            }
        })
        .collect()
}

fn server(home: &Home) -> Vec<Finding> {
    vec![match home.server_info() {
        Some(running) if is_alive(running.pid) => Finding::Good(format!(
            "a server (process {}, version {}) is running at {}",
            running.pid, running.version, running.url
        )),
        _ => Finding::Hint("no server is running; start one with `oubliette serve`".to_owned()),
    }]
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}
