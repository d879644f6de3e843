//! The threads that start processes. A process inherits the restrictions of the thread that started it,
//! and the supervisor itself must not have them.
//!
//! Agents hold keys, so each has a Landlock domain of its own: neither commands nor other agents can
//! read its memory or environment. Commands share one domain. Where the container has rules for ports, each
//! domain gets a copy of them, which takes milliseconds and megabytes: a thread for the next agent is
//! always ready.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use oubliette_sandbox::{PortRules, isolate_thread};

/// What containers run is killed before services of the host, and before the supervisor.
const OOM_SCORE_ADJ: &str = "300";
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";
/// How long the thread for commands waits for its first one before it enters its domain: a container is
/// often started for an agent, whose start would take longer.
const COMMANDS_DELAY: Duration = Duration::from_millis(200);
/// How long the thread for the next agent waits before it enters its domain, because the start of the agent before it
/// would take longer.
const NEXT_AGENT_DELAY: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Spawner {
    port_rules: Option<PortRules>,
    /// Starts every command. None if the thread could not be started yet.
    commands: RefCell<Option<IsolatedThread>>,
    /// Starts the next agent. None if the thread could not be started yet.
    next_agent: RefCell<Option<IsolatedThread>>,
}

/// A thread in a Landlock domain of its own, and so are the processes that it starts.
#[derive(Debug)]
struct IsolatedThread {
    jobs: SyncSender<Command>,
    results: Receiver<io::Result<u32>>,
}

impl Spawner {
    /// Starts the threads.
    pub(super) fn new(port_rules: Option<PortRules>) -> Self {
        let commands = IsolatedThread::start(port_rules, COMMANDS_DELAY);
        let next_agent = IsolatedThread::start(port_rules, Duration::ZERO);
        Self {
            port_rules,
            commands: RefCell::new(commands.ok()),
            next_agent: RefCell::new(next_agent.ok()),
        }
    }

    /// Starts a process and returns its pid; the reaper waits for it.
    pub(super) fn spawn(&self, command: Command, isolated: bool) -> io::Result<u32> {
        let own_score = fs::read_to_string(OOM_SCORE_FILE);
        // Inherited by the new process. Fails only where `/proc` is restricted further.
        let _ = fs::write(OOM_SCORE_FILE, OOM_SCORE_ADJ);
        let result = if isolated {
            self.spawn_agent(command)
        } else {
            self.spawn_command(command)
        };
        if let Ok(score) = own_score {
            let _ = fs::write(OOM_SCORE_FILE, score.trim());
        }
        result
    }

    fn spawn_command(&self, command: Command) -> io::Result<u32> {
        let mut commands = self.commands.borrow_mut();
        let thread = match &*commands {
            Some(thread) => thread,
            None => commands.insert(IsolatedThread::start(self.port_rules, Duration::ZERO)?),
        };
        thread.spawn(command)
    }

    fn spawn_agent(&self, command: Command) -> io::Result<u32> {
        let ready = self.next_agent.take();
        let start = |delay| IsolatedThread::start(self.port_rules, delay);
        let thread = ready.map_or_else(|| start(Duration::ZERO), Ok)?;
        let result = thread.spawn(command);
        self.next_agent.replace(start(NEXT_AGENT_DELAY).ok());
        result
    }
}

impl IsolatedThread {
    /// The thread enters its domain when the first process is to be started, or after a delay.
    fn start(port_rules: Option<PortRules>, delay: Duration) -> io::Result<Self> {
        let (jobs, receive_jobs) = sync_channel::<Command>(1);
        let (send_results, results) = sync_channel(1);
        thread::Builder::new().spawn(move || {
            let first = match receive_jobs.recv_timeout(delay) {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let isolated = isolate_thread(port_rules);
            let jobs = first.into_iter().chain(receive_jobs);
            for mut command in jobs {
                let spawned = match &isolated {
                    Ok(_) => command.spawn().map(|child| child.id()),
                    Err(error) => Err(io::Error::new(
                        error.kind(),
                        format!("the rules for ports cannot be applied: {error}"),
                    )),
                };
                if send_results.send(spawned).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { jobs, results })
    }

    fn spawn(&self, command: Command) -> io::Result<u32> {
        let gone = || io::Error::other("the thread that starts processes has ended");
        self.jobs.send(command).map_err(|_| gone())?;
        self.results.recv().map_err(|_| gone())?
    }
}
