//! Which key a request is sent with, and what of it goes on to the provider.

use hyper::Request;
use oubliette_model::ApiKey;
use proptest::prelude::*;

use super::*;
use crate::gateway::grants::{Grant, GrantedSecret, SessionGrants, placeholder_id};

const REAL: &str = "sk-real-0123456789";

fn placeholder() -> ApiKey {
    ApiKey::from_random([7; 32])
}

fn grants(provider: Provider, upstream: &str) -> Grants {
    let grants = Grants::default();
    grants.set(SessionGrants {
        session: "s".to_owned(),
        container: "c".to_owned(),
        grants: vec![Grant {
            placeholder: placeholder_id(&placeholder()),
            provider,
            upstream: upstream.to_owned(),
            secret: GrantedSecret::new(REAL),
        }],
        git: Vec::new(),
        budget: None,
    });
    grants
}

fn head(uri: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::post(uri);
    for (name, value) in headers {
        request = request.header(*name, value.replace("KEY", placeholder().reveal()));
    }
    request.body(()).unwrap().into_parts().0
}

#[test]
fn the_real_key_takes_the_place_of_the_placeholder() {
    let cases = [
        (
            Provider::Anthropic,
            "/anthropic/v1/messages?beta=true",
            "x-api-key",
            "KEY",
            "https://up/a/v1/messages?beta=true",
        ),
        (
            Provider::Anthropic,
            "/anthropic/v1/messages",
            "authorization",
            "Bearer KEY",
            "https://up/a/v1/messages",
        ),
        (
            Provider::OpenAi,
            "/openai/v1/responses",
            "Authorization",
            "bearer KEY",
            "https://up/a/responses",
        ),
        (
            Provider::Gemini,
            "/gemini/v1beta/models/m:generateContent?alt=sse",
            "x-goog-api-key",
            "KEY",
            "https://up/a/v1beta/models/m:generateContent?alt=sse",
        ),
    ];
    for (provider, path, name, value, expected) in cases {
        let given = [
            (name, value),
            ("anthropic-beta", "x"),
            ("accept-encoding", "gzip"),
            ("cookie", "a=b"),
        ];
        let accepted = accept(&head(path, &given), "c", &grants(provider, "https://up/a")).unwrap();
        assert_eq!(accepted.uri.to_string(), expected);
        let sent = accepted.headers.get(name).unwrap().to_str().unwrap();
        assert_eq!(sent.trim_start_matches("Bearer "), REAL);
        assert_eq!(accepted.headers["anthropic-beta"], "x");
        assert_eq!(accepted.headers["accept-encoding"], "identity");
        let text = format!("{:?}", accepted.headers);
        assert!(
            !text.contains(placeholder().reveal()) && !text.contains(REAL),
            "{text}"
        );
    }
}

#[test]
fn a_key_in_the_address_becomes_a_header() {
    let uri = format!(
        "/gemini/v1beta/models?key={}&pageSize=5&key=other",
        placeholder().reveal()
    );
    let accepted = accept(
        &head(&uri, &[]),
        "c",
        &grants(Provider::Gemini, "https://up"),
    )
    .unwrap();
    assert_eq!(
        accepted.uri.to_string(),
        "https://up/v1beta/models?pageSize=5"
    );
    assert_eq!(accepted.headers["x-goog-api-key"], REAL);
}

#[test]
fn only_the_placeholder_of_this_container_and_provider_works() {
    let all = grants(Provider::OpenAi, "https://up");
    let status = |uri: &str, headers: &[(&str, &str)], container: &str| {
        accept(&head(uri, headers), container, &all)
            .map(|_| ())
            .map_err(|refusal| refusal.status.as_u16())
    };
    let key = [("authorization", "Bearer KEY")];
    assert_eq!(status("/openai/v1/models", &key, "c"), Ok(()));
    assert_eq!(status("/openai/v1/models", &key, "other"), Err(401));
    assert_eq!(status("/openai/v1/models", &[], "c"), Err(401));
    assert_eq!(
        status(
            "/openai/v1/models",
            &[("authorization", "Bearer sk-real-0123456789")],
            "c"
        ),
        Err(401)
    );
    assert_eq!(
        status("/openai/v1/models", &[("authorization", "Basic KEY")], "c"),
        Err(401)
    );
    assert_eq!(status("/anthropic/v1/models", &key, "c"), Err(401));
    assert_eq!(status("/openai/v2/models", &key, "c"), Err(404));
    assert_eq!(status("/openai/v1x", &key, "c"), Err(404));
    assert_eq!(
        status("http://api.openai.com/openai/v1/models", &key, "c"),
        Err(400)
    );
    assert_eq!(
        status(
            "/openai/v1/responses",
            &[("authorization", "Bearer KEY"), ("upgrade", "websocket")],
            "c"
        ),
        Err(426)
    );
    for path in ["/../x", "/a/./b", "/a//b", "/%2e%2e/x", "/a%2Fb", "//evil"] {
        assert_eq!(
            status(&format!("/openai/v1{path}"), &key, "c"),
            Err(400),
            "{path}"
        );
    }
}

#[test]
fn headers_of_the_connection_and_of_the_length_do_not_pass() {
    let given = [
        ("authorization", "Bearer KEY"),
        ("connection", "close, X-Own"),
        ("x-own", "1"),
        ("te", "trailers"),
        ("content-length", "5"),
        ("transfer-encoding", "chunked"),
        ("expect", "100-continue"),
        ("host", "127.0.0.1:3129"),
        ("x-api-key", "something else"),
        ("proxy-authorization", "Basic eA=="),
    ];
    let all = grants(Provider::OpenAi, "https://up");
    let accepted = accept(&head("/openai/v1/responses", &given), "c", &all).unwrap();
    let names: Vec<&str> = accepted.headers.keys().map(HeaderName::as_str).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.contains(&"authorization") && names.contains(&"accept-encoding"));
}

#[test]
fn a_response_header_with_the_key_is_dropped() {
    let mut headers = HeaderMap::new();
    headers.insert(
        "location",
        HeaderValue::try_from(format!("https://other/?key={REAL}")).unwrap(),
    );
    headers.insert("x-request-id", HeaderValue::from_static("1"));
    headers.insert("connection", HeaderValue::from_static("close"));
    let kept = response_headers(&headers, REAL);
    assert_eq!(kept.len(), 1, "{kept:?}");
}

proptest! {
    #[test]
    fn whatever_the_path_the_key_goes_only_below_the_upstream(path in "[!-~]{0,60}") {
        let all = grants(Provider::Anthropic, "https://up.test/base");
        let Ok(uri) = format!("/anthropic/{path}").parse::<Uri>() else { return Ok(()) };
        let mut parts = head("/x", &[("x-api-key", "KEY")]);
        parts.uri = uri;
        if let Ok(accepted) = accept(&parts, "c", &all) {
            prop_assert_eq!(accepted.uri.host(), Some("up.test"));
            prop_assert_eq!(accepted.uri.scheme_str(), Some("https"));
            prop_assert!(accepted.uri.path().starts_with("/base/"));
            prop_assert!(!accepted.uri.path().split('/').any(|it| it == ".."));
        }
    }
}
