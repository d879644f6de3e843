//! The extension `io.modelcontextprotocol/tasks`: a client that declares it gets the wait for an agent's turn as
//! a task, which it asks for now and then.
//!
//! The id of a task is that of the turn, and its state is in the store: no task is kept in memory.

use std::time::Duration;

use oubliette_engine::operations::ToolNames;
use oubliette_engine::{Actor, Call, PolledTurn, TurnId, TurnState};
use rmcp::RoleServer;
use rmcp::model::{
    CallToolResponse, CancelTaskMethod, CancelTaskParams, ConstString, CreateTaskResult,
    DetailedTask, ErrorData, GetTaskMethod, GetTaskParams, GetTaskResult, JsonObject,
    ProtocolVersion, Task, TaskPayload, TaskStatus, UpdateTaskMethod, UpdateTaskParams,
};
use rmcp::service::RequestContext;
use serde::Serialize;
use serde_json::Value;

use super::call::tool_result;
use super::handler::{Handler, requesting_actor};
use crate::errors;

/// The first protocol version with the extension.
pub(super) const FIRST_VERSION: ProtocolVersion = ProtocolVersion::V_2026_07_28;

/// Shorter than the time after which a caller that does not call counts as disconnected.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Whether the client of a request has tasks.
pub(super) fn are_supported(context: &RequestContext<RoleServer>) -> bool {
    let version = context.protocol_version();
    // Versions are dates, which sort as text.
    version.is_some_and(|version| version.as_str() >= FIRST_VERSION.as_str())
        && context
            .client_capabilities()
            .is_some_and(|declared| declared.supports_tasks())
}

fn require_support<M: ConstString>(context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
    if are_supported(context) {
        Ok(())
    } else {
        Err(ErrorData::method_not_found::<M>())
    }
}

impl Handler {
    /// The response to a call that has ended before its turn.
    pub(super) async fn create_task(
        &self,
        context: &RequestContext<RoleServer>,
        actor: &Actor,
        turn: TurnId,
        names: ToolNames,
    ) -> Result<CallToolResponse, ErrorData> {
        let polled = self.engine.sessions().poll_turn(actor, turn).await;
        let polled = polled.map_err(|error| errors::mcp_task_error(&error, names))?;
        let task = new_task(turn, &polled);
        Ok(match polled.state {
            // It has ended meanwhile.
            TurnState::Ended(value) => tool_result(value, context).into(),
            state => {
                let task = task_of_state(task, state, names, context)?.task;
                CallToolResponse::Task(CreateTaskResult::new(task))
            }
        })
    }

    pub(super) async fn poll_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        require_support::<GetTaskMethod>(&context)?;
        let (actor, names) = (requesting_actor(&context)?, self.names(&context));
        let polled = async {
            let turn = TurnId::parse(&request.task_id)?;
            let polled = self.engine.sessions().poll_turn(&actor, turn).await?;
            Ok((turn, polled))
        };
        let polled = polled.await;
        let (turn, polled) = polled.map_err(|error| errors::mcp_task_error(&error, names))?;
        let task = new_task(turn, &polled);
        task_of_state(task, polled.state, names, &context).map(GetTaskResult::new)
    }

    pub(super) async fn stop_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        require_support::<CancelTaskMethod>(&context)?;
        let (actor, names) = (requesting_actor(&context)?, self.names(&context));
        let call = Call::new().with_cancellation(context.ct.clone());
        let stopped = async {
            let turn = TurnId::parse(&request.task_id)?;
            self.engine.sessions().cancel_turn(&actor, turn, call).await
        };
        let stopped = stopped.await;
        stopped.map_err(|error| errors::mcp_task_error(&error, names))
    }

    /// Refuses input for a task: its agent asks by permission requests and calls of tools.
    pub(super) async fn refuse_input(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        require_support::<UpdateTaskMethod>(&context)?;
        let (actor, names) = (requesting_actor(&context)?, self.names(&context));
        let found = async {
            let turn = TurnId::parse(&request.task_id)?;
            self.engine.sessions().check_turn(&actor, turn).await
        };
        let found = found.await;
        found.map_err(|error| errors::mcp_task_error(&error, names))?;
        let text = "the task takes no input: answer an agent that asks for permission with `session_permit`, and \
                    one that calls your tool with `caller_tool_response`";
        Err(ErrorData::invalid_params(
            names.apply(text).into_owned(),
            None,
        ))
    }
}

fn new_task(turn: TurnId, polled: &PolledTurn) -> Task {
    let (created, updated) = (polled.created_at, polled.updated_at);
    Task::new(
        turn.to_string(),
        TaskStatus::Working,
        created.to_string(),
        updated.to_string(),
    )
    .with_ttl_ms(milliseconds(polled.retention))
    .with_poll_interval_ms(milliseconds(POLL_INTERVAL))
}

fn milliseconds(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

/// A task with the state of its turn. A turn that failed has a result, as the call would have had:
/// `failed` is for calls without one.
fn task_of_state(
    task: Task,
    state: TurnState,
    names: ToolNames,
    context: &RequestContext<RoleServer>,
) -> Result<DetailedTask, ErrorData> {
    let with_message = |text: &str| {
        task.clone()
            .with_status_message(names.apply(text).into_owned())
    };
    Ok(match state {
        TurnState::Working(text) => DetailedTask::new(with_message(&text), TaskPayload::Working),
        TurnState::Cancelled(text) => {
            DetailedTask::new(with_message(&text), TaskPayload::Cancelled)
        }
        TurnState::Ended(value) => {
            let result = to_object(&tool_result(value, context))?;
            DetailedTask::new(task, TaskPayload::Completed { result })
        }
        TurnState::Lost(error) => {
            let error = to_object(&errors::mcp_task_error(&error, names))?;
            DetailedTask::new(task, TaskPayload::Failed { error })
        }
    })
}

fn to_object(value: &impl Serialize) -> Result<JsonObject, ErrorData> {
    match serde_json::to_value(value) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(ErrorData::internal_error(
            "the result of the task is not an object",
            None,
        )),
    }
}
