//! `token_create`.

use jiff::{SignedDuration, Timestamp};
use oubliette_model::{Access, Scope, SessionId, TokenId, quoted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Minted;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// What the token is for, in a few words.
    name: String,
    /// `admin`, `admin:ro`, `read`, `write`, `project:<uuid>` or `project:<uuid>:ro`.
    scope: Scope,
    /// Hours until the token ends; it lasts until it is revoked if neither this nor `expires_at`
    /// is given.
    expires_in_hours: Option<f64>,
    /// When the token ends (RFC 3339), instead of `expires_in_hours`.
    expires_at: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    token_id: TokenId,
    /// Shown this once and never again.
    key: String,
    name: String,
    scope: Scope,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// The session that made it, and with which it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<SessionId>,
}

#[derive(Debug)]
pub(crate) struct Create;

impl Operation for Create {
    const NAME: &'static str = "token_create";
    const ABOUT: &'static str = "Make an API token with a scope. The result holds the key, which is shown this once: hand \
         it on and do not keep it in a log. Prefer the narrowest scope that does the job.";
    const ACCESS: Access = Access::Admin;
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
    type Params = Params;
    type Output = Output;

    fn reach(_: &Params) -> Reach {
        Reach::everywhere()
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
        let Minted { mut token, key } = Minted::draw(name, params.scope, now, expires_at)?;
        // What an agent hands on is held to what holds for the agent, and ends with it.
        token.session_id = actor.session;
        if !engine
            .store()
            .add_token(&token, key.hash(), call.audit())
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
        })
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
            // A hundred years; beyond it the arithmetic of time ends.
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
