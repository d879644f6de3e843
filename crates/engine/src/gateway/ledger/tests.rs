//! The ledger without a gate.

use proptest::prelude::*;

use super::*;

fn session(number: u128) -> SessionId {
    SessionId::new(uuid::Uuid::from_u128(number))
}

fn call(of: SessionId, root: SessionId, cost_usd: f64) -> HeldCall {
    HeldCall {
        session: of,
        root,
        model: "m".to_owned(),
        tokens: TokenCounts::default(),
        cost_usd,
        until: Timestamp::UNIX_EPOCH,
        since: Instant::now(),
        asks: false,
        is_told: false,
    }
}

#[test]
fn room_is_what_neither_is_spent_nor_reserved() {
    let room = |spent, reserved, cost| Room::find(1.0, spent, reserved, cost);
    assert_eq!(room(0.0, 0.0, 1.0), Room::Enough);
    assert_eq!(room(0.3, 0.3, 0.4), Room::Enough);
    assert_eq!(room(0.3, 0.4, 0.4), Room::Later);
    assert_eq!(room(0.7, 0.0, 0.4), Room::Spent);
    assert_eq!(room(0.0, 0.0, 1.1), Room::Never);
    // 0.1 + 0.2 is more than 0.3 in binary.
    assert_eq!(Room::find(0.3, 0.1, 0.1, 0.1), Room::Enough);
}

#[test]
fn a_call_that_ended_is_free_only_when_its_charge_is_counted() {
    let root = session(1);
    let mut ledger = Ledger::default();
    ledger.begin([(7, root, 0.5)].into_iter());
    ledger.hold(8, call(root, root, 0.25));
    assert!(ledger.grant(8).is_some());
    assert_eq!(ledger.reserved_usd(root), 0.75);
    assert_eq!(ledger.release(7, 100), None);
    assert!(!ledger.free_counted(99));
    assert_eq!(ledger.reserved_usd(root), 0.75);
    assert!(ledger.free_counted(100));
    assert_eq!(ledger.reserved_usd(root), 0.25);
    // A new gate has none of them.
    ledger.begin(std::iter::empty());
    assert_eq!(ledger.reserved_usd(root), 0.0);
    assert!(!ledger.free_counted(u64::MAX));
}

#[test]
fn a_session_asks_when_waiting_cannot_help_or_has_lasted() {
    let (root, child) = (session(1), session(2));
    let mut ledger = Ledger::default();
    assert_eq!(ledger.hold_of(child), CallHold::Unknown);
    ledger.set_known(true);
    ledger.hold(1, call(child, root, 1.0));
    let now = Instant::now();
    assert!(!ledger.keep_held(1, false, now));
    assert_eq!(ledger.hold_of(child), CallHold::Nothing { went_on: false });
    assert!(ledger.next_ask().is_some());
    assert!(ledger.keep_held(1, false, now + ASK_DELAY));
    assert!(matches!(ledger.hold_of(child), CallHold::Budget(_)));
    assert_eq!(ledger.next_ask(), None);
    // A decision about the budget of the tree is waited for again.
    ledger.decided(root, now);
    assert_eq!(ledger.hold_of(child), CallHold::Nothing { went_on: false });
    assert!(ledger.keep_held(1, true, now));
    ledger.refuse_session(root, "no");
    assert!(ledger.take_refused().is_empty(), "not the calls of others");
    assert!(ledger.grant(1).is_some());
    assert_eq!(ledger.hold_of(child), CallHold::Nothing { went_on: true });
    assert_eq!(ledger.hold_of(child), CallHold::Nothing { went_on: false });
}

#[test]
fn a_refused_call_is_not_granted_any_more() {
    let root = session(1);
    let mut ledger = Ledger::default();
    ledger.hold(1, call(root, root, 1.0));
    ledger.keep_held(1, true, Instant::now());
    ledger.refuse_session(root, "no");
    assert_eq!(ledger.take_refused(), [(1, "no".to_owned())]);
    assert_eq!(ledger.grant(1), None);
    assert_eq!(ledger.reserved_usd(root), 0.0);
    ledger.hold(2, call(root, root, 1.0));
    assert!(ledger.refuse(2, "too large").is_some());
    assert_eq!(ledger.take_note(root).as_deref(), Some("too large"));
}

#[test]
fn after_a_refusal_the_turn_asks_no_more_until_a_call_is_sent_or_the_budget_raised() {
    let root = session(1);
    let now = Instant::now();
    let mut ledger = Ledger::default();
    ledger.set_known(true);
    ledger.hold(1, call(root, root, 1.0));
    ledger.keep_held(1, true, now);
    ledger.refuse_session(root, "no");
    ledger.hold(2, call(root, root, 1.0));
    assert_eq!(ledger.refuse_again(2).as_deref(), Some("no"));
    // One that only waits for others goes on waiting, and does not ask.
    ledger.hold(3, call(root, root, 1.0));
    assert!(!ledger.keep_held(3, false, now + ASK_DELAY));
    assert_eq!(ledger.next_ask(), None);
    ledger.decided(root, now);
    assert_eq!(ledger.refuse_again(3), None);
    assert!(ledger.keep_held(3, true, now));
    ledger.expire(root, "late");
    assert!(ledger.grant(3).is_some());
    assert_eq!(ledger.take_refusal(root), None, "a call was sent since");
    ledger.expire(root, "late");
    assert_eq!(ledger.take_refusal(root).as_deref(), Some("late"));
    assert_eq!(ledger.take_refusal(root), None);
}

proptest! {
    /// Calls that cost at most what was reserved never cost more than the budget, in whatever order they begin,
    /// end and are counted.
    #[test]
    fn no_order_of_calls_overspends(steps in prop::collection::vec((0_u8..4, 1_u32..50, 0_u32..=100), 1..200)) {
        let (root, limit) = (session(1), 1.0);
        let mut ledger = Ledger::default();
        // What is in the journal, and what of it is in the store.
        let (mut journal, mut counted) = (vec![0.0_f64], 0);
        let mut running: BTreeMap<u64, f64> = BTreeMap::new();
        for (id, (step, cents, percent)) in (1..).zip(steps) {
            match step {
                0 | 1 => {
                    let cost = f64::from(cents) / 100.0;
                    ledger.hold(id, call(root, root, cost));
                    let reserved = ledger.reserved_usd(root);
                    let spent: f64 = journal[..=counted].iter().sum();
                    if Room::find(limit, spent, reserved, cost) == Room::Enough {
                        ledger.grant(id).unwrap();
                        running.insert(id, cost);
                    } else {
                        ledger.release(id, 0);
                    }
                }
                2 => if let Some((id, cost)) = running.pop_first() {
                    journal.push(cost * f64::from(percent) / 100.0);
                    ledger.release(id, journal.len() as u64 - 1);
                },
                _ => {
                    counted = journal.len() - 1;
                    ledger.free_counted(counted as u64);
                }
            }
            let spent: f64 = journal.iter().sum();
            let worst = spent + running.values().sum::<f64>();
            prop_assert!(worst <= limit + 1e-6, "{worst}");
        }
    }
}
