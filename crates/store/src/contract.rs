//! The suite that every store passes, as functions over `&dyn Store`.
//!
//! [`CASES`] is the list; a store's tests run each case on a store of its own.

mod audit;
mod callers;
mod calls;
mod containers;
mod mcp_sessions;
mod projects;
mod schedules;
mod sessions;
mod tokens;
mod workspaces;

use std::future::Future;
use std::pin::Pin;

use jiff::Timestamp;
use oubliette_model::{ProjectId, ProjectSettings, TokenId};
use uuid::Uuid;

use crate::{AuditEntry, Outcome, Project, Store};

type Running<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// One promise of a store: its name and how to see that it is kept, on an empty store.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub run: for<'a> fn(&'a dyn Store) -> Running<'a>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! cases {
    ($($module:ident :: $case:ident),+ $(,)?) => {
        pub const CASES: &[Case] = &[
            $(Case { name: stringify!($case), run: |store| Box::pin($module::$case(store)) }),+
        ];
    };
}

cases![
    projects::a_reserved_project_is_unseen_until_confirmed,
    projects::names_are_unique_also_while_projects_are_made,
    projects::of_fifty_racing_reservations_one_wins,
    projects::updates_from_an_old_revision_are_stale,
    projects::renaming_to_a_taken_name_changes_nothing,
    projects::pages_follow_names_and_lose_none,
    projects::deleting_takes_tokens_and_workspaces_along,
    projects::secrets_in_settings_come_back_whole,
    tokens::a_token_is_found_by_its_hash_alone,
    tokens::a_scope_for_a_missing_project_is_refused,
    tokens::the_last_admin_token_stays,
    tokens::tokens_are_paged_in_order,
    workspaces::workspaces_belong_to_their_project,
    containers::containers_go_with_their_project,
    containers::a_named_command_begins_once_and_remembers_its_result,
    containers::asking_for_a_named_command_is_in_the_audit_log,
    sessions::a_session_begins_with_its_first_event_and_its_message,
    sessions::without_a_new_session_the_newest_one_gets_the_message,
    sessions::of_racing_spawns_in_one_workspace_one_makes_the_session,
    sessions::a_step_is_one_transaction_and_indexes_have_no_gaps,
    sessions::limits_of_a_tree_hold_exactly_at_their_edge,
    sessions::a_decision_is_taken_once_and_in_time,
    sessions::messages_wait_in_order_and_wake_an_ended_session,
    sessions::a_workspace_in_use_stays,
    sessions::the_logs_of_a_tree_are_read_in_the_order_of_their_commits,
    sessions::ended_sessions_are_removed_leaves_first,
    sessions::old_events_are_trimmed_and_the_log_says_so,
    calls::a_call_makes_one_child_however_often_it_is_repeated,
    calls::a_call_is_answered_by_its_own_turn,
    calls::an_operation_begins_once_under_a_name_and_its_outcome_is_kept,
    calls::tokens_of_a_session_end_with_its_agent_or_with_itself,
    calls::what_a_tree_has_used_stays_used_when_its_sessions_are_removed,
    callers::a_sessions_own_token_declares_its_tools_and_no_other,
    callers::a_call_of_a_tool_is_made_once_and_ends_once,
    callers::the_calls_that_wait_are_bounded,
    callers::a_session_waits_for_its_caller_and_for_nobody_longer_than_it_must,
    schedules::a_schedule_is_found_listed_changed_and_removed,
    schedules::of_racing_firings_of_one_instant_one_makes_the_runs,
    schedules::a_run_that_is_not_over_keeps_others_back_as_the_schedule_says,
    schedules::a_run_begins_once_and_is_taken_over_when_its_lease_is_over,
    schedules::a_run_gets_one_session_however_often_it_is_asked_for,
    schedules::a_pinned_session_gets_the_prompt_of_the_next_run_once,
    schedules::the_end_of_a_run_is_recorded_once,
    schedules::failures_in_a_row_disable_a_schedule,
    schedules::a_project_takes_its_targets_along,
    schedules::a_history_is_kept_by_count_and_age,
    audit::entries_commit_with_their_write,
    audit::filters_and_pages_agree,
    audit::old_entries_are_trimmed,
    mcp_sessions::sessions_are_replaced_bounded_and_trimmed,
    mcp_sessions::a_session_is_bound_to_the_mcp_session_that_named_it_last,
];

fn project(n: u128, name: &str) -> Project {
    Project {
        id: ProjectId::new(Uuid::from_u128(n)),
        name: name.parse().unwrap_or_else(|e| panic!("{e}")),
        revision: 1,
        settings: ProjectSettings::default(),
        created_at: at(n as i64),
        updated_at: at(n as i64),
    }
}

fn token_id(n: u128) -> TokenId {
    TokenId::new(Uuid::from_u128(n))
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap_or_default()
}

fn entry(operation: &str) -> AuditEntry {
    AuditEntry {
        at: at(0),
        token_id: None,
        operation: operation.to_owned(),
        project_id: None,
        outcome: Outcome::Ok,
        address: None,
    }
}

/// Unwraps what a case relies on.
trait Must<T> {
    fn must(self) -> T;
}

impl<T, E: std::fmt::Debug> Must<T> for Result<T, E> {
    #[track_caller]
    fn must(self) -> T {
        self.unwrap_or_else(|error| panic!("the store failed: {error:?}"))
    }
}

async fn ready(store: &dyn Store, n: u128, name: &str) -> Project {
    let project = project(n, name);
    store.reserve(&project).await.must();
    assert!(store.confirm(project.id, None).await.must());
    project
}
