//! What a request asks of a model: which API, and which model.

use hyper::Method;
use serde_json::{Value, json};

use super::bounds::CallBounds;

/// Text has about four bytes per token, other languages and code fewer.
const ESTIMATED_BYTES_PER_TOKEN: u64 = 3;

/// The form of a request and of its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    /// Anthropic's messages.
    Messages,
    /// OpenAI's chat completions, which many providers have.
    Chat,
    /// OpenAI's responses.
    Responses,
    /// Gemini's contents.
    Contents,
    /// Texts as numbers: there is no answer to count.
    Other,
}

/// What to do with a request, by its method and path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It costs nothing: lists, counts.
    Free,
    Call(Api),
    /// Its cost is not known when it ends.
    Uncountable,
    /// It could do anything with the key: make another one, read files of others.
    Unknown,
}

impl Purpose {
    pub(crate) fn of(method: &Method, path: &str) -> Self {
        if *method != Method::POST {
            let is_list = path.split('/').any(|segment| segment == "models");
            return if is_list { Self::Free } else { Self::Unknown };
        }
        let path = path.trim_end_matches('/');
        if path.ends_with("/count_tokens")
            || path.ends_with(":countTokens")
            || path.ends_with("/input_tokens")
        {
            Self::Free
        } else if path.contains("/batches") || path.contains(":batch") {
            Self::Uncountable
        } else if path.ends_with("/messages") {
            Self::Call(Api::Messages)
        } else if path.ends_with("/chat/completions") {
            Self::Call(Api::Chat)
        } else if path.ends_with("/responses") || path.ends_with("/responses/compact") {
            Self::Call(Api::Responses)
        } else if path.ends_with(":generateContent") || path.ends_with(":streamGenerateContent") {
            Self::Call(Api::Contents)
        } else if path.ends_with("/embeddings") || path.ends_with(":embedContent") {
            Self::Call(Api::Other)
        } else {
            Self::Unknown
        }
    }
}

/// A call of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelCall {
    pub(crate) api: Api,
    /// As the agent named it; empty if it named none.
    pub(crate) model: String,
    pub(crate) request_bytes: u64,
    /// Whether the agent did not ask for the tokens of the stream, and must not get them.
    pub(crate) hides_usage: bool,
    /// Whether the answer arrives while it is written: providers stop when the connection ends.
    pub(crate) streams: bool,
    pub(crate) bounds: CallBounds,
}

impl ModelCall {
    /// A call whose body is not read.
    pub(crate) fn of_size(api: Api, path: &str, request_bytes: u64) -> Self {
        Self {
            api,
            model: model_in_path(path).unwrap_or_default(),
            request_bytes,
            hides_usage: false,
            streams: path.ends_with(":streamGenerateContent"),
            bounds: CallBounds::of_size(request_bytes),
        }
    }

    /// Reads a body. Also returns the body to send instead, if the agent did not ask for the tokens of a stream.
    pub(crate) fn read(api: Api, path: &str, body: &[u8]) -> (Self, Option<Vec<u8>>) {
        let mut call = Self::of_size(api, path, body.len() as u64);
        let Ok(Value::Object(mut fields)) = serde_json::from_slice(body) else {
            return (call, None);
        };
        if let Some(model) = fields.get("model").and_then(Value::as_str) {
            call.model = model.chars().take(200).collect();
        }
        call.bounds = CallBounds::read(api, &fields, call.request_bytes);
        call.streams |= fields.get("stream").and_then(Value::as_bool) == Some(true);
        let asks = fields
            .get("stream_options")
            .is_some_and(|options| options["include_usage"] == true);
        if api != Api::Chat || !call.streams || asks {
            return (call, None);
        }
        call.hides_usage = true;
        let options = fields.entry("stream_options").or_insert_with(|| json!({}));
        if !options.is_object() {
            *options = json!({});
        }
        options["include_usage"] = json!(true);
        let changed = serde_json::to_vec(&fields).ok();
        (call, changed)
    }

    /// The tokens of the request, by its size.
    pub(crate) fn estimated_input_tokens(&self) -> u64 {
        self.request_bytes.div_ceil(ESTIMATED_BYTES_PER_TOKEN)
    }
}

/// The tokens of some text, by its size.
pub(crate) fn estimated_tokens(bytes: u64) -> u64 {
    bytes.div_ceil(ESTIMATED_BYTES_PER_TOKEN)
}

/// The model that a path of Gemini names.
fn model_in_path(path: &str) -> Option<String> {
    let (_, rest) = path.split_once("models/")?;
    let model = rest.split([':', '/']).next()?;
    Some(model.chars().take(200).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_says_what_a_request_is() {
        let purpose = |path: &str| Purpose::of(&Method::POST, path);
        assert_eq!(purpose("/v1/messages"), Purpose::Call(Api::Messages));
        assert_eq!(purpose("/v1/messages/count_tokens"), Purpose::Free);
        assert_eq!(purpose("/v1/messages/batches"), Purpose::Uncountable);
        assert_eq!(purpose("/chat/completions"), Purpose::Call(Api::Chat));
        for path in ["/responses", "/responses/compact"] {
            assert_eq!(purpose(path), Purpose::Call(Api::Responses));
        }
        let gemini = "/v1beta/models/gemini-9:streamGenerateContent";
        assert_eq!(purpose(gemini), Purpose::Call(Api::Contents));
        assert_eq!(purpose("/v1beta/models/m:countTokens"), Purpose::Free);
        assert_eq!(
            purpose("/v1beta/models/m:batchGenerateContent"),
            Purpose::Uncountable
        );
        assert_eq!(purpose("/embeddings"), Purpose::Call(Api::Other));
        for path in [
            "/images/generations",
            "/realtime/client_secrets",
            "/files",
            "/completions",
        ] {
            assert_eq!(purpose(path), Purpose::Unknown, "{path}");
        }
        let get = |path: &str| Purpose::of(&Method::GET, path);
        assert_eq!(get("/models"), Purpose::Free);
        assert_eq!(get("/v1/models/m"), Purpose::Free);
        assert_eq!(get("/v1/files"), Purpose::Unknown);
        assert_eq!(
            ModelCall::of_size(Api::Contents, gemini, 0).model,
            "gemini-9"
        );
    }

    #[test]
    fn a_chat_is_asked_for_its_tokens_and_nothing_else_is_changed() {
        let read = |api, body: &Value| ModelCall::read(api, "/x", body.to_string().as_bytes());
        let plain = json!({ "model": "m", "stream": true, "max_tokens": 7, "x": [1] });
        let (call, changed) = read(Api::Chat, &plain);
        assert!(call.hides_usage && call.model == "m");
        let changed: Value = serde_json::from_slice(&changed.unwrap()).unwrap();
        let mut expected = plain.clone();
        expected["stream_options"] = json!({ "include_usage": true });
        assert_eq!(changed, expected);
        assert_eq!(read(Api::Chat, &expected).1, None);
        assert_eq!(read(Api::Messages, &plain).1, None);
        assert_eq!(read(Api::Chat, &json!({ "model": "m" })).1, None);
        let (call, changed) = ModelCall::read(Api::Chat, "/x", b"not json");
        assert_eq!((call.request_bytes, changed), (8, None));
    }
}
