//! What policies decide.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

fn host(text: &str) -> Host {
    text.parse().unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn patterns(texts: &[&str]) -> Vec<HostPattern> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn rules(preset: Preset, allow: &[&str], deny: &[&str], by_admin: bool) -> NetworkRules {
    let policy = NetworkPolicy {
        preset: Some(preset),
        allow: patterns(allow),
        deny: patterns(deny),
        ..NetworkPolicy::default()
    };
    let admins = if by_admin {
        policy.allow.clone()
    } else {
        Vec::new()
    };
    NetworkRules::combine(&NetworkPolicy::default(), Some(&policy), &admins)
}

#[test]
fn every_range_that_is_not_public_is_special() {
    for special in [
        "0.0.0.0",
        "0.1.2.3",
        "10.1.2.3",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.64.0.1",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2001:0:1::1",
        "2001:db8::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "4000::1",
    ] {
        assert!(special_range(address(special)).is_some(), "{special}");
        let decided = NetworkRules::default().decide(&host(special), 443);
        assert!(!decided.is_allowed, "{special}: {}", decided.rule);
        let name = host("example.org");
        let decided = NetworkRules::default().decide_address(&name, 443, address(special), false);
        assert!(!decided.is_allowed, "{special}: {}", decided.rule);
    }
    for public in [
        "1.1.1.1",
        "8.8.8.8",
        "100.63.255.255",
        "100.128.0.1",
        "172.15.0.1",
        "172.32.0.1",
        "198.17.0.1",
        "198.20.0.1",
        "223.255.255.255",
        "2606:4700::1111",
        "2a00::1",
        "64:ff9b::808:808",
        "::ffff:8.8.8.8",
    ] {
        assert_eq!(special_range(address(public)), None, "{public}");
    }
}

#[test]
fn patterns_name_hosts_ranges_and_ports() {
    for (pattern, matching, other) in [
        ("example.org", "Example.ORG.", "www.example.org"),
        ("*.example.org", "a.b.example.org", "example.org"),
        ("*.example.org", "www.example.org", "badexample.org"),
        ("10.0.0.0/8", "10.9.8.7", "11.0.0.1"),
        ("10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2"),
        ("::ffff:10.0.0.0/104", "10.1.1.1", "11.1.1.1"),
        ("fd00::/8", "fd12::1", "fe80::1"),
        ("0.0.0.0/0", "203.0.113.1", "::1"),
    ] {
        let parsed: HostPattern = pattern.parse().unwrap();
        assert!(parsed.matches(&host(matching), 1), "{pattern} {matching}");
        assert!(!parsed.matches(&host(other), 1), "{pattern} {other}");
    }
    for (text, port) in [
        ("a.b:22", 22),
        ("10.0.0.1:80", 80),
        ("[::1]:443", 443),
        ("10.0.0.0/8:1", 1),
    ] {
        let parsed: HostPattern = text.parse().unwrap();
        assert_eq!(
            (parsed.port(), parsed.to_string().as_str()),
            (Some(port), text)
        );
    }
    for bad in [
        "",
        "*",
        "a b",
        "*.",
        "-a.org",
        "a..b",
        "a:0",
        "a:65536",
        "a:+1",
        "a:x",
        "127.1",
        "2130706433",
        "0x7f.0x1",
        "1.2.3.4/33",
        "a/8",
        "a.*.b",
        "*x.org",
        "exa\nmple.org",
        "[::1",
        "user@host",
        "a/b",
    ] {
        assert!(bad.parse::<HostPattern>().is_err(), "{bad:?}");
    }
}

#[test]
fn deny_comes_before_allow_and_allow_before_the_preset() {
    let rules = rules(
        Preset::Strict,
        &["*.example.org", "other.org:443"],
        &["evil.example.org", "203.0.112.0/24"],
        false,
    );
    for (name, port, is_allowed, rule) in [
        ("www.example.org", 8080, true, "allow *.example.org"),
        ("evil.example.org", 443, false, "deny evil.example.org"),
        ("other.org", 443, true, "allow other.org:443"),
        (
            "other.org",
            22,
            false,
            "preset strict: no `allow` rule or list names it",
        ),
        ("203.0.112.9", 443, false, "deny 203.0.112.0/24"),
    ] {
        let verdict = rules.decide(&host(name), port);
        assert_eq!(
            (verdict.is_allowed, verdict.rule.as_str()),
            (is_allowed, rule),
            "{name}"
        );
    }
    // A name that is allowed does not lead to an address that is denied.
    let verdict =
        rules.decide_address(&host("www.example.org"), 443, address("203.0.112.9"), false);
    assert!(!verdict.is_allowed);
    assert_eq!(rules.named_ports(&host("other.org")), [443]);
    assert!(rules.may_reach_some_port(&host("other.org")));
    assert!(!rules.may_reach_some_port(&host("unknown.org")));
    assert!(!rules.may_reach_some_port(&host("evil.example.org")));
}

#[test]
fn only_an_admin_leads_containers_to_addresses_that_are_not_public() {
    let private = address("10.0.0.1");
    let named = host("db.example.org");
    for (allow, by_admin, expected) in [
        ("db.example.org", true, true),
        ("db.example.org", false, false),
        ("10.0.0.0/8", true, true),
        ("10.0.0.0/8", false, false),
        ("db.example.org:443", true, true),
        ("db.example.org:22", true, false),
        // The owner of a name below it could give it any address.
        ("*.example.org", true, false),
    ] {
        let rules = rules(Preset::Open, &[allow], &[], by_admin);
        let verdict = rules.decide_address(&named, 443, private, false);
        assert_eq!(
            verdict.is_allowed, expected,
            "{allow} {by_admin}: {}",
            verdict.rule
        );
        // This machine's own addresses are opened by address only.
        for (own, is_local) in [("8.8.8.8", true), ("10.0.0.1", true)] {
            let verdict = rules.decide_address(&named, 443, address(own), is_local);
            let is_named = by_admin && allow == "10.0.0.0/8" && own == "10.0.0.1";
            assert_eq!(verdict.is_allowed, is_named, "{allow} {own}");
        }
    }
    let rules = rules(Preset::Open, &["10.0.0.1:80"], &[], true);
    assert!(rules.decide(&host("10.0.0.1"), 80).is_allowed);
    assert!(!rules.decide(&host("10.0.0.1"), 81).is_allowed);
}

#[test]
fn a_name_that_an_admin_allows_does_not_lead_to_this_machine_or_a_metadata_service() {
    let named = host("db.example.org");
    for guarded in [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "169.254.169.254",
        "169.254.1.1",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        "::1",
        "::ffff:127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "fe80::1",
        "fd00:ec2::254",
        "fd20:ce::254",
    ] {
        let by_name = rules(Preset::Open, &["db.example.org"], &[], true);
        let verdict = by_name.decide_address(&named, 443, address(guarded), false);
        assert!(!verdict.is_allowed, "{guarded}");
        let by_address = rules(Preset::Open, &["db.example.org", guarded], &[], true);
        let verdict = by_address.decide_address(&named, 443, address(guarded), false);
        assert!(verdict.is_allowed, "{guarded}: {}", verdict.rule);
    }
    for private in [
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "fd12::1",
    ] {
        let by_name = rules(Preset::Open, &["db.example.org"], &[], true);
        let verdict = by_name.decide_address(&named, 443, address(private), false);
        assert!(verdict.is_allowed, "{private}: {}", verdict.rule);
    }
}

#[test]
fn localhost_is_an_address_and_the_ports_of_it_that_rules_name_are_known() {
    assert_eq!(host("LocalHost."), host("127.0.0.1"));
    let own = rules(
        Preset::Strict,
        &[
            "localhost:8080",
            "127.0.0.1:11434",
            "127.0.0.2:9",
            "127.0.0.1",
            "127.0.0.0/8:7",
            "127.0.0.1:1",
        ],
        &["127.0.0.1:1"],
        true,
    );
    assert!(own.decide(&host("localhost"), 8080).is_allowed);
    assert_eq!(own.loopback_ports(), [8080, 11434]);
    let not_admins = rules(
        Preset::Open,
        &["localhost:8080", "127.0.0.1:11434"],
        &[],
        false,
    );
    assert_eq!(not_admins.loopback_ports(), [0; 0]);
}

#[test]
fn lists_of_well_known_hosts_allow_them_on_their_ports() {
    let policy = NetworkPolicy {
        preset: Some(Preset::Strict),
        presets: Some(vec![PresetList::Git, PresetList::Apt]),
        ..NetworkPolicy::default()
    };
    let rules = NetworkRules::combine(&policy, None, &[]);
    for (name, port, is_allowed) in [
        ("github.com", 22, true),
        ("github.com", 443, true),
        ("github.com", 25, false),
        ("registry.npmjs.org", 443, false),
        ("de.archive.ubuntu.com", 80, true),
        ("xarchive.ubuntu.com", 80, false),
    ] {
        assert_eq!(
            rules.decide(&host(name), port).is_allowed,
            is_allowed,
            "{name}"
        );
    }
}

#[test]
fn the_project_replaces_presets_and_adds_to_the_lists_of_the_server() {
    let server = NetworkPolicy {
        preset: Some(Preset::Strict),
        presets: Some(vec![PresetList::Npm]),
        allow: patterns(&["10.0.0.1"]),
        deny: patterns(&["evil.org"]),
        ..NetworkPolicy::default()
    };
    let project = NetworkPolicy {
        preset: Some(Preset::Open),
        allow: patterns(&["evil.org", "10.0.0.2"]),
        ..NetworkPolicy::default()
    };
    let rules = NetworkRules::combine(&server, Some(&project), &[]);
    assert!(rules.decide(&host("example.org"), 443).is_allowed);
    assert!(!rules.decide(&host("evil.org"), 443).is_allowed);
    assert!(rules.decide(&host("10.0.0.1"), 443).is_allowed);
    assert!(!rules.decide(&host("10.0.0.2"), 443).is_allowed);
    assert!(!rules.ask && server.problem().is_none());
}

#[test]
fn only_a_plain_miss_of_strict_rules_is_asked_about() {
    let asking = |preset| NetworkRules {
        ask: true,
        ..rules(
            preset,
            &["web.org:443"],
            &["evil.org", "part.org:80"],
            false,
        )
    };
    let strict = asking(Preset::Strict);
    for (asked, port, is_askable) in [
        ("new.org", 443, true),
        ("web.org", 80, true),
        ("part.org", 443, true),
        ("8.8.8.8", 53, true),
        ("web.org", 443, false),
        ("evil.org", 443, false),
        ("part.org", 80, false),
        ("127.0.0.1", 443, false),
        ("10.0.0.1", 443, false),
        ("169.254.169.254", 80, false),
        ("::1", 443, false),
    ] {
        let verdict = strict.decide(&host(asked), port);
        assert_eq!(verdict.is_askable, is_askable, "{asked}:{port}");
        assert!(!verdict.is_askable || !verdict.is_allowed);
        assert!(!asking(Preset::Open).decide(&host(asked), port).is_askable);
        let silent = NetworkRules {
            ask: false,
            ..strict.clone()
        };
        assert!(!silent.decide(&host(asked), port).is_askable);
    }
    // A name that may be asked about has an address inside; one that is denied has none.
    assert!(strict.may_reach_some_port(&host("new.org")));
    assert!(!strict.may_reach_some_port(&host("evil.org")));
    // An address that a name turns out to have is never asked about.
    let private = strict.decide_address(&host("new.org"), 443, address("10.0.0.1"), false);
    assert!(!private.is_allowed && !private.is_askable);
}

#[test]
fn hosts_that_are_allowed_for_a_time_open_no_address_that_is_not_public() {
    let strict = rules(Preset::Strict, &[], &["evil.org"], true);
    let allowed = strict.with_allowed(patterns(&["new.org:443", "new.org:443", "evil.org:443"]));
    assert_eq!(allowed.allow.len(), 2);
    assert!(allowed.decide(&host("new.org"), 443).is_allowed);
    assert!(!allowed.decide(&host("new.org"), 80).is_allowed);
    assert!(!allowed.decide(&host("evil.org"), 443).is_allowed);
    let private = allowed.decide_address(&host("new.org"), 443, address("10.0.0.1"), false);
    assert!(!private.is_allowed);
}

proptest! {
    #[test]
    fn any_text_is_a_host_or_an_error_and_hosts_are_written_as_they_are_read(text in "\\PC{0,80}") {
        if let Ok(host) = text.parse::<Host>() {
            prop_assert_eq!(host.to_string().parse::<Host>().unwrap(), host);
        }
        if let Ok(pattern) = text.parse::<HostPattern>() {
            prop_assert_eq!(pattern.to_string().parse::<HostPattern>().unwrap(), pattern);
        }
    }

    #[test]
    fn no_policy_that_no_admin_made_reaches_a_special_address(
        bits in any::<u128>(), is_v4 in any::<bool>(), port in 1..u16::MAX, allow in "[a-z]{1,8}\\.org",
    ) {
        let address: IpAddr = if is_v4 {
            std::net::Ipv4Addr::from_bits(bits as u32).into()
        } else {
            std::net::Ipv6Addr::from_bits(bits).into()
        };
        let rules = rules(Preset::Open, &[&allow, &address.to_string()], &[], false);
        let is_public = special_range(address).is_none();
        for asked in [Host::Address(address), host(&allow)] {
            let verdict = rules.decide_address(&asked, port, address, false);
            prop_assert_eq!(verdict.is_allowed, is_public);
        }
        prop_assert_eq!(rules.decide(&Host::Address(address), port).is_allowed, is_public);
        let mapped = match address {
            IpAddr::V4(v4) => IpAddr::V6(v4.to_ipv6_mapped()),
            v6 => v6,
        };
        prop_assert_eq!(special_range(mapped), special_range(address));
    }
}
