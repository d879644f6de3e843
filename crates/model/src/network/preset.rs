//! Presets, and lists of well-known hosts.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Host;

/// What hosts are that no rule names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Preset {
    // Allowed, if they are public.
    #[default]
    Open,
    // Denied.
    Strict,
}

/// A list of well-known hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum PresetList {
    Models,
    Git,
    Npm,
    Pypi,
    Crates,
    Go,
    Apt,
}

const WEB: &[u16] = &[443];
const WEB_AND_PLAIN: &[u16] = &[80, 443];
const GIT: &[u16] = &[22, 443, 9418];

impl PresetList {
    fn name(self) -> &'static str {
        match self {
            Self::Models => "models",
            Self::Git => "git",
            Self::Npm => "npm",
            Self::Pypi => "pypi",
            Self::Crates => "crates",
            Self::Go => "go",
            Self::Apt => "apt",
        }
    }

    fn ports(self) -> &'static [u16] {
        match self {
            Self::Git => GIT,
            // Packages are signed, and mirrors often have no certificate.
            Self::Apt => WEB_AND_PLAIN,
            _ => WEB,
        }
    }

    /// A name that begins with a dot stands for every name below it.
    fn hosts(self) -> &'static [&'static str] {
        match self {
            Self::Models => &[
                "api.anthropic.com",
                "claude.ai",
                "platform.claude.com",
                "console.anthropic.com",
                "api.openai.com",
                "auth.openai.com",
                "chatgpt.com",
                "generativelanguage.googleapis.com",
                "cloudcode-pa.googleapis.com",
                "oauth2.googleapis.com",
                "api.factory.ai",
                "app.factory.ai",
                "openrouter.ai",
                "api.githubcopilot.com",
                ".githubcopilot.com",
                "dashscope.aliyuncs.com",
                "chat.qwen.ai",
                "models.dev",
                "opencode.ai",
            ],
            Self::Git => &[
                "github.com",
                "api.github.com",
                "codeload.github.com",
                "objects.githubusercontent.com",
                "raw.githubusercontent.com",
                "gitlab.com",
                "bitbucket.org",
                "codeberg.org",
                "git.sr.ht",
            ],
            Self::Npm => &["registry.npmjs.org", "registry.yarnpkg.com", "nodejs.org"],
            Self::Pypi => &["pypi.org", "files.pythonhosted.org"],
            Self::Crates => &[
                "crates.io",
                "index.crates.io",
                "static.crates.io",
                "static.rust-lang.org",
            ],
            Self::Go => &[
                "proxy.golang.org",
                "sum.golang.org",
                "go.dev",
                "dl.google.com",
            ],
            Self::Apt => &[
                "deb.debian.org",
                "security.debian.org",
                "archive.ubuntu.com",
                ".archive.ubuntu.com",
                "security.ubuntu.com",
                "ports.ubuntu.com",
            ],
        }
    }

    pub(super) fn matches(self, host: &Host, port: u16) -> bool {
        let Host::Name(name) = host else {
            return false;
        };
        let is_named = |listed: &&'static str| match listed.strip_prefix('.') {
            Some(_) => name.len() > listed.len() && name.ends_with(*listed),
            None => name == listed,
        };
        self.ports().contains(&port) && self.hosts().iter().any(is_named)
    }
}

impl fmt::Display for PresetList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
