//! The processes the supervisor looks after.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use oubliette_wire::{FaultKind, ProcessReport, Start};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::sync::Notify;

use super::brand::Brands;
use super::process::{Process, StartFault};

/// More than any project needs at once; a bound on what a server can ask of one container.
const MOST: usize = 4096;

const MOST_ROUNDS: usize = 100;

#[derive(Debug)]
pub(super) struct Table {
    spools: PathBuf,
    brands: Brands,
    pub(super) boot_id: String,
    processes: RefCell<BTreeMap<String, Rc<Process>>>,
    /// The container is being stopped.
    closed: Cell<bool>,
    /// Told whenever a process has ended.
    pub(super) ended: Notify,
}

impl Table {
    pub(super) fn new(spools: &Path, boot_id: &str) -> Self {
        Self {
            spools: spools.to_owned(),
            brands: Brands::new(),
            boot_id: boot_id.to_owned(),
            processes: RefCell::default(),
            closed: Cell::new(false),
            ended: Notify::new(),
        }
    }

    /// Starts a process, or finds the one that was started under this name.
    pub(super) fn start(&self, start: &Start) -> Result<Rc<Process>, StartFault> {
        if let Some(process) = self.get(&start.process_id) {
            return Ok(process);
        }
        if self.closed.get() {
            return Err(StartFault {
                kind: FaultKind::Stopping,
                why: "the container is being stopped".to_owned(),
            });
        }
        if self.processes.borrow().len() >= MOST {
            let why = format!("{MOST} processes are looked after already");
            return Err(StartFault {
                kind: FaultKind::Other,
                why,
            });
        }
        let process = Process::start(start, &self.spools, self.brands.give())?;
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

    /// The process that has this number now; those that have ended had it before.
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

    /// Lets go of a process that has ended.
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

/// Sends a signal to a process, and with `tree` to all it started, whatever became of them.
pub(super) fn send(process: &Process, signal: Signal, tree: bool) {
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    let Some(pid) = pid else { return };
    if !tree {
        if !process.has_ended() {
            let _ = kill_process(pid, signal);
        }
        return;
    }
    // The number of a group is not given away while there is somebody in it; but once all have
    // left, it may be another's.
    if !process.has_ended() || Seen::of(pid.as_raw_nonzero().get()).is_none() {
        let _ = kill_process_group(pid, signal);
    }
    // A process may start another while the others are found, so what must die is looked for until
    // there is nothing left.
    let rounds = if signal == Signal::KILL {
        MOST_ROUNDS
    } else {
        1
    };
    for _ in 0..rounds {
        let members = members(process);
        if members.is_empty() {
            break;
        }
        for member in members {
            let _ = kill_process(member, signal);
        }
    }
}

/// Every process that one of ours started: those that bear its brand, and those that descend from
/// them and put it off.
fn members(process: &Process) -> Vec<Pid> {
    let all: Vec<Seen> = numbers("/proc").into_iter().filter_map(Seen::of).collect();
    let root = i32::try_from(process.pid).unwrap_or_default();
    let mut found: Vec<i32> = all
        .iter()
        .filter(|seen| process.brand.is_borne_by(seen.pid))
        .map(|s| s.pid)
        .collect();
    if !process.has_ended() {
        found.push(root);
    }
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        let children = all
            .iter()
            .filter(|seen| seen.parent == parent)
            .map(|seen| seen.pid);
        let new: Vec<i32> = children.filter(|pid| !found.contains(pid)).collect();
        found.extend(new);
    }
    let alive = |pid: &i32| all.iter().any(|seen| seen.pid == *pid && !seen.is_dead);
    found
        .into_iter()
        .filter(alive)
        .filter_map(Pid::from_raw)
        .collect()
}

fn numbers(directory: &str) -> Vec<i32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// A process as `/proc` shows it.
struct Seen {
    pid: i32,
    parent: i32,
    is_dead: bool,
}

impl Seen {
    fn of(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses and may hold anything, parentheses too.
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
