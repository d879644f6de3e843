//! Kills and full disks, and samples of the server's memory.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::Random;

use crate::SharedServer;
use crate::ledger::Ledger;

/// How long the disk stays full.
const FULL_DISK: Duration = Duration::from_secs(4);

#[derive(Debug, Default)]
pub(crate) struct FaultCounts {
    servers: u64,
    restarts: u64,
    supervisors: u64,
    agents: u64,
    full_disks: u64,
    /// Memory in kB and number of descriptors of the server that is not killed, in the order of time.
    samples: Vec<(u64, usize)>,
}

/// Does something bad every few seconds until the end. The server is not killed in the middle third, so
/// that growth of its memory can be seen.
pub(crate) async fn run(
    server: SharedServer,
    ledger: Arc<Ledger>,
    seed: u64,
    end: Instant,
) -> FaultCounts {
    let mut random = Random::from_seed(seed);
    let mut counts = FaultCounts::default();
    let third = end.saturating_duration_since(Instant::now()) / 3;
    let spares_server = |now: Instant| now + 2 * third > end && now + third < end;
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_secs(3) + random.duration_below(Duration::from_secs(9)))
            .await;
        let pid = server.read().await.pid();
        let spared = spares_server(Instant::now());
        if spared {
            counts.samples.extend(memory_and_descriptors(pid));
        }
        match random.below(8) {
            0 | 1 if spared => {}
            0 | 1 => {
                let mut server = server.write().await;
                if let Some(status) = server.has_exited() {
                    ledger.defect(format!("the server ended by itself: {status}"));
                }
                if random.below(4) == 0 {
                    server.stop();
                    counts.restarts += 1;
                } else {
                    server.kill();
                    counts.servers += 1;
                }
                server.start_again();
            }
            2 => {
                counts.supervisors += kill_one(&server, &mut random, "oubliette-client init").await;
            }
            3..=5 => counts.agents += kill_one(&server, &mut random, "demo-agent").await,
            6 => {
                fill_disk(&server).await;
                counts.full_disks += 1;
            }
            _ => {}
        }
    }
    counts
}

/// Kills one process of the server's containers whose command line contains a text.
async fn kill_one(server: &SharedServer, random: &mut Random, text: &str) -> u64 {
    let processes = server.read().await.leftovers().processes;
    let found: Vec<&String> = processes.iter().filter(|one| one.contains(text)).collect();
    if found.is_empty() {
        return 0;
    }
    let one = found[usize::try_from(random.below(found.len() as u64)).unwrap()];
    let pid = one.split(' ').next().and_then(|pid| pid.parse().ok());
    let killed = pid
        .and_then(Pid::from_raw)
        .map(|pid| kill_process(pid, Signal::KILL));
    u64::from(killed.is_some_and(|killed| killed.is_ok()))
}

async fn fill_disk(server: &SharedServer) {
    let path = server.read().await.home().with_extension("ballast");
    let filled = path.clone();
    let fill = move || {
        use std::io::Write;
        let mut file = std::fs::File::create(filled).unwrap();
        let block = vec![1; 1 << 20];
        while file.write_all(&block).is_ok() {}
    };
    tokio::task::spawn_blocking(fill).await.unwrap();
    tokio::time::sleep(FULL_DISK).await;
    std::fs::remove_file(path).unwrap();
}

fn memory_and_descriptors(pid: u32) -> Option<(u64, usize)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let memory = line.trim().trim_end_matches(" kB").parse().ok()?;
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    Some((memory, descriptors))
}

impl fmt::Display for FaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "killed: {} servers, {} supervisors, {} agents; {} clean restarts; {} full disks",
            self.servers, self.supervisors, self.agents, self.restarts, self.full_disks
        )?;
        writeln!(f, "the server that was not killed, by sixths of its time:")?;
        let sixth = self.samples.len().div_ceil(6).max(1);
        for samples in self.samples.chunks(sixth) {
            let memory = samples.iter().map(|(memory, _)| *memory);
            let descriptors = samples.iter().map(|(_, descriptors)| *descriptors).max();
            writeln!(
                f,
                "  memory {} to {} kB, at most {} descriptors ({} samples)",
                memory.clone().min().unwrap_or(0),
                memory.max().unwrap_or(0),
                descriptors.unwrap_or(0),
                samples.len()
            )?;
        }
        Ok(())
    }
}
