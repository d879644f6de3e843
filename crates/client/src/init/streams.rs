//! Connections that carry the bytes of one stream of a process.

use std::io;
use std::rc::Rc;

use oubliette_wire::{Message, OpenStream, StreamKind, StreamOpened, supervisor_methods};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::process::Process;
use super::server_transport::{Connection, ServerTransport};
use super::spool::Spool;

const BUFFER_BYTES: usize = 64 << 10;

/// Connects to the server and transfers a stream until its end, or until either side disconnects.
pub(super) async fn transfer(
    transport: &ServerTransport,
    process: Rc<Process>,
    request: OpenStream,
) {
    let transferring = async {
        let mut connection = transport.connect().await?;
        match request.kind {
            StreamKind::Stdin => receive_input(&mut *connection, &process, &request).await,
            StreamKind::Stdout => send_output(&mut *connection, &process.stdout, &request).await,
            StreamKind::Stderr => send_output(&mut *connection, &process.stderr, &request).await,
        }
    };
    // After a broken connection the server requests the stream again, from the offset it has.
    let _: io::Result<()> = transferring.await;
}

async fn send_header(
    connection: &mut dyn Connection,
    request: &OpenStream,
    from: u64,
) -> io::Result<()> {
    let opened = StreamOpened {
        stream_id: request.stream_id.clone(),
        from,
    };
    let header = Message::notification(supervisor_methods::STREAM, &opened);
    connection.write_all(&header.to_line()).await
}

async fn send_output(
    connection: &mut dyn Connection,
    spool: &Spool,
    request: &OpenStream,
) -> io::Result<()> {
    let mut offset = request.from.max(spool.range().start);
    send_header(connection, request, offset).await?;
    let (mut reader, mut writer) = tokio::io::split(connection);
    let mut buffer = Vec::new();
    let mut ignored = [0; 1];
    loop {
        let changed = spool.changed();
        buffer.resize(BUFFER_BYTES, 0);
        // The server can have acknowledged bytes that were not sent on this connection.
        offset = offset.max(spool.range().start);
        let read = spool.read(offset, &mut buffer)?;
        if read > 0 {
            writer.write_all(&buffer[..read]).await?;
            offset += read as u64;
            continue;
        }
        if spool.is_closed() {
            return writer.shutdown().await;
        }
        // An idle stream has no buffer.
        buffer = Vec::new();
        tokio::select! {
            () = changed => {}
            read = reader.read(&mut ignored) => if read? == 0 { return Ok(()) },
        }
    }
}

async fn receive_input(
    connection: &mut dyn Connection,
    process: &Process,
    request: &OpenStream,
) -> io::Result<()> {
    let mut offset = request.from;
    send_header(connection, request, process.stdin.received()).await?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = connection.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        if !process.stdin.write(offset, &buffer[..read]).await {
            return Ok(());
        }
        offset += read as u64;
    }
}
