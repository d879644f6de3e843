//! Who sends a request: the key in its header, and how many wrong ones an address may try.

mod failures;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use oubliette_engine::{Actor, Engine};
use oubliette_store::{AuditEntry, Outcome};

pub(crate) use failures::Failures;

/// Checks keys. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    engine: Engine,
    failures: Arc<Failures<IpAddr>>,
}

impl Gate {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            failures: Arc::default(),
        }
    }

    pub(crate) fn refused(&self) -> u64 {
        self.failures.total()
    }

    /// Who may pass, or the answer for who may not. A valid key passes whatever its neighbours at
    /// the same address did.
    async fn check(&self, headers: &HeaderMap, address: IpAddr) -> Result<Actor, Response> {
        let key = bearer(headers).unwrap_or_default();
        let found = self
            .engine
            .tokens()
            .authenticate(key, Some(address.to_string()))
            .await;
        match found {
            Ok(Some(authenticated)) => Ok(authenticated.actor),
            Ok(None) => Err(self.refuse(address).await),
            Err(error) => {
                tracing::error!(%error, "a key could not be checked");
                Err((
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the store does not answer; try again",
                )
                    .into_response())
            }
        }
    }

    async fn refuse(&self, address: IpAddr) -> Response {
        if let Err(wait) = self.failures.count(address, Instant::now()) {
            let seconds = wait.as_secs().max(1).to_string();
            let text = "too many wrong keys from this address; wait and use a valid one";
            return (
                StatusCode::TOO_MANY_REQUESTS,
                [(RETRY_AFTER, seconds)],
                text,
            )
                .into_response();
        }
        let entry = AuditEntry {
            at: self.engine.now(),
            token_id: None,
            operation: "authenticate".to_owned(),
            project_id: None,
            outcome: Outcome::Unauthenticated,
            address: Some(address.to_string()),
        };
        self.engine.audit_log().enqueue(entry).await;
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

/// The middleware before everything that needs a key. What is behind it finds an [`Actor`] in the
/// request's extensions.
pub(crate) async fn require_key(
    State(gate): State<Gate>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    match gate.check(request.headers(), peer.ip()).await {
        Ok(actor) => {
            request.extensions_mut().insert(actor);
            next.run(request).await
        }
        Err(refusal) => refusal,
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}
