//! `token_list`.

use jiff::Timestamp;
use oubliette_model::{Access, Scope, SessionId, TokenId};
use oubliette_store::Token;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result, paging};

const LIST: &str = "tokens";

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// 1-1000 (100).
    limit: Option<u32>,
    /// Last `next_cursor`.
    ///
    /// For the next page.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    tokens: Vec<TokenView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct TokenView {
    token_id: TokenId,
    name: String,
    scope: Scope,
    /// `active`, `expired` or `revoked`.
    status: &'static str,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<String>,
    /// The session that the token belongs to and ends with.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<SessionId>,
}

fn view(token: Token, now: Timestamp) -> TokenView {
    let status = match token.revoked_at {
        Some(_) => "revoked",
        None if token.is_valid(now) => "active",
        None => "expired",
    };
    TokenView {
        token_id: token.id,
        name: token.name,
        scope: token.scope,
        status,
        created_at: token.created_at.to_string(),
        expires_at: token.expires_at.map(|at| at.to_string()),
        revoked_at: token.revoked_at.map(|at| at.to_string()),
        session_id: token.session_id,
    }
}

#[derive(Debug)]
pub(crate) struct List;

impl Operation for List {
    const NAME: &'static str = "token_list";
    const ABOUT: &'static str = "List tokens, without keys.\n\n\
         Oldest first.";
    const ACCESS: Access = Access::Admin;
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(_: &Params) -> Reach {
        Reach::everywhere()
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<Output> {
        let limit = paging::check_limit(params.limit)?;
        let after = paging::decode_cursor(params.cursor.as_deref(), LIST)?;
        let page = engine.store().tokens(after, limit).await?;
        let (tokens, next_cursor) = paging::rows_and_cursor(page, LIST);
        let now = engine.now();
        Ok(Output {
            tokens: tokens.into_iter().map(|token| view(token, now)).collect(),
            next_cursor,
        })
    }
}
