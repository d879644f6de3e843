//! The head of a request to the proxy. What could be read in two ways is refused.

use oubliette_model::Host;

/// Of the request line and the headers.
pub(super) const MAX_HEAD_BYTES: usize = 32 << 10;

/// What a program asks the proxy for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProxyRequest {
    pub(super) host: String,
    pub(super) port: u16,
    /// What is sent to the host first, and what follows it; none for `CONNECT`.
    pub(super) head: Option<(Vec<u8>, Body)>,
}

/// What follows the head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    Bytes(u64),
    /// Its end is known only to who reads it.
    Chunked,
}

/// Where the head ends, if it is complete.
pub(super) fn head_end(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    Some(end + 4)
}

impl ProxyRequest {
    /// Reads a complete head; the error is a sentence for people.
    pub(super) fn parse(head: &[u8]) -> Result<Self, &'static str> {
        let head = std::str::from_utf8(head).map_err(|_| "the request is not text")?;
        let mut lines = head.trim_end_matches("\r\n").split("\r\n");
        let first = lines.next().unwrap_or_default();
        let mut words = first.split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err("the request line has not three words");
        };
        if !matches!(version, "HTTP/1.1" | "HTTP/1.0") || !is_token(method) {
            return Err("the proxy speaks HTTP/1.1");
        }
        let headers = lines.map(parse_header).collect::<Result<Vec<_>, _>>()?;
        if method == "CONNECT" {
            let (host, port) = parse_authority(target, None)?;
            let head = None;
            return Ok(Self { host, port, head });
        }
        let Some(rest) = strip_scheme(target) else {
            return Err("the proxy takes CONNECT, and requests for http:// addresses");
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (host, port) = parse_authority(authority, Some(80))?;
        let body = check_headers(&headers, &host, port)?;
        let head = rewrite(method, path, authority, version, &headers);
        let head = Some((head.into_bytes(), body));
        Ok(Self { host, port, head })
    }
}

fn strip_scheme(target: &str) -> Option<&str> {
    let (scheme, rest) = target.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case("http://").then_some(rest)
}

fn is_token(text: &str) -> bool {
    let is_token_byte =
        |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_token_byte)
}

/// The name and value of a header. Continued lines, control characters and spaces before the colon are refused.
fn parse_header(line: &str) -> Result<(&str, &str), &'static str> {
    let (name, value) = line.split_once(':').ok_or("a header has no colon")?;
    let is_text = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
    if !is_token(name) || !value.bytes().all(is_text) {
        return Err("a header has characters that are not allowed");
    }
    Ok((name, value.trim_matches([' ', '\t'])))
}

fn parse_authority(text: &str, default_port: Option<u16>) -> Result<(String, u16), &'static str> {
    let invalid = "the address of the request is not HOST:PORT";
    // The colons of an IPv6 address are in brackets.
    let after_brackets = text.rfind(']').map_or(0, |end| end + 1);
    let (host, port) = match text[after_brackets..].rfind(':') {
        Some(colon) => {
            let (host, port) = text.split_at(after_brackets + colon);
            let digits = &port[1..];
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            let port = digits
                .parse::<u16>()
                .ok()
                .filter(|port| is_number && *port > 0);
            (host, port.ok_or(invalid)?)
        }
        None => (text, default_port.ok_or(invalid)?),
    };
    let host: Host = host.parse().map_err(|_| invalid)?;
    Ok((host.to_string(), port))
}

fn check_headers(headers: &[(&str, &str)], host: &str, port: u16) -> Result<Body, &'static str> {
    let mut body = Body::Bytes(0);
    let count = |wanted: &str| {
        let named = headers
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        named.count()
    };
    let (lengths, encodings) = (count("content-length"), count("transfer-encoding"));
    if lengths + encodings > 1 {
        return Err("the length of the body is given twice");
    }
    if count("host") > 1 {
        return Err("the request has two Host headers");
    }
    for (name, value) in headers {
        if name.eq_ignore_ascii_case("host")
            && parse_authority(value, Some(80)) != Ok((host.to_owned(), port))
        {
            return Err("the Host header is not the host of the request's address");
        }
        if name.eq_ignore_ascii_case("content-length") {
            let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
            let length = value.parse().ok().filter(|_| is_number);
            body = Body::Bytes(length.ok_or("the length of the body is not a number")?);
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case("chunked") {
                return Err("the encoding of the body is not `chunked`");
            }
            body = Body::Chunked;
        }
    }
    Ok(body)
}

/// The request as the host gets it. The connection is for this one request: the next may be for another host.
fn rewrite(
    method: &str,
    path: &str,
    authority: &str,
    version: &str,
    headers: &[(&str, &str)],
) -> String {
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut head = format!("{method} {slash}{path} {version}\r\nHost: {authority}\r\n");
    for (name, value) in headers {
        let lower = name.to_ascii_lowercase();
        let is_own = matches!(
            lower.as_str(),
            "host" | "connection" | "keep-alive" | "upgrade"
        ) || lower.starts_with("proxy-");
        if !is_own {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    head.push_str("Connection: close\r\n\r\n");
    head
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<ProxyRequest, &'static str> {
        ProxyRequest::parse(text.as_bytes())
    }

    #[test]
    fn requests_for_hosts_are_read_and_sent_on_for_one_request() {
        let connect = parse("CONNECT Example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert_eq!(
            (connect.host.as_str(), connect.port, connect.head),
            ("example.org", 443, None)
        );
        let v6 = parse("CONNECT [2606:4700::1111]:53 HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!((v6.host.as_str(), v6.port), ("2606:4700::1111", 53));
        let plain = parse(
            "POST http://example.org:8080/a?b=c HTTP/1.1\r\nHost: example.org:8080\r\nAccept: */*\r\n\
             Proxy-Connection: keep-alive\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\n",
        );
        let plain = plain.unwrap();
        assert_eq!((plain.host.as_str(), plain.port), ("example.org", 8080));
        assert_eq!(
            String::from_utf8(plain.head.clone().unwrap().0).unwrap(),
            "POST /a?b=c HTTP/1.1\r\nHost: example.org:8080\r\nAccept: */*\r\nContent-Length: 3\r\n\
             Connection: close\r\n\r\n"
        );
        assert_eq!(plain.head.unwrap().1, Body::Bytes(3));
        let chunked = "POST http://a.org/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(parse(chunked).unwrap().head.unwrap().1, Body::Chunked);
        let bare = parse("GET http://example.org?x HTTP/1.0\r\n\r\n").unwrap();
        assert!(
            bare.head
                .unwrap()
                .0
                .starts_with(b"GET /?x HTTP/1.0\r\nHost: example.org\r\n")
        );
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let get = "GET http://a.org/ HTTP/1.1\r\n";
        for bad in [
            "GET / HTTP/1.1\r\nHost: a.org\r\n\r\n".to_owned(),
            "GET https://a.org/ HTTP/1.1\r\n\r\n".to_owned(),
            "GET http://user@a.org/ HTTP/1.1\r\n\r\n".to_owned(),
            "GET http://a.org/ HTTP/2.0\r\n\r\n".to_owned(),
            "GET  http://a.org/ HTTP/1.1\r\n\r\n".to_owned(),
            "CONNECT a.org HTTP/1.1\r\n\r\n".to_owned(),
            "CONNECT a.org:0 HTTP/1.1\r\n\r\n".to_owned(),
            "CONNECT a.org:443:80 HTTP/1.1\r\n\r\n".to_owned(),
            "CONNECT a.org:+80 HTTP/1.1\r\n\r\n".to_owned(),
            "CONNECT 127.1:80 HTTP/1.1\r\n\r\n".to_owned(),
            format!("{get}Host: b.org\r\n\r\n"),
            format!("{get}Host: a.org:81\r\n\r\n"),
            format!("{get}Host: a.org\r\nHost: a.org\r\n\r\n"),
            format!("{get}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
            format!("{get}Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
            format!("{get}Content-Length: +1\r\n\r\n"),
            format!("{get}Transfer-Encoding: chunked, identity\r\n\r\n"),
            format!("{get}Transfer-Encoding : chunked\r\n\r\n"),
            format!("{get}X: a\r\n continued\r\n\r\n"),
            format!("{get}X: a\nHost: b.org\r\n\r\n"),
            format!("{get}X: a\rHost: b.org\r\n\r\n"),
            format!("{get}no colon\r\n\r\n"),
        ] {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_request_has_one_host_whatever_its_headers(text in "[ -~\\r\\n\\t]{0,200}", host in "[a-z]{1,9}") {
            let _ = parse(&text);
            let request = format!("GET http://{host}.org/ HTTP/1.1\r\n{text}\r\n\r\n");
            if let Ok(parsed) = parse(&request[..head_end(request.as_bytes()).unwrap()]) {
                let head = String::from_utf8(parsed.head.unwrap().0).unwrap();
                let hosts = head.lines().filter(|line| line.to_ascii_lowercase().starts_with("host:"));
                prop_assert_eq!(hosts.count(), 1);
                prop_assert!(head.ends_with("\r\n\r\n"));
                prop_assert_eq!(head.matches("\r\n\r\n").count(), 1);
            }
        }
    }
}
