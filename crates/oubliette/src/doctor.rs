//! `oubliette doctor`: what this machine can do, and what would help where it cannot.

use std::io::Write;
use std::process::Command;

use oubliette_runtime::{Docker, DockerSettings, Enforcement, Runtime};
use oubliette_store::sqlite;

use crate::config::Config;
use crate::failure::Failure;
use crate::home::Home;
use crate::inside;

enum Finding {
    Good(String),
    Hint(String),
    Bad(String),
}

/// Prints every finding; fails if one of them keeps Oubliette from working.
pub(crate) fn run(home: &Home) -> Result<(), Failure> {
    let findings = [
        data_directory(home),
        database(home),
        configuration(home),
        git(),
        client(),
        sandbox(),
        docker(home),
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
            "{} does not exist yet; `oubliette serve` makes it",
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
            "{} is missing or damaged; `oubliette token reset-admin` makes a new one",
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
            "no {}: every setting has its default",
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
            "git is not installed; projects cannot be cloned from a `remote_url` until it is"
                .to_owned(),
        ),
    }]
}

/// The program that containers get, where it is not this one.
fn client() -> Vec<Finding> {
    match inside::find() {
        Ok(client) if std::env::current_exe().is_ok_and(|own| own == client) => Vec::new(),
        Ok(client) => vec![Finding::Good(format!(
            "containers get {}",
            client.display()
        ))],
        Err(why) => vec![Finding::Bad(why)],
    }
}

/// What the embedded sandbox can do here, found out by trying it.
fn sandbox() -> Vec<Finding> {
    let (Ok(launcher), Ok(scratch)) = (std::env::current_exe(), tempfile::tempdir()) else {
        return vec![Finding::Hint("the sandbox could not be tried".to_owned())];
    };
    let probe = oubliette_sandbox::probe(&launcher, scratch.path());
    let verdict = match probe.method {
        Some(_) => Finding::Good("the embedded sandbox works".to_owned()),
        None => Finding::Hint(
            "the embedded sandbox does not work here; Docker or Podman can take its place"
                .to_owned(),
        ),
    };
    let item = |item: oubliette_sandbox::ProbeItem| match (item.works, item.remedy) {
        (true, _) => Finding::Good(format!("sandbox: {}: {}", item.name, item.detail)),
        (false, Some(remedy)) => {
            Finding::Hint(format!("sandbox: {}: {}; {remedy}", item.name, item.detail))
        }
        (false, None) => Finding::Hint(format!("sandbox: {}: {}", item.name, item.detail)),
    };
    let disk = Finding::Hint(
        "sandbox: disk_limit: `disk_mb` is measured and reported, not enforced; a filesystem of \
         its own for the data directory keeps others from harm"
            .to_owned(),
    );
    [verdict, disk]
        .into_iter()
        .chain(probe.items.into_iter().map(item))
        .collect()
}

fn docker(home: &Home) -> Vec<Finding> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    else {
        return Vec::new();
    };
    let home = oubliette_runtime::Home::new(home.path());
    let docker = match runtime.block_on(Docker::connect(home, &DockerSettings::default())) {
        Ok(docker) => docker,
        Err(error) => return vec![Finding::Hint(format!("Docker and Podman: {error}"))],
    };
    let capabilities = docker.capabilities();
    let disk = match capabilities.disk_limit {
        Enforcement::NotEnforced => Finding::Hint,
        Enforcement::Enforced | Enforcement::Partly => Finding::Good,
    };
    let notes = capabilities.notes.iter();
    std::iter::once(Finding::Good(format!("{} answers", docker.about())))
        .chain(
            notes
                .filter(|note| note.contains("disk_mb"))
                .map(|note| disk(format!("Docker: {note}"))),
        )
        .collect()
}

fn server(home: &Home) -> Vec<Finding> {
    vec![match home.running() {
        Some(running) if is_alive(running.pid) => Finding::Good(format!(
            "a server (process {}, {}) runs at {}",
            running.pid, running.version, running.url
        )),
        _ => Finding::Hint("no server runs here; `oubliette serve` starts one".to_owned()),
    }]
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}
