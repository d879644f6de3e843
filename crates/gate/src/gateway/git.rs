//! Git through the gateway: agents fetch and push with a placeholder, and the gate puts the credential of the host into
//! the request. A push is decided about before that, by the refs that it would change.
//!
//! The credential goes to its host and to nothing else: no redirect is followed, and nothing but fetch and push is passed
//! on. Bodies pass as they are.

mod address;
mod grants;
mod pkt_line;
mod push;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING,
    CONTENT_TYPE, EXPIRES, HeaderName, HeaderValue, LOCATION, PRAGMA, RETRY_AFTER, UPGRADE,
    USER_AGENT,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use tokio::time::timeout;

pub(crate) use address::is_git_path;
pub use grants::GitGrant;
pub(crate) use grants::GitGrants;

use super::body::{BodyLimits, LimitedBody};
use super::buffer::Buffered;
use super::request::response_headers;
use super::serve::{Reply, reason_of, whole_body};
use crate::container::{ContainerGate, Gate};
use crate::journal::JournalEvent;
use address::{GitAddress, Service};
use push::{Denial, PushList};
use stream::{RequestStream, ResponseStream, Transfer};

const GIT_PROTOCOL: HeaderName = HeaderName::from_static("git-protocol");
const HTTPS_PORT: u16 = 443;
/// In the journal and in the event of a session.
const REFS_DENIED: &str = "git push to a ref that `push_branches` of the project does not allow";
const OPTIONS_DENIED: &str = "git push with push options, which are not allowed";

const INCOMPLETE_LIST: &str = "the list of refs of the push is not complete";
/// For the list of a push, which git sends at once.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// Of what an agent pushes at once.
const REQUEST_LIMITS: BodyLimits = BodyLimits {
    max_bytes: 4 << 30,
    idle: Duration::from_secs(120),
};
/// Of what an agent fetches at once; the disk of its project has a limit of its own.
const RESPONSE_LIMITS: BodyLimits = BodyLimits {
    max_bytes: 64 << 30,
    idle: Duration::from_secs(600),
};

/// What a host is told of a request.
const REQUEST_HEADERS: [HeaderName; 8] = [
    ACCEPT,
    ACCEPT_ENCODING,
    ACCEPT_LANGUAGE,
    CACHE_CONTROL,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    PRAGMA,
    USER_AGENT,
];
/// What an agent is told of a response: cookies could be as good as the credential.
const RESPONSE_HEADERS: [HeaderName; 6] = [
    CACHE_CONTROL,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    EXPIRES,
    PRAGMA,
    RETRY_AFTER,
];

/// The answer to a request that is not passed on.
type Refused = Box<Reply>;

/// A request of one container.
struct GitRequest<'a> {
    gate: &'a Arc<Gate>,
    container: &'a Arc<ContainerGate>,
    grant: Arc<GitGrant>,
    address: GitAddress<'a>,
    head: &'a Parts,
}

/// Handles a request whose path `is_git_path`.
pub(crate) async fn handle(
    gate: &Arc<Gate>,
    container: &Arc<ContainerGate>,
    request: Request<Incoming>,
) -> Reply {
    let (head, body) = request.into_parts();
    let replied = try_handle(gate, container, &head, body).await;
    replied.unwrap_or_else(|refused| *refused)
}

async fn try_handle(
    gate: &Arc<Gate>,
    container: &Arc<ContainerGate>,
    head: &Parts,
    body: Incoming,
) -> Result<Reply, Refused> {
    if head.uri.authority().is_some() || head.headers.contains_key(UPGRADE) {
        return Err(refuse("this is a gateway to git repositories, not a proxy"));
    }
    let address = GitAddress::parse(&head.method, head.uri.path(), head.uri.query());
    let address = address.map_err(refuse)?;
    // 401 would have git ask for a password.
    let grant = find_grant(&head.headers, &container.id, &gate.gateway.grants.git);
    let grant = grant.filter(|grant| grant.host == address.host).ok_or_else(|| {
        refuse(
            "the placeholder is not one that Oubliette gave to this agent for this host, or the agent was started again \
             since. The credential may have been removed",
        )
    })?;
    if !address.is_within(&grant.path) {
        let text = format!(
            "the credential of the project is only for https://{}{}",
            grant.host, grant.path
        );
        return Err(refuse(&text));
    }
    let request = GitRequest {
        gate,
        container,
        grant,
        address,
        head,
    };
    request.pass(body).await
}

impl GitRequest<'_> {
    async fn pass(&self, body: Incoming) -> Result<Reply, Refused> {
        let GitAddress {
            service,
            is_advertisement,
            ..
        } = self.address;
        // A host that does not expect a body would take it for the next request.
        if is_advertisement && !body.is_end_stream() {
            return Err(refuse("a request for refs has no body"));
        }
        if !is_advertisement {
            let content_type = self.head.headers.get(CONTENT_TYPE);
            if content_type.is_none_or(|value| value != service.request_type()) {
                return Err(refuse("the request has the wrong `Content-Type`"));
            }
        }
        let mut body = LimitedBody::new(body, REQUEST_LIMITS);
        let mut first = Bytes::new();
        if service == Service::Push && !is_advertisement {
            first = self.decide_push(&mut body).await?;
        }
        let sent = Arc::new(AtomicU64::new(0));
        let body = RequestStream {
            first,
            rest: body,
            sent: sent.clone(),
        };
        let transfer = self.transfer(sent);
        self.send(body, transfer).await
    }

    /// Reads the list of a push and decides about it; what was read is passed on. The error is the answer to a push that
    /// is refused.
    async fn decide_push(&self, body: &mut LimitedBody) -> Result<Bytes, Refused> {
        if self.head.headers.contains_key(CONTENT_ENCODING) {
            return Err(refuse(
                "a compressed push cannot be checked; `git push` sends none",
            ));
        }
        let reading = timeout(LIST_TIMEOUT, self.read_list(body));
        let list = reading
            .await
            .unwrap_or_else(|_| Err(refuse(INCOMPLETE_LIST)))?;
        if list.is_empty() {
            // A server that reads on after the end of an empty list would read a list that was not checked.
            let is_alone = list.is_probe() && is_at_end(body).await;
            if !is_alone {
                return Err(refuse("the push has no refs"));
            }
        }
        let allowed = &self.grant.push_branches;
        let Some(denial) = list.denial(allowed) else {
            return Ok(list.into_received().into());
        };
        self.record_denial(denial);
        let reply = match list.refusal_report(denial, allowed) {
            Some(report) => {
                let mut reply = Response::new(whole_body(report.into()));
                let kind = HeaderValue::from_static("application/x-git-receive-pack-result");
                reply.headers_mut().insert(CONTENT_TYPE, kind);
                let no_cache = HeaderValue::from_static("no-cache");
                reply.headers_mut().insert(CACHE_CONTROL, no_cache);
                reply
            }
            None => *refuse(&list.explain(denial, allowed)),
        };
        drop(list);
        // Git reads the answer when it has sent everything.
        while let Some(Ok(_)) = body.frame().await {}
        Err(reply.into())
    }

    /// Reads the list of a push. What is held of it counts as requests to models do.
    async fn read_list(&self, body: &mut LimitedBody) -> Result<PushList, Refused> {
        let mut held = Buffered::new(self.gate, self.container);
        let mut list = PushList::default();
        loop {
            let Some(Ok(frame)) = body.frame().await else {
                return Err(refuse(INCOMPLETE_LIST));
            };
            let data = frame.into_data().unwrap_or_default();
            if list.feed(&data).map_err(refuse)? {
                return Ok(list);
            }
            if !held.grow_to(list.received_bytes()) {
                let text = "too many requests are on their way; try again";
                return Err(text_reply(StatusCode::SERVICE_UNAVAILABLE, text).into());
            }
        }
    }

    fn record_denial(&self, denial: Denial) {
        let reason = match denial {
            Denial::Refs => REFS_DENIED,
            Denial::Options => OPTIONS_DENIED,
        };
        let mut transfer = self.transfer(Arc::default());
        transfer.event = JournalEvent::Denied;
        transfer.rule = reason.to_owned();
        let (host, port) = transfer.host.clone();
        self.gate.publish(self.container, &host, port, reason);
    }

    async fn send(&self, body: RequestStream, mut transfer: Transfer) -> Result<Reply, Refused> {
        let request = self.request(body)?;
        let sending = self.container.upstream.request(request);
        let host = &self.grant.host;
        let mut failed = |status: StatusCode, reason: &str, text: String| {
            transfer.event = JournalEvent::Failed;
            transfer.rule = reason.to_owned();
            Refused::from(text_reply(status, &text))
        };
        let response = match timeout(self.gate.gateway.limits.response_head, sending).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                let reason = reason_of(&error);
                let text = format!("{host} cannot be reached: {reason}");
                return Err(failed(StatusCode::BAD_GATEWAY, &reason, text));
            }
            Err(_) => {
                let text = format!("{host} did not answer in time");
                return Err(failed(StatusCode::GATEWAY_TIMEOUT, "no response", text));
            }
        };
        let (head, body) = response.into_parts();
        let headers = self.response_headers(&head.headers);
        if head.status == StatusCode::UNAUTHORIZED {
            let text = format!("{host} does not accept the credential of the project");
            return Err(failed(
                StatusCode::FORBIDDEN,
                "credential not accepted",
                text,
            ));
        }
        if head.status.is_redirection() {
            let to = headers.get(LOCATION).and_then(|it| it.to_str().ok());
            let to = to.map(|to| format!(" to {to}")).unwrap_or_default();
            let text = format!(
                "{host} redirects{to}. The credential does not follow: use the address that the repository has now"
            );
            return Err(failed(StatusCode::FORBIDDEN, "redirect", text));
        }
        let body = ResponseStream {
            inner: LimitedBody::new(body, RESPONSE_LIMITS),
            transfer,
        };
        let mut reply = Response::new(body.boxed_unsync());
        *reply.status_mut() = head.status;
        for name in RESPONSE_HEADERS {
            if let Some(value) = headers.get(&name) {
                reply.headers_mut().insert(name, value.clone());
            }
        }
        Ok(reply)
    }

    /// The request as the host gets it.
    fn request(&self, body: RequestStream) -> Result<Request<super::RequestBody>, Refused> {
        let uri = format!("{}{}", self.grant.upstream, self.address.target());
        let uri: Uri = uri.parse().map_err(|_| refuse("the path is not valid"))?;
        let basic = HeaderValue::try_from(format!("Basic {}", self.grant.basic()));
        let mut basic =
            basic.map_err(|_| refuse("the credential of the project cannot be used"))?;
        basic.set_sensitive(true);
        let mut request = Request::new(body.boxed_unsync());
        let headers = request.headers_mut();
        let given = &self.head.headers;
        for name in REQUEST_HEADERS {
            if let Some(value) = given.get(&name) {
                headers.insert(name, value.clone());
            }
        }
        // A push has the list that was checked in no other version of the protocol.
        if let Some(value) = given.get(&GIT_PROTOCOL)
            && self.address.service == Service::Fetch
        {
            headers.insert(GIT_PROTOCOL, value.clone());
        }
        headers.insert(AUTHORIZATION, basic);
        *request.method_mut() = if self.address.is_advertisement {
            Method::GET
        } else {
            Method::POST
        };
        *request.uri_mut() = uri;
        Ok(request)
    }

    /// The headers of a response without those in which the host sends the credential back.
    fn response_headers(&self, headers: &HeaderMap) -> HeaderMap {
        let kept = response_headers(headers, self.grant.secret.reveal());
        response_headers(&kept, &self.grant.basic())
    }

    fn transfer(&self, sent: Arc<AtomicU64>) -> Transfer {
        let host = self.grant.upstream.parse::<Uri>().unwrap_or_default();
        let port = host.port_u16().unwrap_or(HTTPS_PORT);
        Transfer {
            gate: self.gate.clone(),
            container: self.container.clone(),
            host: (host.host().unwrap_or_default().to_owned(), port),
            rule: self.address.service.rule().to_owned(),
            event: JournalEvent::Closed,
            sent,
            received: 0,
        }
    }
}

fn find_grant(headers: &HeaderMap, container: &str, grants: &GitGrants) -> Option<Arc<GitGrant>> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    let key = scheme.eq_ignore_ascii_case("bearer").then_some(key)?;
    grants.find(key.trim(), container)
}

async fn is_at_end(body: &mut LimitedBody) -> bool {
    while let Some(frame) = body.frame().await {
        let is_empty = |data: &Bytes| data.is_empty();
        if !frame.is_ok_and(|frame| frame.data_ref().is_none_or(is_empty)) {
            return false;
        }
    }
    true
}

fn refuse(text: &str) -> Refused {
    text_reply(StatusCode::FORBIDDEN, text).into()
}

/// Git shows plain text to the person who called it.
fn text_reply(status: StatusCode, text: &str) -> Reply {
    let mut reply = Response::new(whole_body(format!("Oubliette: {text}\n").into()));
    *reply.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    reply.headers_mut().insert(CONTENT_TYPE, kind);
    reply
}
