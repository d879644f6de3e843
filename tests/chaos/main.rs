//! Random work and random faults for a while: several tokens use one server, agents misbehave, and the
//! server, supervisors and agents are killed and the disk filled. Afterwards every accepted prompt must
//! have had exactly one turn, and nothing may be left on the machine.
//!
//! `cargo run -p oubliette-tests --bin oubliette-chaos -- MINUTES`, as root. Not part of CI.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "this is a test")]
#![allow(clippy::print_stdout, reason = "the report is the output")]

mod faults;
mod ledger;
mod logs;
mod work;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::{Random, Server, ServerOptions};
use tokio::sync::RwLock;

use faults::FaultCounts;
use ledger::Ledger;
use work::Worker;

/// Set in the process that has a mount namespace and a small disk of its own.
const INSIDE: &str = "OUBLIETTE_CHAOS_DISK";
const DISK_MEGABYTES: u32 = 2048;
const WORKERS: u64 = 6;
const CONFIG: &str = "runtime = \"sandbox\"\n\
    [sessions]\nidle_seconds = 20\nsilence_seconds = 60\npermission_seconds = 15\n\
    spawns_per_minute = 1000\n\
    [caller_tools]\ntimeout_seconds = 5\n";

/// The server, which faults replace. Workers only need its address and keys, which stay.
pub(crate) type SharedServer = Arc<RwLock<Server>>;

#[tokio::main]
async fn main() {
    let minutes: f64 = match std::env::args().nth(1).map(|text| text.parse()) {
        Some(Ok(minutes)) => minutes,
        _ => panic!("usage: oubliette-chaos MINUTES"),
    };
    if std::env::var_os(INSIDE).is_none() {
        run_on_small_disk();
    }
    let mut random = Random::new();
    let server = Server::start_with(ServerOptions {
        config: CONFIG.to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let server: SharedServer = Arc::new(RwLock::new(server));
    let ledger = Arc::new(Ledger::default());
    let end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let mut tasks = Vec::new();
    for number in 0..WORKERS {
        let seed = random.below(u64::MAX);
        let worker = Worker::new(number, seed, admin.clone(), server.clone(), ledger.clone());
        tasks.push(tokio::spawn(worker.run(end)));
    }
    let counts = faults::run(server.clone(), ledger.clone(), random.below(u64::MAX), end).await;
    for task in tasks {
        task.await.unwrap();
    }
    finish(server, &ledger, &counts).await;
}

/// Starts this program again with a small file system for its temporary files. Does not return.
fn run_on_small_disk() -> ! {
    let disk = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o mode=700,size=\"$1\"m none \"$2\" && shift 2 && exec \"$@\"";
    let error = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(DISK_MEGABYTES.to_string())
        .arg(disk.path())
        .args(std::env::args_os())
        .env("TMPDIR", disk.path())
        .env(INSIDE, disk.path())
        .exec();
    panic!("unshare does not start: {error}");
}

/// The directory for temporary files outside the small disk.
fn outer_temp() -> PathBuf {
    let disk = PathBuf::from(std::env::var_os(INSIDE).unwrap());
    disk.parent().unwrap().to_owned()
}

/// Lets everything come to rest, compares the logs with the ledger, deletes all projects and looks for
/// leftovers.
async fn finish(server: SharedServer, ledger: &Ledger, counts: &FaultCounts) {
    let server = Arc::into_inner(server)
        .expect("a worker still runs")
        .into_inner();
    let admin = server.admin();
    let defects = ledger.check(&admin).await;
    ledger.delete_projects(&admin).await;
    println!("{counts}\n{ledger}");
    for defect in &defects {
        println!("DEFECT: {defect}");
    }
    let logs = server.all_logs();
    let panics = logs::print_relevant(&logs);
    logs::keep(&logs, &outer_temp(), !defects.is_empty() || panics > 0);
    server.assert_nothing_left().await;
    println!("nothing is left on the machine");
    assert!(
        defects.is_empty() && panics == 0,
        "{} defects, {panics} panics",
        defects.len()
    );
}
