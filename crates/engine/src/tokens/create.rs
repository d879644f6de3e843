//! `token_create`.

use jiff::{SignedDuration, Timestamp};
use oubliette_model::{Access, Scope, SessionId, TokenId, quoted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NewToken;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

/// How many tokens are read at once.
const PAGE_TOKENS: u32 = 1000;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// What it is for.
    name: String,
    /// `admin`, `read`, `write`, `project:ID` or `project:ID:ro`.
    ///
    /// A project by its name or id. `admin:ro` is `read`.
    scope: Scope,
    /// Lifetime; default: until revoked.
    expires_in_hours: Option<f64>,
    /// End of life (RFC 3339).
    ///
    /// Instead of `expires_in_hours`.
    #[schemars(extend("x-unlisted" = true))]
    expires_at: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    token_id: TokenId,
    /// The API key. It is not shown again.
    key: String,
    name: String,
    scope: Scope,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// The session whose agent created the token. The token ends with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<SessionId>,
    /// For example that another valid token has the same name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Create;

impl Operation for Create {
    const NAME: &'static str = "token_create";
    const ABOUT: &'static str = "Create a token; the result has its key, once.\n\n\
         Pass the key on and keep it out of logs. Prefer the narrowest scope that is enough.";
    const ACCESS: Access = Access::Admin;
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
    const SECRET_FIELD: Option<&'static str> = Some("key");
    type Params = Params;
    type Output = Output;

    fn reach(_: &Params) -> Reach {
        Reach {
            depends_on_tree: true,
            ..Reach::everywhere()
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let name = params.name.trim();
        if name.is_empty() || name.len() > 100 || name.chars().any(char::is_control) {
            return Err(EngineError::invalid(format!(
                "{} is not a token name; use 1 to 100 printable characters",
                quoted(&params.name)
            )));
        }
        let now = engine.now();
        let expires_at = expiry(&params, now)?;
        let warnings = shared_name(engine, name, now).await?.into_iter().collect();
        let NewToken { mut token, key } = NewToken::generate(name, params.scope, now, expires_at)?;
        // A token that an agent creates has the agent's restrictions and ends with its session.
        token.session_id = actor.session;
        if !engine
            .store()
            .add_token(&token, key.hash(), call.take_audit_entry())
            .await?
        {
            let missing = params
                .scope
                .project()
                .map(|id| id.to_string())
                .unwrap_or_default();
            return Err(EngineError::project_not_found(missing));
        }
        Ok(Output {
            token_id: token.id,
            key: key.reveal().to_owned(),
            name: token.name,
            scope: token.scope,
            expires_at: token.expires_at.map(|at| at.to_string()),
            session_id: token.session_id,
            warnings,
        })
    }
}

/// A warning if a valid token has this name already: a name that two have identifies neither.
async fn shared_name(engine: &Engine, name: &str, now: Timestamp) -> Result<Option<String>> {
    let mut after = None;
    loop {
        let page = engine.store().tokens(after.as_deref(), PAGE_TOKENS).await?;
        let mut same = page.rows.iter().filter(|token| token.name == name);
        if let Some(other) = same.find(|token| token.is_valid(now)) {
            return Ok(Some(format!(
                "another valid token has the name {}, too: {}. Give the id of one from now on, for example to \
                 `token_revoke`",
                quoted(name),
                other.id
            )));
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(None),
        }
    }
}

fn expiry(params: &Params, now: Timestamp) -> Result<Option<Timestamp>> {
    let end = match (params.expires_in_hours, params.expires_at.as_deref()) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(EngineError::invalid(
                "give either `expires_in_hours` or `expires_at`, not both",
            ));
        }
        (Some(hours), None) => {
            // A hundred years; timestamps overflow with much more.
            if !(hours > 0.0 && hours <= 876_000.0) {
                return Err(EngineError::invalid(format!(
                    "`expires_in_hours` is {hours}; it must be more than 0 and at most 876000"
                )));
            }
            now + SignedDuration::from_secs_f64(hours * 3600.0)
        }
        (None, Some(text)) => text.parse::<Timestamp>().map_err(|_| {
            EngineError::invalid(format!(
                "{} is not a time; write it like 2027-01-31T12:00:00Z",
                quoted(text)
            ))
        })?,
    };
    if end <= now {
        return Err(EngineError::invalid(format!(
            "`expires_at` {end} is in the past"
        )));
    }
    Ok(Some(end))
}
