//! `oubliette doctor`: checks the data directory, what this machine can do and what the running server has, and
//! says how to fix what does not work. It starts no server.

mod finding;

use std::net::SocketAddr;
use std::process::Command;

use oubliette_engine::credential_kinds;
use oubliette_runtime::{DRIVERS, DockerSettings, Platform, ProbeKind};
use oubliette_store::sqlite;
use serde_json::{Value, json};

use crate::client_binary;
use crate::config::{self, Config};
use crate::containers;
use crate::executor::block_on;
use crate::failure::Failure;
use crate::home::{Home, ServerInfo};
use crate::terminal::width::stdout_columns;
use crate::terminal::{output, print_json, print_line};

pub(crate) use self::finding::Finding;
use self::finding::Level;

/// With less free space, `doctor` warns.
const LOW_DISK_MB: u64 = 200;

/// Finds out what the running server has and can do.
pub(crate) type ServerChecks<'a> = &'a dyn Fn() -> Vec<(&'static str, Vec<Finding>)>;

/// Prints every finding; fails if one of them prevents Oubliette from working.
pub(crate) fn run(home: &Home, checks: ServerChecks<'_>) -> Result<(), Failure> {
    let running = running_server(home);
    let mut findings = vec![
        ("data_directory", data_directory(home)),
        ("disk_space", disk_space(home)),
        ("database", database(home)),
        ("configuration", configuration(home, running.is_some())),
        ("git", git()),
        ("client", client()),
        ("runtimes", runtimes(home)),
        ("server", server(home, running.as_ref())),
    ];
    if let Some(running) = &running {
        findings.push(("network", network(home, running)));
        findings.extend(checks());
    }
    let all = || {
        findings
            .iter()
            .flat_map(|(check, found)| found.iter().map(move |finding| (*check, finding)))
    };
    let problems = all().filter(|(_, it)| it.level == Level::Bad).count();
    if output::is_json() {
        let findings: Vec<Value> = all().map(|(check, it)| it.to_json(check)).collect();
        let report = json!({ "problems": problems, "findings": findings });
        print_json(&report);
    } else {
        let columns = stdout_columns();
        let lines: Vec<String> = all().map(|(_, it)| it.line(columns)).collect();
        print_line(&lines.join("\n"));
    }
    match problems {
        0 => Ok(()),
        1 => Err(Failure::new("one problem needs your attention")),
        count => Err(Failure::new(format!(
            "{count} problems need your attention"
        ))),
    }
}

fn running_server(home: &Home) -> Option<ServerInfo> {
    block_on(home.running_server()).ok()?
}

fn data_directory(home: &Home) -> Vec<Finding> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let path = home.path();
    let Ok(meta) = std::fs::metadata(path) else {
        return vec![Finding::hint(format!(
            "{} does not exist yet; the first command that needs a server creates it",
            path.display()
        ))];
    };
    if let Err(error) = std::fs::read_dir(path) {
        return vec![Finding::bad(format!(
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
        findings.push(Finding::good(format!("data directory {}", path.display())));
    }
    if mode & 0o077 != 0 {
        findings.push(Finding::hint(format!(
            "{} can be read by others (mode {mode:o}); run `chmod 700 {}`",
            path.display(),
            path.display()
        )));
    }
    if home.database().exists() && home.admin_key().is_none() {
        findings.push(Finding::hint(format!(
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
        0 => vec![Finding::bad(format!(
            "no space left {text}; agents wait until there is space"
        ))],
        free if free < LOW_DISK_MB => vec![Finding::warning(format!("little space left {text}"))],
        _ => vec![Finding::good(format!("there is space {text}"))],
    }
}

fn database(home: &Home) -> Vec<Finding> {
    let path = home.database();
    if !path.exists() {
        return Vec::new();
    }
    vec![match sqlite::verify(&path) {
        Ok(()) => Finding::good("the database is sound".to_owned()),
        Err(error) => Finding::bad(error.to_string()),
    }]
}

/// With a running server, which reads credentials in its own environment, they are not read here.
fn configuration(home: &Home, is_running: bool) -> Vec<Finding> {
    let config = match Config::load(&home.config_file(), std::env::vars()) {
        Ok(config) => config,
        Err(Failure::Failed(sentence)) => return vec![Finding::bad(sentence)],
        Err(Failure::Usage(_) | Failure::Exit(_)) => return Vec::new(),
    };
    let mut findings = vec![match home.config_file() {
        file if file.exists() => Finding::good(format!("configuration {}", file.display())),
        file => Finding::good(format!("no {}", file.display())),
    }];
    let variables = config::variable_names(std::env::vars());
    findings.push(Finding::good(match variables.as_slice() {
        [] if !home.config_file().exists() => "every setting has its default value".to_owned(),
        [] => "no setting is changed by an environment variable".to_owned(),
        names => format!("settings are changed by {}", names.join(", ")),
    }));
    let kinds = credential_kinds(&config.settings(home.path()));
    for (name, credential) in &config.credentials {
        if !kinds.contains(&credential.kind) {
            let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
            findings.push(Finding::bad(format!(
                "credential `{name}` has the kind `{}`, which nothing uses; the kinds are {}",
                credential.kind,
                kinds.join(", ")
            )));
            continue;
        }
        if is_running {
            continue;
        }
        findings.push(match credential.read() {
            Ok(_) => Finding::good(format!(
                "credential `{name}` ({}) can be read, with the environment of this shell",
                credential.kind
            )),
            Err(error) => Finding::bad(format!(
                "credential `{name}`, with the environment of this shell: {error}"
            )),
        });
    }
    findings
}

fn git() -> Vec<Finding> {
    vec![match Command::new("git").arg("--version").output() {
        Ok(output) if output.status.success() => {
            let version = String::from_utf8_lossy(&output.stdout);
            Finding::good(format!("{} for cloning", version.trim()))
        }
        _ => Finding::hint(
            "git is not installed; without it no project can be cloned from a `remote_url`"
                .to_owned(),
        ),
    }]
}

/// The client program that containers run, if it is not this binary.
fn client() -> Vec<Finding> {
    match client_binary::find() {
        Ok(client) if std::env::current_exe().is_ok_and(|own| own == client) => Vec::new(),
        Ok(client) => vec![Finding::good(format!(
            "containers run {}",
            client.display()
        ))],
        Err(why) => vec![Finding::bad(why)],
    }
}

/// What each runtime of the table can do on this machine.
fn runtimes(home: &Home) -> Vec<Finding> {
    let not_probed = |error: String| {
        let text = format!("the runtimes could not be probed: {error}");
        vec![Finding::hint(text)]
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
            ProbeKind::Works => Finding::good(finding.text),
            ProbeKind::Note => Finding::hint(finding.text),
            ProbeKind::LimitMissing => Finding::warning(finding.text),
        })
        .collect()
}

fn server(home: &Home, running: Option<&ServerInfo>) -> Vec<Finding> {
    if let Err(Failure::Failed(sentence)) = home.owner() {
        return vec![Finding::bad(sentence)];
    }
    let command = home.command();
    let Some(running) = running else {
        return vec![Finding::hint(format!(
            "no server is running; a command that needs one starts it, and `{command} up` starts one that stays"
        ))];
    };
    let own = env!("CARGO_PKG_VERSION");
    let place = running.url.as_ref().map(|url| format!(" at {url}"));
    let mut findings = vec![Finding::good(format!(
        "a server (process {}, version {}) is running{}",
        running.pid,
        running.version,
        place.unwrap_or_default()
    ))];
    if running.version != own {
        findings.push(Finding::hint(format!(
            "this command has version {own}; `{command} up --restart` starts the server in this version, and \
             containers and agents keep running"
        )));
    }
    findings
}

/// Who can reach the server, and where clients look for it.
fn network(home: &Home, running: &ServerInfo) -> Vec<Finding> {
    if let Some(reason) = &running.no_url_reason {
        return vec![Finding::warning(format!(
            "only commands of this machine reach the server, no MCP clients with its URL: {reason} When the port is \
             free, `{} up --restart` takes it",
            home.command()
        ))];
    }
    let address = running.url.as_deref();
    let address = address.and_then(|it| it.strip_prefix("http://"));
    let address = address.and_then(|it| it.strip_suffix("/mcp")?.parse::<SocketAddr>().ok());
    let Some(address) = address else {
        return Vec::new();
    };
    vec![if address.ip().is_loopback() {
        Finding::good("only this machine can reach the server")
    } else {
        Finding::warning(format!(
            "others on the network can reach the server at {address}, without encryption; set `server.listen` to \
             127.0.0.1:7433 and put a TLS proxy in front of it"
        ))
    }]
}
