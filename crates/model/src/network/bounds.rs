//! Whether the rules of one container reach nothing that those of another do not: an agent must not make itself a
//! container with a wider network than its own.

use super::{AllowRule, Host, HostPattern, NetworkRules, Preset, PresetList};

impl NetworkRules {
    /// What the other rules reach, or might reach, that these do not; none if they are no wider. Rules that cannot be
    /// compared count as wider.
    pub fn excess_of(&self, other: &Self) -> Option<String> {
        if self.preset == Preset::Strict && other.preset == Preset::Open {
            return Some("the preset `open`".to_owned());
        }
        if self.preset == Preset::Strict && other.ask && !self.ask {
            return Some("`ask`, with which other hosts can be allowed".to_owned());
        }
        let is_denied = |deny: &HostPattern| other.deny.iter().any(|it| it.covers(deny));
        if let Some(deny) = self.deny.iter().find(|deny| !is_denied(deny)) {
            return Some(format!("{deny}, which is denied here"));
        }
        // One with `*` opens no address that is not public.
        let is_opening = |rule: &&AllowRule| rule.by_admin && rule.pattern.is_exact();
        let mut by_admin = other.allow.iter().filter(is_opening);
        let has_admins = |pattern: &HostPattern| {
            let mut own = self.allow.iter().filter(is_opening);
            own.any(|rule| rule.pattern.covers(pattern))
        };
        if let Some(rule) = by_admin.find(|rule| !has_admins(&rule.pattern)) {
            return Some(rule.pattern.to_string());
        }
        if self.preset == Preset::Open {
            return None;
        }
        if let Some(list) = other.lists.iter().find(|list| !self.lists.contains(list)) {
            return Some(format!("the list `{list}`"));
        }
        let mut patterns = other.allow.iter().map(|rule| &rule.pattern);
        let is_allowed = |pattern: &HostPattern| {
            self.allow.iter().any(|rule| rule.pattern.covers(pattern))
                || self.lists.iter().any(|list| list_has(*list, pattern))
        };
        let excess = patterns.find(|pattern| !is_allowed(pattern));
        excess.map(HostPattern::to_string)
    }
}

/// Whether a list has the one host and port of a pattern.
fn list_has(list: PresetList, pattern: &HostPattern) -> bool {
    match (pattern.host(), pattern.port()) {
        (Some(host @ Host::Name(_)), Some(port)) => list.matches(&host, port),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NetworkPolicy;

    fn patterns(texts: &[&str]) -> Vec<HostPattern> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn rules(preset: Preset, lists: &[PresetList], allow: &[&str], deny: &[&str]) -> NetworkRules {
        let policy = NetworkPolicy {
            preset: Some(preset),
            presets: Some(lists.to_vec()),
            allow: patterns(allow),
            deny: patterns(deny),
            ..NetworkPolicy::default()
        };
        NetworkRules::combine(&NetworkPolicy::default(), Some(&policy), &[])
    }

    #[test]
    fn rules_that_are_narrower_or_equal_are_no_excess() {
        use Preset::{Open, Strict};
        let own = rules(
            Strict,
            &[PresetList::Npm],
            &["*.a.org", "b.org:443", "10.0.0.0/8"],
            &["x.a.org"],
        );
        let open = rules(Open, &[], &[], &["x.a.org"]);
        let denies = &["x.a.org"][..];
        for (preset, lists, allow, deny, is_within) in [
            (Strict, &[][..], &[][..], denies, true),
            (Strict, &[], &["q.a.org", "*.q.a.org:22"], denies, true),
            (Strict, &[], &["b.org:443", "10.1.0.0/16"], denies, true),
            (Strict, &[], &["registry.npmjs.org:443"], denies, true),
            (Strict, &[PresetList::Npm], &[], denies, true),
            (Strict, &[], &[], &["*.a.org"], true),
            (Strict, &[], &[], &[], false),
            (Strict, &[], &[], &["x.a.org:443"], false),
            (Strict, &[PresetList::Git], &[], denies, false),
            (Strict, &[], &["b.org"], denies, false),
            (Strict, &[], &["a.org"], denies, false),
            (Strict, &[], &["registry.npmjs.org"], denies, false),
            (Strict, &[], &["0.0.0.0/0"], denies, false),
            (Open, &[], &[], denies, false),
        ] {
            let other = rules(preset, lists, allow, deny);
            let excess = own.excess_of(&other);
            assert_eq!(excess.is_none(), is_within, "{other:?}: {excess:?}");
            let denied = deny.iter().any(|it| ["x.a.org", "*.a.org"].contains(it));
            assert_eq!(open.excess_of(&other).is_none(), denied, "{other:?}");
        }
    }

    #[test]
    fn questions_about_hosts_are_an_excess_of_rules_that_ask_nothing() {
        let strict = rules(Preset::Strict, &[], &[], &[]);
        let asking = NetworkRules {
            ask: true,
            ..strict.clone()
        };
        assert!(
            strict
                .excess_of(&asking)
                .is_some_and(|it| it.contains("`ask`"))
        );
        assert_eq!(asking.excess_of(&asking), None);
        assert_eq!(asking.excess_of(&strict), None);
        assert_eq!(rules(Preset::Open, &[], &[], &[]).excess_of(&asking), None);
    }

    #[test]
    fn private_addresses_that_an_admin_opened_for_one_are_not_open_for_the_other() {
        let own = rules(Preset::Open, &[], &["10.0.0.1"], &[]);
        let mut other = own.clone();
        other.allow[0].by_admin = true;
        assert_eq!(own.excess_of(&other).as_deref(), Some("10.0.0.1"));
        assert_eq!(other.excess_of(&own), None);
        assert_eq!(other.excess_of(&other), None);
        let wide: HostPattern = "*.a.org".parse().unwrap();
        other.allow[0] = AllowRule {
            pattern: "x.a.org".parse().unwrap(),
            by_admin: true,
        };
        let mut below = own;
        below.allow[0] = AllowRule {
            pattern: wide,
            by_admin: true,
        };
        assert!(below.excess_of(&other).is_some());
        assert_eq!(below.excess_of(&below), None);
    }
}
