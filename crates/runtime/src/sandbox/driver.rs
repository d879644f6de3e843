//! The row of the table.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use oubliette_sandbox as sandbox;

use super::{Sandbox, describe_item, run_blocking};
use crate::{OpenedRuntime, Platform, ProbeFinding, Result, RuntimeDriver, RuntimeSettings};

pub(crate) const DRIVER: RuntimeDriver = RuntimeDriver {
    name: "sandbox",
    about: "The embedded sandbox; needs Linux and nothing else.",
    auto_on: &[Platform::Linux],
    open,
    probe,
};

/// The items of the probe that are limits of projects.
const LIMITS: [&str; 3] = ["memory_limit", "cpu_limit", "process_limit"];

fn open(settings: &RuntimeSettings) -> BoxFuture<'_, Result<OpenedRuntime>> {
    let (data_dir, launcher) = (settings.data_dir.clone(), settings.launcher.clone());
    let ports = settings.server_ports.clone();
    let stop_only = settings.stop_only;
    async move {
        if stop_only {
            let opened = run_blocking(move || {
                // Best effort: what is left of a probe uses nothing but memory.
                let _ = sandbox::remove_probe(&data_dir.join("run").join("probe"));
                Ok(Sandbox::open_to_stop(&data_dir, &launcher))
            });
            let sandbox = opened.await?;
            return Ok(OpenedRuntime::new(sandbox, "the embedded sandbox"));
        }
        let sandbox = run_blocking(move || Ok(Sandbox::open(&data_dir, &launcher))).await??;
        let sandbox = sandbox.refuse_ports(ports);
        Ok(OpenedRuntime::new(sandbox, "the embedded sandbox"))
    }
    .boxed()
}

fn probe(settings: &RuntimeSettings) -> BoxFuture<'_, Vec<ProbeFinding>> {
    let launcher = settings.launcher.clone();
    async move {
        // Not in the data directory, where a server may be probing at the same time.
        let probed = run_blocking(move || {
            let scratch = tempfile::tempdir()?;
            Ok(sandbox::probe(&launcher, scratch.path()))
        });
        match probed.await {
            Ok(probe) => findings(&probe),
            Err(error) => vec![ProbeFinding::new(
                false,
                format!("sandbox: the probe failed: {error}"),
            )],
        }
    }
    .boxed()
}

fn findings(probe: &sandbox::Probe) -> Vec<ProbeFinding> {
    let works = probe.method.is_some();
    let verdict = if works {
        "the embedded sandbox works"
    } else {
        "the embedded sandbox does not work here; Docker or Podman can take its place"
    };
    let disk_limit = "sandbox: disk_limit: `disk_mb` is measured, and stops containers that exceed \
                      it, but refuses no write; put the data directory on a filesystem of its own to \
                      protect the others";
    let items = probe.items.iter().map(|item| {
        let text = format!("sandbox: {}", describe_item(item));
        // Without a sandbox there is nothing to limit.
        let is_limit = works && LIMITS.contains(&item.name.as_str());
        match (item.works, is_limit) {
            (false, true) => ProbeFinding::limit_missing(text),
            (works, _) => ProbeFinding::new(works, text),
        }
    });
    [
        ProbeFinding::new(works, verdict),
        ProbeFinding::new(false, disk_limit),
    ]
    .into_iter()
    .chain(items)
    .collect()
}
