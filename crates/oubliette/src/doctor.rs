//! `oubliette doctor`: checks the data directory and what this machine can do, and says how to fix what
//! does not work.

use std::io::Write;
use std::process::Command;

use oubliette_engine::credential_kinds;
use oubliette_runtime::{DRIVERS, DockerSettings, Platform, ProbeKind};
use oubliette_store::sqlite;

use crate::client_binary;
use crate::config::{self, Config};
use crate::containers;
use crate::failure::Failure;
use crate::home::Home;

/// With less free space, `doctor` warns.
const LOW_DISK_MB: u64 = 200;

enum Finding {
    Good(String),
    Hint(String),
    /// Something does not hold that a user relies on.
    Warning(String),
    Bad(String),
}

/// Prints every finding; fails if one of them prevents Oubliette from working.
pub(crate) fn run(home: &Home) -> Result<(), Failure> {
    let findings = [
        data_directory(home),
        disk_space(home),
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
            Finding::Warning(text) => ("warn", text),
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
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let path = home.path();
    let Ok(meta) = std::fs::metadata(path) else {
        return vec![Finding::Hint(format!(
            "{} does not exist yet; `oubliette serve` creates it",
            path.display()
        ))];
    };
    if let Err(error) = std::fs::read_dir(path) {
        return vec![Finding::Bad(format!(
            "this user cannot use {}, which belongs to user {}: {error}; use that user's account, or choose \
             another directory with --data-dir",
            path.display(),
            meta.uid()
        ))];
    }
    let mode = meta.permissions().mode() & 0o777;
    let mut findings = Vec::new();
    // That others can write to it is found with the server.
    if mode & 0o022 == 0 {
        findings.push(Finding::Good(format!("data directory {}", path.display())));
    }
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

/// Whether the server can still write: without space, agents wait.
fn disk_space(home: &Home) -> Vec<Finding> {
    let path = home.path();
    let Ok(disk) = rustix::fs::statvfs(path) else {
        return Vec::new();
    };
    let megabytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize) >> 20;
    let (size, free) = (megabytes(disk.f_blocks), megabytes(disk.f_bavail));
    let text = format!("on {} ({size} MB, {free} free)", path.display());
    match free {
        0 => vec![Finding::Bad(format!(
            "no space left {text}; agents wait until there is space"
        ))],
        free if free < LOW_DISK_MB => vec![Finding::Warning(format!("little space left {text}"))],
        _ => Vec::new(),
    }
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
        file => Finding::Good(format!("no {}", file.display())),
    }];
    let variables = config::variable_names(std::env::vars());
    findings.push(Finding::Good(match variables.as_slice() {
        [] if !home.config_file().exists() => "every setting has its default value".to_owned(),
        [] => "no setting is changed by an environment variable".to_owned(),
        names => format!("settings are changed by {}", names.join(", ")),
    }));
    let kinds = credential_kinds(&config.settings(home.path()));
    for (name, credential) in &config.credentials {
        if !kinds.contains(&credential.kind) {
            let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
            findings.push(Finding::Bad(format!(
                "credential `{name}` has the kind `{}`, which nothing uses; the kinds are {}",
                credential.kind,
                kinds.join(", ")
            )));
            continue;
        }
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
    // The others cannot work here.
    let drivers = DRIVERS
        .iter()
        .filter(|driver| driver.auto_on.contains(&Platform::current()));
    let probes = drivers.flat_map(|driver| tokio.block_on((driver.probe)(&settings)));
    probes
        .map(|finding| match finding.kind {
            ProbeKind::Works => Finding::Good(finding.text),
            ProbeKind::Note => Finding::Hint(finding.text),
            ProbeKind::LimitMissing => Finding::Warning(finding.text),
        })
        .collect()
}

fn server(home: &Home) -> Vec<Finding> {
    if let Err(Failure::Failed(sentence)) = home.owner() {
        return vec![Finding::Bad(sentence)];
    }
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let running = tokio.ok().and_then(|it| it.block_on(home.running_server()));
    vec![match running {
        Some(running) => Finding::Good(format!(
            "a server (process {}, version {}) is running at {}",
            running.pid, running.version, running.url
        )),
        None => Finding::Hint(format!(
            "no server is running; start one with `{} serve`",
            home.command()
        )),
    }]
}
