//! Two sessions over a pipe in memory.

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;

use super::*;

struct Pair {
    near: MuxSession,
    incoming: mpsc::Receiver<MuxStream>,
    tasks: [JoinHandle<io::Result<()>>; 2],
}

fn pair() -> Pair {
    // Small, so that frames are split at every position.
    let (a, b) = duplex(1000);
    let (sender, incoming) = mpsc::channel(64);
    let (near, near_running) = MuxSession::new(a, None);
    let (_, far_running) = MuxSession::new(b, Some(sender));
    Pair {
        near,
        incoming,
        tasks: [tokio::spawn(near_running), tokio::spawn(far_running)],
    }
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|n| ((n + seed) * 31 % 251) as u8)
        .collect()
}

#[tokio::test]
async fn many_streams_carry_their_own_bytes_both_ways() {
    let mut pair = pair();
    let mut tasks = Vec::new();
    for seed in 0..20 {
        let mut near = pair.near.open().unwrap();
        let mut far = pair.incoming.recv().await.unwrap();
        tasks.push(tokio::spawn(async move {
            let echo = tokio::spawn(async move {
                let mut bytes = Vec::new();
                far.read_to_end(&mut bytes).await.unwrap();
                far.write_all(&bytes).await.unwrap();
            });
            let sent = pattern(seed, 700_000);
            near.write_all(&sent).await.unwrap();
            near.shutdown().await.unwrap();
            let mut back = Vec::new();
            near.read_to_end(&mut back).await.unwrap();
            echo.await.unwrap();
            assert!(back == sent);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(pair.near.shared.state.lock().streams.is_empty());
}

#[tokio::test]
async fn a_stream_that_is_not_read_blocks_no_other_and_stays_bounded() {
    let mut pair = pair();
    let mut blocked = pair.near.open().unwrap();
    let unread = pair.incoming.recv().await.unwrap();
    let writing = tokio::spawn(async move {
        let _ = blocked.write_all(&vec![7; 4 << 20]).await;
    });
    let mut near = pair.near.open().unwrap();
    let mut far = pair.incoming.recv().await.unwrap();
    for round in 0..100 {
        let sent = pattern(round, 10_000);
        near.write_all(&sent).await.unwrap();
        let mut back = vec![0; sent.len()];
        far.read_exact(&mut back).await.unwrap();
        assert!(back == sent);
    }
    let held = far.shared.state.lock().streams[&unread.id].received.len();
    assert!(held <= STREAM_WINDOW_BYTES as usize, "{held}");
    assert!(!writing.is_finished());
    drop(unread);
    writing.await.unwrap();
}

#[tokio::test]
async fn a_dropped_stream_and_a_lost_session_look_like_a_closed_socket() {
    let mut pair = pair();
    let mut near = pair.near.open().unwrap();
    let mut far = pair.incoming.recv().await.unwrap();
    far.write_all(b"last words").await.unwrap();
    drop(far);
    let mut received = Vec::new();
    near.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"last words");
    let error = near.write_all(b"too late").await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);

    let mut cut = pair.near.open().unwrap();
    let _far = pair.incoming.recv().await.unwrap();
    pair.tasks[0].abort();
    let lost = cut.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(lost.kind(), io::ErrorKind::ConnectionReset);
    assert!(cut.write_all(b"x").await.is_err());
    assert!(pair.near.open().is_err() && !pair.near.is_open());
}

async fn receive_bytes(bytes: &[u8]) -> io::Result<()> {
    let (mut a, b): (DuplexStream, DuplexStream) = duplex(1 << 20);
    let (sender, incoming) = mpsc::channel(4);
    let (_, running) = MuxSession::new(b, Some(sender));
    a.write_all(bytes).await.unwrap();
    drop(a);
    let outcome = running.await;
    drop(incoming);
    outcome
}

#[tokio::test]
async fn a_protocol_violation_ends_the_session_and_an_unknown_kind_is_ignored() {
    let mut flood = Vec::new();
    Frame::new(1, FrameKind::Open).write(&mut flood);
    for _ in 0..=(STREAM_WINDOW_BYTES as usize / frame::MAX_PAYLOAD_BYTES) {
        Frame::new(1, FrameKind::Data)
            .with_payload(&[0; frame::MAX_PAYLOAD_BYTES])
            .write(&mut flood);
    }
    assert!(receive_bytes(&flood).await.is_err());
    let mut twice = Vec::new();
    Frame::new(1, FrameKind::Open).write(&mut twice);
    Frame::new(1, FrameKind::Open).write(&mut twice);
    // Nothing drops the first stream, so the second one has a used id.
    assert!(receive_bytes(&twice).await.is_err());
    assert!(
        receive_bytes(&[0, 0, 0, 1, 2, 0xFF, 0xFF, 0xFF, 0xFF])
            .await
            .is_err()
    );
    assert!(
        receive_bytes(&[0, 0, 0, 1, 99, 0, 0, 0, 2, b'o', b'k'])
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn only_a_server_with_the_key_is_accepted() {
    let (mut a, mut b) = duplex(100);
    let hash = hash_key("secret");
    let (asked, given) = tokio::join!(
        challenge_server(&mut a, &hash, [3; 32]),
        answer_challenge(&mut b, &hash)
    );
    asked.unwrap();
    given.unwrap();
    let wrong = hash_key("guess");
    let (asked, _) = tokio::join!(
        challenge_server(&mut a, &hash, [4; 32]),
        answer_challenge(&mut b, &wrong)
    );
    assert_eq!(asked.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
}

proptest! {
    #[test]
    fn no_bytes_from_a_container_make_the_server_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        kinds in proptest::collection::vec((0u32..4, 0u8..8, 0usize..40), 0..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut frames = Vec::new();
            for (stream_id, kind, length) in kinds {
                frames.extend(stream_id.to_be_bytes());
                frames.push(kind);
                frames.extend((length as u32).to_be_bytes());
                frames.extend(vec![0; length]);
            }
            frames.extend(bytes);
            let _ = receive_bytes(&frames).await;
        });
    }
}
