//! Two sides over a pipe in memory.

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;

use super::*;

struct Pair {
    near: Carrier,
    arrivals: mpsc::Receiver<Carried>,
    tasks: [JoinHandle<io::Result<()>>; 2],
}

fn pair() -> Pair {
    // Small, so that frames are cut everywhere.
    let (a, b) = duplex(1000);
    let (sender, arrivals) = mpsc::channel(64);
    let (near, one) = carry(a, None);
    let (_, two) = carry(b, Some(sender));
    Pair {
        near,
        arrivals,
        tasks: [tokio::spawn(one), tokio::spawn(two)],
    }
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|n| ((n + seed) * 31 % 251) as u8)
        .collect()
}

#[tokio::test]
async fn many_connections_carry_their_own_bytes_both_ways() {
    let mut pair = pair();
    let mut ends = Vec::new();
    for seed in 0..20 {
        let mut near = pair.near.open().unwrap();
        let mut far = pair.arrivals.recv().await.unwrap();
        ends.push(tokio::spawn(async move {
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
    for end in ends {
        end.await.unwrap();
    }
    assert!(pair.near.shared.lock().connections.is_empty());
}

#[tokio::test]
async fn a_connection_that_is_not_read_holds_up_nobody_and_stays_bounded() {
    let mut pair = pair();
    let mut stuck = pair.near.open().unwrap();
    let unread = pair.arrivals.recv().await.unwrap();
    let writing = tokio::spawn(async move {
        let _ = stuck.write_all(&vec![7; 4 << 20]).await;
    });
    let mut near = pair.near.open().unwrap();
    let mut far = pair.arrivals.recv().await.unwrap();
    for round in 0..100 {
        let sent = pattern(round, 10_000);
        near.write_all(&sent).await.unwrap();
        let mut back = vec![0; sent.len()];
        far.read_exact(&mut back).await.unwrap();
        assert!(back == sent);
    }
    let held = far.shared.lock().connections[&unread.id].arrived.len();
    assert!(held <= WINDOW as usize, "{held}");
    assert!(!writing.is_finished());
    drop(unread);
    writing.await.unwrap();
}

#[tokio::test]
async fn whoever_leaves_is_missed_as_a_socket_would_be() {
    let mut pair = pair();
    let mut near = pair.near.open().unwrap();
    let mut far = pair.arrivals.recv().await.unwrap();
    far.write_all(b"last words").await.unwrap();
    drop(far);
    let mut heard = Vec::new();
    near.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, b"last words");
    let error = near.write_all(b"too late").await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);

    let mut cut = pair.near.open().unwrap();
    let _far = pair.arrivals.recv().await.unwrap();
    pair.tasks[0].abort();
    let lost = cut.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(lost.kind(), io::ErrorKind::ConnectionReset);
    assert!(cut.write_all(b"x").await.is_err());
    assert!(pair.near.open().is_err() && !pair.near.is_open());
}

async fn accepting(bytes: &[u8]) -> io::Result<()> {
    let (mut a, b): (DuplexStream, DuplexStream) = duplex(1 << 20);
    let (sender, arrivals) = mpsc::channel(4);
    let (_, carrying) = carry(b, Some(sender));
    a.write_all(bytes).await.unwrap();
    drop(a);
    let outcome = carrying.await;
    drop(arrivals);
    outcome
}

#[tokio::test]
async fn what_breaks_the_rules_ends_the_stream_and_what_is_newer_is_let_pass() {
    let mut flood = Vec::new();
    Frame::new(1, Kind::Open).write(&mut flood);
    for _ in 0..=(WINDOW as usize / frame::LONGEST) {
        Frame::new(1, Kind::Data)
            .with(&[0; frame::LONGEST])
            .write(&mut flood);
    }
    assert!(accepting(&flood).await.is_err());
    let mut twice = Vec::new();
    Frame::new(1, Kind::Open).write(&mut twice);
    Frame::new(1, Kind::Open).write(&mut twice);
    // The first is dropped by nobody here, so the second is one too many.
    assert!(accepting(&twice).await.is_err());
    assert!(
        accepting(&[0, 0, 0, 1, 2, 0xFF, 0xFF, 0xFF, 0xFF])
            .await
            .is_err()
    );
    assert!(
        accepting(&[0, 0, 0, 1, 99, 0, 0, 0, 2, b'o', b'k'])
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn only_who_knows_the_key_is_let_in() {
    let (mut a, mut b) = duplex(100);
    let hash = hash_of_key("secret");
    let (asked, given) = tokio::join!(challenge(&mut a, &hash, [3; 32]), introduce(&mut b, &hash));
    asked.unwrap();
    given.unwrap();
    let wrong = hash_of_key("guess");
    let (asked, _) = tokio::join!(challenge(&mut a, &hash, [4; 32]), introduce(&mut b, &wrong));
    assert_eq!(asked.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
}

proptest! {
    #[test]
    fn no_bytes_from_a_container_take_the_server_down(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        kinds in proptest::collection::vec((0u32..4, 0u8..8, 0usize..40), 0..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut frames = Vec::new();
            for (connection, kind, length) in kinds {
                frames.extend(connection.to_be_bytes());
                frames.push(kind);
                frames.extend((length as u32).to_be_bytes());
                frames.extend(vec![0; length]);
            }
            frames.extend(bytes);
            let _ = accepting(&frames).await;
        });
    }
}
