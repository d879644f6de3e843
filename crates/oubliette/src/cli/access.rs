//! Where the server is and which key to use. Without a URL, a server is started in the background if none runs.
//!
//! A server on this machine is reached by the socket in its data directory, which no other user and no
//! container can see. A key goes to an address only if the user names both.

use std::net::IpAddr;

use clap::ArgMatches;
use oubliette_model::quoted;
use oubliette_server::LocalSocket;

use super::client::CallError;
use crate::background;
use crate::config::Config;
use crate::failure::Failure;
use crate::home::{Home, ServerInfo, ServerMode};
use crate::up;

/// The flag that keeps commands from starting a server.
pub(super) const NO_AUTOSTART: &str = "no-autostart";

/// The server's URL and the API key, as far as they were given.
#[derive(Debug, Clone)]
pub(super) struct Access {
    home: Home,
    url: Option<String>,
    token: Option<String>,
    /// Whether `--no-autostart` was not given.
    may_start: bool,
}

impl Access {
    pub(super) fn from_matches(matches: &ArgMatches, home: &Home) -> Self {
        let given = |name| {
            matches
                .get_one::<String>(name)
                .filter(|text| !text.is_empty())
                .cloned()
        };
        Self {
            may_start: !matches.get_flag(NO_AUTOSTART),
            ..Self::new(home, given("url"), given("token"))
        }
    }

    pub(super) fn new(home: &Home, url: Option<String>, token: Option<String>) -> Self {
        Self {
            home: home.clone(),
            url,
            token,
            may_start: false,
        }
    }

    /// Whether a URL was given; then no other server is used.
    pub(super) fn has_explicit_url(&self) -> bool {
        self.url.is_some()
    }

    /// The URL that was given.
    pub(super) fn explicit_url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// Which server, for what is remembered about each: something of one is nothing to another.
    pub(super) fn server_key(&self) -> String {
        self.explicit_url().unwrap_or("local").to_owned()
    }

    /// The key that was given.
    pub(super) fn explicit_key(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The same server, if it is running: none is started.
    pub(super) fn running_only(&self) -> Self {
        Self {
            may_start: false,
            ..self.clone()
        }
    }

    /// The same server with another key.
    pub(super) fn with_key(&self, key: String) -> Self {
        Self {
            token: Some(key),
            ..self.clone()
        }
    }

    /// The command, with the option that makes it use the same data directory.
    pub(super) fn command(&self) -> String {
        self.home.command()
    }

    /// The server in sentences: by its URL if one was given, else by its data directory.
    pub(super) fn server_name(&self) -> String {
        match &self.url {
            Some(url) => format!("the server at {url}"),
            None => format!("the server of {}", self.home.path().display()),
        }
    }

    /// The URL for the configuration of other clients, which find the server there only as long as it runs; starts
    /// a server if none is running and no URL was given.
    pub(super) async fn url_for_clients(&self) -> Result<String, Failure> {
        if let Some(url) = &self.url {
            return endpoint_url(url);
        }
        self.local_server().await?;
        let running = self.home.running_server().await;
        let running = running.ok_or_else(|| self.no_server())?;
        running.url.ok_or_else(|| {
            Failure::new(format!(
                "the server has no URL that a client could use: {} With --stdio the client needs none. When the \
                 port is free, `{} up --restart` takes it",
                running.no_url_reason.as_deref().unwrap_or_default(),
                self.home.command()
            ))
        })
    }

    /// The URL that a server has which is started with the configuration of the data directory.
    pub(super) fn configured_url(&self) -> Result<String, Failure> {
        let config = Config::load(&self.home.config_file(), std::env::vars())?;
        Ok(format!("http://{}/mcp", config.server.listen))
    }

    /// Whether a call needs no server to be started first.
    pub(super) async fn has_server(&self) -> bool {
        self.url.is_some() || self.home.running_server().await.is_some()
    }

    /// Has the server stay that a command has started.
    pub(super) fn keep_server(&self) -> Result<(), Failure> {
        if self.url.is_none()
            && let Some(server) = self.home.server_info()
        {
            up::keep_running(&self.home, server)?;
        }
        Ok(())
    }

    /// Where to send calls; starts a server if none is running and no URL was given.
    pub(super) async fn server(&self) -> Result<ServerAddress, CallError> {
        if self.url.is_some() {
            return self.running_server().await;
        }
        self.local_server().await
    }

    /// Where to send calls again after the connection was lost. The server may have been stopped on purpose, so
    /// only one that a command had started and that has crashed is started again.
    pub(super) async fn server_again(&self) -> Result<ServerAddress, CallError> {
        if let Some(home) = self.restartable_home() {
            restart_crashed(&home).await;
        }
        self.running_server().await
    }

    async fn local_server(&self) -> Result<ServerAddress, CallError> {
        match self.running_local_server().await {
            Err(CallError::Unreachable(_)) => {
                self.start_server().await.map_err(CallError::Rejected)?;
                self.running_local_server().await
            }
            found => found,
        }
    }

    async fn start_server(&self) -> Result<(), Failure> {
        if !self.may_start || self.home.older_server().is_some() {
            return Err(self.no_server());
        }
        let config = Config::load(&self.home.config_file(), std::env::vars())
            .map_err(|failure| failure.because_of("cannot start a server"))?;
        if !config.autostart.enabled {
            return Err(self.no_server());
        }
        let started = start_in_background(&self.home).await;
        let started = started.map_err(|failure| failure.because_of("cannot start a server"))?;
        if !started.was_running {
            eprintln!(
                "Started a server in the background (process {}); `{} down` stops it.",
                started.pid,
                self.home.command()
            );
        }
        if let Some(reason) = started.no_url_reason {
            eprintln!(
                "note: only commands of this machine reach the server, no MCP clients with its URL: {reason}"
            );
        }
        Ok(())
    }

    /// The data directory whose server may be started again while a command runs on.
    pub(super) fn restartable_home(&self) -> Option<Home> {
        (self.url.is_none() && self.may_start).then(|| self.home.clone())
    }

    async fn running_server(&self) -> Result<ServerAddress, CallError> {
        let Some(given) = &self.url else {
            return self.running_local_server().await;
        };
        let url = endpoint_url(given).map_err(CallError::Rejected)?;
        let running = self.home.running_server().await;
        if running.is_some_and(|server| is_same_server(&url, &server)) {
            return self.running_local_server().await;
        }
        if self.token.is_none() {
            return Err(CallError::Unreachable(Failure::new(format!(
                "the server of {} is not running at {url}; the key of that directory is sent to no other \
                 server: leave out --url, or give the key of the other server with --token",
                self.home.path().display()
            ))));
        }
        Ok(ServerAddress::Url(url))
    }

    async fn running_local_server(&self) -> Result<ServerAddress, CallError> {
        let no_server = || CallError::Unreachable(self.no_server());
        let owner = self.home.owner().map_err(CallError::Rejected)?;
        let owner = owner.ok_or_else(no_server)?;
        let socket = self.home.socket().map_err(|_| no_server())?;
        match socket.listener(owner).await.map_err(|_| no_server())? {
            Some(_) => Ok(ServerAddress::Local(socket)),
            None => Err(CallError::Rejected(Failure::new(format!(
                "the server of {} may be that of another user and gets no key; use that user's account, or \
                 `sudo`",
                self.home.path().display()
            )))),
        }
    }

    /// What to add to errors of the local server if it has another version than this command.
    pub(super) fn version_hint(&self) -> Option<String> {
        let (server, own) = (self.home.server_info()?.version, env!("CARGO_PKG_VERSION"));
        (server != own).then(|| {
            format!(
                " (the running server has version {server} and this command {own}; `{} up --restart` restarts the \
                 server, and containers and agents keep running)",
                self.home.command()
            )
        })
    }

    pub(super) fn key(&self) -> Result<String, Failure> {
        let kept = || self.home.admin_key().map(|key| key.reveal().to_owned());
        self.token.clone().or_else(kept).ok_or_else(|| {
            Failure::new(format!(
                "no API key: set OUBLIETTE_TOKEN or use --token ({} does not exist)",
                self.home.admin_token_file().display()
            ))
        })
    }

    pub(super) fn no_server(&self) -> Failure {
        let older = self.home.older_server().map_or(String::new(), |pid| {
            format!(
                "; process {pid} may be one of an older version, which this command cannot reach: restart it"
            )
        });
        Failure::new(format!(
            "no server is running on {}; start one with `{} up`, or choose another with --url{older}",
            self.home.path().display(),
            self.home.command()
        ))
    }
}

async fn start_in_background(home: &Home) -> Result<background::Report, Failure> {
    let home = home.clone();
    let starting =
        tokio::task::spawn_blocking(move || background::start(&home, ServerMode::UntilIdle, &[]));
    let started = starting.await;
    started.map_err(|error| Failure::with_cause("cannot start a server", &error))?
}

/// Starts a server again that a command had started and that has crashed. Errors show when it is called.
pub(super) async fn restart_crashed(home: &Home) {
    if home.has_crashed_server() && is_autostart_enabled(home) {
        let _ = start_in_background(home).await;
    }
}

/// The same, also for a server that has ended itself or was stopped.
pub(super) async fn restart_ended(home: &Home) {
    let has_ended = home.has_crashed_server() || home.server_info().is_none();
    if has_ended && is_autostart_enabled(home) {
        let _ = start_in_background(home).await;
    }
}

fn is_autostart_enabled(home: &Home) -> bool {
    Config::load(&home.config_file(), std::env::vars()).is_ok_and(|config| config.autostart.enabled)
}

fn check_url(url: &str) -> Result<(), Failure> {
    let reason = match reqwest::Url::parse(url) {
        Ok(parsed) if matches!(parsed.scheme(), "http" | "https") => return Ok(()),
        Ok(_) => "it must start with http:// or https://".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Failure::new(format!(
        "the URL is invalid: {reason}: {}; use for example http://127.0.0.1:7433",
        quoted(url)
    )))
}

/// A URL given by the user, with or without the path of the endpoint.
fn endpoint_url(url: &str) -> Result<String, Failure> {
    check_url(url)?;
    let url = url.trim_end_matches('/');
    Ok(if url.ends_with("/mcp") {
        url.to_owned()
    } else {
        format!("{url}/mcp")
    })
}

/// Whether a URL names this machine by a loopback address.
fn is_loopback(url: &str) -> bool {
    match host(url) {
        Some(host) if host.eq_ignore_ascii_case("localhost") => true,
        Some(host) => host
            .parse()
            .is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback()),
        None => false,
    }
}

/// Whether a URL is that of the server of this directory: by the address that it listens on, or by a loopback address
/// if it listens there. A name may be that of any machine.
fn is_same_server(url: &str, server: &ServerInfo) -> bool {
    let Some(own) = &server.url else {
        return false;
    };
    let listens_on_loopback = host(own)
        .and_then(|host| host.parse().ok())
        .is_some_and(|ip: IpAddr| ip.is_loopback() || ip.is_unspecified());
    let is_same_host = host(url) == host(own) || listens_on_loopback && is_loopback(url);
    is_same_host && port(url) == port(own)
}

fn host(url: &str) -> Option<String> {
    let url = reqwest::Url::parse(url).ok()?;
    let host = url.host_str()?.trim_matches(['[', ']']);
    Some(host.to_owned())
}

fn port(url: &str) -> Option<u16> {
    reqwest::Url::parse(url).ok()?.port_or_known_default()
}

/// Where a server is.
#[derive(Debug)]
pub(super) enum ServerAddress {
    Local(LocalSocket),
    Url(String),
}

/// The URL in requests over the socket.
const LOCAL_URL: &str = "http://localhost/mcp";

impl ServerAddress {
    pub(super) fn url(&self) -> &str {
        match self {
            Self::Local(_) => LOCAL_URL,
            Self::Url(url) => url,
        }
    }

    /// A client whose requests go to this server while this value lives.
    pub(super) fn http_client(&self) -> Result<reqwest::Client, Failure> {
        let mut builder = reqwest::Client::builder()
            .pool_max_idle_per_host(0)
            .redirect(reqwest::redirect::Policy::none());
        if let Self::Local(socket) = self {
            builder = builder.unix_socket(socket.short_path());
        }
        let client = builder.build();
        client.map_err(|error| Failure::with_cause("cannot use the server's socket", &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_url_is_the_servers_if_it_has_its_port() {
        let server = |url: &str| ServerInfo {
            url: Some(url.to_owned()),
            pid: 1,
            version: String::new(),
            started_at: None,
            mode: ServerMode::Foreground,
            ends_turns: true,
            no_url_reason: None,
        };
        for url in [
            "http://127.0.0.1:7433/mcp",
            "http://LOCALHOST:7433",
            "http://[::1]:7433",
            "http://[::ffff:127.0.0.1]:7433",
            "http://127.8.9.1:7433",
        ] {
            assert!(is_loopback(url), "{url}");
            assert!(
                is_same_server(url, &server("http://127.0.0.1:7433/mcp")),
                "{url}"
            );
            assert!(
                is_same_server(url, &server("http://0.0.0.0:7433/mcp")),
                "{url}"
            );
            assert!(
                !is_same_server(url, &server("http://127.0.0.1:7434/mcp")),
                "{url}"
            );
            assert!(
                !is_same_server(url, &server("http://10.0.0.1:7433/mcp")),
                "{url}"
            );
        }
        for url in [
            "http://10.0.0.1:7433",
            "http://0.0.0.0:7433",
            "http://vm:7433",
            "https://example.com",
            "nonsense",
        ] {
            assert!(!is_loopback(url), "{url}");
            assert!(
                !is_same_server(url, &server("http://127.0.0.1:7433/mcp")),
                "{url}"
            );
        }
        for url in ["http://10.0.0.1:7433", "http://0.0.0.0:7433"] {
            assert!(is_same_server(url, &server(&format!("{url}/mcp"))), "{url}");
        }
    }
}
