//! `token_revoke`.

use oubliette_model::{Access, TokenId};
use oubliette_store::RevokeOutcome;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Token name or id.
    token_id: TokenId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    token_id: TokenId,
    revoked: bool,
}

#[derive(Debug)]
pub(crate) struct Revoke;

impl Operation for Revoke {
    const NAME: &'static str = "token_revoke";
    const ABOUT: &'static str = "Revoke a token.\n\n\
         Its next call fails and its open streams are closed. The last valid admin token cannot be \
         revoked.";
    const ACCESS: Access = Access::Admin;
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Destroys;
    type Params = Params;
    type Output = Output;

    fn reach(_: &Params) -> Reach {
        Reach::everywhere()
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, call: Call) -> Result<Output> {
        let id = params.token_id;
        match engine
            .store()
            .revoke_token(id, engine.now(), call.take_audit_entry())
            .await?
        {
            RevokeOutcome::Done => {
                engine.tokens().notify_ended();
                Ok(Output {
                    token_id: id,
                    revoked: true,
                })
            }
            RevokeOutcome::Already => Err(EngineError::invalid(format!(
                "token `{id}` has already been revoked or has expired"
            ))),
            RevokeOutcome::NoSuchToken => Err(EngineError::token_not_found(id)),
            RevokeOutcome::LastAdmin => Err(EngineError::invalid(
                "this is the last valid admin token and cannot be revoked; create another one first \
                 with `token_create`",
            )),
        }
    }
}
