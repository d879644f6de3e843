//! The SHA-256 digest of what is read or written.

use std::io::{self, Read, Write};

use sha2::{Digest, Sha256};

/// Computes the digest of everything that passes.
#[derive(Debug)]
pub(super) struct Digested<T> {
    inner: T,
    digest: Sha256,
}

impl<T> Digested<T> {
    pub(super) fn new(inner: T) -> Self {
        Self {
            inner,
            digest: Sha256::new(),
        }
    }

    pub(super) fn into_inner(self) -> T {
        self.inner
    }

    /// The digest of what has passed until now.
    pub(super) fn digest(&self) -> Sha256 {
        self.digest.clone()
    }
}

/// A digest in hexadecimal digits.
pub(super) fn to_hex(digest: Sha256) -> String {
    let bytes = digest.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl<T: Write> Write for Digested<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Digested<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.digest.update(&buffer[..read]);
        Ok(read)
    }
}
