//! Authenticates requests by the key in their header, and limits how many wrong keys an address may
//! try.

mod failure_limiter;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use oubliette_engine::{Actor, Engine};

pub(crate) use failure_limiter::FailureLimiter;

/// Checks keys. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Authenticator {
    engine: Engine,
    failures: Arc<FailureLimiter<IpAddr>>,
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
    async fn authenticate(&self, headers: &HeaderMap, address: IpAddr) -> Result<Actor, Response> {
        let key = bearer_key(headers).unwrap_or_default();
        let found = self
            .engine
            .tokens()
            .authenticate(key, Some(address.to_string()))
            .await;
        match found {
            Ok(Some(authenticated)) => Ok(authenticated.actor),
            Ok(None) => Err(self.refuse(address).await),
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

    async fn refuse(&self, address: IpAddr) -> Response {
        if let Err(wait) = self.failures.record(address, Instant::now()) {
            let seconds = wait.as_secs().max(1).to_string();
            let text = "too many wrong keys from this address; wait and use a valid one";
            return (
                StatusCode::TOO_MANY_REQUESTS,
                [(RETRY_AFTER, seconds)],
                text,
            )
                .into_response();
        }
        self.engine
            .tokens()
            .record_authentication_failure(address.to_string(), None)
            .await;
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
/// extensions.
pub(crate) async fn require_key(
    State(authenticator): State<Authenticator>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    match authenticator
        .authenticate(request.headers(), peer.ip())
        .await
    {
        Ok(actor) => {
            request.extensions_mut().insert(actor);
            next.run(request).await
        }
        Err(refusal) => refusal,
    }
}

fn bearer_key(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}
