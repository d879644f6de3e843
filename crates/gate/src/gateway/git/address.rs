//! The addresses of the gateway that stand for repositories: `/git/HOST/REPOSITORY` and the four requests of git's
//! smart HTTP protocol.

use hyper::Method;

const PREFIX: &str = "/git/";
const FETCH: &str = "git-upload-pack";
const PUSH: &str = "git-receive-pack";

const UNSUPPORTED: &str = "only fetch and push over git's smart HTTP protocol are available here, no Git LFS and no other \
     requests";

/// What a request is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    Fetch,
    Push,
}

impl Service {
    fn of_name(name: &str) -> Option<Self> {
        match name {
            FETCH => Some(Self::Fetch),
            PUSH => Some(Self::Push),
            _ => None,
        }
    }

    /// In the journal of connections.
    pub(super) fn rule(self) -> &'static str {
        match self {
            Self::Fetch => "git fetch",
            Self::Push => "git push",
        }
    }

    pub(super) fn request_type(self) -> &'static str {
        match self {
            Self::Fetch => "application/x-git-upload-pack-request",
            Self::Push => "application/x-git-receive-pack-request",
        }
    }
}

/// A request for a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GitAddress<'a> {
    /// With a port if it has one.
    pub(super) host: &'a str,
    /// Starts with a slash.
    pub(super) repository: &'a str,
    pub(super) service: Service,
    /// Whether it asks for the refs, before anything is exchanged.
    pub(super) is_advertisement: bool,
}

/// Whether a path is one of these.
pub(crate) fn is_git_path(path: &str) -> bool {
    path == "/git" || path.starts_with(PREFIX)
}

impl<'a> GitAddress<'a> {
    /// Reads the address of a request; the error is for the person who made it.
    pub(super) fn parse(
        method: &Method,
        path: &'a str,
        query: Option<&str>,
    ) -> Result<Self, &'static str> {
        let rest = path.strip_prefix(PREFIX).unwrap_or_default();
        let slash = rest.find('/').ok_or(UNSUPPORTED)?;
        let (host, path) = rest.split_at(slash);
        let (repository, service, is_advertisement) = if *method == Method::GET {
            let repository = path.strip_suffix("/info/refs").ok_or(UNSUPPORTED)?;
            let name = query.and_then(|query| query.strip_prefix("service="));
            (repository, name.and_then(Service::of_name), true)
        } else if *method == Method::POST && query.is_none() {
            let (repository, name) = path.rsplit_once('/').ok_or(UNSUPPORTED)?;
            (repository, Service::of_name(name), false)
        } else {
            return Err(UNSUPPORTED);
        };
        let service = service.ok_or(UNSUPPORTED)?;
        if !is_repository(repository) {
            return Err(
                "the path of the repository has empty, `.` or `..` segments, or characters that a server could take for others",
            );
        }
        Ok(Self {
            host,
            repository,
            service,
            is_advertisement,
        })
    }

    /// The path and the query of the request to the host.
    pub(super) fn target(&self) -> String {
        let name = match self.service {
            Service::Fetch => FETCH,
            Service::Push => PUSH,
        };
        let repository = self.repository;
        if self.is_advertisement {
            format!("{repository}/info/refs?service={name}")
        } else {
            format!("{repository}/{name}")
        }
    }

    /// Whether the repository is this one, or below it; every repository is below an empty path.
    pub(super) fn is_within(&self, path: &str) -> bool {
        let own = self.repository.strip_suffix(".git");
        let own = own.unwrap_or(self.repository);
        let rest = own.strip_prefix(path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Whether every server reads a path in the same way.
fn is_repository(path: &str) -> bool {
    let Some(path) = path.strip_prefix('/') else {
        return false;
    };
    path.split('/').all(|segment| {
        !matches!(segment, "" | "." | ".." | FETCH | PUSH) && is_plain_segment(segment.as_bytes())
    })
}

fn is_plain_segment(mut segment: &[u8]) -> bool {
    loop {
        segment = match segment {
            [] => return true,
            // Spaces, and what is not ASCII.
            [b'%', b'2', b'0', rest @ ..] => rest,
            [b'%', high, low, rest @ ..] if is_high(*high) && low.is_ascii_hexdigit() => rest,
            [byte, rest @ ..] if byte.is_ascii_alphanumeric() || b"-._~@+,=".contains(byte) => rest,
            _ => return false,
        };
    }
}

/// Whether a digit is the first of a byte that is not ASCII.
fn is_high(digit: u8) -> bool {
    matches!(digit, b'8' | b'9' | b'a'..=b'f' | b'A'..=b'F')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> Result<GitAddress<'_>, &'static str> {
        let (path, query) = match path.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (path, None),
        };
        GitAddress::parse(&Method::GET, path, query)
    }

    fn post(path: &str) -> Result<GitAddress<'_>, &'static str> {
        GitAddress::parse(&Method::POST, path, None)
    }

    #[test]
    fn the_four_requests_of_a_repository_are_known() {
        let fetch = get("/git/git.test:8443/a/b.git/info/refs?service=git-upload-pack").unwrap();
        assert_eq!(
            (fetch.host, fetch.repository),
            ("git.test:8443", "/a/b.git")
        );
        assert_eq!(
            (fetch.service, fetch.is_advertisement),
            (Service::Fetch, true)
        );
        assert_eq!(fetch.target(), "/a/b.git/info/refs?service=git-upload-pack");
        let push = post("/git/git.test/~a/my%20b/git-receive-pack").unwrap();
        assert_eq!(
            (push.service, push.is_advertisement),
            (Service::Push, false)
        );
        assert_eq!(push.target(), "/~a/my%20b/git-receive-pack");
    }

    #[test]
    fn all_others_are_refused() {
        for path in [
            "/git/git.test/a/info/refs",
            "/git/git.test/a/info/refs?service=git-upload-archive",
            "/git/git.test/a/info/refs?service=git-upload-pack&service=git-receive-pack",
            "/git/git.test/a/info/refs?service=git-upload-pack&x=1",
            "/git/git.test/a/HEAD",
            "/git/git.test/a/objects/info/packs",
            "/git/git.test/info/refs?service=git-upload-pack",
            "/git/git.test//info/refs?service=git-upload-pack",
            "/git/git.test/a/../b/info/refs?service=git-upload-pack",
            "/git/git.test/a/%2e%2e/b/info/refs?service=git-upload-pack",
            "/git/git.test/a%2fb/info/refs?service=git-upload-pack",
            "/git/git.test/a\\b/info/refs?service=git-upload-pack",
            "/git/git.test/a;b/info/refs?service=git-upload-pack",
            "/git/git.test/a%00/info/refs?service=git-upload-pack",
            "/git/git.test",
            "/git",
        ] {
            assert!(get(path).is_err(), "{path}");
        }
        for path in [
            "/git/git.test/a/info/lfs/objects/batch",
            "/git/git.test/a/git-upload-archive",
            "/git/git.test/a/git-receive%2Dpack",
            "/git/git.test/a/git-receive-pack/",
            "/git/git.test/a/git-receive-pack/git-upload-pack",
            "/git/git.test/git-receive-pack",
            "/git/git.test/a/info/refs",
        ] {
            assert!(post(path).is_err(), "{path}");
        }
        for method in [Method::HEAD, Method::PUT, Method::DELETE, Method::PATCH] {
            let path = "/git/git.test/a/git-receive-pack";
            assert!(GitAddress::parse(&method, path, None).is_err());
        }
        assert!(is_git_path("/git/x") && is_git_path("/git") && !is_git_path("/gitx/a"));
    }

    #[test]
    fn a_repository_is_within_its_own_path_and_those_above() {
        let path = "/git/h/acme/app.git/git-upload-pack";
        let address = post(path).unwrap();
        for above in ["", "/acme", "/acme/app"] {
            assert!(address.is_within(above), "{above}");
        }
        for other in ["/acm", "/acme/ap", "/acme/app2", "/other", "/acme/app/sub"] {
            assert!(!address.is_within(other), "{other}");
        }
    }
}
