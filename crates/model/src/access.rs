//! The one place where permission is decided.
//!
//! Every path of every face asks [`allows_class`] before it parses a call's parameters and
//! [`allows`] before it looks anything up. Nobody else compares scopes.

use serde::{Deserialize, Serialize};

use crate::{ProjectId, Scope};

/// Whether something looks or changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Read,
    Write,
}

/// What an operation needs of the token that calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reserved to admin tokens.
    Admin,
    /// About the whole server. A project token's global read shows only its own project.
    Global(Mode),
    /// About one or more projects.
    Project(Mode),
}

impl Access {
    pub fn mode(self) -> Mode {
        match self {
            // Admin operations are treated as writes: all of them are audited at once.
            Self::Admin => Mode::Write,
            Self::Global(mode) | Self::Project(mode) => mode,
        }
    }
}

/// The answer to "may this token do that to these projects".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Allowed,
    /// Outside the token's scope whatever the project is.
    Refused,
    /// The same answer as for a project that does not exist.
    Hidden,
}

/// Whether a scope may call operations of this class at all. Lists of tools are filtered by it.
pub fn allows_class(scope: Scope, access: Access) -> bool {
    match (scope, access) {
        (Scope::Admin, _) => true,
        (_, Access::Admin) => false,
        (Scope::Write, _) => true,
        (Scope::Read, Access::Global(mode) | Access::Project(mode)) => mode == Mode::Read,
        (Scope::Project(..), Access::Global(mode)) => mode == Mode::Read,
        (Scope::Project(_, held), Access::Project(mode)) => {
            held == Mode::Write || mode == Mode::Read
        }
    }
}

/// Whether a scope may do something of this class to these projects: to write it must reach all of
/// them, to read it is enough to reach one.
pub fn allows(scope: Scope, access: Access, projects: &[ProjectId]) -> Decision {
    if !allows_class(scope, access) {
        return Decision::Refused;
    }
    let reached = match (access, scope.project()) {
        (Access::Admin | Access::Global(_), _) | (_, None) => true,
        (Access::Project(Mode::Read), Some(own)) => projects.contains(&own),
        (Access::Project(Mode::Write), Some(own)) => {
            !projects.is_empty() && projects.iter().all(|project| *project == own)
        }
    };
    if reached {
        Decision::Allowed
    } else {
        Decision::Hidden
    }
}

/// Whether a scope sees a project in lists.
pub fn sees(scope: Scope, project: ProjectId) -> bool {
    allows(scope, Access::Project(Mode::Read), &[project]) == Decision::Allowed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use Access::{Admin, Global, Project};
    use Decision::{Allowed, Hidden, Refused};
    use Mode::{Read, Write};

    fn id(n: u128) -> ProjectId {
        ProjectId::new(Uuid::from_u128(n))
    }

    /// The contract's table, row by row: (scope, access) → decision on project 1, on project 2.
    #[test]
    fn every_scope_and_access_class_decides_as_the_contract_says() {
        let own = Scope::Project(id(1), Write);
        let own_ro = Scope::Project(id(1), Read);
        let table = [
            (Scope::Admin, Admin, Allowed, Allowed),
            (Scope::Admin, Global(Read), Allowed, Allowed),
            (Scope::Admin, Global(Write), Allowed, Allowed),
            (Scope::Admin, Project(Read), Allowed, Allowed),
            (Scope::Admin, Project(Write), Allowed, Allowed),
            (Scope::Write, Admin, Refused, Refused),
            (Scope::Write, Global(Read), Allowed, Allowed),
            (Scope::Write, Global(Write), Allowed, Allowed),
            (Scope::Write, Project(Read), Allowed, Allowed),
            (Scope::Write, Project(Write), Allowed, Allowed),
            (Scope::Read, Admin, Refused, Refused),
            (Scope::Read, Global(Read), Allowed, Allowed),
            (Scope::Read, Global(Write), Refused, Refused),
            (Scope::Read, Project(Read), Allowed, Allowed),
            (Scope::Read, Project(Write), Refused, Refused),
            (own, Admin, Refused, Refused),
            (own, Global(Read), Allowed, Allowed),
            (own, Global(Write), Refused, Refused),
            (own, Project(Read), Allowed, Hidden),
            (own, Project(Write), Allowed, Hidden),
            (own_ro, Admin, Refused, Refused),
            (own_ro, Global(Read), Allowed, Allowed),
            (own_ro, Global(Write), Refused, Refused),
            (own_ro, Project(Read), Allowed, Hidden),
            (own_ro, Project(Write), Refused, Refused),
        ];
        for (scope, access, on_first, on_second) in table {
            assert_eq!(
                allows(scope, access, &[id(1)]),
                on_first,
                "{scope} {access:?}"
            );
            assert_eq!(
                allows(scope, access, &[id(2)]),
                on_second,
                "{scope} {access:?}"
            );
        }
    }

    #[test]
    fn writing_needs_every_project_and_reading_needs_one() {
        let own = Scope::Project(id(1), Write);
        assert_eq!(allows(own, Project(Read), &[id(1), id(2)]), Allowed);
        assert_eq!(allows(own, Project(Write), &[id(1), id(2)]), Hidden);
        assert_eq!(allows(own, Project(Write), &[]), Hidden);
    }

    fn scopes() -> impl Strategy<Value = Scope> {
        let mode = prop_oneof![Just(Read), Just(Write)];
        prop_oneof![
            Just(Scope::Admin),
            Just(Scope::Read),
            Just(Scope::Write),
            (1..4u128, mode).prop_map(|(n, mode)| Scope::Project(id(n), mode)),
        ]
    }

    fn accesses() -> impl Strategy<Value = Access> {
        let modes = || prop_oneof![Just(Read), Just(Write)];
        prop_oneof![
            Just(Admin),
            modes().prop_map(Global),
            modes().prop_map(Project)
        ]
    }

    proptest! {
        #[test]
        fn a_scope_that_covers_another_may_do_all_the_other_may(
            wide in scopes(), narrow in scopes(), access in accesses(), n in 1..4u128,
        ) {
            if wide.covers(narrow) && allows(narrow, access, &[id(n)]) == Allowed {
                prop_assert_eq!(allows(wide, access, &[id(n)]), Allowed);
            }
            prop_assert!(Scope::Admin.covers(narrow));
            prop_assert!(wide.covers(wide));
        }

        #[test]
        fn what_two_scopes_have_in_common_is_allowed_by_both(
            one in scopes(), other in scopes(), access in accesses(), n in 1..4u128,
        ) {
            let both = one.intersection(other);
            prop_assert_eq!(both, other.intersection(one));
            if let Some(both) = both {
                prop_assert!(one.covers(both) && other.covers(both));
            }
            // Whatever concerns a project and is allowed by both is allowed by what they share.
            if let Project(_) = access
                && allows(one, access, &[id(n)]) == Allowed
                && allows(other, access, &[id(n)]) == Allowed
            {
                let allowed = both.map(|both| allows(both, access, &[id(n)]));
                prop_assert_eq!(allowed, Some(Allowed));
            }
        }

        #[test]
        fn scopes_survive_being_written_and_read(scope in scopes()) {
            prop_assert_eq!(scope.to_string().parse::<Scope>(), Ok(scope));
        }

        #[test]
        fn any_text_is_a_scope_or_a_short_refusal(text in "\\PC*") {
            if let Err(error) = text.parse::<Scope>() {
                prop_assert!(error.0.chars().count() < 1000);
            }
        }
    }
}
