//! Authenticates requests by the key in their header, and limits how many wrong keys an address may
//! try.

mod failure_limiter;

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use oubliette_engine::{Actor, Engine};

pub(crate) use failure_limiter::FailureLimiter;

use crate::connection_limits::{Connection, Origin, Refusal};

/// Checks keys. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Authenticator {
    engine: Engine,
    failures: Arc<FailureLimiter<Origin>>,
}

impl Authenticator {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            failures: Arc::default(),
        }
    }

    pub(crate) fn failure_count(&self) -> u64 {
        self.failures.total()
    }

    /// The owner of the request's key, or the response that refuses the request. A valid key is
    /// accepted however many wrong ones its address has sent.
    async fn authenticate(&self, headers: &HeaderMap, origin: Origin) -> Result<Actor, Response> {
        let key = bearer_key(headers).unwrap_or_default();
        let found = self
            .engine
            .tokens()
            .authenticate(key, Some(origin.to_string()))
            .await;
        match found {
            Ok(Some(authenticated)) => Ok(authenticated.actor),
            Ok(None) => Err(self.refuse(origin).await),
            Err(error) => {
                tracing::error!(%error, "could not check a key");
                Err((
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the store is unavailable; try again",
                )
                    .into_response())
            }
        }
    }

    /// Counts a wrong key, or a wrong ticket; the response if the address has tried too many.
    pub(crate) async fn count_failure(&self, origin: Origin) -> Option<Response> {
        if let Err(wait) = self.failures.record(origin, Instant::now()) {
            let seconds = wait.as_secs().max(1).to_string();
            let text = "too many wrong keys from this address; wait and use a valid one";
            let headers = [(RETRY_AFTER, seconds)];
            return Some((StatusCode::TOO_MANY_REQUESTS, headers, text).into_response());
        }
        self.engine
            .tokens()
            .record_authentication_failure(origin.to_string(), None)
            .await;
        None
    }

    async fn refuse(&self, origin: Origin) -> Response {
        if let Some(limited) = self.count_failure(origin).await {
            return limited;
        }
        let text = "a valid API key is needed: send `Authorization: Bearer oub_…`; \
                    `oubliette token create` makes one";
        (
            StatusCode::UNAUTHORIZED,
            [(WWW_AUTHENTICATE, "Bearer")],
            text,
        )
            .into_response()
    }
}

/// The middleware before every route that needs a key. It adds the [`Actor`] to the request's
/// extensions, and counts the connection for its token before anything more is read.
pub(crate) async fn require_key(
    State(authenticator): State<Authenticator>,
    Extension(connection): Extension<Arc<Connection>>,
    mut request: Request,
    next: Next,
) -> Response {
    let origin = connection.origin();
    let actor = match authenticator.authenticate(request.headers(), origin).await {
        Ok(actor) => actor,
        Err(refusal) => return refusal,
    };
    if let Err(refusal) = connection.assign(actor.token_id, actor.scope) {
        return too_many_connections(refusal);
    }
    request.extensions_mut().insert(actor);
    next.run(request).await
}

pub(crate) fn too_many_connections(refusal: Refusal) -> Response {
    let (status, text) = match refusal {
        Refusal::Token(max) => (
            StatusCode::TOO_MANY_REQUESTS,
            format!(
                "this token has {max} open connections, as many as it may have; close streams or wait \
                 for calls to end, or raise `server.max_connections_per_token`\n"
            ),
        ),
        Refusal::Server => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the server has as many open connections as it may have; try again later, or raise \
             `server.max_connections`\n"
                .to_owned(),
        ),
    };
    // The connection would still take a place.
    let headers = [(RETRY_AFTER, "1"), (CONNECTION, "close")];
    (status, headers, text).into_response()
}

fn bearer_key(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}
