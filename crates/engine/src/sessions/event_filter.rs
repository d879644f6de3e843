//! Which types of events a reader of a log gets.

use oubliette_model::{Event, nearest, quoted};
use serde::Deserialize;

use crate::error::did_you_mean;
use crate::{EngineError, Result};

/// A set of types, by their positions in [`Event::KINDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventFilter(u32);

/// The value of `types` that stands for every type.
const ALL: &str = "all";

impl EventFilter {
    pub(super) const ALL: Self = Self(u32::MAX);

    /// Everything once: the text of `message` and `delta` events is in `completion` events, too.
    pub(super) fn without_repeated_text() -> Self {
        let repeated = ["message", "delta"].into_iter().filter_map(bit);
        Self(repeated.fold(u32::MAX, |filter, bit| filter & !bit))
    }

    pub(super) fn parse(types: &[String]) -> Result<Self> {
        let mut filter = 0;
        for kind in types {
            if kind == ALL {
                return Ok(Self::ALL);
            }
            let bit = bit(kind).ok_or_else(|| {
                let near = nearest(kind, Event::KINDS);
                let hint = match near {
                    Some(near) => did_you_mean(Some(near)),
                    None => format!("; it is `{ALL}` or one of `{}`", Event::KINDS.join("`, `")),
                };
                EngineError::invalid(format!("`types`: unknown type {}{hint}", quoted(kind)))
            })?;
            filter |= bit;
        }
        if filter == 0 {
            return Err(EngineError::invalid(
                "`types` is empty; omit it, or name the types of events to return",
            ));
        }
        Ok(Self(filter))
    }

    /// Whether a stored event has one of the types. One whose type is unknown, from a newer version, has.
    pub(super) fn allows(self, body: &str) -> bool {
        #[derive(Deserialize)]
        struct Kind<'a> {
            #[serde(rename = "type", borrow)]
            kind: std::borrow::Cow<'a, str>,
        }
        if self == Self::ALL {
            return true;
        }
        let kind = serde_json::from_str(body)
            .ok()
            .and_then(|Kind { kind }| bit(&kind));
        kind.is_none_or(|bit| self.0 & bit != 0)
    }
}

fn bit(kind: &str) -> Option<u32> {
    let position = Event::KINDS.iter().position(|known| *known == kind)?;
    Some(1 << position)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_parsed_and_matched() {
        let types = |types: &[&str]| {
            let types: Vec<String> = types.iter().map(|kind| (*kind).to_owned()).collect();
            EventFilter::parse(&types)
        };
        let body = |kind: &str| format!("{{\"type\":\"{kind}\",\"text\":\"type\"}}");
        let filter = types(&["tool_call", "delta"]).unwrap();
        assert!(filter.allows(&body("delta")) && !filter.allows(&body("message")));
        assert!(EventFilter::ALL.allows(&body("delta")));
        let default = EventFilter::without_repeated_text();
        for kind in Event::KINDS {
            assert_eq!(
                default.allows(&body(kind)),
                !matches!(kind, "message" | "delta")
            );
        }
        assert!(default.allows(&body("of a newer version")));
        assert_eq!(types(&["status", "all"]).unwrap(), EventFilter::ALL);
        let error = types(&["tool_cal"]).unwrap_err().to_string();
        assert!(error.contains("did you mean `tool_call`"), "{error}");
        assert!(types(&[]).is_err());
    }
}
