//! Takes out of a stream of a chat the event with the tokens, which the gate has asked for and the agent has not.

use hyper::body::Bytes;
use serde_json::Value;

/// An event that is longer is passed on as it comes.
const MAX_EVENT_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct UsageFilter {
    /// The lines of an event that is not complete.
    event: Vec<u8>,
    /// Where the last of them begins.
    line_start: usize,
}

impl UsageFilter {
    /// What of these bytes, and of those that were held back, is passed on.
    pub(crate) fn pass(&mut self, bytes: &[u8]) -> Bytes {
        let mut passed = Vec::with_capacity(bytes.len());
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.event.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = &self.event[self.line_start..];
                let ends_event = line.trim_ascii().is_empty();
                self.line_start = self.event.len();
                if ends_event {
                    let event = self.take();
                    if !has_only_usage(&event) {
                        passed.extend_from_slice(&event);
                    }
                }
            }
            if self.event.len() > MAX_EVENT_BYTES {
                passed.extend_from_slice(&self.take());
            }
        }
        passed.into()
    }

    /// What is left when the stream has ended.
    pub(crate) fn rest(&mut self) -> Bytes {
        let event = self.take();
        if has_only_usage(&event) {
            return Bytes::new();
        }
        event.into()
    }

    fn take(&mut self) -> Vec<u8> {
        self.line_start = 0;
        std::mem::take(&mut self.event)
    }
}

fn has_only_usage(event: &[u8]) -> bool {
    let Some(data) = event.trim_ascii().strip_prefix(b"data:") else {
        return false;
    };
    let Ok(event) = serde_json::from_slice::<Value>(data) else {
        return false;
    };
    event["usage"].is_object() && event["choices"].as_array().is_some_and(Vec::is_empty)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &str = "data: {\"choices\":[{\"delta\":{}}],\"usage\":null}\n\n: comment\r\n\r\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\ndata: [DONE]\n\nrest";

    proptest! {
        #[test]
        fn only_the_event_with_the_tokens_is_taken_out(cuts in proptest::collection::vec(0_usize..STREAM.len(), 0..8)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let (mut filter, mut passed, mut at) = (UsageFilter::default(), Vec::new(), 0);
            for cut in cuts.into_iter().chain([STREAM.len()]) {
                passed.extend_from_slice(&filter.pass(&STREAM.as_bytes()[at..cut]));
                at = cut;
            }
            passed.extend_from_slice(&filter.rest());
            let expected = "data: {\"choices\":[{\"delta\":{}}],\"usage\":null}\n\n: comment\r\n\r\ndata: [DONE]\n\nrest";
            prop_assert_eq!(String::from_utf8(passed).unwrap(), expected);
        }
    }

    #[test]
    fn a_long_event_is_not_held_back() {
        let mut filter = UsageFilter::default();
        let long = vec![b'x'; MAX_EVENT_BYTES + 1];
        assert_eq!(filter.pass(&long).len(), long.len());
        assert!(filter.rest().is_empty());
    }
}
