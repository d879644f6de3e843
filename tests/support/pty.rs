//! A real terminal with the command line in it, driven by the test instead of a person.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use oubliette_test_harness::scaled;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::binary;

/// Nothing that works takes this long, also on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Written after the output of a program that has ended. No program writes it.
const END_MARK: &[u8] = b"\x01end of the output\x01";

/// The output of the terminal so far.
#[derive(Debug, Default)]
struct Shown {
    bytes: Mutex<Vec<u8>>,
    more: Condvar,
}

/// A terminal in which `oubliette` runs.
#[derive(Debug)]
pub struct Pty {
    master: File,
    /// Held, so that the terminal outlives the program and can be looked at.
    slave: File,
    child: Child,
    shown: Arc<Shown>,
    /// The offset up to which `wait_for` has read.
    at: usize,
}

impl Pty {
    /// Runs the command line on a data directory in a new terminal.
    pub fn run(home: &Path, size: (u16, u16), arguments: &[&str]) -> Self {
        let own = home.display().to_string();
        Self::run_in(home, size, arguments, &[("OUBLIETTE_HOME".to_owned(), own)])
    }

    /// Runs the command line in a directory, with these variables, in a new terminal.
    pub fn run_in(
        directory: &Path,
        (rows, columns): (u16, u16),
        arguments: &[&str],
        variables: &[(String, String)],
    ) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC);
        let master = master.unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(&master, winsize(rows, columns)).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap();
        let path = path.into_string().unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        // The client has the step that makes a terminal the controlling one.
        let child = Command::new(binary())
            .arg0("oubliette-client")
            .arg("stage")
            .arg(path)
            .arg(binary())
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", directory)
            .env("TERM", "dumb")
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .current_dir(directory)
            .spawn()
            .unwrap();
        let master = File::from(master);
        let shown = Arc::new(Shown::default());
        let (mut reader, sees) = (master.try_clone().unwrap(), shown.clone());
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut chunk) {
                sees.bytes.lock().unwrap().extend(&chunk[..read]);
                sees.more.notify_all();
            }
        });
        Self {
            master,
            slave: File::from(slave),
            child,
            shown,
            at: 0,
        }
    }

    /// Types keys.
    pub fn type_keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the terminal shows a text after what was waited for before.
    ///
    /// # Panics
    /// If it does not.
    pub fn wait_for(&mut self, text: &str) {
        let deadline = Instant::now() + scaled(WAIT_TIMEOUT);
        let mut bytes = self.shown.bytes.lock().unwrap();
        loop {
            let new = &bytes[self.at..];
            let found = new
                .windows(text.len())
                .position(|window| window == text.as_bytes());
            if let Some(found) = found {
                self.at += found + text.len();
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let all = String::from_utf8_lossy(&bytes).into_owned();
                drop(bytes);
                panic!("waited in vain for {text:?}; the terminal shows {all:?}");
            }
            bytes = self.shown.more.wait_timeout(bytes, left).unwrap().0;
        }
    }

    /// The screen of a terminal of this size after everything that was shown.
    pub fn screen(&self, rows: u16, columns: u16) -> String {
        let size = |number| NonZeroU16::new(number).unwrap();
        let mut parser = vt100::Parser::new(size(rows), size(columns), 0);
        parser.process(&self.shown.bytes.lock().unwrap());
        parser.screen().contents()
    }

    /// Everything it has shown.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.bytes.lock().unwrap()).into_owned()
    }

    /// Makes the window another size.
    pub fn resize(&self, rows: u16, columns: u16) {
        tcsetwinsize(&self.master, winsize(rows, columns)).unwrap();
    }

    /// Whether lines are edited and keys echoed by the terminal itself, as a shell leaves it.
    pub fn has_line_editing(&self) -> bool {
        let modes = tcgetattr(&self.master).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for the end of the command line, and for all of its output; its exit code.
    pub fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + scaled(WAIT_TIMEOUT);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.read_to_end(deadline);
                return status.code();
            }
            assert!(
                Instant::now() < deadline,
                "it does not end; the terminal shows {:?}",
                self.shown()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until everything that was written to the terminal has been read.
    fn read_to_end(&mut self, deadline: Instant) {
        // The terminal keeps the order, so what comes before the mark is all there is.
        self.slave.write_all(END_MARK).unwrap();
        let mut bytes = self.shown.bytes.lock().unwrap();
        while !bytes.ends_with(END_MARK) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the terminal is not read to its end");
            bytes = self.shown.more.wait_timeout(bytes, left).unwrap().0;
        }
        let end = bytes.len() - END_MARK.len();
        bytes.truncate(end);
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn winsize(rows: u16, columns: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}
