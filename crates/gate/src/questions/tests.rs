//! Who waits for what, and when a question ends.

use std::path::PathBuf;

use oubliette_model::Preset;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::control::Registration;
use crate::limits::Limits;

const WAIT: Duration = Duration::from_secs(20);

struct Bench {
    directory: TempDir,
    gate: Arc<Gate>,
}

fn strict(allow: &[&str], deny: &[&str]) -> NetworkRules {
    NetworkRules {
        preset: Preset::Strict,
        ask: true,
        deny: deny.iter().map(|it| it.parse().unwrap()).collect(),
        ..NetworkRules::default()
    }
    .with_allowed(allow.iter().map(|it| it.parse().unwrap()))
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let gate = Gate::new(directory.path(), Limits::for_open_files(1024)).unwrap();
        let bench = Self {
            gate: Arc::new(gate),
            directory,
        };
        std::fs::create_dir(bench.path("run")).unwrap();
        std::fs::create_dir(bench.path("c")).unwrap();
        bench.set(strict(&[], &[]));
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn set(&self, rules: NetworkRules) {
        let registration = Registration {
            container: "c".to_owned(),
            project: "p".to_owned(),
            directory: self.path("c"),
            rules,
            version: 1,
        };
        self.gate.set(registration).unwrap();
    }

    /// A connection of a program, and what comes of it.
    fn connect(&self, host: &str) -> (UnixStream, JoinHandle<(Outcome, Vec<u8>)>) {
        let (program, ours) = UnixStream::pair().unwrap();
        let (gate, host) = (self.gate.clone(), host.parse::<Host>().unwrap());
        let asking = tokio::spawn(async move {
            let container = gate.all_containers().remove(0);
            let miss = container.rules().borrow().decide(&host, 443);
            let mut early = Vec::new();
            let asked = (&host, 443);
            let outcome = ask(&gate, &container, asked, &miss, (&ours, &mut early)).await;
            (outcome, early)
        });
        (program, asking)
    }

    /// Waits until so many questions are open, and so many connections wait for them.
    async fn wait_for(&self, questions: usize, connections: usize) -> Vec<Question> {
        let mut changes = self.gate.questions_changed.subscribe();
        let waiting = async {
            loop {
                let open = self.gate.open_questions();
                let container = self.gate.all_containers().remove(0);
                if open.len() == questions && container.questions.0.lock().waiting == connections {
                    return open;
                }
                // Connections that join a question change nothing for the server.
                let _ = timeout(Duration::from_millis(5), changes.changed()).await;
            }
        };
        timeout(WAIT, waiting).await.unwrap()
    }

    fn answer(&self, question: &Question, is_allowed: bool, seconds: u32) {
        let answer = Answer {
            is_allowed,
            seconds,
            reason: "the answer".to_owned(),
        };
        self.gate.answer(&question.id, &answer);
    }
}

async fn outcome(asking: JoinHandle<(Outcome, Vec<u8>)>) -> Outcome {
    timeout(WAIT, asking).await.unwrap().unwrap().0
}

fn refusal(outcome: Outcome) -> String {
    match outcome {
        Outcome::Refused(reason) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn connections_to_the_same_host_wait_for_one_question_and_get_one_answer() {
    let bench = Bench::new();
    let asked: Vec<_> = (0..100).map(|_| bench.connect("new.org")).collect();
    let open = bench.wait_for(1, 100).await;
    assert_eq!((open[0].host.as_str(), open[0].port), ("new.org", 443));
    bench.answer(&open[0], true, 60);
    for (_program, asking) in asked {
        assert_eq!(outcome(asking).await, Outcome::Allowed("the answer".into()));
    }
    bench.wait_for(0, 0).await;
    // A retry needs no other answer; another host does.
    let (_program, again) = bench.connect("new.org");
    assert_eq!(outcome(again).await, Outcome::Allowed("the answer".into()));
    let (_program, _other) = bench.connect("other.org");
    bench.wait_for(1, 1).await;
}

#[tokio::test]
async fn an_answer_is_remembered_only_for_its_time() {
    let bench = Bench::new();
    let (_program, asking) = bench.connect("new.org");
    let open = bench.wait_for(1, 1).await;
    bench.answer(&open[0], false, 0);
    let reason = refusal(outcome(asking).await);
    assert!(reason.contains("the answer"), "{reason}");
    assert!(
        reason.contains("`network_allow` of new.org:443"),
        "{reason}"
    );
    let (_program, asking) = bench.connect("new.org");
    let again = bench.wait_for(1, 1).await;
    assert_ne!(again[0].id, open[0].id);
    // An answer to the question before changes nothing.
    bench.answer(&open[0], true, 60);
    bench.answer(&again[0], false, 60);
    refusal(outcome(asking).await);
    let (_program, remembered) = bench.connect("new.org");
    refusal(outcome(remembered).await);
}

#[tokio::test]
async fn the_number_of_questions_and_of_connections_that_wait_is_bounded() {
    let bench = Bench::new();
    let mut asked = Vec::new();
    for number in 0..MAX_CONTAINER_QUESTIONS {
        asked.push(bench.connect(&format!("n{number}.org")));
    }
    bench
        .wait_for(MAX_CONTAINER_QUESTIONS, MAX_CONTAINER_QUESTIONS)
        .await;
    for number in 0..1000 {
        let (_program, refused) = bench.connect(&format!("more{number}.org"));
        assert!(refusal(outcome(refused).await).contains("too many questions"));
    }
    for _ in MAX_CONTAINER_QUESTIONS..MAX_WAITING_CONNECTIONS {
        asked.push(bench.connect("n0.org"));
    }
    bench
        .wait_for(MAX_CONTAINER_QUESTIONS, MAX_WAITING_CONNECTIONS)
        .await;
    let (_program, refused) = bench.connect("n0.org");
    assert!(refusal(outcome(refused).await).contains("too many connections"));
    drop(asked);
    bench.wait_for(0, 0).await;
}

#[tokio::test]
async fn programs_that_wait_for_no_answer_ask_a_bounded_number_of_questions() {
    let bench = Bench::new();
    for number in 0..MAX_RECENT_QUESTIONS {
        let (program, asking) = bench.connect(&format!("n{number}.org"));
        bench.wait_for(1, 1).await;
        drop(program);
        assert_eq!(outcome(asking).await, Outcome::Gone);
    }
    for number in 0..1000 {
        let (_program, refused) = bench.connect(&format!("more{number}.org"));
        let reason = refusal(outcome(refused).await);
        assert!(reason.contains("asked too many questions"), "{reason}");
    }
    let container = bench.gate.all_containers().remove(0);
    let mut state = container.questions.0.lock();
    assert!(state.refusal(Instant::now()).is_some());
    let later = Instant::now() + RECENT_INTERVAL;
    assert_eq!((state.refusal(later), state.asked.len()), (None, 0));
}

#[tokio::test]
async fn a_question_is_withdrawn_with_the_last_program_that_waits() {
    let bench = Bench::new();
    let (mut first, asking) = bench.connect("new.org");
    let (second, _) = bench.connect("new.org");
    bench.wait_for(1, 2).await;
    drop(second);
    bench.wait_for(1, 1).await;
    first.write_all(b"early").await.unwrap();
    drop(first);
    let (outcome, early) = timeout(WAIT, asking).await.unwrap().unwrap();
    assert_eq!((outcome, early.as_slice()), (Outcome::Gone, &b"early"[..]));
    bench.wait_for(0, 0).await;
}

#[tokio::test]
async fn changed_rules_decide_a_question() {
    let bench = Bench::new();
    let (_allowed, allowed) = bench.connect("new.org");
    let (_denied, denied) = bench.connect("evil.org");
    bench.wait_for(2, 2).await;
    bench.set(strict(&["new.org:443"], &["evil.org"]));
    assert_eq!(outcome(allowed).await, Outcome::ByRules);
    assert_eq!(refusal(outcome(denied).await), "deny evil.org");
    bench.wait_for(0, 0).await;
}

#[tokio::test]
async fn a_removed_container_leaves_no_question() {
    let bench = Bench::new();
    let (_program, asking) = bench.connect("new.org");
    bench.wait_for(1, 1).await;
    bench.gate.remove("c");
    assert_eq!(bench.gate.open_questions(), []);
    asking.abort();
}

#[tokio::test(start_paused = true)]
async fn a_question_without_an_answer_ends_with_its_time() {
    let bench = Bench::new();
    let (_program, asking) = bench.connect("new.org");
    // Paused time passes by itself.
    let (outcome, _) = asking.await.unwrap();
    assert!(refusal(outcome).contains("no caller answered"));
    assert_eq!(bench.gate.open_questions(), []);
}
