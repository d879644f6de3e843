//! What updates become, also with commits and crashes between them.

use oubliette_agent::ToolOutcome;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn chunk(text: &str, message: Option<&str>) -> TextChunk {
    TextChunk {
        text: text.to_owned(),
        message_id: message.map(str::to_owned),
    }
}

fn text(text: &str) -> AgentUpdate {
    AgentUpdate::Text(chunk(text, None))
}

fn tool(id: &str, input: bool, started: bool, output: Option<&str>) -> AgentUpdate {
    AgentUpdate::Tool(ToolCall {
        id: id.to_owned(),
        title: Some("sh".to_owned()),
        kind: Some("execute".to_owned()),
        input: input.then(|| Value::from("ls")),
        is_first: false,
        started,
        output_delta: String::new(),
        outcome: output.map(|output| ToolOutcome {
            failed: false,
            output: output.to_owned(),
            truncated: false,
        }),
    })
}

fn kinds(events: &[Event]) -> Vec<&str> {
    events.iter().map(Event::kind).collect()
}

#[test]
fn a_tool_call_is_logged_once_with_its_input() {
    let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
    builder.handle_update(&mut live, tool("1", false, false, None), 0);
    assert!(builder.events.is_empty(), "its input is not known yet");
    builder.handle_update(&mut live, tool("1", true, true, None), 0);
    builder.handle_update(&mut live, tool("1", true, true, None), 0);
    builder.handle_update(&mut live, tool("1", true, true, Some("out")), 0);
    assert_eq!(kinds(&builder.events), ["tool_call", "tool_result"]);
    assert!(live.open_tools.is_empty());
}

fn parse_update(update: Value) -> AgentUpdate {
    AgentUpdate::parse(&json!({ "update": update }))
}

#[test]
fn an_announced_tool_call_is_logged_when_its_input_is_known() {
    let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
    let announced = json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "title": "bash",
        "status": "pending", "rawInput": { "cwd": "/w" } });
    builder.handle_update(&mut live, parse_update(announced.clone()), 0);
    assert!(builder.events.is_empty(), "{:?}", builder.events);
    let begun = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", "title": "ls",
        "status": "in_progress", "rawInput": { "cwd": "/w", "command": "ls" } });
    builder.handle_update(&mut live, parse_update(begun), 0);
    let expected = Event::ToolCall {
        tool_call_id: "1".to_owned(),
        title: "ls".to_owned(),
        kind: String::new(),
        input: json!({ "cwd": "/w", "command": "ls" }),
    };
    assert_eq!(builder.events, [expected]);

    // A call that starts without more input, and a call that the agent asks permission for first.
    for asks_permission in [false, true] {
        let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
        builder.handle_update(&mut live, parse_update(announced.clone()), 0);
        if asks_permission {
            builder.add_tool_call(&mut live, "1");
        } else {
            builder.handle_update(&mut live, tool("1", false, true, None), 0);
        }
        builder.handle_update(&mut live, tool("1", true, true, Some("out")), 0);
        assert_eq!(kinds(&builder.events), ["tool_call", "tool_result"]);
        let Event::ToolCall { input, .. } = &builder.events[0] else {
            panic!()
        };
        assert_eq!(*input, json!({ "cwd": "/w" }));
    }
}

#[test]
fn a_tool_call_ends_once_in_a_turn() {
    let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
    for _ in 0..2 {
        builder.handle_update(&mut live, tool("1", true, false, None), 0);
        builder.handle_update(&mut live, tool("1", true, true, Some("out")), 0);
    }
    assert_eq!(kinds(&builder.events), ["tool_call", "tool_result"]);
    builder.end_turn(&mut live);
    builder.handle_update(&mut live, tool("1", true, true, Some("out")), 0);
    assert_eq!(builder.events.len(), 2, "its end was reported again");
    builder.start_turn(&mut live);
    builder.handle_update(&mut live, tool("1", true, true, Some("out")), 0);
    assert_eq!(builder.events.len(), 4, "the next turn may reuse ids");
}

#[test]
fn a_tool_call_that_is_open_at_the_end_of_a_turn_gets_a_result() {
    let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
    builder.handle_update(&mut live, tool("1", true, true, None), 0);
    let more = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1",
        "_meta": { "terminal_output": { "data": "so far" } } });
    builder.handle_update(&mut live, parse_update(more), 0);
    let announced = json!({ "sessionUpdate": "tool_call", "toolCallId": "2" });
    builder.handle_update(&mut live, parse_update(announced), 0);
    builder.end_turn(&mut live);
    assert_eq!(kinds(&builder.events), ["tool_call", "tool_result"]);
    let Event::ToolResult { status, output, .. } = &builder.events[1] else {
        panic!()
    };
    assert_eq!((status.as_str(), output.as_str()), ("failed", "so far"));
}

fn permission(call: Value) -> PermissionRequest {
    PermissionRequest::parse("1", &json!({ "toolCall": call }))
}

#[test]
fn a_permission_request_shows_what_its_announced_call_said() {
    let diff = json!([{ "type": "diff", "path": "/w/a", "newText": "x" }]);
    let announced = json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "kind": "edit",
        "title": "Editing files", "status": "in_progress", "content": diff });
    // Codex repeats the files, and not what is written to them.
    let repeated = json!({ "toolCallId": "1", "locations": [{ "path": "/w/a" }] });
    for (is_committed, asked) in [
        (false, json!({ "toolCallId": "1" })),
        (true, json!({ "toolCallId": "1" })),
        (false, repeated.clone()),
        (true, repeated),
    ] {
        let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
        builder.handle_update(&mut live, parse_update(announced.clone()), 0);
        let mut log = Vec::new();
        if is_committed {
            log = builder.take();
        }
        let mut request = permission(asked);
        let is_unknown = builder.complete_request(&live, &mut request);
        assert_eq!(
            is_unknown, is_committed,
            "a committed input is read from the log"
        );
        if is_unknown {
            request.input = log.iter().find_map(|it| input_of(it, "1")).unwrap();
        }
        assert_eq!(request.input["changes"][0]["path"], "/w/a");
        assert_eq!(request.input["changes"][0]["new_text"], "x");
        assert_eq!(
            (request.title.as_str(), request.kind.as_str()),
            ("Editing files", "edit")
        );
        builder.add_requested_call(&mut live, &request);
        log.append(&mut builder.take());
        assert_eq!(kinds(&log), ["tool_call"]);
    }
}

#[test]
fn a_call_that_only_a_permission_request_announces_is_logged() {
    let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
    let mut request = permission(
        json!({ "toolCallId": "1", "title": "Writing", "kind": "edit",
        "rawInput": { "path": "a" } }),
    );
    assert!(!builder.complete_request(&live, &mut request));
    builder.add_requested_call(&mut live, &request);
    builder.end_turn(&mut live);
    assert_eq!(kinds(&builder.events), ["tool_call", "tool_result"]);
    let call = input_of(&builder.events[0], "1");
    assert_eq!(call, Some(json!({ "path": "a" })));
}

#[test]
fn modes_and_commands_are_logged_when_they_change() {
    let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
    for mode in ["a", "a", "b"] {
        builder.handle_update(&mut live, AgentUpdate::Mode(mode.to_owned()), 0);
        let commands = json!([{ "name": mode }]);
        builder.handle_update(&mut live, AgentUpdate::Commands(commands), 0);
    }
    let expected = ["mode", "commands", "mode", "commands"];
    assert_eq!(kinds(&builder.events), expected);
}

#[test]
fn the_notices_of_a_turn_are_bounded() {
    let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
    for _ in 0..MAX_NOTICES * 3 {
        builder.add_notice(&mut live, "again".to_owned());
    }
    assert_eq!(builder.events.len(), MAX_NOTICES as usize);
    builder.start_turn(&mut live);
    builder.add_notice(&mut live, "again".to_owned());
    assert_eq!(builder.events.len(), MAX_NOTICES as usize + 1);
}

#[test]
fn streamed_output_is_the_result_of_a_tool_call_without_another() {
    let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
    for (id, data) in [("1", "one "), ("2", "x"), ("1", "two")] {
        let more = json!({ "sessionUpdate": "tool_call_update", "toolCallId": id,
            "_meta": { "terminal_output": { "data": data } } });
        builder.handle_update(&mut live, parse_update(more), 0);
    }
    builder.handle_update(&mut live, tool("1", true, true, Some("")), 0);
    builder.handle_update(&mut live, tool("2", true, true, Some("whole")), 0);
    let outputs: Vec<&str> = builder.events.iter().filter_map(output).collect();
    assert_eq!(outputs, ["one two", "whole"]);
    let flood = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "3",
        "_meta": { "terminal_output": { "data": "y".repeat(100 << 10) } } });
    for _ in 0..10 {
        builder.handle_update(&mut live, parse_update(flood.clone()), 0);
    }
    let kept = &live.open_tools["3"];
    assert!(kept.output.len() == MAX_STREAMED_OUTPUT_BYTES && kept.truncated);
}

fn output(event: &Event) -> Option<&str> {
    match event {
        Event::ToolResult { output, .. } => Some(output),
        _ => None,
    }
}

#[test]
fn a_message_has_its_deltas_and_the_rest() {
    let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
    builder.handle_update(&mut live, text("one "), 3);
    builder.flush(&live);
    builder.handle_update(&mut live, text("two"), 4);
    builder.handle_update(&mut live, AgentUpdate::Thought(chunk("hm", None)), 4);
    assert_eq!(builder.end_turn(&mut live), "one two");
    assert_eq!(kinds(&builder.events), ["delta", "message", "thought"]);
    assert_eq!(
        builder.events[1],
        Event::Message {
            text: "one two".to_owned()
        }
    );
}

#[test]
fn each_message_id_of_the_agent_is_a_message() {
    let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
    for (text, message) in [
        ("a", Some("1")),
        ("b", Some("1")),
        ("c", Some("2")),
        ("d", None),
    ] {
        builder.handle_update(&mut live, AgentUpdate::Text(chunk(text, message)), 0);
    }
    assert_eq!(builder.end_turn(&mut live), "ab\n\nc\n\nd");
    assert_eq!(kinds(&builder.events), ["message"; 3]);
}

/// Everything that an agent sent, as one text per event.
fn shown(events: &[Event]) -> Vec<String> {
    let texts = events.iter().map(|event| match event {
        Event::Message { text } | Event::Thought { text } => text.clone(),
        Event::ToolResult { output, .. } => output.clone(),
        other => serde_json::to_value(other).unwrap().to_string(),
    });
    let deltas = events.iter().filter_map(|event| match event {
        Event::Delta { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.chain([deltas.collect()]).collect()
}

/// The messages that end a text in the middle are cut inside a secret, at each of its characters.
#[test]
fn a_secret_at_the_end_of_a_message_that_is_too_long_is_hidden() {
    let secret = "s3cr-et!";
    let redactor = Redactor::new([oubliette_model::Secret::new(secret)].into_iter());
    let redactor = Arc::new(redactor);
    for is_thought in [false, true] {
        for cut in 1..secret.len() {
            for room in 0..secret.len() {
                let filler = "x".repeat(MAX_MESSAGE_BYTES - room);
                let mut builder = EventBuilder::resume(redactor.clone(), filler.clone(), &[]);
                let mut live = LiveAgent {
                    open_text: Some(OpenText {
                        is_thought,
                        message_id: None,
                        start_index: 0,
                        held: HeldText::default(),
                    }),
                    ..LiveAgent::default()
                };
                let (start, end) = secret.split_at(cut);
                for piece in [start, end, " y"] {
                    let update = if is_thought {
                        AgentUpdate::Thought(chunk(piece, None))
                    } else {
                        text(piece)
                    };
                    builder.handle_update(&mut live, update, 0);
                }
                builder.end_turn(&mut live);
                let texts = builder.events.iter().map(|event| match event {
                    Event::Message { text } | Event::Thought { text } => text.as_str(),
                    other => panic!("{other:?}"),
                });
                let joined: String = texts.collect();
                let shown = &joined[filler.len()..];
                assert_eq!(shown, "[redacted] y", "cut {cut}, room {room}");
                assert_eq!(builder.events.len(), 2, "cut {cut}, room {room}");
            }
        }
    }
}

/// Checks that the deltas before each message or thought are the start of its text, each part once.
fn check_deltas(log: &[Event]) {
    let mut joined = String::new();
    for event in log {
        match event {
            Event::Delta { text, .. } => joined.push_str(text),
            Event::Message { text } | Event::Thought { text } => {
                assert!(text.starts_with(&joined), "{joined:?} of {text:?}: {log:?}");
                joined.clear();
            }
            _ => {}
        }
    }
    assert_eq!(joined, "", "deltas of no message: {log:?}");
}

proptest! {
    /// Any secret, any pieces, in messages, thoughts and streamed output, with commits between.
    #[test]
    fn no_event_shows_a_secret_wherever_it_is_cut(
        secret in "[a-dü\"\\\\\t ]{8,20}",
        cuts in proptest::collection::vec(1usize..6, 0..30),
        flushes in proptest::collection::vec(any::<bool>(), 40),
        kind in 0usize..3,
    ) {
        let redactor = Redactor::new([oubliette_model::Secret::new(&secret)].into_iter());
        let mut builder = EventBuilder::resume(Arc::new(redactor), String::new(), &[]);
        let mut live = LiveAgent::default();
        let text = format!("x {secret}{secret} y");
        let mut rest = text.as_str();
        let mut log = Vec::new();
        for (n, is_flushed) in flushes.iter().enumerate() {
            let end = cuts.get(n).copied().unwrap_or(rest.len()).min(rest.len());
            let (piece, after) = rest.split_at(rest.ceil_char_boundary(end));
            rest = after;
            let update = match kind {
                0 => AgentUpdate::Text(chunk(piece, None)),
                1 => AgentUpdate::Thought(chunk(piece, None)),
                _ => {
                    let AgentUpdate::Tool(call) = tool("1", false, false, None) else { panic!() };
                    AgentUpdate::Tool(ToolCall { output_delta: piece.to_owned(), ..call })
                }
            };
            builder.handle_update(&mut live, update, log.len() as i64);
            if *is_flushed {
                builder.flush(&live);
                log.append(&mut builder.take());
                live = serde_json::from_str(&serde_json::to_string(&live).unwrap()).unwrap();
            }
        }
        if kind == 2 {
            builder.handle_update(&mut live, tool("1", true, true, Some("")), 0);
        }
        let whole = builder.end_turn(&mut live);
        log.append(&mut builder.take());
        for text in shown(&log).into_iter().chain([whole]) {
            prop_assert!(!text.contains(&secret), "{}", text);
        }
        let masked = shown(&log).iter().any(|text| text == "x [redacted][redacted] y");
        // A secret that overlaps itself has one mask.
        prop_assert!(masked || shown(&log).iter().any(|text| text.starts_with("x [redacted]")));
    }

    /// A crash between any two flushes does not change the messages.
    #[test]
    fn messages_are_the_same_after_a_crash(
        lines in proptest::collection::vec("[a-c]{1,3}|T|t|M", 1..40),
        flushes in proptest::collection::vec(any::<bool>(), 40),
        crash in 0usize..40,
    ) {
        let update = |builder: &mut EventBuilder, live: &mut LiveAgent, line: &str, n: usize, end: i64| match line {
            "T" => builder.handle_update(live, tool(&n.to_string(), true, true, Some("o")), end),
            "t" => builder.handle_update(live, AgentUpdate::Thought(chunk("q", None)), end),
            "M" => builder.handle_update(live, AgentUpdate::Text(chunk("m", Some(&n.to_string()))), end),
            other => builder.handle_update(live, text(other), end),
        };
        let without_deltas = |events: &[Event]| -> Vec<Event> {
            events.iter().filter(|e| e.kind() != "delta").cloned().collect()
        };
        let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
        for (n, line) in lines.iter().enumerate() {
            update(&mut builder, &mut live, line, n, 0);
        }
        let expected_text = builder.end_turn(&mut live);
        let expected = without_deltas(&builder.events);

        // With commits and a crash: what is not committed at the crash is read again.
        let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
        let (mut log, mut committed) = (Vec::<Event>::new(), 0);
        let mut saved = live.clone();
        let mut n = 0;
        let mut crashed = false;
        while n < lines.len() {
            update(&mut builder, &mut live, &lines[n], n, log.len() as i64);
            n += 1;
            if flushes[n - 1] || !builder.events.is_empty() {
                builder.flush(&live);
                log.append(&mut builder.events);
                saved = live.clone();
                committed = n;
            }
            if n > crash && !crashed {
                crashed = true;
                live = saved.clone();
                let flushed = live.open_text.as_ref().map_or(String::new(), |open| {
                    let deltas = log.iter().skip(usize::try_from(open.start_index).unwrap());
                    deltas.filter_map(|event| match event {
                        Event::Delta { text, .. } => Some(text.as_str()),
                        _ => None,
                    }).collect()
                });
                let messages: Vec<String> = log.iter().filter_map(|event| match event {
                    Event::Message { text } => Some(text.clone()),
                    _ => None,
                }).collect();
                builder = EventBuilder::resume(Arc::default(), flushed, &messages);
                n = committed;
            }
        }
        let text = builder.end_turn(&mut live);
        log.append(&mut builder.events);
        prop_assert_eq!(without_deltas(&log), expected);
        prop_assert_eq!(text, expected_text);
        check_deltas(&log);
    }
}
