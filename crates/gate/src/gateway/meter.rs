//! Reads in passing how many tokens a response says that it took.
//!
//! A response is never changed or held up by this; what cannot be read is estimated from its size.

use std::mem;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::call::{Api, ModelCall, estimated_tokens};

/// Of one event of a stream, or of a response that is no stream. What is longer is not read.
const MAX_READ_BYTES: usize = 8 << 20;

/// The tokens of one call. No token is counted twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenCounts {
    /// Of the request, without those below.
    pub input: u64,
    /// Of the request, from the provider's cache.
    pub cache_read: u64,
    /// Of the request, put into the provider's cache.
    pub cache_write: u64,
    /// Of those, the ones that stay there for an hour, which cost more.
    pub cache_write_hour: u64,
    /// Of the response, without its thoughts.
    pub output: u64,
    pub thoughts: u64,
}

/// What is known about a call when its response has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    pub(crate) tokens: TokenCounts,
    /// The model that has answered, if the response says so.
    pub(crate) model: Option<String>,
    /// Whether something of it is estimated from the size.
    pub(crate) is_estimate: bool,
}

/// Reads one response.
#[derive(Debug)]
pub(crate) struct Meter {
    api: Api,
    is_stream: bool,
    /// A line of a stream, or the whole response.
    buffer: Vec<u8>,
    /// Whether the rest of the line, or of the response, is too long to be read.
    is_skipping: bool,
    tokens: Option<TokenCounts>,
    model: Option<String>,
    has_ended: bool,
    response_bytes: u64,
    /// Of the text that the model has written so far.
    text_bytes: u64,
}

impl Meter {
    pub(crate) fn new(api: Api, content_type: &str) -> Self {
        Self {
            api,
            is_stream: content_type.starts_with("text/event-stream"),
            buffer: Vec::new(),
            is_skipping: false,
            tokens: None,
            model: None,
            has_ended: false,
            response_bytes: 0,
            text_bytes: 0,
        }
    }

    /// Takes the next bytes; returns whether the response says in them that it is complete.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> bool {
        self.response_bytes += bytes.len() as u64;
        if self.api == Api::Other {
            return false;
        }
        let had_ended = self.has_ended;
        let mut rest = bytes;
        while let Some(end) = rest
            .iter()
            .position(|byte| self.is_stream && *byte == b'\n')
        {
            self.push(&rest[..end]);
            let line = mem::take(&mut self.buffer);
            if !mem::take(&mut self.is_skipping) {
                self.read_line(&line);
            }
            rest = &rest[end + 1..];
        }
        self.push(rest);
        self.has_ended && !had_ended
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.is_skipping || self.buffer.len() + bytes.len() > MAX_READ_BYTES {
            self.is_skipping = true;
            self.buffer = Vec::new();
        } else {
            self.buffer.extend_from_slice(bytes);
        }
    }

    fn read_line(&mut self, line: &[u8]) {
        let Some(data) = line.strip_prefix(b"data:") else {
            return;
        };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            self.has_ended = true;
        } else if let Ok(event) = serde_json::from_slice::<Value>(data) {
            self.read_event(&event);
        }
    }

    fn read_event(&mut self, event: &Value) {
        match self.api {
            Api::Messages => self.read_messages_event(event),
            Api::Chat => {
                self.take_model(&event["model"]);
                if let Some(tokens) = chat_tokens(&event["usage"]) {
                    self.tokens = Some(tokens);
                }
                self.count_text(&event["choices"]);
            }
            Api::Responses => {
                let response = &event["response"];
                self.take_model(&response["model"]);
                if let Some(tokens) = responses_tokens(&response["usage"]) {
                    self.tokens = Some(tokens);
                }
                let kind = event["type"].as_str().unwrap_or_default();
                let ends = [
                    "response.completed",
                    "response.incomplete",
                    "response.failed",
                ];
                if ends.contains(&kind) {
                    self.has_ended = true;
                } else if let Some(delta) = event["delta"].as_str() {
                    self.text_bytes += delta.len() as u64;
                }
            }
            Api::Contents => {
                self.take_model(&event["modelVersion"]);
                // The last one counts: each has the total so far.
                if let Some(tokens) = contents_tokens(&event["usageMetadata"]) {
                    self.tokens = Some(tokens);
                }
                self.count_text(&event["candidates"]);
                self.has_ended |= event["candidates"][0]["finishReason"].is_string();
            }
            Api::Other => {}
        }
    }

    fn read_messages_event(&mut self, event: &Value) {
        match event["type"].as_str() {
            Some("message_start") => {
                self.take_model(&event["message"]["model"]);
                self.tokens = messages_tokens(&event["message"]["usage"], None);
            }
            // Its numbers are totals.
            Some("message_delta") => {
                self.tokens = messages_tokens(&event["usage"], self.tokens);
                self.text_bytes = 0;
            }
            Some("message_stop") => self.has_ended = true,
            Some("content_block_delta") => self.count_text(&event["delta"]),
            _ => {}
        }
    }

    fn take_model(&mut self, model: &Value) {
        if let Some(model) = model.as_str().filter(|model| !model.is_empty()) {
            self.model = Some(model.chars().take(200).collect());
        }
    }

    /// Adds the size of the texts in a part of an event.
    fn count_text(&mut self, part: &Value) {
        match part {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                let is_text = matches!(
                    name.as_str(),
                    "text"
                        | "thinking"
                        | "partial_json"
                        | "content"
                        | "reasoning_content"
                        | "arguments"
                );
                match value.as_str().filter(|_| is_text) {
                    Some(text) => self.text_bytes += text.len() as u64,
                    None => self.count_text(value),
                }
            }),
            Value::Array(parts) => parts.iter().for_each(|part| self.count_text(part)),
            _ => {}
        }
    }

    /// What the call took. `is_complete` says whether the response has ended well.
    pub(crate) fn finish(mut self, call: &ModelCall, is_complete: bool) -> Measured {
        if !self.is_stream && is_complete && !self.is_skipping {
            let buffer = mem::take(&mut self.buffer);
            if let Ok(body) = serde_json::from_slice::<Value>(&buffer) {
                self.read_body(&body);
            }
        }
        let has_ended = is_complete && (self.has_ended || self.api == Api::Chat || !self.is_stream);
        if let Some(tokens) = self.tokens
            && has_ended
        {
            return Measured {
                tokens,
                model: self.model,
                is_estimate: false,
            };
        }
        let text_bytes = match self.api {
            Api::Other => self.response_bytes,
            _ if !self.is_stream => self.response_bytes,
            _ => self.text_bytes,
        };
        let mut tokens = self.tokens.unwrap_or(TokenCounts {
            input: call.estimated_input_tokens(),
            ..TokenCounts::default()
        });
        tokens.output = tokens.output.max(estimated_tokens(text_bytes));
        Measured {
            tokens,
            model: self.model,
            is_estimate: true,
        }
    }

    fn read_body(&mut self, body: &Value) {
        self.take_model(&body["model"]);
        match self.api {
            Api::Messages => self.tokens = messages_tokens(&body["usage"], None),
            Api::Chat => self.tokens = chat_tokens(&body["usage"]),
            Api::Responses => self.tokens = responses_tokens(&body["usage"]),
            // Without `alt=sse`, a stream of Gemini is a list.
            Api::Contents => match body {
                Value::Array(events) => events.iter().for_each(|event| self.read_event(event)),
                event => self.read_event(event),
            },
            Api::Other => {}
        }
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// `earlier` is what the message began with; what the update does not have stays.
fn messages_tokens(usage: &Value, earlier: Option<TokenCounts>) -> Option<TokenCounts> {
    if !usage.is_object() {
        return earlier;
    }
    let earlier = earlier.unwrap_or_default();
    let or = |name: &str, earlier: u64| usage[name].as_u64().unwrap_or(earlier);
    let hour = &usage["cache_creation"]["ephemeral_1h_input_tokens"];
    Some(TokenCounts {
        input: or("input_tokens", earlier.input),
        cache_read: or("cache_read_input_tokens", earlier.cache_read),
        cache_write: or("cache_creation_input_tokens", earlier.cache_write),
        cache_write_hour: hour.as_u64().unwrap_or(earlier.cache_write_hour),
        output: or("output_tokens", earlier.output),
        thoughts: 0,
    })
}

fn chat_tokens(usage: &Value) -> Option<TokenCounts> {
    if !usage.is_object() {
        return None;
    }
    let cached = number(&usage["prompt_tokens_details"]["cached_tokens"]);
    let thoughts = number(&usage["completion_tokens_details"]["reasoning_tokens"]);
    Some(TokenCounts {
        input: number(&usage["prompt_tokens"]).saturating_sub(cached),
        cache_read: cached,
        output: number(&usage["completion_tokens"]).saturating_sub(thoughts),
        thoughts,
        ..TokenCounts::default()
    })
}

fn responses_tokens(usage: &Value) -> Option<TokenCounts> {
    if !usage.is_object() {
        return None;
    }
    let cached = number(&usage["input_tokens_details"]["cached_tokens"]);
    let thoughts = number(&usage["output_tokens_details"]["reasoning_tokens"]);
    Some(TokenCounts {
        input: number(&usage["input_tokens"]).saturating_sub(cached),
        cache_read: cached,
        output: number(&usage["output_tokens"]).saturating_sub(thoughts),
        thoughts,
        ..TokenCounts::default()
    })
}

fn contents_tokens(usage: &Value) -> Option<TokenCounts> {
    if !usage.is_object() {
        return None;
    }
    let cached = number(&usage["cachedContentTokenCount"]);
    let prompt = number(&usage["promptTokenCount"]) + number(&usage["toolUsePromptTokenCount"]);
    Some(TokenCounts {
        input: prompt.saturating_sub(cached),
        cache_read: cached,
        output: number(&usage["candidatesTokenCount"]),
        thoughts: number(&usage["thoughtsTokenCount"]),
        ..TokenCounts::default()
    })
}

#[cfg(test)]
mod tests;
