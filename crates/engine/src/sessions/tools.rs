//! The tools that a session may use.

use oubliette_agent::ToolFilter;
use oubliette_model::quoted;
use oubliette_store::{Choices, Session};

use super::ask::{Ask, LONGEST_NAME};
use crate::{EngineError, Result};

const MOST_TOOLS: usize = 200;

/// The tools of a session.
pub(super) fn tools_of(choices: &Choices) -> ToolFilter {
    ToolFilter {
        allowed: choices.tools_allowed.clone(),
        disallowed: choices.tools_disallowed.clone(),
    }
}

impl Ask {
    /// The tools that are asked for.
    pub(super) fn tools(&self) -> Result<ToolFilter> {
        let list = |name: &str, list: &Option<Vec<String>>| {
            let list = list.clone().unwrap_or_default();
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-.:/*".contains(c);
            let is_name = |tool: &String| {
                !tool.is_empty() && tool.len() <= LONGEST_NAME && tool.chars().all(plain)
            };
            if list.len() > MOST_TOOLS {
                return Err(EngineError::invalid(format!(
                    "`{name}` has {} names; at most {MOST_TOOLS} are taken",
                    list.len()
                )));
            }
            match list.iter().find(|tool| !is_name(tool)) {
                Some(wrong) => Err(EngineError::invalid(format!(
                    "`{name}`: {} is not the name of a tool; use letters, digits and `_-.:/`, and `*` \
                     for any part",
                    quoted(wrong)
                ))),
                None => Ok(list),
            }
        };
        Ok(ToolFilter {
            allowed: list("tools_allowed", &self.tools_allowed)?,
            disallowed: list("tools_disallowed", &self.tools_disallowed)?,
        })
    }

    /// The tools of a new session: below another one, no more than that one has.
    pub(super) fn tools_below(&self, parent: Option<&Session>, agent: &str) -> Result<ToolFilter> {
        let asked = self.tools()?;
        let Some(parent) = parent else {
            return Ok(asked);
        };
        let above = tools_of(&parent.choices);
        if !above.is_empty() && parent.agent != agent {
            return Err(EngineError::invalid(format!(
                "this session may use only some tools, and so may those below it; `{agent}` has other \
                 names for them: use `{}`",
                parent.agent
            )));
        }
        above.narrowed_by(&asked).ok_or_else(|| {
            EngineError::invalid("`tools_allowed` names nothing that this session may use itself")
        })
    }
}
