//! Durable writes through the store, compared with the same rows in bare SQLite transactions and with
//! bare disk syncs.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use oubliette_benches::statistics::median;
use oubliette_benches::table::format_ratio;
use oubliette_benches::{Table, Targets, is_quick};
use oubliette_store::sqlite::Sqlite;
use oubliette_store::{AuditEntry, AuditOutcome, AuditStore};
use rusqlite::{Connection, params};

/// The share of bare SQLite's rows per second that the store must reach.
const MIN_RATE_RATIO: f64 = 0.5;
const WRITER_COUNTS: [usize; 3] = [1, 16, 256];
const OPERATION: &str = "project_get";
const ADDRESS: &str = "127.0.0.1";
const ID: &str = "6f2c1f0e-8d0e-4c57-9d5f-0c6d2b6f3a11";

/// Rows per second in one round.
struct Round {
    store: f64,
    bare: f64,
    syncs: f64,
}

fn main() {
    let (rounds, slice) = if is_quick() {
        (3, Duration::from_millis(200))
    } else {
        (7, Duration::from_millis(1000))
    };
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = Arc::new(Sqlite::open(&directory.path().join("store.db")).unwrap());
    let bare = bare_database(&directory.path().join("bare.db"));
    let disk = Disk::new(&directory.path().join("disk"));
    let mut table = Table::new([
        "writers",
        "store rows/s",
        "SQLite rows/s",
        "syncs/s",
        "of SQLite",
        "of syncs",
    ]);
    let mut targets = Targets::default();
    for tasks in WRITER_COUNTS {
        let measured: Vec<Round> = (0..rounds)
            .map(|_| Round {
                syncs: disk.sync(slice),
                bare: fill_bare(&bare, tasks, slice),
                store: runtime.block_on(fill_store(&store, tasks, slice)),
            })
            .collect();
        let median_of = |part: fn(&Round) -> f64| median(measured.iter().map(part));
        let ratio = median_of(|round| round.store / round.bare);
        table.row([
            tasks.to_string(),
            format!("{:.0}", median_of(|round| round.store)),
            format!("{:.0}", median_of(|round| round.bare)),
            format!("{:.0}", median_of(|round| round.syncs)),
            format_ratio(ratio),
            format_ratio(median_of(|round| round.store / round.syncs)),
        ]);
        let what = format!("{tasks} writers, relative to bare SQLite");
        targets.at_least(&what, ratio, MIN_RATE_RATIO, "×");
    }
    table.print();
    targets.print();
}

/// Each task writes its next entry when the last one is durable. Returns entries per second.
async fn fill_store(store: &Arc<Sqlite>, tasks: usize, slice: Duration) -> f64 {
    let entry = AuditEntry {
        at: Timestamp::now(),
        token_id: Some(ID.parse().unwrap()),
        operation: OPERATION.to_owned(),
        project_id: Some(ID.parse().unwrap()),
        outcome: AuditOutcome::Ok,
        address: Some(ADDRESS.to_owned()),
    };
    let started = Instant::now();
    let writers: Vec<_> = (0..tasks)
        .map(|_| {
            let (store, entry) = (store.clone(), entry.clone());
            tokio::spawn(async move {
                let mut written = 0;
                while started.elapsed() < slice {
                    store.append_audit(vec![entry.clone()]).await.unwrap();
                    written += 1;
                }
                written
            })
        })
        .collect();
    let mut written = 0;
    for writer in writers {
        written += writer.await.unwrap();
    }
    f64::from(written) / started.elapsed().as_secs_f64()
}

/// A database with the same table and the same durability.
fn bare_database(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection
        .execute_batch(
            "pragma journal_mode = wal;
             pragma synchronous = full;
             create table audit (
                 id integer primary key autoincrement, at integer not null, token_id text,
                 operation text not null, project_id text, outcome text not null, address text
             );
             create index audit_by_time on audit (at);",
        )
        .unwrap();
    connection
}

/// Commits transactions of `rows` rows each. Returns rows per second.
fn fill_bare(connection: &Connection, rows: usize, slice: Duration) -> f64 {
    let insert = "insert into audit (at, token_id, operation, project_id, outcome, address)
                  values (?1, ?2, ?3, ?4, ?5, ?6)";
    let at = Timestamp::now().as_millisecond();
    let started = Instant::now();
    let mut written = 0;
    while started.elapsed() < slice {
        connection.execute_batch("begin immediate").unwrap();
        let mut statement = connection.prepare_cached(insert).unwrap();
        for _ in 0..rows {
            statement
                .execute(params![at, ID, OPERATION, ID, "ok", ADDRESS])
                .unwrap();
        }
        connection.execute_batch("commit").unwrap();
        written += rows;
    }
    written as f64 / started.elapsed().as_secs_f64()
}

/// A file with all blocks allocated, so that a sync writes only data.
struct Disk {
    file: File,
}

impl Disk {
    const BLOCK_BYTES: usize = 4096;
    const BLOCK_COUNT: usize = 1024;

    fn new(path: &Path) -> Self {
        let file = File::create(path).unwrap();
        file.write_all_at(&vec![0; Self::BLOCK_BYTES * Self::BLOCK_COUNT], 0)
            .unwrap();
        file.sync_all().unwrap();
        Self { file }
    }

    /// Writes and syncs one block after the other. Returns blocks per second.
    fn sync(&self, slice: Duration) -> f64 {
        let started = Instant::now();
        let mut written = 0;
        while started.elapsed() < slice {
            let block = [written as u8; Self::BLOCK_BYTES];
            let at = written % Self::BLOCK_COUNT * Self::BLOCK_BYTES;
            self.file.write_all_at(&block, at as u64).unwrap();
            self.file.sync_data().unwrap();
            written += 1;
        }
        written as f64 / started.elapsed().as_secs_f64()
    }
}
