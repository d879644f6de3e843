//! How many tokens a call can take at most, by its request.
//!
//! What a provider adds itself, for example pages that it fetches or conversations that it keeps, is not in the
//! request and not counted here.

use serde_json::{Map, Value};

use super::call::Api;
use super::meter::TokenCounts;

/// Text has three or four bytes per token; numbers and some languages have two.
const MIN_BYTES_PER_TOKEN: u64 = 2;
/// An image takes tokens by its width and height, far fewer than its bytes.
const MIN_IMAGE_BYTES_PER_TOKEN: u64 = 20;
const MIN_IMAGE_TOKENS: u64 = 5_000;
const MAX_IMAGE_TOKENS: u64 = 50_000;
/// Answers that one request may ask for.
const MAX_ANSWERS: u64 = 128;

/// The largest numbers of tokens of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CallBounds {
    /// Without the answers whose size the request does not limit.
    pub(crate) tokens: TokenCounts,
    /// How many those are.
    pub(crate) unlimited_answers: u64,
    /// How many answers the request limits.
    pub(crate) limited_answers: u64,
}

impl CallBounds {
    /// The bounds of a request of which only the size is known.
    pub(crate) fn of_size(bytes: u64) -> Self {
        let tokens = TokenCounts {
            input: bytes.div_ceil(MIN_BYTES_PER_TOKEN),
            ..TokenCounts::default()
        };
        Self {
            tokens,
            unlimited_answers: 1,
            limited_answers: 0,
        }
    }

    pub(crate) fn read(api: Api, request: &Map<String, Value>, bytes: u64) -> Self {
        let mut input = Input::default();
        request.values().for_each(|value| input.add(value));
        input.add_cache(request.get("cache_control"));
        let text_bytes = bytes.saturating_sub(input.image_bytes);
        let count = text_bytes.div_ceil(MIN_BYTES_PER_TOKEN) + input.image_tokens;
        let is_cached = api == Api::Messages && input.writes_cache;
        let mut bounds = Self {
            tokens: TokenCounts {
                input: if is_cached { 0 } else { count },
                cache_write: if is_cached { count } else { 0 },
                cache_write_hour: if is_cached && input.writes_for_an_hour {
                    count
                } else {
                    0
                },
                ..TokenCounts::default()
            },
            unlimited_answers: 0,
            limited_answers: 0,
        };
        let answers = answers(api, request).clamp(1, MAX_ANSWERS);
        match max_output(api, request) {
            Some(max) => {
                bounds.tokens.output = max.saturating_mul(answers);
                bounds.limited_answers = answers;
            }
            None => bounds.unlimited_answers = answers,
        }
        bounds
    }
}

/// The largest size of one answer, if the request names it.
fn max_output(api: Api, request: &Map<String, Value>) -> Option<u64> {
    let number = |name: &str| request.get(name).and_then(Value::as_u64);
    match api {
        Api::Messages => number("max_tokens"),
        Api::Chat => number("max_completion_tokens").max(number("max_tokens")),
        Api::Responses => number("max_output_tokens"),
        Api::Contents => generation(request, "maxOutputTokens", "max_output_tokens"),
        Api::Other => None,
    }
}

fn answers(api: Api, request: &Map<String, Value>) -> u64 {
    let answers = match api {
        Api::Chat => request.get("n").and_then(Value::as_u64),
        Api::Contents => generation(request, "candidateCount", "candidate_count"),
        _ => None,
    };
    answers.unwrap_or(1)
}

/// A number of Gemini's settings, which have two spellings.
fn generation(request: &Map<String, Value>, name: &str, other: &str) -> Option<u64> {
    let settings = ["generationConfig", "generation_config"];
    let settings = settings.into_iter().filter_map(|it| request.get(it));
    settings
        .flat_map(|it| [&it[name], &it[other]])
        .filter_map(Value::as_u64)
        .max()
}

/// What the parts of a request are.
#[derive(Debug, Default)]
struct Input {
    image_bytes: u64,
    image_tokens: u64,
    writes_cache: bool,
    writes_for_an_hour: bool,
}

impl Input {
    fn add(&mut self, value: &Value) {
        match value {
            Value::String(text) if text.starts_with("data:image/") => self.add_image(text),
            Value::Array(parts) => parts.iter().for_each(|part| self.add(part)),
            Value::Object(fields) => {
                self.add_cache(fields.get("cache_control"));
                let kinds = ["media_type", "mimeType", "mime_type"];
                let mut kinds = kinds
                    .into_iter()
                    .filter_map(|name| fields.get(name)?.as_str());
                let is_image = kinds.any(|kind| kind.starts_with("image/"));
                for (name, value) in fields {
                    match value.as_str() {
                        Some(data) if is_image && name == "data" => self.add_image(data),
                        _ => self.add(value),
                    }
                }
            }
            _ => {}
        }
    }

    fn add_image(&mut self, data: &str) {
        let bytes = data.len() as u64;
        let tokens = bytes / MIN_IMAGE_BYTES_PER_TOKEN;
        self.image_bytes += bytes;
        self.image_tokens += tokens.clamp(MIN_IMAGE_TOKENS, MAX_IMAGE_TOKENS);
    }

    fn add_cache(&mut self, control: Option<&Value>) {
        if let Some(control) = control.filter(|control| control.is_object()) {
            self.writes_cache = true;
            self.writes_for_an_hour |= control["ttl"] == "1h";
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(api: Api, request: &Value) -> CallBounds {
        let bytes = request.to_string().len() as u64;
        CallBounds::read(api, request.as_object().unwrap(), bytes)
    }

    #[test]
    fn the_largest_answer_is_what_the_request_names() {
        let output = |api, request: Value| {
            let bounds = read(api, &request);
            (bounds.tokens.output, bounds.unlimited_answers)
        };
        assert_eq!(output(Api::Messages, json!({ "max_tokens": 50 })), (50, 0));
        let both = json!({ "max_tokens": 5, "max_completion_tokens": 7, "n": 3 });
        assert_eq!(output(Api::Chat, both), (21, 0));
        assert_eq!(output(Api::Chat, json!({ "n": 2 })), (0, 2));
        let named = json!({ "max_output_tokens": 9 });
        assert_eq!(output(Api::Responses, named), (9, 0));
        assert_eq!(output(Api::Responses, json!({ "max_tokens": 9 })), (0, 1));
        let gemini = json!({ "generationConfig": { "maxOutputTokens": 8, "candidateCount": 2 } });
        assert_eq!(output(Api::Contents, gemini), (16, 0));
        let other = json!({ "generation_config": { "max_output_tokens": 8 } });
        assert_eq!(output(Api::Contents, other), (8, 0));
        assert_eq!(output(Api::Contents, json!({})), (0, 1));
        let absurd = json!({ "max_tokens": u64::MAX, "n": u64::MAX });
        assert_eq!(output(Api::Chat, absurd), (u64::MAX, 0));
    }

    #[test]
    fn the_input_is_counted_by_bytes_and_images_by_less() {
        let plain = json!({ "messages": "x".repeat(1000) });
        let bytes = plain.to_string().len() as u64;
        assert_eq!(read(Api::Chat, &plain).tokens.input, bytes.div_ceil(2));
        let data = "A".repeat(1 << 20);
        let anthropic =
            json!({ "messages": [{ "source": { "media_type": "image/png", "data": data } }] });
        let gemini =
            json!({ "contents": [{ "inlineData": { "mimeType": "image/png", "data": data } }] });
        let url = format!("data:image/png;base64,{data}");
        let openai = json!({ "messages": [{ "image_url": { "url": url } }] });
        for (api, request) in [
            (Api::Messages, anthropic),
            (Api::Contents, gemini),
            (Api::Chat, openai),
        ] {
            let input = read(api, &request).tokens.input;
            assert!((MIN_IMAGE_TOKENS..60_000).contains(&input), "{input}");
        }
        let document = json!({ "source": { "media_type": "application/pdf", "data": data } });
        assert!(read(Api::Messages, &document).tokens.input > 1 << 19);
    }

    #[test]
    fn what_goes_into_a_cache_costs_more() {
        let block =
            |control: Value| json!({ "system": [{ "text": "x", "cache_control": control }] });
        let short = read(Api::Messages, &block(json!({ "type": "ephemeral" }))).tokens;
        assert!(short.input == 0 && short.cache_write > 0 && short.cache_write_hour == 0);
        let long = read(Api::Messages, &block(json!({ "ttl": "1h" }))).tokens;
        assert_eq!(long.cache_write_hour, long.cache_write);
        let whole = read(Api::Messages, &json!({ "cache_control": { "ttl": "1h" } })).tokens;
        assert!(whole.cache_write_hour > 0);
        let none = read(Api::Messages, &block(Value::Null)).tokens;
        assert!(none.input > 0 && none.cache_write == 0);
    }
}
