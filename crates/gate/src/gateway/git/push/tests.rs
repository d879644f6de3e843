//! Lists of refs as git sends them, malformed ones, and ones that were changed at random.

use proptest::prelude::*;

use super::*;

const OLD: &str = "1111111111111111111111111111111111111111";
const NEW: &str = "2222222222222222222222222222222222222222";
const ZERO: &str = "0000000000000000000000000000000000000000";

fn allowed() -> Vec<BranchPattern> {
    vec!["oubliette/*".parse().unwrap(), "next".parse().unwrap()]
}

/// The request of a push with these lines.
fn request(lines: &[String]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in lines {
        push_packet(&mut bytes, line.as_bytes());
    }
    push_flush(&mut bytes);
    bytes
}

fn lines(refs: &[&str], capabilities: &str) -> Vec<String> {
    let line = |(number, name): (usize, &&str)| match number {
        0 => format!("{OLD} {NEW} {name}\0 {capabilities}"),
        _ => format!("{OLD} {NEW} {name}"),
    };
    refs.iter().enumerate().map(line).collect()
}

fn list_of(bytes: &[u8]) -> Result<PushList, Malformed> {
    let mut list = PushList::default();
    assert!(list.feed(bytes)?, "the list is complete");
    Ok(list)
}

fn refused(refs: &[&str]) -> Vec<String> {
    let list = list_of(&request(&lines(refs, "report-status"))).unwrap();
    let refused = list.refused(&allowed());
    refused
        .into_iter()
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

#[test]
fn only_branches_that_a_pattern_names_are_allowed() {
    let good = [
        "refs/heads/oubliette/a",
        "refs/heads/oubliette/a/b",
        "refs/heads/next",
    ];
    assert_eq!(refused(&good), Vec::<String>::new());
    for bad in [
        "refs/heads/main",
        "refs/heads/oubliette",
        "refs/heads/oubliette/",
        "refs/heads/oubliette/../main",
        "refs/heads/oubliette//a",
        "refs/heads/Oubliette/a",
        "refs/heads/next2",
        "refs/tags/oubliette/a",
        "refs/for/oubliette/a",
        "refs/heads/refs/heads/oubliette/a",
        "oubliette/a",
        "heads/oubliette/a",
        "HEAD",
    ] {
        assert_eq!(refused(&[good[0], bad, good[2]]), [bad]);
    }
}

#[test]
fn deletes_are_decided_as_updates_are() {
    for name in ["refs/heads/main", "refs/heads/oubliette/a"] {
        let line = format!("{OLD} {ZERO} {name}\0report-status delete-refs");
        let list = list_of(&request(&[line])).unwrap();
        assert_eq!(
            list.refused(&allowed()).is_empty(),
            name.contains("oubliette")
        );
    }
}

#[test]
fn what_a_server_could_read_otherwise_is_refused() {
    let allowed_line = format!("{OLD} {NEW} refs/heads/oubliette/a\0report-status");
    let short = "11111111111111111111111111111111111111";
    for line in [
        format!("{OLD} {NEW} refs/heads/main\0 refs/heads/oubliette/b"),
        format!("{OLD} {NEW} refs/heads/main\nrefs/heads/oubliette/b"),
        format!("{OLD} {NEW} refs/heads/main refs/heads/oubliette/b"),
        format!("{OLD}  {NEW} refs/heads/oubliette/b"),
        format!("{OLD} {NEW} "),
        format!("{OLD} {NEW}"),
        format!("{short} {NEW} refs/heads/oubliette/b"),
        format!("{OLD} {NEW}{NEW} refs/heads/oubliette/b"),
        format!("shallow {OLD}"),
        "command=push".to_owned(),
        "push-cert\0".to_owned(),
        "\n".to_owned(),
        format!(
            "{OLD} {NEW} refs/heads/oubliette/{}",
            "x".repeat(MAX_REF_BYTES)
        ),
    ] {
        let bytes = request(&[allowed_line.clone(), line.clone()]);
        assert!(list_of(&bytes).is_err(), "{line:?}");
    }
    for bytes in [&b"0001"[..], b"0004", b"PACK", b"zzzz", b"\x1f\x8b\x08\0"] {
        assert!(PushList::default().feed(bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn shallow_lines_come_first_and_signed_pushes_are_refused_with_a_reason() {
    let first = [format!("shallow {OLD}"), format!("shallow {NEW}\n")];
    let all = [&first[..], &lines(&["refs/heads/main"], "")].concat();
    assert_eq!(
        list_of(&request(&all)).unwrap().refused(&allowed()).len(),
        1
    );
    let signed = request(&["push-cert\0report-status".to_owned()]);
    assert!(list_of(&signed).unwrap_err().contains("signed"));
}

#[test]
fn a_long_list_is_refused_before_it_is_kept() {
    let mut list = PushList::default();
    let line = format!("{OLD} {NEW} refs/heads/oubliette/{}", "x".repeat(900));
    let mut packet = Vec::new();
    push_packet(&mut packet, line.as_bytes());
    let count = (0..).find(|_| list.feed(&packet).is_err()).unwrap();
    assert!(count * packet.len() <= MAX_LIST_BYTES);
    assert!(list.received.len() <= MAX_LIST_BYTES + packet.len());
}

#[test]
fn the_end_of_a_list_alone_is_a_probe_and_nothing_may_follow_it() {
    assert!(list_of(b"0000").unwrap().is_probe());
    let more = list_of(b"0000PACK").unwrap();
    assert!(more.is_empty() && !more.is_probe());
}

#[test]
fn the_report_names_each_ref_with_its_reason() {
    let refs = ["refs/heads/oubliette/a", "refs/heads/main"];
    let list = list_of(&request(&lines(&refs, "report-status atomic"))).unwrap();
    let report = list.refusal_report(Denial::Refs, &allowed()).unwrap();
    let report = String::from_utf8(report).unwrap();
    assert!(report.starts_with("000eunpack ok\n"), "{report}");
    assert!(
        report.contains(
            "ng refs/heads/main not allowed, only refs/heads/oubliette/*, refs/heads/next\n"
        ),
        "{report}"
    );
    assert!(
        report.contains("ng refs/heads/oubliette/a not pushed, because"),
        "{report}"
    );
    assert!(report.ends_with("0000"));
    let capabilities = "report-status-v2 side-band-64k agent=git/2";
    let list = list_of(&request(&lines(&refs, capabilities))).unwrap();
    let report = list.refusal_report(Denial::Refs, &allowed()).unwrap();
    let text = String::from_utf8_lossy(&report).into_owned();
    assert!(
        text.contains("\u{2}Oubliette: the project does not allow to push to refs/heads/main, only to refs/heads/oubliette/*, refs/heads/next."),
        "{text}"
    );
    assert!(
        text.contains("\u{1}000eunpack ok\n") && text.ends_with("00000000"),
        "{text}"
    );
    let silent = list_of(&request(&lines(&refs, "ofs-delta"))).unwrap();
    assert_eq!(silent.refusal_report(Denial::Refs, &allowed()), None);
}

#[test]
fn a_push_with_options_is_refused_however_they_are_asked_for() {
    let good = ["refs/heads/oubliette/a"];
    for capabilities in [
        "report-status push-options",
        "push-options report-status",
        "push-options=x report-status",
        "report-status\tpush-options",
    ] {
        let list = list_of(&request(&lines(&good, capabilities))).unwrap();
        assert_eq!(list.denial(&allowed()), Some(Denial::Options));
        let both = list_of(&request(&lines(&["refs/heads/main"], capabilities))).unwrap();
        assert_eq!(both.denial(&allowed()), Some(Denial::Refs));
    }
    let list = list_of(&request(&lines(&good, "report-status push-options"))).unwrap();
    let report = list.refusal_report(Denial::Options, &allowed()).unwrap();
    let report = String::from_utf8(report).unwrap();
    let expected = "ng refs/heads/oubliette/a push options are not allowed\n";
    assert!(report.contains(expected), "{report}");
    let list = list_of(&request(&lines(&good, "report-status atomic quiet"))).unwrap();
    assert_eq!(list.denial(&allowed()), None);
}

#[test]
fn a_sentence_names_a_few_of_many_refs_and_patterns() {
    let names: Vec<String> = (0..3000).map(|n| format!("refs/tags/{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let list = list_of(&request(&lines(&names, "report-status"))).unwrap();
    let patterns: Vec<BranchPattern> = (0..9).map(|n| format!("p{n}/*").parse().unwrap()).collect();
    let text = list.explain(Denial::Refs, &patterns);
    assert!(
        text.contains("refs/tags/4 and 2995 more, only to refs/heads/p0/*"),
        "{text}"
    );
    assert!(text.contains("refs/heads/p4/* and 4 more."), "{text}");
    let report = list.refusal_report(Denial::Refs, &[]).unwrap();
    let report = String::from_utf8(report).unwrap();
    assert_eq!(
        report.matches(" not allowed, only no branch\n").count(),
        3000
    );
}

proptest! {
    #[test]
    fn a_list_means_the_same_however_it_arrives(
        names in prop::collection::vec("refs/(heads|tags)/(oubliette/|main|next)[a-z/.]{0,8}", 1..6),
        pack in prop::collection::vec(any::<u8>(), 0..50),
        sizes in prop::collection::vec(1..40_usize, 1..10),
    ) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut bytes = request(&lines(&names, "report-status"));
        bytes.extend(&pack);
        let whole = list_of(&bytes).unwrap();
        let mut list = PushList::default();
        let (mut left, mut size) = (bytes.as_slice(), sizes.iter().cycle());
        while !left.is_empty() {
            let (next, rest) = left.split_at((*size.next().unwrap()).min(left.len()));
            list.feed(next).unwrap();
            left = rest;
        }
        prop_assert_eq!(list.refused(&allowed()), whole.refused(&allowed()));
        prop_assert_eq!(list.into_received(), bytes);
    }

    #[test]
    fn hostile_input_is_no_list_that_changes_other_refs(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut list = PushList::default();
        if let Ok(true) = list.feed(&bytes) {
            let refused = list.refused(&allowed()).len();
            prop_assert!(refused <= list.refs.len());
            prop_assert_eq!(list.received, bytes);
        }
    }

    #[test]
    fn a_changed_list_never_hides_a_ref(at in 0..400_usize, byte in any::<u8>()) {
        let refs = ["refs/heads/oubliette/a", "refs/heads/main", "refs/heads/oubliette/b"];
        let mut bytes = request(&lines(&refs, "report-status"));
        let at = at % bytes.len();
        bytes[at] = byte;
        let mut list = PushList::default();
        // Every name that a line of the list has is decided about.
        if let Ok(true) = list.feed(&bytes) {
            let end = list.read;
            let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let is_hidden = text.contains("refs/heads/main")
                && list.refused(&allowed()).is_empty();
            // A zero byte in the first line makes the rest of that line capabilities.
            let in_capabilities = String::from_utf8_lossy(&list.capabilities).contains("refs/heads/main");
            prop_assert!(!is_hidden || in_capabilities);
        }
    }
}
