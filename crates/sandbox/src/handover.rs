//! The files that a launcher gets: a socket as its standard input carries their descriptors.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

const MAX_FILES: usize = 2;

/// What a launcher works with.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) spec: File,
    pub(crate) port_rules: Option<OwnedFd>,
}

/// The standard input of a launcher that receives these files.
pub(crate) fn send(
    spec: BorrowedFd<'_>,
    port_rules: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let files: Vec<_> = std::iter::once(spec).chain(port_rules).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Descriptors are sent with at least one byte.
    let message = [IoSlice::new(&[0])];
    sendmsg(ours, &message, &mut ancillary, SendFlags::empty())?;
    Ok(theirs)
}

/// The files that were sent to this launcher.
pub(crate) fn receive() -> io::Result<Handover> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut message = [IoSliceMut::new(&mut byte)];
    let stdin = io::stdin();
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(stdin.as_fd(), &mut message, &mut ancillary, flags)?;
    let mut files = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten();
    let spec = files.next().ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(Handover {
        spec: File::from(spec),
        port_rules: files.next(),
    })
}
