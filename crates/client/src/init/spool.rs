//! The output of a stream, kept until the server has it: a ring in a file that has no name.
//!
//! Every byte has an offset from the beginning of the stream. When the ring is full, nobody reads
//! the pipe, so the process waits and nothing is lost.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use oubliette_wire::Spooled;
use tokio::net::unix::pipe;
use tokio::sync::Notify;

const CHUNK: usize = 64 << 10;
const RETRY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Spool {
    file: File,
    limit: u64,
    held: Cell<Spooled>,
    /// No more will come.
    closed: Cell<bool>,
    /// Everything that was written before the process ended is here.
    drained: Cell<bool>,
    buffer: RefCell<Vec<u8>>,
    /// What was read and could not be written yet: the disk is full, for one.
    stuck: RefCell<Vec<u8>>,
    changed: Notify,
}

impl Spool {
    pub(super) fn new(directory: &Path, limit: u64) -> io::Result<Self> {
        Ok(Self::on(tempfile::tempfile_in(directory)?, limit))
    }

    fn on(file: File, limit: u64) -> Self {
        Self {
            file,
            limit: limit.max(1),
            held: Cell::default(),
            closed: Cell::new(false),
            drained: Cell::new(false),
            buffer: RefCell::default(),
            stuck: RefCell::default(),
            changed: Notify::new(),
        }
    }

    pub(super) fn held(&self) -> Spooled {
        self.held.get()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    pub(super) fn is_drained(&self) -> bool {
        self.drained.get()
    }

    /// Waits until something is different; register before looking, so that nothing is missed.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// Drops what the server has stored.
    pub(super) fn acknowledge(&self, offset: u64) {
        let held = self.held.get();
        let start = offset.clamp(held.start, held.end);
        self.held.set(Spooled { start, ..held });
        self.changed.notify_waiters();
    }

    /// Copies bytes from `offset` on; none if there are none yet. `offset` must not be dropped.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let held = self.held.get();
        if offset >= held.end {
            return Ok(0);
        }
        let at = offset % self.limit;
        let most = (held.end - offset)
            .min(self.limit - at)
            .min(into.len() as u64);
        let most = usize::try_from(most).unwrap_or(into.len());
        self.file.read_exact_at(&mut into[..most], at)?;
        Ok(most)
    }

    /// Reads a pipe to its end, as fast as there is room.
    pub(super) async fn fill(&self, pipe: pipe::Receiver, ended: &Notify, has_ended: &Cell<bool>) {
        loop {
            if !self.store_stuck() {
                // The process waits, and nothing is lost, until there is room on the disk again.
                tokio::time::sleep(RETRY).await;
                continue;
            }
            if self.room() == 0 {
                // Register first: an acknowledgement between the look and the wait counts.
                let changed = self.changed();
                if self.room() == 0 {
                    changed.await;
                }
                continue;
            }
            // The pipe itself is asked, not what the event loop last heard of it: only then does
            // an empty pipe mean that all a process wrote is here.
            match self.take(|buffer| Ok(rustix::io::read(&pipe, buffer)?)) {
                Ok(0) => break,
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
            if has_ended.get() {
                self.drained.set(true);
                self.changed.notify_waiters();
            }
            tokio::select! {
                ready = pipe.readable() => {
                    if ready.is_err() {
                        break;
                    }
                    // This read also tells the event loop when the pipe is empty again.
                    match self.take(|buffer| pipe.try_read(buffer)) {
                        Ok(0) => break,
                        Err(error) if error.kind() != io::ErrorKind::WouldBlock => break,
                        _ => {}
                    }
                }
                () = ended.notified(), if !has_ended.get() => {}
            }
        }
        self.close();
    }

    /// Says that no more will come.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.drained.set(true);
        self.changed.notify_waiters();
    }

    fn room(&self) -> u64 {
        let held = self.held.get();
        self.limit - (held.end - held.start)
    }

    /// Moves what the pipe has now into the ring.
    fn take(&self, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        let held = self.held.get();
        let at = held.end % self.limit;
        let most = self.room().min(self.limit - at);
        let most = usize::try_from(most).unwrap_or(CHUNK).min(CHUNK);
        let mut buffer = self.buffer.borrow_mut();
        buffer.resize(CHUNK, 0);
        let read = read(&mut buffer[..most])?;
        if self.store(&buffer[..read]).is_err() {
            *self.stuck.borrow_mut() = buffer[..read].to_vec();
        }
        // Idle streams keep no buffer.
        if read < CHUNK / 4 {
            *buffer = Vec::new();
        }
        Ok(read)
    }

    /// Writes bytes, for which there is room, at the end of the ring.
    fn store(&self, bytes: &[u8]) -> io::Result<()> {
        let held = self.held.get();
        self.file.write_all_at(bytes, held.end % self.limit)?;
        let end = held.end + bytes.len() as u64;
        self.held.set(Spooled { end, ..held });
        self.changed.notify_waiters();
        Ok(())
    }

    /// Whether nothing is left that could not be written.
    fn store_stuck(&self) -> bool {
        let mut stuck = self.stuck.borrow_mut();
        if !stuck.is_empty() && self.store(&stuck).is_ok() {
            *stuck = Vec::new();
        }
        stuck.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::rc::Rc;

    use super::*;

    fn pipe() -> (File, pipe::Receiver) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        rustix::fs::fcntl_setfl(&read, rustix::fs::OFlags::NONBLOCK).unwrap();
        (write.into(), pipe::Receiver::from_owned_fd(read).unwrap())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_full_spool_makes_the_writer_wait_and_loses_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Rc::new(Spool::new(directory.path(), 1000).unwrap());
        let (mut writer, reader) = pipe();
        let text: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        let sent = text.clone();
        let writing = std::thread::spawn(move || writer.write_all(&sent).unwrap());
        let filler = spool.clone();
        let local = LocalSetRun::new();
        local
            .run(async move {
                let (ended, has_ended) = (Notify::new(), Cell::new(false));
                let reading = async {
                    let (mut got, mut chunk) = (Vec::new(), [0; 700]);
                    loop {
                        let changed = spool.changed();
                        let read = spool.read(got.len() as u64, &mut chunk).unwrap();
                        if read == 0 && spool.is_closed() {
                            return got;
                        }
                        if read == 0 {
                            changed.await;
                        }
                        got.extend_from_slice(&chunk[..read]);
                        spool.acknowledge(got.len() as u64);
                        assert!(spool.held().end - spool.held().start <= 1000);
                    }
                };
                let (got, ()) = tokio::join!(reading, filler.fill(reader, &ended, &has_ended));
                assert!(got == text, "bytes were lost or changed");
            })
            .await;
        writing.join().unwrap();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_a_process_wrote_before_it_ended_is_there_though_the_pipe_stays_open() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::new(directory.path(), 1000).unwrap();
        let (mut writer, reader) = pipe();
        writer.write_all(b"all of it").unwrap();
        let (ended, has_ended) = (Notify::new(), Cell::new(true));
        let filled = spool.fill(reader, &ended, &has_ended);
        let drained = async {
            loop {
                let changed = spool.changed();
                if spool.is_drained() {
                    return;
                }
                changed.await;
            }
        };
        tokio::select! {
            () = filled => panic!("the pipe is still open"),
            () = drained => {}
        }
        assert_eq!(spool.held().end, 9);
        assert!(!spool.is_closed());
        drop(writer);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_full_disk_holds_bytes_back_and_loses_none() {
        let full = File::options()
            .read(true)
            .write(true)
            .open("/dev/full")
            .unwrap();
        let spool = Spool::on(full, 1000);
        let (mut writer, reader) = pipe();
        writer.write_all(b"kept").unwrap();
        drop(writer);
        let (ended, has_ended) = (Notify::new(), Cell::new(true));
        let filled = spool.fill(reader, &ended, &has_ended);
        tokio::select! {
            () = filled => panic!("the stream was given up"),
            () = tokio::time::sleep(RETRY * 3) => {}
        }
        assert_eq!(*spool.stuck.borrow(), b"kept");
        assert!(!spool.is_drained(), "what is not stored is not complete");
    }

    /// Runs a future that is not `Send`.
    struct LocalSetRun(tokio::task::LocalSet);

    impl LocalSetRun {
        fn new() -> Self {
            Self(tokio::task::LocalSet::new())
        }

        async fn run<T>(&self, future: impl Future<Output = T>) -> T {
            self.0.run_until(future).await
        }
    }
}
