//! What tests can need of the machine, and how the environment asks for it.
//!
//! What a variable names must be there: a test that needs it runs and fails if it is missing. Without
//! `OUBLIETTE_TEST_RUNTIMES`, tests run with the embedded sandbox if this machine can run it.

use std::ffi::OsString;
use std::sync::LazyLock;

use oubliette_test_harness::{Suite, is_named, not_named};

use crate::binary;
use crate::{agents, clients, runtimes};

const RUNTIMES_VARIABLE: &str = "OUBLIETTE_TEST_RUNTIMES";
const NAMESPACES_VARIABLE: &str = "OUBLIETTE_TEST_NAMESPACES";
const RUNTIMES: [&str; 4] = ["sandbox", "docker", "docker-channel", "apple"];

/// How the binaries of this package run their tests.
pub const SUITE: Suite = Suite {
    missing,
    prepare: prepared_environment,
};

/// Why tests that need something do not run here, with the remedy; `None` if they run.
///
/// # Panics
/// If the need is unknown.
pub fn missing(need: &str) -> Option<String> {
    match need {
        "sandbox" | "docker" | "docker-channel" => missing_runtime(need),
        "namespaces" => missing_namespaces(),
        "root" => (!rustix::process::geteuid().is_root()).then(|| "this is not root".to_owned()),
        _ if agents::ALL.contains(&need) => missing_download(agents::VARIABLE, &agents::ALL, need),
        _ if clients::KNOWN.contains(&need) => {
            missing_download(clients::VARIABLE, &clients::KNOWN, need)
        }
        _ => panic!("a test needs {need}, which is unknown here"),
    }
}

fn missing_runtime(runtime: &str) -> Option<String> {
    match is_named(RUNTIMES_VARIABLE, &RUNTIMES, runtime) {
        Some(true) => None,
        None if runtime == "sandbox" => NO_SANDBOX.clone(),
        _ if runtime == "sandbox" => Some(not_named(
            RUNTIMES_VARIABLE,
            runtime,
            "add `sandbox` to it, or unset it",
        )),
        _ => {
            let remedy =
                format!("run tests/docker, then set {RUNTIMES_VARIABLE}=sandbox,{runtime}");
            Some(not_named(RUNTIMES_VARIABLE, runtime, &remedy))
        }
    }
}

/// Why the embedded sandbox does not work on this machine; `None` if it does.
static NO_SANDBOX: LazyLock<Option<String>> = LazyLock::new(|| {
    let scratch = tempfile::tempdir().unwrap();
    let probe = oubliette_sandbox::probe(binary(), scratch.path());
    if probe.method.is_some() {
        return None;
    }
    let failed = probe.items.iter().find(|item| !item.works);
    let detail = failed.map_or("", |item| &item.detail);
    Some(format!(
        "the embedded sandbox does not work on this machine: {detail} (`oubliette doctor` has more)"
    ))
});

fn missing_download(variable: &str, known: &[&str], name: &str) -> Option<String> {
    let remedy = format!("run tests/install, then set {variable}={name}");
    (is_named(variable, known, name) != Some(true)).then(|| not_named(variable, name, &remedy))
}

fn missing_namespaces() -> Option<String> {
    std::env::var_os(NAMESPACES_VARIABLE).is_none().then(|| {
        format!("{NAMESPACES_VARIABLE} is not set (set it to 1 where `unshare` may mount)")
    })
}

/// Does what all tests share once, in the process that starts them.
fn prepared_environment() -> Vec<(&'static str, OsString)> {
    let mut environment = vec![(binary::VARIABLE, binary().into())];
    if missing("docker").is_none() || missing("docker-channel").is_none() {
        environment.push((runtimes::IMAGE_VARIABLE, runtimes::image_context().into()));
    }
    environment
}
