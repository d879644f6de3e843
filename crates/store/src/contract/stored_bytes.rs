//! Contract tests for what the store has because of a project.

use oubliette_model::{CallerToolOutcome, Event, KeyHash, ProjectId, Scope, Status, StopReason};
use serde_json::json;
use uuid::Uuid;

use super::schedules::{add_schedule, schedule};
use super::sessions::{ending, message, new, session, spawned};
use super::{Must, at, ready, token_id};
use crate::{
    CallerRequest, CallerRequestResult, DROPPED_RESULT, Exec, MAX_KEPT_OUTCOMES,
    MAX_KEPT_RESULT_BYTES, MAX_KEPT_RESULTS, MAX_SCHEDULE_PROMPT_BYTES, MAX_SCHEDULES, Schedule,
    ScheduleUpdate, SessionMessage, SessionStep, Store, StoreError, Token, ToolCallStart,
    ToolDeclaration, VisibleProjects,
};

async fn stored(store: &dyn Store, project: ProjectId) -> u64 {
    let stored = store.stored_bytes().await.must();
    stored.get(&project).copied().unwrap_or(0)
}

pub(super) async fn stored_bytes_of_a_project_are_counted_and_waiting_ones_bounded(
    store: &dyn Store,
) {
    let one = ready(store, 1, "one").await.id;
    let other = ready(store, 2, "two").await.id;
    let first = spawned(store, &new(session(1, one, 1), "go")).await;
    let second = spawned(store, &new(session(2, one, 1), "go")).await;
    let foreign = spawned(store, &new(session(3, other, 1), "go")).await;
    let stored = async || store.stored_bytes().await.must()[&one];
    let before = stored().await;
    // Two sessions share what a project may have waiting.
    let large = message(&"x".repeat(10 << 20), 2);
    let mut accepted = 0;
    loop {
        let id = if accepted % 2 == 0 {
            first.id
        } else {
            second.id
        };
        match store.queue_message(id, &large, None).await {
            Ok(_) => accepted += 1,
            Err(StoreError::QueueFull { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(accepted, 6);
    store.queue_message(foreign.id, &large, None).await.must();
    let full = stored().await;
    assert!(full - before >= 60 << 20 && full - before < 61 << 20);
    let drop_all = SessionStep {
        at: at(3),
        drop_messages: true,
        events: vec![Event::Completion {
            text: "y".repeat(1 << 20),
            stop_reason: StopReason::EndTurn,
            error: None,
            kind: oubliette_model::TurnKind::Prompt,
            changed: None,
        }],
        ..SessionStep::default()
    };
    store.commit_step(first.id, drop_all).await.must();
    let dropped = full - stored().await;
    assert!(dropped > 28 << 20 && dropped < 30 << 20, "{dropped}");
    store.queue_message(second.id, &large, None).await.must();
    let with_log = stored().await;
    store.trim_events(at(100), 1000).await.must();
    store
        .commit_step(first.id, ending(Status::Completed, 4))
        .await
        .must();
    let visible = VisibleProjects::Only(one);
    store
        .remove_ended_sessions(visible, at(100), None)
        .await
        .must();
    assert!(with_log - stored().await >= 1 << 20);
}

pub(super) async fn schedules_of_a_project_count_and_are_bounded(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let two = ready(store, 2, "two").await.id;
    let with_prompt = |n: u128, projects: &[ProjectId], bytes: usize| Schedule {
        prompt: "p".repeat(bytes),
        ..schedule(n, projects, 10)
    };
    for n in 0..7 {
        add_schedule(store, with_prompt(n, &[one], 1 << 20)).await;
    }
    let shared = add_schedule(store, with_prompt(8, &[one, two], 1 << 20)).await;
    assert_eq!(stored(store, one).await, MAX_SCHEDULE_PROMPT_BYTES);
    assert_eq!(stored(store, two).await, 1 << 20);
    let refused = store
        .add_schedule(&with_prompt(9, &[two, one], 1), None)
        .await;
    assert!(
        matches!(refused, Err(StoreError::TooManySchedules { project, .. }) if project == one),
        "{refused:?}"
    );
    // A schedule can still shrink, but not grow.
    let longer = Schedule {
        prompt: "p".repeat((1 << 20) + 1),
        ..shared.clone()
    };
    assert!(store.update_schedule(&longer, None).await.is_err());
    let shorter = Schedule {
        prompt: "p".repeat(1 << 19),
        ..shared.clone()
    };
    let updated = store.update_schedule(&shorter, None).await.must();
    assert_eq!(updated, ScheduleUpdate::Done);

    for n in 1..u128::from(MAX_SCHEDULES) {
        add_schedule(store, with_prompt(1000 + n, &[two], 1)).await;
    }
    let refused = store.add_schedule(&with_prompt(9, &[two], 1), None).await;
    assert!(
        matches!(refused, Err(StoreError::TooManySchedules { .. })),
        "{refused:?}"
    );
    store.remove_schedule(shared.id, None).await.must();
    add_schedule(store, with_prompt(9, &[two], 1)).await;
}

async fn add_result(store: &dyn Store, project_id: ProjectId, n: u32, result: &str) {
    let exec = Exec {
        project_id,
        exec_id: format!("{n}"),
        boot_id: "b".to_owned(),
        started_at: at(n.into()),
        command_hash: None,
        result: None,
    };
    store.add_exec(&exec, None).await.must();
    let id = &exec.exec_id;
    store.set_exec_result(project_id, id, result).await.must();
}

pub(super) async fn results_of_commands_count_and_the_oldest_are_dropped(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let two = ready(store, 2, "two").await.id;
    let result = async |project, n: u32| {
        let exec = store.exec(project, &n.to_string()).await.must();
        exec.and_then(|exec| exec.result)
    };
    let large = "r".repeat(2 << 20);
    for n in 0..10 {
        add_result(store, one, n, &large).await;
        add_result(store, two, n, "small").await;
    }
    let used = stored(store, one).await;
    assert!((MAX_KEPT_RESULT_BYTES..MAX_KEPT_RESULT_BYTES + (1 << 20)).contains(&used));
    assert_eq!(result(one, 5).await.as_deref(), Some(DROPPED_RESULT));
    assert_eq!(result(one, 6).await.as_deref(), Some(large.as_str()));
    assert_eq!(result(two, 0).await.as_deref(), Some("small"));
    let listed = store.finished_execs(one, "", 99).await.must();
    assert_eq!(listed.len(), 4);
    // The newest is kept whatever its size.
    let huge = "r".repeat(9 << 20);
    add_result(store, one, 10, &huge).await;
    assert_eq!(result(one, 10).await.as_deref(), Some(huge.as_str()));
    assert_eq!(result(one, 9).await.as_deref(), Some(DROPPED_RESULT));

    for n in 10..=MAX_KEPT_RESULTS {
        add_result(store, two, n, "small").await;
    }
    assert_eq!(result(two, 0).await.as_deref(), Some(DROPPED_RESULT));
    assert_eq!(result(two, 1).await.as_deref(), Some("small"));
}

pub(super) async fn outcomes_of_calls_count_and_the_oldest_become_unknown(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let token = Token {
        id: token_id(1),
        name: "agent".to_owned(),
        scope: Scope::Project(one, oubliette_model::Mode::Write),
        session_id: None,
        minted: false,
        created_at: at(0),
        expires_at: None,
        revoked_at: None,
    };
    let added = store.add_token(&token, KeyHash::from_bytes([1; 32]), None);
    assert!(added.await.must());
    let begin = |n: u32| {
        let call = Uuid::from_u128(n.into());
        store.begin_tool_call(token.id, call, at(n.into()))
    };
    let end = async |n: u32, outcome: &str| {
        assert_eq!(begin(n).await.must(), ToolCallStart::New);
        let call = Uuid::from_u128(n.into());
        store.end_tool_call(token.id, call, outcome).await.must();
    };
    for n in 0..6 {
        end(n, &"o".repeat(1 << 20)).await;
    }
    assert_eq!(stored(store, one).await, 4 << 20);
    assert_eq!(begin(1).await.must(), ToolCallStart::Unknown);
    for n in 6..=6 + MAX_KEPT_OUTCOMES {
        end(n, "small").await;
    }
    assert_eq!(begin(6).await.must(), ToolCallStart::Unknown);
    let kept = ToolCallStart::Repeated("small".to_owned());
    assert_eq!(begin(7).await.must(), kept);
}

pub(super) async fn tools_and_requests_of_callers_count(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let declaration = ToolDeclaration {
        caller_id: "app".to_owned(),
        tools: "t".repeat(3 << 20),
        token_id: token_id(1),
    };
    let created = spawned(store, &new(session(1, one, 1), "go")).await;
    let declaring = SessionMessage {
        declaration: Some(declaration),
        ..message("more", 2)
    };
    store
        .queue_message(created.id, &declaring, None)
        .await
        .must();
    let with_tools = stored(store, one).await;
    assert!(with_tools >= 3 << 20, "{with_tools}");
    let request = CallerRequest {
        session_id: created.id,
        request_id: Uuid::from_u128(1),
        call_id: Uuid::from_u128(2),
        tool: "send".to_owned(),
        arguments: json!({ "text": "a".repeat(1 << 20) }),
        asked_at: at(10),
        deadline: at(100),
        event_index: 0,
        delivered: false,
        result: None,
    };
    store.add_caller_request(&request).await.must();
    let answer = CallerRequestResult {
        outcome: CallerToolOutcome::Answered,
        answer: json!("b".repeat(1 << 20)),
    };
    let event = Event::log("ended");
    let id = request.request_id;
    store
        .end_caller_request(created.id, id, &answer, event, at(20), None)
        .await
        .must();
    // The arguments are also in the log.
    let with_request = stored(store, one).await;
    assert!(with_request - with_tools >= 3 << 20, "{with_request}");
}
