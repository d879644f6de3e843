//! What the meter counts from answers of each kind, cut at every place.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const SSE: &str = "text/event-stream; charset=utf-8";

fn call(api: Api) -> ModelCall {
    ModelCall::of_size(api, "/x", 300)
}

fn event(data: &Value) -> String {
    format!("event: x\ndata: {data}\n\n")
}

fn messages_stream() -> String {
    [
        json!({ "type": "message_start", "message": { "model": "claude-x", "usage": {
            "input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 5,
            "cache_creation": { "ephemeral_1h_input_tokens": 2 }, "output_tokens": 1 } } }),
        json!({ "type": "content_block_delta", "delta": { "type": "text_delta", "text": "a \"usage\" \n" } }),
        json!({ "type": "message_delta", "usage": { "output_tokens": 15 } }),
        json!({ "type": "message_delta", "usage": { "output_tokens": 40 } }),
        json!({ "type": "message_stop" }),
    ]
    .iter()
    .map(event)
    .collect()
}

fn measure(api: Api, content_type: &str, text: &str, is_complete: bool) -> Measured {
    let mut meter = Meter::new(api, content_type);
    meter.feed(text.as_bytes());
    meter.finish(&call(api), is_complete)
}

#[test]
fn messages_are_counted_by_their_start_and_last_delta() {
    let measured = measure(Api::Messages, SSE, &messages_stream(), true);
    let expected = TokenCounts {
        input: 10,
        cache_read: 100,
        cache_write: 5,
        cache_write_hour: 2,
        output: 40,
        thoughts: 0,
    };
    assert_eq!((measured.tokens, measured.is_estimate), (expected, false));
    assert_eq!(measured.model.as_deref(), Some("claude-x"));
    let body = json!({ "model": "m", "usage": { "input_tokens": 3, "output_tokens": 4 } });
    let whole = measure(Api::Messages, "application/json", &body.to_string(), true);
    assert_eq!((whole.tokens.input, whole.tokens.output), (3, 4));
}

#[test]
fn the_end_is_known_when_it_passes() {
    let text = messages_stream();
    let (most, last) = text.split_at(text.find("message_stop").unwrap());
    let mut meter = Meter::new(Api::Messages, SSE);
    assert!(!meter.feed(most.as_bytes()));
    assert!(meter.feed(last.as_bytes()));
    assert!(!meter.feed(b"\n"));
    let mut meter = Meter::new(Api::Chat, SSE);
    assert!(meter.feed(b"data: [DONE]\n\n"));
}

#[test]
fn responses_chats_and_contents_are_counted() {
    let completed = event(
        &json!({ "type": "response.completed", "response": { "model": "gpt-x", "usage": {
        "input_tokens": 50, "input_tokens_details": { "cached_tokens": 20 },
        "output_tokens": 9, "output_tokens_details": { "reasoning_tokens": 4 } } } }),
    );
    let expected = TokenCounts {
        input: 30,
        cache_read: 20,
        output: 5,
        thoughts: 4,
        ..TokenCounts::default()
    };
    assert_eq!(
        measure(Api::Responses, SSE, &completed, true).tokens,
        expected
    );
    let chunk = json!({ "choices": [], "usage": { "prompt_tokens": 50, "completion_tokens": 9,
        "prompt_tokens_details": { "cached_tokens": 20 }, "completion_tokens_details": { "reasoning_tokens": 4 } } });
    let chat = format!(
        "{}{}data: [DONE]\n\n",
        event(&json!({ "choices": [{ "delta": { "content": "x" } }], "usage": null })),
        event(&chunk)
    );
    let measured = measure(Api::Chat, SSE, &chat, true);
    assert_eq!((measured.tokens, measured.is_estimate), (expected, false));
    assert_eq!(
        measure(Api::Chat, "application/json", &chunk.to_string(), true).tokens,
        expected
    );
    let part = |prompt: u64, output: u64| {
        json!({ "modelVersion": "gemini-x", "usageMetadata": {
        "promptTokenCount": prompt, "cachedContentTokenCount": 20, "candidatesTokenCount": output, "thoughtsTokenCount": 4 } })
    };
    let mut last = part(50, 5);
    last["candidates"] = json!([{ "finishReason": "STOP" }]);
    let stream = format!("{}{}", event(&part(50, 2)), event(&last));
    assert_eq!(measure(Api::Contents, SSE, &stream, true).tokens, expected);
    let list = json!([part(50, 2), last]).to_string();
    assert_eq!(
        measure(Api::Contents, "application/json", &list, true).tokens,
        expected
    );
}

#[test]
fn a_cut_or_broken_stream_is_estimated_from_what_came() {
    let text = messages_stream();
    let cut = &text[..text.find("message_delta").unwrap()];
    let measured = measure(Api::Messages, SSE, cut, false);
    assert!(measured.is_estimate);
    assert_eq!(
        (measured.tokens.input, measured.tokens.cache_read),
        (10, 100)
    );
    assert_eq!(measured.tokens.output, 4);
    let nothing = measure(Api::Responses, SSE, "data: {broken\n\nnonsense", false);
    assert_eq!((nothing.tokens.input, nothing.tokens.output), (100, 0));
    let other = measure(Api::Other, "image/png", &"x".repeat(30), true);
    assert_eq!((other.tokens.output, other.is_estimate), (10, true));
    // An end without the tokens is one that the provider broke.
    assert!(measure(Api::Chat, SSE, "data: [DONE]\n\n", true).is_estimate);
}

#[test]
fn a_line_without_end_is_not_kept() {
    let mut meter = Meter::new(Api::Messages, SSE);
    for _ in 0..20 {
        meter.feed(&vec![b'x'; 1 << 20]);
    }
    assert!(meter.buffer.capacity() <= 2 * MAX_READ_BYTES);
    meter.feed(format!("\n{}", messages_stream()).as_bytes());
    assert_eq!(meter.finish(&call(Api::Messages), true).tokens.output, 40);
}

proptest! {
    #[test]
    fn the_count_does_not_depend_on_how_a_stream_is_cut_into_pieces(cuts in proptest::collection::vec(0_usize..700, 0..12)) {
        let text = messages_stream();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
        cuts.sort_unstable();
        let mut meter = Meter::new(Api::Messages, SSE);
        let mut at = 0;
        for cut in cuts.into_iter().chain([text.len()]) {
            meter.feed(&text.as_bytes()[at..cut]);
            at = cut;
        }
        prop_assert_eq!(meter.finish(&call(Api::Messages), true), measure(Api::Messages, SSE, &text, true));
    }

    #[test]
    fn no_response_makes_the_meter_fail(bytes in proptest::collection::vec(any::<u8>(), 0..400), prefix in "(data: |\\{|\\[)?") {
        for api in [Api::Messages, Api::Chat, Api::Responses, Api::Contents, Api::Other] {
            for content_type in [SSE, "application/json"] {
                let mut meter = Meter::new(api, content_type);
                meter.feed(prefix.as_bytes());
                meter.feed(&bytes);
                meter.finish(&call(api), true);
            }
        }
    }
}
