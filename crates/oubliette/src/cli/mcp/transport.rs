//! How a client reaches the server: by its URL, or by starting `oubliette mcp stdio`.

use clap::ArgMatches;

use super::{DRY_RUN, STDIO, Target, unchanged};
use crate::cli::access::Access;
use crate::failure::Failure;
use crate::home::Home;
use crate::setup::{self, ConfigScope, Connection};

/// How the client will reach the server, except for the key.
pub(super) enum Transport {
    Http {
        url: String,
    },
    Stdio {
        program: String,
        arguments: Vec<String>,
    },
}

impl Transport {
    pub(super) async fn choose(
        home: &Home,
        matches: &ArgMatches,
        access: &Access,
        target: &Target,
    ) -> Result<Self, Failure> {
        let is_stdio_only =
            setup::is_stdio_only(&target.client).map_err(|error| unchanged(&error))?;
        let is_in_project = matches!(target.scope, ConfigScope::Project(_));
        if !is_stdio_only && !is_in_project && !matches.get_flag(STDIO) {
            let url = if matches.get_flag(DRY_RUN) && !access.has_server().await {
                access.configured_url()?
            } else {
                access.url_for_clients().await?
            };
            return Ok(Self::Http { url });
        }
        let program = std::env::current_exe()
            .map_err(|error| Failure::with_cause("cannot find this program", &error))?;
        let mut arguments = Vec::new();
        let is_default = Home::find(None).is_ok_and(|default| default.path() == home.path());
        if !is_default {
            let directory = home.path().display().to_string();
            arguments.extend(["--data-dir".to_owned(), directory]);
        }
        if let Some(url) = access.explicit_url() {
            arguments.extend(["--url".to_owned(), url.to_owned()]);
        }
        arguments.extend(["mcp", "stdio", "--client", &target.name].map(str::to_owned));
        Ok(Self::Stdio {
            program: program.display().to_string(),
            arguments,
        })
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Http { .. } => "http",
            Self::Stdio { .. } => "stdio",
        }
    }

    pub(super) fn connection(&self, key: &str) -> Connection {
        match self {
            Self::Http { url } => Connection::Http {
                url: url.clone(),
                token: key.to_owned(),
            },
            Self::Stdio { program, arguments } => Connection::Stdio {
                program: program.clone(),
                arguments: arguments.clone(),
            },
        }
    }
}
