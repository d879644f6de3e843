//! Connections that carry the bytes of one stream.

use std::io;
use std::rc::Rc;

use oubliette_wire::{Message, OpenStream, Opened, StreamKind, methods};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::process::Process;
use super::spool::Spool;
use super::way::{Connection, Way};

const CHUNK: usize = 64 << 10;

/// Dials the server and carries a stream until its end, or until either side leaves.
pub(super) async fn carry(way: &Way, process: Rc<Process>, asked: OpenStream) {
    let carried = async {
        let mut connection = way.dial().await?;
        match asked.kind {
            StreamKind::Stdin => take_input(&mut *connection, &process, &asked).await,
            StreamKind::Stdout => give_output(&mut *connection, &process.stdout, &asked).await,
            StreamKind::Stderr => give_output(&mut *connection, &process.stderr, &asked).await,
        }
    };
    // A broken connection is the server's to mend: it asks again from where it is.
    let _: io::Result<()> = carried.await;
}

async fn begin(connection: &mut dyn Connection, asked: &OpenStream, from: u64) -> io::Result<()> {
    let opened = Opened {
        stream_id: asked.stream_id.clone(),
        from,
    };
    connection
        .write_all(&Message::notification(methods::STREAM, &opened).line())
        .await
}

async fn give_output(
    connection: &mut dyn Connection,
    spool: &Spool,
    asked: &OpenStream,
) -> io::Result<()> {
    let mut offset = asked.from.max(spool.held().start);
    begin(connection, asked, offset).await?;
    let (mut reader, mut writer) = tokio::io::split(connection);
    let mut chunk = Vec::new();
    let mut nothing = [0; 1];
    loop {
        let changed = spool.changed();
        chunk.resize(CHUNK, 0);
        // What was dropped in the meantime is not asked for any more.
        offset = offset.max(spool.held().start);
        let read = spool.read(offset, &mut chunk)?;
        if read > 0 {
            writer.write_all(&chunk[..read]).await?;
            offset += read as u64;
            continue;
        }
        if spool.is_closed() {
            return writer.shutdown().await;
        }
        // An idle stream keeps no buffer.
        chunk = Vec::new();
        tokio::select! {
            () = changed => {}
            left = reader.read(&mut nothing) => if left? == 0 { return Ok(()) },
        }
    }
}

async fn take_input(
    connection: &mut dyn Connection,
    process: &Process,
    asked: &OpenStream,
) -> io::Result<()> {
    let mut offset = asked.from;
    begin(connection, asked, process.stdin.received()).await?;
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = connection.read(&mut chunk).await?;
        if read == 0 {
            return Ok(());
        }
        if !process.stdin.write(offset, &chunk[..read]).await {
            return Ok(());
        }
        offset += read as u64;
    }
}
