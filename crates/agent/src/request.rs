//! Lines for an agent's input.

use agent_client_protocol_schema::v1::{
    AGENT_METHOD_NAMES, CancelNotification, ContentBlock, ImageContent, PromptRequest, ResourceLink,
};
use oubliette_wire::{Message, RpcError, codes};
use serde_json::Value;
use serde_json::value::RawValue;

/// A file in the workspace that goes with a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    pub name: String,
    /// The path in the container.
    pub path: String,
    /// Its content, for an agent that takes images.
    pub image: Option<Image>,
}

/// A picture that a model can look at.
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    mime_type: &'static str,
    base64: String,
}

impl Image {
    /// How large a picture may be to be sent with a prompt; larger ones are only files.
    pub const MAX_BYTES: usize = 5 << 20;

    /// A picture, recognised by its first bytes; none if models do not take it.
    pub fn from_bytes(bytes: &[u8], base64: &str) -> Option<Self> {
        let mime_type = match bytes {
            [0x89, b'P', b'N', b'G', ..] => "image/png",
            [0xff, 0xd8, 0xff, ..] => "image/jpeg",
            [b'G', b'I', b'F', b'8', ..] => "image/gif",
            [
                b'R',
                b'I',
                b'F',
                b'F',
                _,
                _,
                _,
                _,
                b'W',
                b'E',
                b'B',
                b'P',
                ..,
            ] => "image/webp",
            _ => return None,
        };
        (bytes.len() <= Self::MAX_BYTES).then(|| Self {
            mime_type,
            base64: base64.to_owned(),
        })
    }
}

/// `session/prompt`.
pub fn prompt_request(
    id: u64,
    session: &str,
    texts: &[&str],
    attachments: &[Attachment],
) -> Vec<u8> {
    let texts = texts.iter().map(|text| ContentBlock::from(*text));
    let files = attachments.iter().map(|file| {
        let uri = format!("file://{}", file.path);
        match &file.image {
            Some(image) => {
                let image = ImageContent::new(image.base64.clone(), image.mime_type).uri(uri);
                ContentBlock::Image(image)
            }
            None => ContentBlock::ResourceLink(ResourceLink::new(file.name.clone(), uri)),
        }
    });
    let request = PromptRequest::new(session.to_owned(), texts.chain(files).collect());
    Message::request(id, AGENT_METHOD_NAMES.session_prompt, &request).to_line()
}

/// `session/cancel`.
pub fn cancel_notification(session: &str) -> Vec<u8> {
    let cancel = CancelNotification::new(session.to_owned());
    Message::notification(AGENT_METHOD_NAMES.session_cancel, &cancel).to_line()
}

/// The error response to a request that the server does not support.
pub fn method_not_found(id: &str, method: &str) -> Vec<u8> {
    let why = format!("there is no method {method}");
    reply(id, Err(RpcError::new(codes::METHOD_NOT_FOUND, why)))
}

/// A response; `id` is the JSON text that the agent wrote.
pub(crate) fn reply(id: &str, outcome: Result<Value, RpcError>) -> Vec<u8> {
    let id = RawValue::from_string(id.to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned());
    Message::reply(id, outcome).to_line()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_prompt_with_control_characters_is_one_line() {
        let attachments = [Attachment {
            name: "a.txt".to_owned(),
            path: "/workspace/a.txt".to_owned(),
            image: None,
        }];
        let line = prompt_request(7, "s", &["a\nb\u{0}\u{1b}[31m"], &attachments);
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let value: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(value["method"], "session/prompt");
        assert_eq!(value["params"]["prompt"][0]["text"], "a\nb\u{0}\u{1b}[31m");
        assert_eq!(
            value["params"]["prompt"][1]["uri"],
            "file:///workspace/a.txt"
        );
    }

    #[test]
    fn a_picture_is_sent_as_an_image() {
        let png = b"\x89PNG\r\n";
        let attachment = Attachment {
            name: "a.png".to_owned(),
            path: "/workspace/a.png".to_owned(),
            image: Image::from_bytes(png, "iVBORw0K"),
        };
        let line = prompt_request(7, "s", &["look"], &[attachment]);
        let value: Value = serde_json::from_slice(&line).unwrap();
        let block = &value["params"]["prompt"][1];
        assert_eq!(
            (&block["type"], &block["mimeType"], &block["data"]),
            (&json!("image"), &json!("image/png"), &json!("iVBORw0K"))
        );
        assert_eq!(block["uri"], "file:///workspace/a.png");
        assert_eq!(Image::from_bytes(b"<svg/>", "x"), None);
        let mut large = png.to_vec();
        large.resize(Image::MAX_BYTES + 1, 0);
        assert_eq!(Image::from_bytes(&large, "x"), None);
    }

    #[test]
    fn a_response_returns_the_id_unchanged() {
        let line = method_not_found(r#""x-1""#, "fs/read_text_file");
        let value: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(
            (&value["id"], &value["error"]["code"]),
            (&json!("x-1"), &json!(-32601))
        );
        let line = method_not_found("1e3", "m");
        assert!(line.starts_with(b"{\"jsonrpc\":\"2.0\",\"id\":1e3,\"error\""));
    }
}
