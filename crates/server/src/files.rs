//! `GET` and `PUT /files/{ticket}`: transfers of large files. The ticket stands for a key, and is never
//! logged.

use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    ETAG, IF_RANGE, RANGE, RETRY_AFTER,
};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use oubliette_engine::{Download, Engine, EngineError, TransferError};
use serde_json::{Value, json};

use crate::auth::{Authenticator, too_many_connections};
use crate::connection_limits::Connection;

/// The path of the routes, with the name of its parameter.
pub(crate) const ROUTE: &str = "/files/{ticket}";
const PREFIX: &str = "/files/";
/// Results have tickets in these fields.
const TICKET_FIELDS: [&str; 2] = ["download", "upload"];

/// What the routes need.
#[derive(Debug, Clone)]
pub(crate) struct FileRoutes {
    pub(crate) engine: Engine,
    pub(crate) authenticator: Authenticator,
}

/// Makes the URLs of tickets in a result absolute, with the address by which the client has reached the
/// server. They stay relative where that is not known, for example on the socket in the data directory.
pub(crate) fn complete_urls(result: &mut Value, request: &Parts) {
    let header = |name: &str| request.headers.get(name)?.to_str().ok();
    let is_local = request
        .extensions
        .get::<Arc<Connection>>()
        .is_none_or(|connection| connection.is_local());
    let Some(host) = header("host").filter(|_| !is_local) else {
        return;
    };
    let scheme = match header("x-forwarded-proto") {
        Some("https") => "https",
        _ => "http",
    };
    for field in TICKET_FIELDS {
        let url = result.get_mut(field).and_then(|view| view.get_mut("url"));
        if let Some(url) = url
            && let Some(path) = url.as_str().filter(|url| url.starts_with(PREFIX))
        {
            *url = json!(format!("{scheme}://{host}{path}"));
        }
    }
}

pub(crate) async fn download(
    State(routes): State<FileRoutes>,
    Extension(connection): Extension<Arc<Connection>>,
    Path(ticket): Path<String>,
    headers: HeaderMap,
) -> Response {
    let address = Some(connection.origin().to_string());
    let transfers = routes.engine.transfers();
    let download = match transfers.open_download(&ticket, address).await {
        Ok(download) => download,
        Err(error) => return routes.refuse(error, &connection).await,
    };
    if let Err(refusal) = connection.assign(download.token_id(), download.scope()) {
        return too_many_connections(refusal);
    }
    send(download, &headers)
}

/// The response with the file, or with the part that the headers ask for.
fn send(download: Download, headers: &HeaderMap) -> Response {
    let size = download.size();
    let etag = format!("\"{}\"", download.version());
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    // A part of another version of the file must not be put together with this one.
    let is_same = text(IF_RANGE).is_none_or(|version| version == etag);
    let range = match text(RANGE).filter(|_| is_same).map(parse_range) {
        Some(Some(wanted)) => match wanted.within(size) {
            Some(range) => Some(range),
            None => {
                let range = [(CONTENT_RANGE, format!("bytes */{size}"))];
                return (StatusCode::RANGE_NOT_SATISFIABLE, range).into_response();
            }
        },
        // Several ranges, or another unit: the whole file is a valid response.
        _ => None,
    };
    let mut response = Response::builder()
        .header(CONTENT_TYPE, "application/octet-stream")
        // Content of an agent is never a page of this server.
        .header(CONTENT_DISPOSITION, "attachment")
        .header("content-security-policy", "sandbox")
        .header(CACHE_CONTROL, "no-store")
        .header(ACCEPT_RANGES, "bytes")
        .header(ETAG, etag);
    let sent = match range {
        Some(range) => {
            let last = range.end - 1;
            let described = format!("bytes {}-{last}/{size}", range.start);
            response = response
                .status(StatusCode::PARTIAL_CONTENT)
                .header(CONTENT_RANGE, described);
            range
        }
        None => 0..size,
    };
    let response = response.header(CONTENT_LENGTH, sent.end - sent.start);
    let pieces = stream::unfold(download.send(sent), |mut pieces| async move {
        let piece = pieces.next().await?;
        Some((piece.map(Bytes::from), pieces))
    });
    let response = response.body(Body::from_stream(pieces));
    response.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// One range of bytes, as a client asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WantedRange {
    /// From a byte to another, or to the end.
    From(u64, Option<u64>),
    Last(u64),
}

impl WantedRange {
    /// The bytes of a file; none if it has none of them.
    fn within(self, size: u64) -> Option<std::ops::Range<u64>> {
        let range = match self {
            Self::From(first, last) => {
                let end = last.map_or(size, |last| last.saturating_add(1).min(size));
                first..end
            }
            Self::Last(count) => size.saturating_sub(count)..size,
        };
        (range.start < range.end).then_some(range)
    }
}

fn parse_range(header: &str) -> Option<WantedRange> {
    let (first, last) = header.strip_prefix("bytes=")?.trim().split_once('-')?;
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
        is_number.then(|| text.parse::<u64>().ok()).flatten()
    };
    match (first, last) {
        ("", last) => Some(WantedRange::Last(number(last)?)),
        (first, "") => Some(WantedRange::From(number(first)?, None)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(WantedRange::From(first, Some(last)))
        }
    }
}

pub(crate) async fn upload(
    State(routes): State<FileRoutes>,
    Extension(connection): Extension<Arc<Connection>>,
    Path(ticket): Path<String>,
    request: Request,
) -> Response {
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let Some(length) = length else {
        let text = "the size of the file must be known before: send a `Content-Length`\n";
        return (StatusCode::LENGTH_REQUIRED, text).into_response();
    };
    let address = Some(connection.origin().to_string());
    let transfers = routes.engine.transfers();
    let upload = match transfers.begin_upload(&ticket, length, address).await {
        Ok(upload) => upload,
        Err(error) => return routes.refuse(error, &connection).await,
    };
    if let Err(refusal) = connection.assign(upload.token_id(), upload.scope()) {
        return too_many_connections(refusal);
    }
    let mut body = request.into_body().into_data_stream();
    // The engine ends the upload when nothing arrives for too long.
    let pumping = async {
        while let Some(Ok(piece)) = body.next().await {
            if !upload.send(piece.into()).await {
                break;
            }
        }
    };
    let has_ended = tokio::select! {
        () = pumping => false,
        () = upload.ended() => true,
    };
    drop(body);
    match upload.finish().await {
        Ok(()) => (StatusCode::CREATED, "written\n").into_response(),
        Err(error) => {
            let mut refused = routes.refuse(error, &connection).await;
            if has_ended {
                // The rest of the body was not read.
                let close = http::HeaderValue::from_static("close");
                refused
                    .headers_mut()
                    .insert(http::header::CONNECTION, close);
            }
            refused
        }
    }
}

impl FileRoutes {
    /// The response to a transfer that was refused. A wrong ticket counts as a wrong key does.
    async fn refuse(&self, error: TransferError, connection: &Connection) -> Response {
        let (status, text) = match error {
            TransferError::NoTicket => {
                let origin = connection.origin();
                if let Some(limited) = self.authenticator.count_failure(origin).await {
                    return limited;
                }
                let text = "there is no such ticket: it was used, has expired, or its token has ended; ask for \
                            another with `workspace_read`, or `workspace_write` without `content`";
                (StatusCode::NOT_FOUND, text.to_owned())
            }
            TransferError::InUse => {
                let text = "a transfer with this ticket is under way";
                (StatusCode::CONFLICT, text.to_owned())
            }
            TransferError::TooMany => {
                let text = "this token has as many transfers under way as it may have; wait for one to end\n";
                let headers = [(RETRY_AFTER, "5")];
                return (StatusCode::TOO_MANY_REQUESTS, headers, text).into_response();
            }
            TransferError::TooLarge { max_bytes } => {
                let text = format!(
                    "a file may have at most {max_bytes} bytes; `max_upload_mb` in the server's configuration \
                     changes that"
                );
                (StatusCode::PAYLOAD_TOO_LARGE, text)
            }
            TransferError::TimedOut => {
                let text = "the transfer took too long; nothing was written, and the ticket can be used again";
                (StatusCode::REQUEST_TIMEOUT, text.to_owned())
            }
            TransferError::CutOff => {
                let text =
                    "the body ended early; nothing was written, and the ticket can be used again";
                (StatusCode::BAD_REQUEST, text.to_owned())
            }
            TransferError::Failed(error) => {
                let status = match error {
                    EngineError::Refused { .. } => StatusCode::FORBIDDEN,
                    EngineError::NotFound { .. } => StatusCode::NOT_FOUND,
                    EngineError::Fault(_) => StatusCode::INTERNAL_SERVER_ERROR,
                    _ => StatusCode::UNPROCESSABLE_ENTITY,
                };
                (status, error.to_string())
            }
        };
        (status, text + "\n").into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_http() {
        for (header, size, expected) in [
            ("bytes=0-3", 10, Some(Some(0..4))),
            ("bytes=4-", 10, Some(Some(4..10))),
            ("bytes=-3", 10, Some(Some(7..10))),
            ("bytes=-30", 10, Some(Some(0..10))),
            ("bytes=8-99", 10, Some(Some(8..10))),
            ("bytes=0-18446744073709551615", 10, Some(Some(0..10))),
            ("bytes=10-", 10, Some(None)),
            ("bytes=-0", 10, Some(None)),
            ("bytes=0-0", 0, Some(None)),
            ("bytes=3-1", 10, None),
            ("bytes=0-1,3-4", 10, None),
            ("bytes=+1-2", 10, None),
            ("bytes=99999999999999999999-", 10, None),
            ("lines=1-2", 10, None),
            ("bytes=-", 10, None),
        ] {
            let range = parse_range(header).map(|range| range.within(size));
            assert_eq!(range, expected, "{header}");
        }
    }
}
