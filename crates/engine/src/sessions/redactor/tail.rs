//! Redacts the end of a text whose start is missing.

use memchr::memmem;

use super::{Redactor, key_bytes};

impl Redactor {
    /// Redacts a text that was cut at its start, and may so begin inside a secret or an API key, which the
    /// redactor would not recognise. What can belong to one is left out.
    pub(in crate::sessions) fn redact_tail(&self, tail: &[u8]) -> String {
        // The cut may also be inside a character.
        let is_continuation = |byte: &&u8| **byte & 0xC0 == 0x80;
        let tail = &tail[tail.iter().take(3).take_while(is_continuation).count()..];
        let secrets = self.secrets.iter().map(|secret| secret.reveal().as_bytes());
        let in_secret = secrets.map(|secret| continued_bytes(secret, tail)).max();
        let rest = &tail[in_secret.unwrap_or(0)..];
        let rest = &rest[key_bytes(rest)..];
        self.redact_text(String::from_utf8_lossy(rest).into_owned())
    }
}

/// How many bytes at the start of a text continue a secret.
fn continued_bytes(secret: &[u8], text: &[u8]) -> usize {
    if memmem::find(secret, text).is_some() {
        return text.len();
    }
    let longest = secret.len().min(text.len());
    let continues = |bytes: &usize| secret.ends_with(&text[..*bytes]);
    (1..=longest).rev().find(continues).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use oubliette_model::Secret;

    use super::*;

    #[test]
    fn a_tail_that_begins_inside_a_secret_or_a_key_shows_nothing_of_it() {
        let secret = "pässword one-two\nthree four";
        let key = format!("oub_{}", "A1-_".repeat(10));
        let redactor = Redactor::new([Secret::new(secret.to_owned())].into_iter());
        for (text, parts) in [
            (secret, vec!["hree four", "four", "our", "two", "ssword"]),
            (&key, vec!["A1-_", "ub_", "1-_"]),
        ] {
            let written = format!("{text} and the reason {text}");
            for cut in 0..=text.len() {
                let shown = redactor.redact_tail(&written.as_bytes()[cut..]);
                let shown = shown.replace("oub_****", "");
                assert!(shown.contains("and the reason"), "{cut} {shown}");
                for part in &parts {
                    assert!(!shown.contains(part), "{cut} {shown}");
                }
            }
        }
        // It may be inside a secret that is longer than the tail.
        assert_eq!(redactor.redact_tail(&secret.as_bytes()[4..12]), "");
        assert_eq!(redactor.redact_tail(b""), "");
    }
}
