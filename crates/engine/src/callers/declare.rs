//! The tools that a caller declares with a message.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use jsonschema::Validator;
use oubliette_model::{SessionId, TokenId, quoted};
use oubliette_store::{DeclaredTools, ToolDeclaration};
use oubliette_wire::{CallerTools, ToolEntry, caller_tool_name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::{Callers, schema};
use crate::{AgentTool, EngineError, Result};

const MAX_NAME_BYTES: usize = 256;
const MAX_DESCRIPTION_BYTES: usize = 16 << 10;
const MAX_DECLARATION_BYTES: usize = 4 << 20;
/// Larger arguments are validated on the blocking pool.
const MAX_INLINE_VALIDATION_BYTES: usize = 64 << 10;
/// Some agents shorten longer names.
const MAX_PORTABLE_NAME_BYTES: usize = 40;
const MAX_TIMEOUT_SECONDS: f64 = 3600.0;
const MAX_CACHED_SESSIONS: usize = 500;
/// The default of `caller_tools.max_tools`.
const DRY_RUN_MAX_TOOLS: usize = 500;
/// The prefix of Oubliette's own tools inside a container.
const RESERVED_PREFIX: &str = "oubliette_";

/// Caller context of a message.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub(crate) struct Context {
    /// The agent sees `{caller_id}_{name}`.
    ///
    /// A short name for you.
    caller_id: Option<String>,
    /// Omit to keep them, `[]` to remove them.
    ///
    /// Respond to calls with `caller_tool_response`.
    caller_tools: Option<Vec<ToolParam>>,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(inline)]
struct ToolParam {
    name: String,
    /// For the agent.
    description: Option<String>,
    /// JSON Schema of type `object`.
    #[serde(rename = "inputSchema")]
    #[schemars(with = "Option<Map<String, Value>>")]
    input_schema: Option<Value>,
    /// For your response (60).
    ///
    /// At most 3600.
    timeout_seconds: Option<f64>,
}

/// A tool as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct DeclaredTool {
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) schema: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) timeout_seconds: Option<f64>,
}

/// The tools of a session with their compiled schemas.
#[derive(Debug)]
pub(super) struct CompiledTools {
    /// As stored; tools are compiled again when it changes.
    pub(super) declared: DeclaredTools,
    pub(super) tools: Vec<CompiledTool>,
}

/// A tool whose schema is compiled at its first call.
#[derive(Debug)]
pub(super) struct CompiledTool {
    pub(super) tool: DeclaredTool,
    validator: OnceLock<std::result::Result<Validator, String>>,
}

impl CompiledTool {
    fn new(tool: DeclaredTool) -> Self {
        Self {
            tool,
            validator: OnceLock::new(),
        }
    }

    /// Whether arguments of this size can be validated without the blocking pool.
    pub(super) fn validates_fast(&self, bytes: usize) -> bool {
        let is_compiled = self.validator.get().is_some();
        self.tool.schema.is_none() || (is_compiled && bytes <= MAX_INLINE_VALIDATION_BYTES)
    }

    /// Validates arguments; the error says what is wrong with them.
    pub(super) fn validate(&self, arguments: &Value) -> std::result::Result<(), String> {
        let Some(schema) = &self.tool.schema else {
            return Ok(());
        };
        let compile = || schema::compile(&Value::Object(schema.clone()));
        match self.validator.get_or_init(compile) {
            Ok(validator) => schema::validate(validator, arguments),
            Err(why) => Err(why.clone()),
        }
    }
}

impl Context {
    /// The declaration, if there is one, with warnings for the caller.
    pub(crate) fn declaration(
        &self,
        max_tools: usize,
        token_id: TokenId,
    ) -> Result<Option<(ToolDeclaration, Vec<String>)>> {
        let Some(tools) = &self.caller_tools else {
            return Ok(None);
        };
        let caller_id = match &self.caller_id {
            Some(id) => id.as_str(),
            None if tools.is_empty() => "",
            None => {
                return Err(EngineError::invalid(
                    "`context`: missing `caller_id`, a short name that becomes the prefix of your tools",
                ));
            }
        };
        if !tools.is_empty() {
            check_name("caller_id", caller_id)?;
        }
        if tools.len() > max_tools {
            return Err(EngineError::invalid(format!(
                "`context`: {} tools are declared; the maximum is {max_tools}",
                tools.len()
            )));
        }
        let (mut names, mut declared) = (HashSet::new(), Vec::new());
        let mut warnings = Vec::new();
        for tool in tools {
            let name = tool.agent_name(caller_id)?;
            if name.len() > MAX_PORTABLE_NAME_BYTES {
                warnings.push(format!(
                    "the agent sees the tool {} as `{name}`, which is longer than \
                     {MAX_PORTABLE_NAME_BYTES} characters; some agents shorten it",
                    quoted(&tool.name)
                ));
            }
            if !names.insert(name.clone()) {
                return Err(EngineError::invalid(format!(
                    "`context`: two tools would both be called `{name}`; rename one of them"
                )));
            }
            declared.push(tool.to_declared()?);
        }
        let tools = serde_json::to_string(&declared).map_err(EngineError::fault)?;
        if tools.len() > MAX_DECLARATION_BYTES {
            return Err(EngineError::invalid(format!(
                "`context`: the tools have {} bytes in total; the maximum is \
                 {MAX_DECLARATION_BYTES}",
                tools.len()
            )));
        }
        let declaration = ToolDeclaration {
            caller_id: caller_id.to_owned(),
            tools,
            token_id,
        };
        Ok(Some((declaration, warnings)))
    }
}

/// Checks a declaration without storing it, for `fuzz/`: returns the names of the tools as the agent
/// would see them, each with the error that these arguments would cause.
///
/// # Errors
/// The error that the caller would get.
#[doc(hidden)]
pub fn dry_declaration(
    context: Value,
    arguments: &Value,
) -> std::result::Result<Vec<(String, Option<String>)>, String> {
    let context: Context = serde_json::from_value(context).map_err(|error| error.to_string())?;
    let by = TokenId::new(uuid::Uuid::nil());
    let declaration = context.declaration(DRY_RUN_MAX_TOOLS, by);
    let Some((declaration, _)) = declaration.map_err(|error| error.to_string())? else {
        return Ok(Vec::new());
    };
    let tools: Vec<DeclaredTool> =
        serde_json::from_str(&declaration.tools).map_err(|error| error.to_string())?;
    let check = |tool: DeclaredTool| {
        let name = caller_tool_name(&declaration.caller_id, &tool.name);
        (name, CompiledTool::new(tool).validate(arguments).err())
    };
    Ok(tools.into_iter().map(check).collect())
}

fn check_name(what: &str, name: &str) -> Result<()> {
    let valid = !name.trim().is_empty()
        && name.len() <= MAX_NAME_BYTES
        && !name.chars().any(char::is_control);
    if valid {
        return Ok(());
    }
    Err(EngineError::invalid(format!(
        "`context`: {} is not a {what}; use 1 to {MAX_NAME_BYTES} printable characters",
        quoted(name)
    )))
}

impl ToolParam {
    fn agent_name(&self, caller_id: &str) -> Result<String> {
        check_name("tool name", &self.name)?;
        let name = caller_tool_name(caller_id, &self.name);
        if AgentTool::from_name(&name).is_some() || name.starts_with(RESERVED_PREFIX) {
            return Err(EngineError::invalid(format!(
                "`context`: the tool {} would be called `{name}`, which is reserved for Oubliette's own \
                 tools; choose another `caller_id`",
                quoted(&self.name)
            )));
        }
        Ok(name)
    }

    fn to_declared(&self) -> Result<DeclaredTool> {
        let invalid = |why: &str| {
            let name = quoted(&self.name);
            EngineError::invalid(format!("`context`: the tool {name}: {why}"))
        };
        if let Some(description) = &self.description
            && description.len() > MAX_DESCRIPTION_BYTES
        {
            return Err(invalid("its description is longer than 16 KiB"));
        }
        let schema = match &self.input_schema {
            None | Some(Value::Null) => None,
            Some(schema) => {
                schema::check(schema)
                    .map_err(|why| invalid(&format!("its `inputSchema` {why}")))?;
                schema.as_object().cloned()
            }
        };
        let timeout_seconds = match self.timeout_seconds {
            Some(seconds) if !(seconds > 0.0 && seconds <= MAX_TIMEOUT_SECONDS) => {
                return Err(invalid(
                    "`timeout_seconds` must be more than 0 and at most 3600",
                ));
            }
            given => given,
        };
        Ok(DeclaredTool {
            name: self.name.clone(),
            description: self.description.clone(),
            schema,
            timeout_seconds,
        })
    }
}

impl Callers<'_> {
    /// The tools that the caller of a session has declared, for the client of its agent.
    pub async fn tools(self, id: SessionId) -> Result<CallerTools> {
        let Some(compiled) = self.compiled_tools(id).await? else {
            return Ok(CallerTools::default());
        };
        let entry = |compiled: &CompiledTool| ToolEntry {
            name: compiled.tool.name.clone(),
            description: compiled.tool.description.clone(),
            input_schema: compiled.tool.schema.clone(),
        };
        Ok(CallerTools {
            caller_id: Some(compiled.declared.caller_id.clone()),
            tools: compiled.tools.iter().map(entry).collect(),
        })
    }

    pub(super) async fn compiled_tools(self, id: SessionId) -> Result<Option<Arc<CompiledTools>>> {
        let Some(declared) = self.engine.store().caller_tools(id).await? else {
            return Ok(None);
        };
        let mut cache = self.state().compiled_tools.lock();
        if let Some(cached) = cache.get(&id)
            && cached.declared == declared
        {
            return Ok(Some(cached.clone()));
        }
        let tools: Vec<DeclaredTool> =
            serde_json::from_str(&declared.tools).map_err(EngineError::fault)?;
        let compiled = Arc::new(CompiledTools {
            tools: tools.into_iter().map(CompiledTool::new).collect(),
            declared,
        });
        if cache.len() >= MAX_CACHED_SESSIONS {
            cache.clear();
        }
        cache.insert(id, compiled.clone());
        Ok(Some(compiled))
    }

    /// Wakes the receiver whenever the tools of any session were declared.
    pub fn subscribe_declarations(self) -> watch::Receiver<()> {
        self.state().declared.subscribe()
    }

    pub(crate) fn notify_declared(self) {
        self.state().declared.send_replace(());
    }
}
