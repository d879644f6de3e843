//! Which tools an agent may use, and what keeps it to them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The tools of a session, by the names that its agent has for them; `*` stands for any part of one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tools {
    /// These and no others; all if empty.
    pub allowed: Vec<String>,
    pub disallowed: Vec<String>,
}

/// What keeps an agent to its tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeper {
    /// Nothing does; the reason, as the end of a sentence.
    Nobody(&'static str),
    /// In this mode it asks before each use of any tool, so that the answer decides.
    Question { mode: &'static str },
    /// It takes rules.
    Rules(Rules),
}

/// Rules in a variable of the environment: JSON from names to what is done, the last that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    pub variable: &'static str,
    /// Tools that it decides about as one, under the name of the first.
    pub together: &'static [&'static str],
    /// What it decides about beside tools.
    pub others: &'static [&'static str],
    /// What else is in the environment, so that nothing overrules the rules.
    pub env: &'static [(&'static str, &'static str)],
}

impl Tools {
    pub fn is_empty(&self) -> bool {
        self.allowed.is_empty() && self.disallowed.is_empty()
    }

    pub fn permits(&self, name: &str) -> bool {
        let among = |list: &[String]| list.iter().any(|pattern| fits(pattern, name));
        !among(&self.disallowed) && (self.allowed.is_empty() || among(&self.allowed))
    }

    /// What a session below one with these tools has: never more. None if that is nothing.
    pub fn narrowed_by(&self, below: &Self) -> Option<Self> {
        let allowed: Vec<String> = match (&self.allowed[..], &below.allowed[..]) {
            (own, []) => own.to_vec(),
            ([], given) => given.to_vec(),
            (_, given) => {
                let names = given.iter().filter(|name| self.permits(name));
                let names: Vec<String> = names.cloned().collect();
                if names.is_empty() {
                    return None;
                }
                names
            }
        };
        let more = below.disallowed.iter();
        let more = more.filter(|name| !self.disallowed.contains(name));
        Some(Self {
            allowed,
            disallowed: self.disallowed.iter().chain(more).cloned().collect(),
        })
    }
}

/// Whether a name is one that a pattern means.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

impl Keeper {
    /// Why an agent cannot be kept to these tools, as a sentence without its beginning.
    pub fn objection(self, tools: &Tools) -> Option<String> {
        match self {
            _ if tools.is_empty() => None,
            Self::Nobody(why) => Some(format!("cannot be kept to some of its tools: {why}")),
            Self::Question { .. } => None,
            Self::Rules(rules) => {
                let mut permitted = rules.together.iter().map(|name| tools.permits(name));
                let first = permitted.next();
                let differs = permitted.any(|one| Some(one) != first);
                let names = rules.together.join("` and `");
                differs
                    .then(|| format!("decides about `{names}` together; name all of them or none"))
            }
        }
    }
}

impl Rules {
    /// The environment that keeps an agent to its tools; `usual` are its rules without that.
    pub(crate) fn environment(&self, tools: &Tools, usual: &str) -> BTreeMap<String, String> {
        let usual: Map<String, Value> = serde_json::from_str(usual).unwrap_or_default();
        let yes = usual.get("*").cloned().unwrap_or_else(|| "ask".into());
        let no = Value::from("deny");
        let mut rules = usual;
        if !tools.allowed.is_empty() {
            rules.clear();
            rules.insert("*".to_owned(), no.clone());
            let others = self.others.iter().map(ToString::to_string);
            for name in others.chain(tools.allowed.iter().cloned()) {
                rules.insert(name, yes.clone());
            }
        }
        let denied = tools.disallowed.iter().map(|name| (name.clone(), &no));
        let together = self.together.first().map(|name| {
            let permitted = tools.permits(name);
            ((*name).to_owned(), if permitted { &yes } else { &no })
        });
        for (name, rule) in denied.chain(together) {
            // At the end, because the last that fits counts.
            rules.shift_remove(&name);
            rules.insert(name, rule.clone());
        }
        let env = self.env.iter();
        env.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .chain([(self.variable.to_owned(), Value::Object(rules).to_string())])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(allowed: &[&str], disallowed: &[&str]) -> Tools {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Tools {
            allowed: names(allowed),
            disallowed: names(disallowed),
        }
    }

    #[test]
    fn a_tool_is_permitted_that_is_allowed_and_not_disallowed() {
        assert!(tools(&[], &[]).permits("sh"));
        assert!(tools(&["sh"], &[]).permits("sh") && !tools(&["sh"], &[]).permits("shell"));
        assert!(!tools(&[], &["s*"]).permits("sh"));
        let some = tools(&["app_*", "*_x_*y"], &["app_delete"]);
        for (name, permitted) in [
            ("app_list", true),
            ("app_delete", false),
            ("a_x_by", true),
            ("a_x_b", false),
            ("_x_y", true),
            ("_x_", false),
            ("", false),
        ] {
            assert_eq!(some.permits(name), permitted, "{name}");
        }
        assert!(!tools(&["a*a"], &[]).permits("a"));
    }

    #[test]
    fn below_there_is_never_more() {
        let above = tools(&["a_*", "b"], &["a_x"]);
        let same = above.narrowed_by(&Tools::default()).unwrap();
        assert_eq!(same, above);
        let less = above
            .narrowed_by(&tools(&["b", "c", "a_x"], &["d"]))
            .unwrap();
        assert_eq!(less, tools(&["b"], &["a_x", "d"]));
        assert_eq!(above.narrowed_by(&tools(&["c"], &[])), None);
        let free = Tools::default().narrowed_by(&tools(&["c"], &[])).unwrap();
        assert_eq!(free, tools(&["c"], &[]));
    }

    #[test]
    fn rules_say_what_the_lists_say() {
        let rules = Rules {
            variable: "RULES",
            together: &["edit", "write"],
            others: &["outside"],
            env: &[("MORE", "1")],
        };
        let usual = r#"{"*":"allow","outside":"allow"}"#;
        let made = |tools: &Tools| rules.environment(tools, usual)["RULES"].clone();
        assert_eq!(
            made(&tools(&[], &["bash"])),
            r#"{"*":"allow","outside":"allow","bash":"deny","edit":"allow"}"#
        );
        assert_eq!(
            made(&tools(&["read", "x_*"], &["x_y"])),
            r#"{"*":"deny","outside":"allow","read":"allow","x_*":"allow","x_y":"deny","edit":"deny"}"#
        );
        assert_eq!(rules.environment(&tools(&["a"], &[]), usual)["MORE"], "1");
        let keeper = Keeper::Rules(rules);
        assert_eq!(keeper.objection(&tools(&["edit", "write"], &[])), None);
        let half = keeper.objection(&tools(&[], &["write"])).unwrap();
        assert!(half.contains("`edit` and `write` together"), "{half}");
        let nobody = Keeper::Nobody("it is free").objection(&tools(&["a"], &[]));
        assert!(nobody.unwrap().ends_with("it is free"));
    }
}
