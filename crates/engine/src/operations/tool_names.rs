//! The names of operations in texts, as a client knows them. Texts of the registry and of errors name an
//! operation as `` `session_list` ``; a client that was given unified tools has no tool of that name.

use std::borrow::Cow;

use oubliette_model::ToolStyle;

use super::{Face, NOUNS, find};

/// The names under which a client has the operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolNames {
    /// Whether it has only tools with an `action`, where an operation is one.
    unified: bool,
    /// What its names begin with.
    prefix: &'static str,
}

impl ToolNames {
    /// The names of the operations themselves.
    pub const SPLIT: Self = Self {
        unified: false,
        prefix: "",
    };

    /// The names in a list of this style. A list of both styles has the operations by their own names.
    pub fn of_style(style: ToolStyle) -> Self {
        Self {
            unified: style == ToolStyle::Unified,
            ..Self::SPLIT
        }
    }

    /// The names of a client that puts a prefix before each.
    #[must_use]
    pub fn with_prefix(self, prefix: &'static str) -> Self {
        Self { prefix, ..self }
    }

    /// The names for the result of a call: a client that calls an operation by its own name, or tries to,
    /// knows these names.
    #[must_use]
    pub fn for_call(self, tool: &str) -> Self {
        let is_standalone = find(tool).is_some_and(|entry| entry.face == Face::Standalone);
        if is_standalone || NOUNS.iter().any(|noun| noun.name == tool) {
            return self;
        }
        Self {
            unified: false,
            ..self
        }
    }

    /// The name of a tool.
    pub(super) fn tool(self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// A text with these names.
    pub fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.apply_in(text, None)
    }

    /// A text in the description of a noun's tool, whose own operations are its actions.
    pub(super) fn apply_in<'a>(&self, text: &'a str, noun: Option<&str>) -> Cow<'a, str> {
        let is_balanced = text.matches('`').count().is_multiple_of(2);
        let names_any = text.split('`').any(|part| find(part).is_some());
        if *self == Self::SPLIT || !is_balanced || !names_any {
            return Cow::Borrowed(text);
        }
        let mut named = String::with_capacity(text.len() + 32);
        for (n, part) in text.split('`').enumerate() {
            let is_quoted = n % 2 == 1;
            match find(part).filter(|_| is_quoted) {
                Some(entry) if self.unified && entry.face == Face::Action => {
                    let verb = entry.verb();
                    if noun == Some(entry.noun()) {
                        named.push_str(&format!("action `{verb}`"));
                    } else {
                        let noun = entry.noun();
                        named.push_str(&format!("`{}{noun}` action `{verb}`", self.prefix));
                    }
                }
                Some(_) => named.push_str(&format!("`{}{part}`", self.prefix)),
                None if is_quoted => named.push_str(&format!("`{part}`")),
                None => named.push_str(part),
            }
        }
        Cow::Owned(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_get_the_names_that_the_client_has() {
        let text = "not found; `project_list` and `config_limits` show `x`";
        let unified = ToolNames::of_style(ToolStyle::Unified);
        assert_eq!(
            unified.apply(text),
            "not found; `project` action `list` and `config_limits` show `x`"
        );
        assert_eq!(
            unified.apply_in(text, Some("project")),
            "not found; action `list` and `config_limits` show `x`"
        );
        assert_eq!(
            unified.with_prefix("oubliette_").apply(text),
            "not found; `oubliette_project` action `list` and `oubliette_config_limits` show `x`"
        );
        for split in [ToolStyle::Split, ToolStyle::Both] {
            assert_eq!(ToolNames::of_style(split).apply(text), text);
        }
        assert_eq!(unified.for_call("session_get").apply(text), text);
        assert_eq!(unified.for_call("sesion_get").apply(text), text);
        assert_ne!(unified.for_call("session").apply(text), text);
        assert_ne!(unified.for_call("config_limits").apply(text), text);
    }
}
