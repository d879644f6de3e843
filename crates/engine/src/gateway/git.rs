//! Git credentials of projects through the gateway: which hosts and repositories the agents of a project reach with them,
//! and what git in a container has to know for that.

use std::collections::BTreeMap;

use oubliette_gate::gateway::{GATEWAY_ADDRESS, GitGrant, GrantedSecret};
use oubliette_model::{ProjectSettings, RemoteUrl, Secret, Transport};
use oubliette_store::Project;

use super::{Gateway, GatewaySignIn, Placeholder};
use crate::{Credential, Result};

const KIND: &str = "git";
const DEFAULT_USER: &str = "x-access-token";
const COUNT_VARIABLE: &str = "GIT_CONFIG_COUNT";

/// What a credential is for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GitPlace {
    /// With a port if it is not the usual one.
    host: String,
    /// A repository, or a path above some; empty for all of the host.
    path: String,
    /// The user in the address of the project's repository.
    user: Option<String>,
}

/// A git host that an agent reaches through the gateway.
#[derive(Debug, Clone)]
pub(crate) struct GitHost {
    host: String,
    user: Option<String>,
    placeholder: Secret,
}

impl Gateway<'_> {
    /// Gives an agent a placeholder for each git host that the project has a credential for.
    pub(crate) fn add_git_hosts(
        self,
        project: &Project,
        sign_in: &mut GatewaySignIn,
    ) -> Result<()> {
        let settings = &project.settings;
        let names = settings.credential_refs.iter();
        for name in names.chain(&settings.git_credential) {
            let credential = self.engine.credentials().find(name);
            let place = credential.and_then(|credential| place_of(settings, name, &credential));
            let Some(place) = place else {
                continue;
            };
            // The first one counts: git sends one placeholder for each host.
            if sign_in.git.iter().any(|other| other.host == place.host) {
                continue;
            }
            let placeholder = sign_in.mint(name)?;
            sign_in.git.push(GitHost {
                host: place.host,
                user: place.user,
                placeholder,
            });
        }
        Ok(())
    }

    /// What the gate has to know about a placeholder of a git credential; none if the project does not use it any more.
    pub(super) fn git_grant(
        self,
        project: &Project,
        placeholder: &Placeholder,
        credential: &Credential,
    ) -> Option<GitGrant> {
        let settings = &project.settings;
        let place = place_of(settings, &placeholder.credential, credential)?;
        let secret = credential.read().ok()?;
        let default = &self.engine.settings().projects.push_branches;
        let user = place.user.or_else(|| credential.username.clone());
        Some(GitGrant {
            placeholder: placeholder.id.clone(),
            upstream: format!("https://{}", place.host),
            host: place.host,
            path: place.path,
            user: user.unwrap_or_else(|| DEFAULT_USER.to_owned()),
            secret: GrantedSecret::new(secret.reveal()),
            push_branches: settings.push_branches.as_ref().unwrap_or(default).clone(),
        })
    }
}

/// Whether a credential is one for git over https.
pub(super) fn is_git(credential: &Credential) -> bool {
    credential.kind == KIND
}

/// What agents of a project may use a credential for. One of `credential_refs` is for its own address, and one without an
/// address, as that of `git_credential`, is for the repository of the project.
fn place_of(
    settings: &ProjectSettings,
    name: &String,
    credential: &Credential,
) -> Option<GitPlace> {
    if !is_git(credential) {
        return None;
    }
    let remote = settings.remote_url.as_ref();
    let remote = remote.filter(|url| url.transport() == Transport::Https);
    let base = credential.base_url.as_ref();
    if settings.credential_refs.contains(name)
        && let Some(base) = base
    {
        let host = base.authority();
        let same = remote.filter(|url| url.host() == host);
        return base.is_https().then(|| GitPlace {
            path: without_suffix(&base.path()).to_owned(),
            user: same.and_then(RemoteUrl::user),
            host,
        });
    }
    let is_used =
        settings.credential_refs.contains(name) || settings.git_credential.as_ref() == Some(name);
    let remote = remote.filter(|_| is_used)?;
    // It is sent to no other host than its own.
    if base.is_some_and(|base| !base.is_https() || base.authority() != remote.host()) {
        return None;
    }
    Some(GitPlace {
        host: remote.host().to_owned(),
        path: without_suffix(&remote.path()).to_owned(),
        user: remote.user(),
    })
}

/// A path as it is compared: servers take it with and without `.git`.
fn without_suffix(path: &str) -> &str {
    let path = path.trim_end_matches('/');
    path.strip_suffix(".git").unwrap_or(path)
}

/// Has git in a container use the gateway for these hosts, after what the environment says already.
pub(crate) fn set_git_config(hosts: &[GitHost], env: &mut BTreeMap<String, String>) {
    if hosts.is_empty() {
        return;
    }
    let given = env.get(COUNT_VARIABLE).and_then(|it| it.parse().ok());
    let mut count: u32 = given.unwrap_or(0);
    let mut add = |name: String, value: String| {
        env.insert(format!("GIT_CONFIG_KEY_{count}"), name);
        env.insert(format!("GIT_CONFIG_VALUE_{count}"), value);
        count += 1;
    };
    for host in hosts {
        let GitHost {
            host,
            user,
            placeholder,
        } = host;
        let local = format!("http://{GATEWAY_ADDRESS}/git/{host}/");
        let header = format!("Authorization: Bearer {}", placeholder.reveal());
        let user = user.as_ref().map(|user| format!("https://{user}@{host}/"));
        for address in [format!("https://{host}/")].into_iter().chain(user) {
            add(format!("url.{local}.insteadOf"), address);
        }
        add(format!("http.{local}.extraHeader"), header);
    }
    env.insert(COUNT_VARIABLE.to_owned(), count.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(kind: &str, base_url: Option<&str>) -> Credential {
        Credential {
            kind: kind.to_owned(),
            username: None,
            env: None,
            file: None,
            value: Some(Secret::new("ghp_0123456789")),
            base_url: base_url.map(|url| url.parse().unwrap()),
        }
    }

    fn place(
        refers: bool,
        clones: bool,
        remote: Option<&str>,
        base: Option<&str>,
    ) -> Option<(String, String)> {
        let name = "work".to_owned();
        let settings = ProjectSettings {
            credential_refs: refers.then(|| name.clone()).into_iter().collect(),
            git_credential: clones.then(|| name.clone()),
            remote_url: remote.map(|url| RemoteUrl::parse(url).unwrap()),
            ..ProjectSettings::default()
        };
        let place = place_of(&settings, &name, &credential(KIND, base));
        place.map(|place| (place.host, place.path))
    }

    #[test]
    fn a_credential_is_for_its_address_or_for_the_repository_of_the_project() {
        let remote = Some("https://git.test:8443/acme/app.git");
        let base = Some("https://git.test");
        let found = |host: &str, path: &str| Some((host.to_owned(), path.to_owned()));
        assert_eq!(place(true, false, None, base), found("git.test", ""));
        assert_eq!(place(true, true, remote, base), found("git.test", ""));
        let below = Some("https://git.test:8443/acme/");
        assert_eq!(
            place(true, false, None, below),
            found("git.test:8443", "/acme")
        );
        for refers in [true, false] {
            let own = found("git.test:8443", "/acme/app");
            assert_eq!(place(refers, !refers, remote, None), own);
        }
        assert_eq!(
            place(false, true, remote, below),
            found("git.test:8443", "/acme/app")
        );
        for (refers, clones, remote, base) in [
            (false, false, remote, base),
            // Of another host, or without TLS.
            (false, true, remote, base),
            (true, false, None, Some("http://git.test")),
            (false, true, Some("http://127.0.0.1/a"), None),
            (false, true, Some("git@git.test:a/b"), None),
            (true, false, None, None),
        ] {
            assert_eq!(
                place(refers, clones, remote, base),
                None,
                "{remote:?} {base:?}"
            );
        }
        let settings = ProjectSettings {
            credential_refs: vec!["work".to_owned()],
            ..ProjectSettings::default()
        };
        let model = credential("openai", base);
        assert_eq!(place_of(&settings, &"work".to_owned(), &model), None);
    }

    #[test]
    fn git_is_told_in_variables_after_those_of_the_project() {
        let host = |host: &str, user: Option<&str>| GitHost {
            host: host.to_owned(),
            user: user.map(str::to_owned),
            placeholder: Secret::new(format!("oub_{host}")),
        };
        let mut env = BTreeMap::from([
            ("GIT_CONFIG_COUNT".to_owned(), "1".to_owned()),
            ("GIT_CONFIG_KEY_0".to_owned(), "user.name".to_owned()),
            ("GIT_CONFIG_VALUE_0".to_owned(), "x".to_owned()),
        ]);
        let hosts = [host("a.test", None), host("b.test:8443", Some("bot"))];
        set_git_config(&hosts, &mut env);
        assert_eq!(env["GIT_CONFIG_COUNT"], "6");
        let pair = |number: u32| {
            let key = env[&format!("GIT_CONFIG_KEY_{number}")].as_str();
            (key, env[&format!("GIT_CONFIG_VALUE_{number}")].as_str())
        };
        assert_eq!(pair(0), ("user.name", "x"));
        let local = "http://127.0.0.1:3129/git/b.test:8443/";
        assert_eq!(
            pair(1),
            (
                "url.http://127.0.0.1:3129/git/a.test/.insteadOf",
                "https://a.test/"
            )
        );
        assert_eq!(
            pair(4),
            (
                &*format!("url.{local}.insteadOf"),
                "https://bot@b.test:8443/"
            )
        );
        assert_eq!(
            pair(5),
            (
                &*format!("http.{local}.extraHeader"),
                "Authorization: Bearer oub_b.test:8443"
            )
        );
    }
}
