//! Permission decisions: pure functions on scopes, owners and positions in trees of sessions. No other
//! module compares scopes; ARCHITECTURE.md lists the places that ask this one.

use serde::{Deserialize, Serialize};

use crate::{Level, Network, PermissionDecision, ProjectId, Scope, SessionId, TokenId};

/// Whether an operation reads or changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Read,
    Write,
}

/// What an operation requires of the token that calls it.
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
            // Admin operations count as writes: each is in the audit log before it returns.
            Self::Admin => Mode::Write,
            Self::Global(mode) | Self::Project(mode) => mode,
        }
    }
}

/// The answer to "may this token do that to these projects".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Allowed,
    /// Outside the token's scope for any project.
    Refused,
    /// Answered as if the project did not exist.
    Hidden,
}

/// Whether a scope may call operations of this class at all. Tool lists are filtered by it.
pub fn allows_class(scope: Scope, access: Access) -> bool {
    match (scope, access) {
        (Scope::Admin, _) => true,
        (_, Access::Admin) => false,
        (Scope::Write, _) => true,
        (Scope::Read | Scope::AdminRead, Access::Global(mode) | Access::Project(mode)) => {
            mode == Mode::Read
        }
        (Scope::Project(..), Access::Global(mode)) => mode == Mode::Read,
        (Scope::Project(_, held), Access::Project(mode)) => {
            held == Mode::Write || mode == Mode::Read
        }
    }
}

/// Whether a scope may do something of this class to these projects: a write must reach all of
/// them, a read at least one.
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

/// Whether a call may name a session of this project. When the call also names a project, it must
/// be the session's. A session that is not allowed is reported as not found.
pub fn allows_session(
    scope: Scope,
    access: Access,
    project: ProjectId,
    named: Option<ProjectId>,
) -> bool {
    named.is_none_or(|named| named == project)
        && allows(scope, access, &[project]) == Decision::Allowed
}

/// Whether a call may name a schedule with these target projects. A token that sees some of them
/// but may not write all learns that it is refused; one that sees none does not learn that the
/// schedule exists.
pub fn schedule_decision(scope: Scope, access: Access, targets: &[ProjectId]) -> Decision {
    match allows(scope, access, targets) {
        Decision::Allowed => Decision::Allowed,
        _ if targets.iter().any(|target| sees(scope, *target)) => Decision::Refused,
        _ => Decision::Hidden,
    }
}

/// Whether a scope may set parameters that project tokens may not set, for example limits.
pub fn allows_restricted_parameter(scope: Scope) -> bool {
    allows_class(scope, Access::Global(Mode::Write))
}

/// Whether a scope may read the server's metrics.
pub fn may_read_metrics(scope: Scope) -> bool {
    allows_class(scope, Access::Admin)
}

/// Whether a scope may know where files are on the server's machine.
pub fn may_see_host_paths(scope: Scope) -> bool {
    allows_class(scope, Access::Admin)
}

/// Whether a call may name a directory of the server's machine that agents then work in. No agent may,
/// whatever its scope: the directory is outside of its container.
pub fn may_mount(scope: Scope, is_from_agent: bool) -> bool {
    allows_class(scope, Access::Admin) && !is_from_agent
}

/// Whether an `allow` rule that a call makes may lead containers to addresses that are not public, such as those
/// of the server's machine. No agent may make one, whatever its scope.
pub fn may_allow_private_addresses(scope: Scope, is_from_agent: bool) -> bool {
    allows_class(scope, Access::Admin) && !is_from_agent
}

/// Whether a call may answer a question about a host this way. No agent may allow one, whatever its scope: not its own
/// question, and not that of another agent in exchange. What outlives the question changes the project's network, as
/// `network_allow` does.
pub fn may_answer_about_host(
    scope: Scope,
    is_from_agent: bool,
    decision: PermissionDecision,
) -> bool {
    match decision {
        PermissionDecision::Deny => true,
        PermissionDecision::Allow => !is_from_agent,
        PermissionDecision::AllowAlways | PermissionDecision::AllowProject => {
            !is_from_agent && allows_restricted_parameter(scope)
        }
    }
}

/// Whether a call may give a project this network. With `host` and `bridge` containers reach other hosts, and with `host` every
/// service of the server's machine, past the rules: only an admin may choose them, and no agent, whatever its scope.
pub fn may_choose_network(scope: Scope, is_from_agent: bool, network: Network) -> bool {
    match network {
        Network::Policy | Network::None => allows_restricted_parameter(scope),
        Network::Host | Network::Bridge => allows_class(scope, Access::Admin) && !is_from_agent,
    }
}

/// Whether an agent whose own containers have the network `own` may give a project the network `wanted`: none that reaches
/// more. If both have rules, those are compared, too.
pub fn network_is_within(own: Network, wanted: Network) -> bool {
    let width = |network| match network {
        Network::None => 0,
        Network::Policy => 1,
        Network::Bridge => 2,
        Network::Host => 3,
    };
    width(wanted) <= width(own)
}

/// Whether a token with the scope `held` may give an agent a key of the scope `wanted`. An agent
/// without a key has no scope and can give none.
pub fn may_grant(held: Option<Scope>, wanted: Scope) -> bool {
    held.is_some_and(|held| held.covers(wanted))
}

/// What is left of a scope when it is narrowed to each of the others in turn. A giver without a scope
/// gives nothing.
pub fn narrow(scope: Scope, givers: impl IntoIterator<Item = Option<Scope>>) -> Option<Scope> {
    let mut givers = givers.into_iter();
    givers.try_fold(scope, |scope, giver| scope.intersection(giver?))
}

/// Whether a token may send messages to an agent: only if it may do everything that the agent may do
/// with its own key. Otherwise it could have the agent do what it may not do itself.
pub fn may_direct(sender: Scope, agent_key: Option<Scope>) -> bool {
    agent_key.is_none_or(|agent_key| sender.covers(agent_key))
}

/// Whether a call from a container may be made on a connection that is attached to no session. Which
/// agent makes it is unknown, so that it may do nothing that an agent may do only in its own tree or
/// only outside of it.
pub fn unattached_may(decides: bool, sets_restricted: bool, depends_on_tree: bool) -> bool {
    !(decides || sets_restricted || depends_on_tree)
}

/// Whether a token is the caller of a session: the one that created it, or the one that declared tools for it after
/// that one became invalid.
pub fn owns_session(owner: Option<TokenId>, token: TokenId) -> bool {
    owner == Some(token)
}

/// Whether a token may act as the caller of a session: declare tools and respond to calls of them.
/// The session's own agent may not, even with its owner's key.
pub fn may_respond_as_caller(
    owner: Option<TokenId>,
    session: SessionId,
    token: TokenId,
    calling_session: Option<SessionId>,
) -> bool {
    owns_session(owner, token) && calling_session != Some(session)
}

/// The session of an agent that calls, and its place in its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentPosition {
    /// The first session of the tree.
    pub root: SessionId,
    pub project: ProjectId,
    /// The project of `root`, whose limits bound the tree.
    pub root_project: ProjectId,
}

impl AgentPosition {
    /// Whether the agent may decide a request or raise a limit of a session whose tree begins with
    /// `root`. It may not in its own tree, whatever its scope.
    pub fn may_decide(self, root: SessionId) -> bool {
        root != self.root
    }

    /// Whether the agent may see what a session has done to files, and continue or set back from there: only
    /// if the session's tree, which begins with `root`, is its own, whatever its scope.
    pub fn may_see_work(self, root: SessionId) -> bool {
        root == self.root
    }

    /// Whether the agent may change limits of a project, or of all projects if none is named. It may
    /// not where they bound its own tree, whatever its scope.
    pub fn may_change_limits(self, project: Option<ProjectId>) -> bool {
        project.is_some_and(|project| project != self.project && project != self.root_project)
    }
}

/// Whether an agent may start a run of a schedule: only if the schedule was created in the agent's
/// own tree, because otherwise the sessions it starts are outside the limits of that tree.
pub fn agent_may_start_schedule(
    agent_root: Option<SessionId>,
    creator_root: Option<SessionId>,
) -> bool {
    agent_root.is_some() && agent_root == creator_root
}

/// Whether a session is below another one, given its ancestors.
pub fn is_below(above: SessionId, ancestors: &[SessionId]) -> bool {
    ancestors.contains(&above)
}

/// The autonomy of a session that an agent starts: no higher than its parent's. Otherwise an agent
/// could permit itself what it has to ask for.
pub fn autonomy_below(parent: Level, wanted: Level) -> Level {
    wanted.min(parent)
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
    fn every_scope_and_access_class_decides_as_in_the_contract() {
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

    fn session(n: u128) -> SessionId {
        SessionId::new(Uuid::from_u128(n))
    }

    fn token(n: u128) -> TokenId {
        TokenId::new(Uuid::from_u128(n))
    }

    #[test]
    fn a_session_is_reached_through_its_own_project_only() {
        let own = Scope::Project(id(1), Write);
        assert!(allows_session(own, Project(Write), id(1), None));
        assert!(allows_session(own, Project(Write), id(1), Some(id(1))));
        assert!(!allows_session(own, Project(Write), id(1), Some(id(2))));
        assert!(!allows_session(own, Project(Read), id(2), None));
        assert!(!allows_session(Scope::Read, Project(Write), id(1), None));
    }

    #[test]
    fn a_schedule_is_refused_to_tokens_that_see_a_target_and_hidden_from_others() {
        let (first, third) = (Scope::Project(id(1), Write), Scope::Project(id(3), Write));
        let targets = [id(1), id(2)];
        assert_eq!(schedule_decision(first, Project(Read), &targets), Allowed);
        assert_eq!(schedule_decision(first, Project(Write), &targets), Refused);
        assert_eq!(schedule_decision(third, Project(Read), &targets), Hidden);
        assert_eq!(schedule_decision(third, Project(Write), &targets), Hidden);
        assert_eq!(
            schedule_decision(Scope::Write, Project(Write), &targets),
            Allowed
        );
        assert_eq!(
            schedule_decision(Scope::Read, Project(Write), &targets),
            Refused
        );
    }

    #[test]
    fn restricted_parameters_and_metrics_need_more_than_a_project_scope() {
        let own = Scope::Project(id(1), Write);
        assert!(allows_restricted_parameter(Scope::Write));
        assert!(!allows_restricted_parameter(Scope::Read));
        assert!(!allows_restricted_parameter(own));
        assert!(may_read_metrics(Scope::Admin));
        assert!(!may_read_metrics(Scope::Write) && !may_read_metrics(Scope::Read));
        assert!(may_mount(Scope::Admin, false) && !may_mount(Scope::Admin, true));
        assert!(may_allow_private_addresses(Scope::Admin, false));
        assert!(!may_allow_private_addresses(Scope::Admin, true));
        for network in [Network::Host, Network::Bridge] {
            assert!(may_choose_network(Scope::Admin, false, network));
            assert!(!may_choose_network(Scope::Admin, true, network));
            for scope in [Scope::Write, Scope::Read, Scope::AdminRead, own] {
                assert!(!may_choose_network(scope, false, network), "{scope}");
            }
        }
        for network in [Network::Policy, Network::None] {
            assert!(may_choose_network(Scope::Write, true, network));
            assert!(!may_choose_network(own, false, network));
        }
        for scope in [Scope::Write, Scope::Read, own] {
            assert!(!may_mount(scope, false), "{scope}");
            assert!(!may_allow_private_addresses(scope, false), "{scope}");
        }
    }

    #[test]
    fn no_agent_allows_a_host() {
        use PermissionDecision::{Allow, AllowAlways, AllowProject, Deny};
        let own = Scope::Project(id(1), Write);
        for scope in [Scope::Admin, Scope::Write, own] {
            for decision in [Allow, AllowAlways, AllowProject] {
                assert!(!may_answer_about_host(scope, true, decision));
            }
            assert!(may_answer_about_host(scope, true, Deny));
            assert!(may_answer_about_host(scope, false, Allow));
        }
        for decision in [AllowAlways, AllowProject] {
            assert!(may_answer_about_host(Scope::Write, false, decision));
            assert!(!may_answer_about_host(own, false, decision));
        }
    }

    #[test]
    fn a_scope_is_granted_only_by_a_scope_that_covers_it() {
        let own = Scope::Project(id(1), Write);
        assert!(may_grant(Some(Scope::Admin), Scope::Admin));
        assert!(may_grant(Some(own), Scope::Project(id(1), Read)));
        assert!(!may_grant(Some(own), Scope::Project(id(2), Read)));
        assert!(!may_grant(Some(own), Scope::Write));
        assert!(!may_grant(None, Scope::Project(id(1), Read)));
    }

    #[test]
    fn a_grant_is_no_wider_than_any_of_its_givers() {
        let own = Scope::Project(id(1), Write);
        let own_ro = Scope::Project(id(1), Read);
        assert_eq!(narrow(Scope::Admin, []), Some(Scope::Admin));
        assert_eq!(
            narrow(Scope::Admin, [Some(Scope::Write), Some(own)]),
            Some(own)
        );
        assert_eq!(narrow(own, [Some(Scope::Read)]), Some(own_ro));
        assert_eq!(narrow(own, [Some(Scope::Admin), None]), None);
        assert_eq!(narrow(own, [Some(Scope::Project(id(2), Write))]), None);
    }

    #[test]
    fn an_agent_is_directed_only_by_who_may_do_what_its_key_may() {
        let own = Scope::Project(id(1), Write);
        assert!(may_direct(own, None));
        assert!(may_direct(own, Some(own)) && may_direct(Scope::Write, Some(own)));
        assert!(!may_direct(own, Some(Scope::Write)));
        assert!(!may_direct(own, Some(Scope::Project(id(2), Read))));
        assert!(!may_direct(Scope::Write, Some(Scope::Admin)));
    }

    #[test]
    fn an_unknown_agent_decides_nothing_raises_nothing_and_starts_nothing() {
        assert!(unattached_may(false, false, false));
        for (decides, restricted, extends) in [
            (true, false, false),
            (false, true, false),
            (false, false, true),
        ] {
            assert!(!unattached_may(decides, restricted, extends));
        }
    }

    #[test]
    fn only_the_owner_responds_as_caller_and_never_the_sessions_own_agent() {
        let respond = |owner, by, calling| may_respond_as_caller(owner, session(1), by, calling);
        assert!(respond(Some(token(1)), token(1), None));
        assert!(respond(Some(token(1)), token(1), Some(session(2))));
        assert!(!respond(Some(token(1)), token(1), Some(session(1))));
        assert!(!respond(Some(token(1)), token(2), None));
        assert!(!respond(None, token(1), None));
    }

    #[test]
    fn an_agent_sees_the_work_of_its_own_tree_and_neither_decides_there_nor_changes_its_limits() {
        let agent = AgentPosition {
            root: session(1),
            project: id(2),
            root_project: id(1),
        };
        assert!(!agent.may_decide(session(1)));
        assert!(agent.may_decide(session(9)));
        assert!(agent.may_see_work(session(1)));
        assert!(!agent.may_see_work(session(9)));
        assert!(!agent.may_change_limits(None));
        assert!(!agent.may_change_limits(Some(id(1))));
        assert!(!agent.may_change_limits(Some(id(2))));
        assert!(agent.may_change_limits(Some(id(3))));
    }

    #[test]
    fn an_agent_starts_schedules_of_its_own_tree_only() {
        assert!(agent_may_start_schedule(Some(session(1)), Some(session(1))));
        assert!(!agent_may_start_schedule(
            Some(session(1)),
            Some(session(2))
        ));
        assert!(!agent_may_start_schedule(Some(session(1)), None));
        assert!(!agent_may_start_schedule(None, None));
    }

    #[test]
    fn a_child_is_below_every_ancestor_and_no_more_autonomous_than_its_parent() {
        assert!(is_below(session(1), &[session(2), session(1)]));
        assert!(!is_below(session(3), &[session(2), session(1)]));
        assert!(!is_below(session(1), &[]));
        assert_eq!(autonomy_below(Level::Low, Level::High), Level::Low);
        assert_eq!(autonomy_below(Level::High, Level::Low), Level::Low);
    }

    fn scopes() -> impl Strategy<Value = Scope> {
        let mode = prop_oneof![Just(Read), Just(Write)];
        prop_oneof![
            Just(Scope::Admin),
            Just(Scope::Read),
            Just(Scope::AdminRead),
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
        fn a_scope_that_covers_another_allows_all_that_the_other_allows(
            wide in scopes(), narrow in scopes(), access in accesses(), n in 1..4u128,
        ) {
            if wide.covers(narrow) && allows(narrow, access, &[id(n)]) == Allowed {
                prop_assert_eq!(allows(wide, access, &[id(n)]), Allowed);
            }
            prop_assert!(Scope::Admin.covers(narrow));
            prop_assert!(wide.covers(wide));
        }

        #[test]
        fn the_intersection_of_two_scopes_is_covered_by_both_and_keeps_shared_project_access(
            one in scopes(), other in scopes(), access in accesses(), n in 1..4u128,
        ) {
            let both = one.intersection(other);
            prop_assert_eq!(both, other.intersection(one));
            if let Some(both) = both {
                prop_assert!(one.covers(both) && other.covers(both));
            }
            // Access to a project that both scopes allow is allowed by their intersection.
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
        fn any_text_is_a_scope_or_a_short_error(text in "\\PC*") {
            if let Err(error) = text.parse::<Scope>() {
                prop_assert!(error.0.chars().count() < 1000);
            }
        }
    }
}
