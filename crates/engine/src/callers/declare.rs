//! The tools that a caller declares with a message.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use jsonschema::Validator;
use oubliette_model::{SessionId, TokenId, quoted};
use oubliette_store::Declaration;
use oubliette_wire::{CallerTools, ToolEntry, caller_tool_name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::schema;
use crate::containers::lock;
use crate::{AgentTool, Engine, EngineError, Result};

const LONGEST_NAME: usize = 256;
const LONGEST_ABOUT: usize = 16 << 10;
/// Of all tools together.
const LONGEST: usize = 4 << 20;
/// Bytes of arguments that are checked where they come.
const QUICK: usize = 64 << 10;
/// Longer names are shortened by some agents.
const COMFORTABLE: usize = 40;
const LONGEST_TIMEOUT: f64 = 3600.0;
/// Sessions whose tools are kept ready.
const KEPT: usize = 500;
/// As many as the configuration allows by itself.
const MOST_TOOLS: usize = 500;
/// How the names of Oubliette's own tools begin inside a container.
const RESERVED: &str = "oubliette_";

/// What a caller says about itself with a message.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub(crate) struct Context {
    /// A short name of yours: your tools are called `{caller_id}_{name}` by the agent.
    caller_id: Option<String>,
    /// Tools of yours that the agent may call. You answer with `caller_tool_response`. Absent leaves
    /// those declared before, an empty list removes them.
    caller_tools: Option<Vec<Tool>>,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(inline)]
struct Tool {
    name: String,
    /// What it does, for the agent.
    description: Option<String>,
    /// A JSON Schema of its arguments, of type `object`.
    #[serde(rename = "inputSchema")]
    #[schemars(with = "Option<Map<String, Value>>")]
    input_schema: Option<Value>,
    /// How long the agent waits for the answer; 60 seconds if absent.
    timeout_seconds: Option<f64>,
}

/// A tool as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Declared {
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) schema: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) timeout_seconds: Option<f64>,
}

/// The tools of a session, read once.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) as_declared: oubliette_store::Declared,
    pub(super) tools: Vec<Ready>,
}

/// A tool whose schema is compiled when it is called first.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) tool: Declared,
    validator: OnceLock<std::result::Result<Validator, String>>,
}

impl Ready {
    /// Whether so many bytes of arguments are checked in no time.
    pub(super) fn is_quick(&self, bytes: usize) -> bool {
        self.tool.schema.is_none() || (self.validator.get().is_some() && bytes <= QUICK)
    }

    /// Checks arguments; the sentence says what is wrong with them.
    pub(super) fn validate(&self, arguments: &Value) -> std::result::Result<(), String> {
        let Some(schema) = &self.tool.schema else {
            return Ok(());
        };
        let compile = || schema::compiled(&Value::Object(schema.clone()));
        match self.validator.get_or_init(compile) {
            Ok(validator) => schema::validate(validator, arguments),
            Err(why) => Err(why.clone()),
        }
    }
}

impl Context {
    /// What it declares, if anything, and what its caller should know about that.
    pub(crate) fn declaration(
        &self,
        most: usize,
        by: TokenId,
    ) -> Result<Option<(Declaration, Vec<String>)>> {
        let Some(tools) = &self.caller_tools else {
            return Ok(None);
        };
        let caller_id = match &self.caller_id {
            Some(id) => id.as_str(),
            None if tools.is_empty() => "",
            None => {
                return Err(EngineError::invalid(
                    "`context`: missing `caller_id`, a short name of yours for the agent to tell your \
                     tools by",
                ));
            }
        };
        if !tools.is_empty() {
            check_name("caller_id", caller_id)?;
        }
        if tools.len() > most {
            return Err(EngineError::invalid(format!(
                "`context`: {} tools are declared; at most {most} are taken",
                tools.len()
            )));
        }
        let (mut names, mut declared) = (HashSet::new(), Vec::new());
        let mut warnings = Vec::new();
        for tool in tools {
            let name = tool.name_for_agents(caller_id)?;
            if name.len() > COMFORTABLE {
                warnings.push(format!(
                    "the agent sees the tool {} as `{name}`, which is longer than {COMFORTABLE} \
                     characters; some agents shorten it",
                    quoted(&tool.name)
                ));
            }
            if !names.insert(name.clone()) {
                return Err(EngineError::invalid(format!(
                    "`context`: two tools would both be called `{name}`; give them other names"
                )));
            }
            declared.push(tool.declared()?);
        }
        let tools = serde_json::to_string(&declared).map_err(EngineError::fault)?;
        if tools.len() > LONGEST {
            return Err(EngineError::invalid(format!(
                "`context`: the tools have {} bytes in all; at most {LONGEST} are taken",
                tools.len()
            )));
        }
        let declaration = Declaration {
            caller_id: caller_id.to_owned(),
            tools,
            by,
        };
        Ok(Some((declaration, warnings)))
    }
}

/// Goes through a declaration without declaring anything: the tools as the agent would see them, and
/// what would be wrong with these arguments for each. For `fuzz/`.
///
/// # Errors
/// What the caller would be told.
#[doc(hidden)]
pub fn dry_declaration(
    context: Value,
    arguments: &Value,
) -> std::result::Result<Vec<(String, Option<String>)>, String> {
    let context: Context = serde_json::from_value(context).map_err(|error| error.to_string())?;
    let by = TokenId::new(uuid::Uuid::nil());
    let declaration = context.declaration(MOST_TOOLS, by);
    let Some((declaration, _)) = declaration.map_err(|error| error.to_string())? else {
        return Ok(Vec::new());
    };
    let tools: Vec<Declared> =
        serde_json::from_str(&declaration.tools).map_err(|error| error.to_string())?;
    let seen = |tool: Declared| {
        let name = caller_tool_name(&declaration.caller_id, &tool.name);
        let validator = OnceLock::new();
        (name, Ready { tool, validator }.validate(arguments).err())
    };
    Ok(tools.into_iter().map(seen).collect())
}

fn check_name(what: &str, name: &str) -> Result<()> {
    let sound = !name.trim().is_empty()
        && name.len() <= LONGEST_NAME
        && !name.chars().any(char::is_control);
    if sound {
        return Ok(());
    }
    Err(EngineError::invalid(format!(
        "`context`: {} is not a {what}; use 1 to {LONGEST_NAME} printable characters",
        quoted(name)
    )))
}

impl Tool {
    fn name_for_agents(&self, caller_id: &str) -> Result<String> {
        check_name("tool name", &self.name)?;
        let name = caller_tool_name(caller_id, &self.name);
        if AgentTool::from_name(&name).is_some() || name.starts_with(RESERVED) {
            return Err(EngineError::invalid(format!(
                "`context`: the tool {} would be called `{name}`, which is the name of a tool of \
                 Oubliette's own; choose another `caller_id`",
                quoted(&self.name)
            )));
        }
        Ok(name)
    }

    fn declared(&self) -> Result<Declared> {
        let wrong = |why: &str| {
            let name = quoted(&self.name);
            EngineError::invalid(format!("`context`: the tool {name}: {why}"))
        };
        if let Some(about) = &self.description
            && about.len() > LONGEST_ABOUT
        {
            return Err(wrong("its description is longer than 16 KiB"));
        }
        let schema = match &self.input_schema {
            None | Some(Value::Null) => None,
            Some(schema) => {
                schema::check(schema).map_err(|why| wrong(&format!("its `inputSchema` {why}")))?;
                schema.as_object().cloned()
            }
        };
        let timeout_seconds = match self.timeout_seconds {
            Some(seconds) if !(seconds > 0.0 && seconds <= LONGEST_TIMEOUT) => {
                return Err(wrong(
                    "`timeout_seconds` must be more than 0 and at most 3600",
                ));
            }
            given => given,
        };
        Ok(Declared {
            name: self.name.clone(),
            description: self.description.clone(),
            schema,
            timeout_seconds,
        })
    }
}

impl Engine {
    /// The tools that the caller of a session has declared, as its agent's client is told of them.
    pub async fn caller_tools(&self, id: SessionId) -> Result<CallerTools> {
        let Some(known) = self.declared_tools(id).await? else {
            return Ok(CallerTools::default());
        };
        let entry = |ready: &Ready| ToolEntry {
            name: ready.tool.name.clone(),
            description: ready.tool.description.clone(),
            input_schema: ready.tool.schema.clone(),
        };
        Ok(CallerTools {
            caller_id: Some(known.as_declared.caller_id.clone()),
            tools: known.tools.iter().map(entry).collect(),
        })
    }

    /// The same, ready to be called.
    pub(super) async fn declared_tools(&self, id: SessionId) -> Result<Option<Arc<Known>>> {
        let Some(found) = self.store().caller_tools(id).await? else {
            return Ok(None);
        };
        let mut known = lock(&self.callers().known);
        if let Some(known) = known.get(&id)
            && known.as_declared == found
        {
            return Ok(Some(known.clone()));
        }
        let tools: Vec<Declared> =
            serde_json::from_str(&found.tools).map_err(EngineError::fault)?;
        let ready = |tool: Declared| Ready {
            tool,
            validator: OnceLock::new(),
        };
        let new = Arc::new(Known {
            tools: tools.into_iter().map(ready).collect(),
            as_declared: found,
        });
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(id, new.clone());
        Ok(Some(new))
    }

    /// Rings whenever the tools of some session were declared anew.
    pub fn tools_declared(&self) -> watch::Receiver<()> {
        self.callers().declared.subscribe()
    }

    pub(crate) fn tell_declared(&self) {
        self.callers().declared.send_replace(());
    }
}
