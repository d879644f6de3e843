//! The tools that a session may use.

use oubliette_agent::ToolFilter;
use oubliette_model::quoted;
use oubliette_store::{Session, SessionChoices};

use super::message_params::{MAX_NAME_BYTES, MessageParams};
use crate::{EngineError, Result};

const MAX_TOOL_NAMES: usize = 200;

pub(super) fn tools_from_choices(choices: &SessionChoices) -> ToolFilter {
    ToolFilter {
        allowed: choices.tools_allowed.clone(),
        disallowed: choices.tools_disallowed.clone(),
    }
}

impl MessageParams {
    /// The requested tools, validated.
    pub(super) fn tools(&self) -> Result<ToolFilter> {
        Ok(ToolFilter {
            allowed: validate_tool_names("tools_allowed", self.tools_allowed.as_deref())?,
            disallowed: validate_tool_names("tools_disallowed", self.tools_disallowed.as_deref())?,
        })
    }
}

/// The tools of a new session: at most those of its parent.
pub(super) fn tools_below(
    parent: &Session,
    requested: &ToolFilter,
    agent: &str,
) -> Result<ToolFilter> {
    let of_parent = tools_from_choices(&parent.choices);
    if !of_parent.is_empty() && parent.agent != agent {
        return Err(EngineError::invalid(format!(
            "this session and those below it may use only some tools, and `{agent}` has other names \
             for them: use `{}`",
            parent.agent
        )));
    }
    of_parent.narrowed_by(requested).ok_or_else(|| {
        EngineError::invalid("`tools_allowed` names no tool that this session may use itself")
    })
}

fn validate_tool_names(parameter: &str, names: Option<&[String]>) -> Result<Vec<String>> {
    let names = names.unwrap_or_default();
    if names.len() > MAX_TOOL_NAMES {
        return Err(EngineError::invalid(format!(
            "`{parameter}` has {} names; the maximum is {MAX_TOOL_NAMES}",
            names.len()
        )));
    }
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-.:/*".contains(c);
    let is_valid = |name: &String| {
        !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.chars().all(is_allowed)
    };
    match names.iter().find(|name| !is_valid(name)) {
        Some(invalid) => Err(EngineError::invalid(format!(
            "`{parameter}`: {} is not the name of a tool; use letters, digits and `_-.:/`, and `*` \
             for any part",
            quoted(invalid)
        ))),
        None => Ok(names.to_vec()),
    }
}
