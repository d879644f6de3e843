//! API keys, and their hashes, which are all that the store keeps.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::InvalidValue;

const RANDOM_BYTES: usize = 32;
const ENCODED_CHARS: usize = 43;

/// A bearer key. It has no `Display`, and `Debug` masks it; only [`ApiKey::reveal`] returns the text.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// What a key starts with.
    pub const PREFIX: &str = "oub_";

    /// Encodes random bytes as a key. With 256 bits an unsalted hash is safe.
    pub fn from_random(bytes: [u8; RANDOM_BYTES]) -> Self {
        Self(format!("{}{}", Self::PREFIX, URL_SAFE_NO_PAD.encode(bytes)))
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn hash(&self) -> KeyHash {
        KeyHash(Sha256::digest(self.0.as_bytes()).into())
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(oub_****)")
    }
}

impl FromStr for ApiKey {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let is_well_formed = text.strip_prefix(Self::PREFIX).is_some_and(|rest| {
            rest.len() == ENCODED_CHARS
                && rest
                    .bytes()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_'))
        });
        if is_well_formed {
            Ok(Self(text.to_owned()))
        } else {
            // The text is not quoted, because it may be a key with a typing error.
            Err(InvalidValue(
                "this is not an API key; a key is `oub_` followed by 43 letters, digits, `-` or `_`".to_owned(),
            ))
        }
    }
}

/// The SHA-256 hash of a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(****)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_round_trips_and_debug_masks_it() {
        let key = ApiKey::from_random([7; 32]);
        assert_eq!(key.reveal().parse::<ApiKey>().as_ref(), Ok(&key));
        assert_eq!(
            format!("{key:?} {:?}", key.hash()),
            "ApiKey(oub_****) KeyHash(****)"
        );
        assert_ne!(key.hash(), ApiKey::from_random([8; 32]).hash());
    }

    #[test]
    fn malformed_keys_are_refused_without_being_quoted() {
        for bad in [
            "",
            "oub_",
            "oub_short",
            "sk-123",
            &format!("oub_{}", "é".repeat(43)),
        ] {
            let error = bad.parse::<ApiKey>().map(|_| ()).unwrap_err();
            assert!(bad.len() < 5 || !error.0.contains(bad));
        }
    }
}
