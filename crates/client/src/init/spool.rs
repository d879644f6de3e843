//! The output of a stream, kept until the server has stored it: a ring buffer in an unlinked file.
//!
//! Every byte has an offset from the beginning of the stream. When the ring is full, the supervisor
//! does not read the pipe, so the process is blocked and nothing is lost.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use oubliette_wire::SpoolRange;
use tokio::net::unix::pipe;
use tokio::sync::Notify;

const BUFFER_BYTES: usize = 64 << 10;
const WRITE_RETRY_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Spool {
    file: File,
    limit: u64,
    range: Cell<SpoolRange>,
    /// The pipe has ended.
    closed: Cell<bool>,
    /// Everything that was written before the process ended was read from the pipe.
    drained: Cell<bool>,
    buffer: RefCell<Vec<u8>>,
    /// Bytes that could not be written to the file yet, for example because the disk is full.
    unwritten: RefCell<Vec<u8>>,
    changed: Notify,
}

impl Spool {
    pub(super) fn new(directory: &Path, limit: u64) -> io::Result<Self> {
        Ok(Self::with_file(tempfile::tempfile_in(directory)?, limit))
    }

    fn with_file(file: File, limit: u64) -> Self {
        Self {
            file,
            limit: limit.max(1),
            range: Cell::default(),
            closed: Cell::new(false),
            drained: Cell::new(false),
            buffer: RefCell::default(),
            unwritten: RefCell::default(),
            changed: Notify::new(),
        }
    }

    pub(super) fn range(&self) -> SpoolRange {
        self.range.get()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    pub(super) fn is_drained(&self) -> bool {
        self.drained.get()
    }

    /// Waits for the next change. Call it before reading the state, so that no change is missed.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// Drops everything before `offset`, which the server has stored.
    pub(super) fn acknowledge(&self, offset: u64) {
        let range = self.range.get();
        let start = offset.clamp(range.start, range.end);
        self.range.set(SpoolRange { start, ..range });
        self.changed.notify_waiters();
    }

    /// Copies bytes from `offset` on; 0 if there are none yet. `offset` must not be dropped.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let end = self.range.get().end;
        if offset >= end {
            return Ok(0);
        }
        let position = offset % self.limit;
        let available = (end - offset).min(self.limit - position);
        let length = usize::try_from(available).map_or(buffer.len(), |n| n.min(buffer.len()));
        self.file.read_exact_at(&mut buffer[..length], position)?;
        Ok(length)
    }

    /// Reads a pipe to its end, as fast as the ring has space.
    pub(super) async fn fill(&self, pipe: pipe::Receiver, ended: &Notify, has_ended: &Cell<bool>) {
        loop {
            if !self.store_unwritten() {
                // The process is blocked, and nothing is lost, until the disk has space again.
                tokio::time::sleep(WRITE_RETRY_INTERVAL).await;
                continue;
            }
            if self.free_bytes() == 0 {
                // Registered before the second check, so that no acknowledgement is missed.
                let changed = self.changed();
                if self.free_bytes() == 0 {
                    changed.await;
                }
                continue;
            }
            // A read of the pipe itself, not of the event loop's cached state: only then does
            // `WouldBlock` mean that everything the process wrote was read.
            match self.store_from(|buffer| Ok(rustix::io::read(&pipe, buffer)?)) {
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
                    // This read also resets the readiness of the event loop when the pipe is empty.
                    match self.store_from(|buffer| pipe.try_read(buffer)) {
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

    /// Records that no more bytes come.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.drained.set(true);
        self.changed.notify_waiters();
    }

    fn free_bytes(&self) -> u64 {
        let range = self.range.get();
        self.limit - (range.end - range.start)
    }

    /// Reads once and stores the bytes in the ring.
    fn store_from(&self, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        let position = self.range.get().end % self.limit;
        let free = self.free_bytes().min(self.limit - position);
        let length = usize::try_from(free).map_or(BUFFER_BYTES, |free| free.min(BUFFER_BYTES));
        let mut buffer = self.buffer.borrow_mut();
        buffer.resize(BUFFER_BYTES, 0);
        let read = read(&mut buffer[..length])?;
        if self.store(&buffer[..read]).is_err() {
            *self.unwritten.borrow_mut() = buffer[..read].to_vec();
        }
        // An idle stream has no buffer.
        if read < BUFFER_BYTES / 4 {
            *buffer = Vec::new();
        }
        Ok(read)
    }

    /// Writes bytes at the end of the ring, which must have space for them.
    fn store(&self, bytes: &[u8]) -> io::Result<()> {
        let range = self.range.get();
        self.file.write_all_at(bytes, range.end % self.limit)?;
        let end = range.end + bytes.len() as u64;
        self.range.set(SpoolRange { end, ..range });
        self.changed.notify_waiters();
        Ok(())
    }

    /// Tries to store the unwritten bytes; whether none are left.
    fn store_unwritten(&self) -> bool {
        let mut unwritten = self.unwritten.borrow_mut();
        if !unwritten.is_empty() && self.store(&unwritten).is_ok() {
            *unwritten = Vec::new();
        }
        unwritten.is_empty()
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
    async fn a_full_spool_blocks_the_writer_and_loses_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Rc::new(Spool::new(directory.path(), 1000).unwrap());
        let (mut writer, reader) = pipe();
        let text: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        let sent = text.clone();
        let writing = std::thread::spawn(move || writer.write_all(&sent).unwrap());
        let filler = spool.clone();
        tokio::task::LocalSet::new()
            .run_until(async move {
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
                        assert!(spool.range().end - spool.range().start <= 1000);
                    }
                };
                let (got, ()) = tokio::join!(reading, filler.fill(reader, &ended, &has_ended));
                assert!(got == text, "bytes were lost or changed");
            })
            .await;
        writing.join().unwrap();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn output_before_the_exit_is_complete_though_the_pipe_stays_open() {
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
        assert_eq!(spool.range().end, 9);
        assert!(!spool.is_closed());
        drop(writer);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_full_disk_delays_bytes_and_loses_none() {
        let full = File::options()
            .read(true)
            .write(true)
            .open("/dev/full")
            .unwrap();
        let spool = Spool::with_file(full, 1000);
        let (mut writer, reader) = pipe();
        writer.write_all(b"kept").unwrap();
        drop(writer);
        let (ended, has_ended) = (Notify::new(), Cell::new(true));
        let filled = spool.fill(reader, &ended, &has_ended);
        tokio::select! {
            () = filled => panic!("the spool stopped reading"),
            () = tokio::time::sleep(WRITE_RETRY_INTERVAL * 3) => {}
        }
        assert_eq!(*spool.unwritten.borrow(), b"kept");
        assert!(!spool.is_drained(), "unwritten bytes are not drained");
    }
}
