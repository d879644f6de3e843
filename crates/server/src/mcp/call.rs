//! One tool call: its arguments in, progress while it runs, its result out.

use std::time::Duration;

use oubliette_engine::{Call, Progress};
use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorData, ProgressNotificationParam,
    ProgressToken,
};
use rmcp::service::{Peer, RequestContext};
use tokio::sync::watch;

use super::handler::{Handler, actor};
use crate::errors;

/// Progress is told at most so often; what comes in between is overtaken by what is newer.
const PACE: Duration = Duration::from_millis(200);

impl Handler {
    pub(super) async fn call(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let actor = actor(&context)?;
        let arguments = request.arguments.unwrap_or_default();
        let call = Call::new().with_cancellation(context.ct.clone());
        let (call, teller) = match context.meta.get_progress_token() {
            Some(token) => {
                let (latest, changes) = watch::channel(None);
                let call = call.with_progress(move |progress| drop(latest.send(Some(progress))));
                (call, Some(tell(context.peer.clone(), token, changes)))
            }
            None => (call, None),
        };
        let running = self.engine.call(&actor, &request.name, arguments, call);
        let result = match teller {
            // Nothing may be told about a call after its answer: the teller ends with the call.
            Some(teller) => tokio::select! {
                result = running => result,
                never = teller => match never {},
            },
            None => running.await,
        };
        match result {
            Ok(value) => Ok(CallToolResult::structured(value).into()),
            Err(error) => errors::render(&error).map(Into::into),
        }
    }
}

/// Tells the client of progress for as long as it is polled.
async fn tell(
    peer: Peer<RoleServer>,
    token: ProgressToken,
    mut changes: watch::Receiver<Option<Progress>>,
) -> std::convert::Infallible {
    let mut told = 0.0;
    while changes.changed().await.is_ok() {
        let Some(progress) = changes.borrow_and_update().clone() else {
            continue;
        };
        // The protocol wants every notification's progress to be larger than the one before.
        told = if progress.done > told {
            progress.done
        } else {
            told + 0.001
        };
        let mut notification =
            ProgressNotificationParam::new(token.clone(), told).with_message(progress.message);
        if let Some(total) = progress.total {
            notification = notification.with_total(total.max(told));
        }
        if peer.notify_progress(notification).await.is_err() {
            break;
        }
        tokio::time::sleep(PACE).await;
    }
    std::future::pending().await
}
