//! What containers with the network `policy` may reach: presets, lists of hosts, and the ranges of addresses
//! that are never reached by accident.
//!
//! A decision has two halves. [`NetworkRules::decide`] is about what was asked for, before anything is looked
//! up; [`NetworkRules::decide_address`] is about each address that a name turned out to have. A connection needs
//! both.

mod address;
mod bounds;
mod host;
mod pattern;
mod preset;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use address::{canonical_address, special_range};
pub use host::{Host, MAX_NAME_BYTES};
pub use pattern::HostPattern;
pub use preset::{Preset, PresetList};

/// Of one list of a policy.
pub const MAX_NETWORK_PATTERNS: usize = 200;

/// What the containers of a project, or of all projects, may reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
pub struct NetworkPolicy {
    /// `open`: every public host. `strict`: only what the lists allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Lists of well-known hosts to allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presets: Option<Vec<PresetList>>,
    /// `host`, `*.host`, an address or a range, each with or without `:port`.
    pub allow: Vec<HostPattern>,
    /// The same; takes precedence over everything else.
    pub deny: Vec<HostPattern>,
    /// Whether a caller is asked about hosts that no rule names, where the preset is `strict`.
    pub ask: bool,
}

impl NetworkPolicy {
    /// Why the policy cannot be used.
    pub fn problem(&self) -> Option<String> {
        for (name, list) in [("allow", &self.allow), ("deny", &self.deny)] {
            if list.len() > MAX_NETWORK_PATTERNS {
                return Some(format!(
                    "`{name}` has {} entries; the maximum is {MAX_NETWORK_PATTERNS}",
                    list.len()
                ));
            }
        }
        None
    }
}

/// An entry of an `allow` list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowRule {
    pub pattern: HostPattern,
    /// Whether an admin made it: only then may it lead to addresses that are not public.
    #[serde(default)]
    pub by_admin: bool,
}

/// The rules of one container: the server's policy and that of its project together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRules {
    #[serde(default)]
    pub preset: Preset,
    #[serde(default)]
    pub lists: Vec<PresetList>,
    #[serde(default)]
    pub allow: Vec<AllowRule>,
    #[serde(default)]
    pub deny: Vec<HostPattern>,
    /// Whether a caller is asked about hosts that no rule names, where the preset is `strict`.
    #[serde(default)]
    pub ask: bool,
}

/// A decision, and the rule that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub is_allowed: bool,
    /// Whether a caller may be asked to allow it: no rule is against it, only none for it.
    pub is_askable: bool,
    pub rule: String,
}

impl Verdict {
    fn allowed(rule: impl Into<String>) -> Self {
        Self {
            is_allowed: true,
            is_askable: false,
            rule: rule.into(),
        }
    }

    fn denied(rule: impl Into<String>) -> Self {
        Self {
            is_allowed: false,
            is_askable: false,
            rule: rule.into(),
        }
    }
}

impl NetworkRules {
    /// The server's policy with that of a project, whose `allow` entries in `by_admin` were made by an admin.
    /// Everything in the server's configuration is an admin's.
    pub fn combine(
        server: &NetworkPolicy,
        project: Option<&NetworkPolicy>,
        by_admin: &[HostPattern],
    ) -> Self {
        let own = |pattern: &HostPattern| AllowRule {
            pattern: pattern.clone(),
            by_admin: by_admin.contains(pattern),
        };
        let servers = |pattern: &HostPattern| AllowRule {
            pattern: pattern.clone(),
            by_admin: true,
        };
        let projects = project.into_iter();
        Self {
            preset: project
                .and_then(|project| project.preset)
                .or(server.preset)
                .unwrap_or_default(),
            lists: project
                .and_then(|project| project.presets.clone())
                .or_else(|| server.presets.clone())
                .unwrap_or_default(),
            allow: server
                .allow
                .iter()
                .map(servers)
                .chain(projects.clone().flat_map(|it| &it.allow).map(own))
                .collect(),
            deny: server
                .deny
                .iter()
                .chain(projects.flat_map(|it| &it.deny))
                .cloned()
                .collect(),
            ask: server.ask || project.is_some_and(|project| project.ask),
        }
    }

    /// The rules with hosts that are allowed for a time. These lead only to public addresses, unless other rules open
    /// theirs.
    #[must_use]
    pub fn with_allowed(mut self, patterns: impl IntoIterator<Item = HostPattern>) -> Self {
        for pattern in patterns {
            if !self.allow.iter().any(|rule| rule.pattern == pattern) {
                self.allow.push(AllowRule {
                    pattern,
                    by_admin: false,
                });
            }
        }
        self
    }

    /// Whether a host may be looked up and connected to, by what was asked for alone.
    pub fn decide(&self, host: &Host, port: u16) -> Verdict {
        if let Some(rule) = self.deny.iter().find(|rule| rule.matches(host, port)) {
            return Verdict::denied(format!("deny {rule}"));
        }
        if let Host::Address(address) = host
            && let Some(range) = special_range(*address)
            && !self.exempts(host, port, *address, false)
        {
            return Verdict::denied(format!("{range}, which no `allow` of an admin names"));
        }
        if let Some(rule) = self.allow.iter().find(|it| it.pattern.matches(host, port)) {
            return Verdict::allowed(format!("allow {}", rule.pattern));
        }
        if let Some(list) = self.lists.iter().find(|list| list.matches(host, port)) {
            return Verdict::allowed(format!("preset list {list}"));
        }
        match self.preset {
            Preset::Open => Verdict::allowed("preset open"),
            Preset::Strict => Verdict {
                is_askable: self.ask,
                ..Verdict::denied("preset strict: no `allow` rule or list names it")
            },
        }
    }

    /// Whether a host that may be connected to may be reached at this address. `is_local` says whether the
    /// address is one of this machine's own.
    pub fn decide_address(
        &self,
        host: &Host,
        port: u16,
        address: std::net::IpAddr,
        is_local: bool,
    ) -> Verdict {
        let resolved = Host::Address(canonical_address(address));
        if let Some(rule) = self.deny.iter().find(|rule| rule.matches(&resolved, port)) {
            return Verdict::denied(format!("deny {rule}"));
        }
        let range = special_range(address).or(is_local.then_some("an address of this machine"));
        match range {
            Some(range) if !self.exempts(host, port, address, is_local) => Verdict::denied(
                format!("it has {range}, which no `allow` of an admin names"),
            ),
            _ => Verdict::allowed("public address"),
        }
    }

    /// The ports that rules name for a host, besides the usual ones.
    pub fn named_ports(&self, host: &Host) -> Vec<u16> {
        let rules = self.allow.iter().map(|rule| &rule.pattern);
        let matching =
            rules.filter_map(|rule| rule.port().filter(|port| rule.matches(host, *port)));
        let mut ports: Vec<u16> = matching.collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// Whether any port of a host may be reached, or asked for: only then is its name resolved inside.
    pub fn may_reach_some_port(&self, host: &Host) -> bool {
        let usual = [443, 80, 22, 9418];
        let named = self.named_ports(host);
        let mut ports = usual.iter().chain(&named);
        let has_other_hosts = self.preset == Preset::Open || self.ask;
        has_other_hosts && !self.deny.iter().any(|rule| rule.matches_every_port(host))
            || ports.any(|port| self.decide(host, *port).is_allowed)
    }

    /// Whether an admin's rule opens an address that is not public: one that names the address, or for addresses of private
    /// networks the full name of the host that has it. A pattern with `*` does not: the owner of one name below it could give
    /// that name any address. Nor does a name open what is this machine's own, or a metadata service: the owner of the name
    /// would choose.
    fn exempts(&self, host: &Host, port: u16, address: std::net::IpAddr, is_local: bool) -> bool {
        let resolved = Host::Address(canonical_address(address));
        let may_be_named = address::is_private_network(address) && !is_local;
        self.allow.iter().any(|rule| {
            let is_named =
                may_be_named && rule.pattern.is_exact() && rule.pattern.matches(host, port);
            rule.by_admin && (is_named || rule.pattern.matches(&resolved, port))
        })
    }

    /// The ports of this machine's 127.0.0.1 that an admin's rules name one by one. Containers have them at the same address.
    pub fn loopback_ports(&self) -> Vec<u16> {
        let loopback = Host::Address(std::net::Ipv4Addr::LOCALHOST.into());
        let rules = self.allow.iter().filter(|rule| rule.by_admin);
        let named = rules.filter_map(|rule| {
            let port = rule.pattern.port()?;
            let is_named = rule.pattern.host().as_ref() == Some(&loopback);
            (is_named && self.decide(&loopback, port).is_allowed).then_some(port)
        });
        let mut ports: Vec<u16> = named.collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }
}

#[cfg(test)]
mod tests;
