//! The contract tests that every store must pass, as functions over `&dyn Store`.
//!
//! The tests of a store run each of [`CASES`] on a new store.

mod audit;
mod callers;
mod calls;
mod charges;
mod checkpoints;
mod containers;
mod joining;
mod mcp_sessions;
mod projects;
mod schedules;
mod sessions;
mod stop_requests;
mod stored_bytes;
mod tokens;
mod workspaces;

use std::future::Future;
use std::pin::Pin;

use jiff::Timestamp;
use oubliette_model::{ProjectId, ProjectSettings, TokenId};
use uuid::Uuid;

use crate::{AuditEntry, AuditOutcome, Project, Store};

type CaseFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// One contract test; `run` expects an empty store and panics on failure.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub run: for<'a> fn(&'a dyn Store) -> CaseFuture<'a>,
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
    projects::a_reserved_project_is_hidden_until_it_is_confirmed,
    projects::project_names_are_unique_including_reserved_ones,
    projects::one_of_fifty_concurrent_reservations_succeeds,
    projects::projects_are_found_by_name_and_by_the_beginning_of_the_id,
    projects::updates_from_an_old_revision_are_stale,
    projects::renaming_to_a_taken_name_changes_nothing,
    projects::pages_list_all_projects_ordered_by_name,
    projects::deleting_a_project_deletes_its_tokens_and_workspaces,
    projects::secrets_in_settings_are_stored_and_read_unchanged,
    tokens::a_token_is_found_by_its_hash,
    tokens::a_scope_for_a_missing_project_is_refused,
    tokens::the_last_admin_token_cannot_be_revoked,
    tokens::tokens_are_paged_in_order,
    tokens::a_tree_has_the_owner_of_its_root,
    workspaces::workspaces_belong_to_their_project,
    containers::deleting_a_project_deletes_its_containers,
    containers::a_command_with_an_id_is_added_once_and_keeps_its_result,
    containers::finished_commands_are_found_by_prefix_newest_first,
    containers::adding_a_command_with_an_id_is_audited,
    sessions::a_new_session_has_its_first_event_and_message,
    sessions::sessions_are_found_by_the_beginning_of_the_id_and_counted,
    calls::a_message_that_is_waited_for_has_its_turn,
    calls::only_the_turn_of_a_message_is_stopped,
    joining::joining_queues_the_message_for_the_newest_session,
    joining::only_a_session_with_the_given_settings_is_joined,
    joining::a_message_narrows_the_grant_to_its_senders_scope,
    joining::concurrent_joining_spawns_create_one_session,
    sessions::a_step_is_one_transaction_and_indexes_have_no_gaps,
    checkpoints::the_trees_of_a_turn_are_recorded_with_its_steps,
    checkpoints::work_of_another_tree_after_a_turn_is_found,
    checkpoints::a_session_forgets_the_conversation_of_its_agent,
    charges::charges_are_counted_once_with_the_offset,
    sessions::tree_limits_are_exact,
    sessions::a_decision_is_recorded_once_before_its_deadline,
    sessions::messages_are_queued_in_order_and_resume_an_ended_session,
    stop_requests::a_later_end_request_is_kept_when_an_interrupt_is_handled,
    sessions::a_workspace_in_use_cannot_be_removed,
    stop_requests::only_the_turns_of_a_tree_are_interrupted,
    sessions::tree_events_are_read_in_commit_order,
    sessions::ended_sessions_are_removed_leaves_first,
    stored_bytes::stored_bytes_of_a_project_are_counted_and_waiting_ones_bounded,
    stored_bytes::results_of_commands_count_and_the_oldest_are_dropped,
    stored_bytes::outcomes_of_calls_count_and_the_oldest_become_unknown,
    stored_bytes::tools_and_requests_of_callers_count,
    stored_bytes::schedules_of_a_project_count_and_are_bounded,
    sessions::the_first_prompt_of_a_session_is_found,
    sessions::trimming_events_updates_the_start_of_the_log,
    calls::repeated_calls_create_one_child,
    calls::a_call_gets_the_completion_of_its_own_turn,
    calls::a_repeated_tool_call_returns_its_recorded_outcome,
    calls::session_tokens_end_with_the_agent_or_the_session,
    calls::tree_usage_includes_removed_sessions,
    callers::only_the_owner_token_of_a_session_declares_tools,
    callers::a_caller_request_is_added_once_and_ended_once,
    callers::pending_caller_requests_are_limited,
    callers::a_session_waits_only_while_caller_requests_are_pending,
    schedules::a_schedule_is_read_listed_updated_and_removed,
    schedules::concurrent_firings_for_one_due_time_create_runs_once,
    schedules::an_unfinished_run_affects_later_runs_by_the_overlap_setting,
    schedules::a_run_is_claimed_once_until_its_lease_expires,
    schedules::repeated_spawns_for_a_run_create_one_session,
    schedules::repeated_queueing_for_a_run_sends_the_prompt_once,
    schedules::the_end_of_a_run_is_recorded_once,
    schedules::consecutive_failures_disable_a_schedule,
    schedules::deleting_a_project_removes_its_schedule_targets,
    schedules::runs_are_trimmed_by_count_and_age,
    audit::audit_entries_commit_with_their_write,
    audit::audit_filters_and_pages_agree,
    audit::old_audit_entries_are_trimmed,
    mcp_sessions::mcp_sessions_are_replaced_limited_and_trimmed,
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
        outcome: AuditOutcome::Ok,
        address: None,
    }
}

/// Unwraps a result that a case depends on.
trait Must<T> {
    fn must(self) -> T;
}

impl<T, E: std::fmt::Debug> Must<T> for Result<T, E> {
    #[track_caller]
    fn must(self) -> T {
        self.unwrap_or_else(|error| panic!("the store failed: {error:?}"))
    }
}

trait MustBe<T> {
    fn must_be(self) -> T;
}

impl<T> MustBe<T> for Option<T> {
    #[track_caller]
    fn must_be(self) -> T {
        self.unwrap_or_else(|| panic!("the value is missing"))
    }
}

async fn ready(store: &dyn Store, n: u128, name: &str) -> Project {
    let project = project(n, name);
    store.reserve_project(&project).await.must();
    assert!(store.confirm_project(project.id, None).await.must());
    project
}
