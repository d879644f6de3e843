//! The processes of the supervisor.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use oubliette_wire::{ProcessFaultKind, ProcessReport, Start, User};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::sync::Notify;

use super::process::{Process, StartError};
use super::process_tag::ProcessTags;
use super::spawner::Spawner;

/// More than any project needs; it bounds what a server can request from one container.
const MAX_PROCESSES: usize = 4096;
/// A process can fork while its tree is being killed, so the tree is searched again until it is empty.
const MAX_KILL_ROUNDS: usize = 100;

#[derive(Debug)]
pub(super) struct ProcessTable {
    spool_directory: PathBuf,
    /// The user of processes whose start names none.
    user: Option<User>,
    /// Variables of processes whose start does not set them.
    environment: BTreeMap<String, String>,
    tags: ProcessTags,
    spawner: Spawner,
    pub(super) boot_id: String,
    processes: RefCell<BTreeMap<String, Rc<Process>>>,
    /// The container is being stopped.
    closed: Cell<bool>,
    /// Notified whenever a process has ended.
    pub(super) process_ended: Notify,
}

impl ProcessTable {
    pub(super) fn new(
        spool_directory: &Path,
        boot_id: &str,
        user: Option<User>,
        environment: BTreeMap<String, String>,
        spawner: Spawner,
    ) -> Self {
        Self {
            spool_directory: spool_directory.to_owned(),
            user,
            environment,
            tags: ProcessTags::new(),
            spawner,
            boot_id: boot_id.to_owned(),
            processes: RefCell::default(),
            closed: Cell::new(false),
            process_ended: Notify::new(),
        }
    }

    /// Starts a process, or returns the one that was started with this id.
    pub(super) fn start(&self, start: &Start) -> Result<Rc<Process>, StartError> {
        if let Some(process) = self.get(&start.process_id) {
            return Ok(process);
        }
        if self.closed.get() {
            return Err(StartError {
                kind: ProcessFaultKind::Stopping,
                message: "the container is being stopped".to_owned(),
            });
        }
        if self.processes.borrow().len() >= MAX_PROCESSES {
            return Err(StartError {
                kind: ProcessFaultKind::Other,
                message: format!("the supervisor already has {MAX_PROCESSES} processes"),
            });
        }
        let process = Process::start(
            start,
            start.user.or(self.user),
            &self.environment,
            &self.spool_directory,
            self.tags.allocate(),
            &self.spawner,
        )?;
        self.processes
            .borrow_mut()
            .insert(start.process_id.clone(), process.clone());
        Ok(process)
    }

    /// Starts no more processes.
    pub(super) fn close(&self) {
        self.closed.set(true);
    }

    pub(super) fn get(&self, id: &str) -> Option<Rc<Process>> {
        self.processes.borrow().get(id).cloned()
    }

    /// The running process with this pid; processes that have ended can have had the same one.
    pub(super) fn by_pid(&self, pid: u32) -> Option<Rc<Process>> {
        self.processes
            .borrow()
            .values()
            .find(|process| process.pid == pid && !process.has_ended())
            .cloned()
    }

    pub(super) fn all(&self) -> Vec<Rc<Process>> {
        self.processes.borrow().values().cloned().collect()
    }

    pub(super) fn reports(&self) -> Vec<ProcessReport> {
        self.all().iter().map(|process| process.report()).collect()
    }

    /// Removes a process that has ended.
    pub(super) fn forget(&self, id: &str) {
        let mut processes = self.processes.borrow_mut();
        if processes
            .get(id)
            .is_some_and(|process| process.exited().is_some())
        {
            processes.remove(id);
        }
    }
}

/// Sends a signal to a process, and with `tree` to everything it started.
pub(super) fn send_signal(process: &Process, signal: Signal, tree: bool) {
    let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else {
        return;
    };
    if !tree {
        if !process.has_ended() {
            let _ = kill_process(pid, signal);
        }
        return;
    }
    // The kernel does not reuse the id of a process group with members; an empty group's id can be
    // that of an unrelated process by now.
    if !process.has_ended() || ProcStat::read(pid.as_raw_nonzero().get()).is_none() {
        let _ = kill_process_group(pid, signal);
    }
    let rounds = if signal == Signal::KILL {
        MAX_KILL_ROUNDS
    } else {
        1
    };
    for _ in 0..rounds {
        let members = tree_members(process);
        if members.is_empty() {
            break;
        }
        for member in members {
            let _ = kill_process(member, signal);
        }
    }
}

/// The living processes that have the tag of `process`, and all descendants of those.
fn tree_members(process: &Process) -> Vec<Pid> {
    let all: Vec<ProcStat> = all_pids().into_iter().filter_map(ProcStat::read).collect();
    let mut found: Vec<i32> = all
        .iter()
        .filter(|stat| process.tag.is_on(stat.pid))
        .map(|stat| stat.pid)
        .collect();
    if !process.has_ended() {
        found.push(i32::try_from(process.pid).unwrap_or_default());
    }
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        let children = all
            .iter()
            .filter(|stat| stat.parent == parent)
            .map(|stat| stat.pid);
        let new: Vec<i32> = children.filter(|pid| !found.contains(pid)).collect();
        found.extend(new);
    }
    let is_alive = |pid: &i32| all.iter().any(|stat| stat.pid == *pid && !stat.is_dead);
    found
        .into_iter()
        .filter(is_alive)
        .filter_map(Pid::from_raw)
        .collect()
}

fn all_pids() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// A process in `/proc`.
struct ProcStat {
    pid: i32,
    parent: i32,
    is_dead: bool,
}

impl ProcStat {
    fn read(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses and can contain anything, also parentheses.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        Some(Self {
            pid,
            parent,
            is_dead: matches!(state, "Z" | "X"),
        })
    }
}
