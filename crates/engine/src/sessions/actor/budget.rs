//! What a session uses and costs, and the cost limit of its tree.

use oubliette_agent::{UsageFile, UsageReport};
use oubliette_model::{AwaitedRequestKind, Event, PermissionDecision, Status, StopReason, Usage};
use oubliette_store::{PendingDecision, StopRequest, TreeUsage};

use super::{ActorError, SessionActor};
use crate::gateway::{CallHold, HeldCall, is_own_model};
use crate::sessions::live_agent::CancelReason;
use crate::sessions::permit::BudgetAnswer;

const MIN_BUDGET_INCREASE_USD: f64 = 0.01;

/// What is stored with a budget request for calls that the gate holds. It belongs to its turn, unlike one between turns.
const HELD_DETAIL: &str = "{\"held\":true}";

/// Whether a decision is about calls that the gate holds.
pub(super) fn is_held_request(decision: &PendingDecision) -> bool {
    decision.kind == AwaitedRequestKind::Budget && decision.detail == HELD_DETAIL
}

/// The budget request for held calls among open decisions.
pub(super) fn open_held_request(decisions: &[PendingDecision]) -> Option<String> {
    let mut decisions = decisions.iter();
    let held = decisions.find(|decision| is_held_request(decision))?;
    Some(held.request_id.clone())
}

/// An agent reports the used context several times per call of its model: a change of less than a twentieth
/// of it is logged with the next change of tokens or cost.
fn is_notable_change(logged: (Option<u64>, Option<u64>), now: (Option<u64>, Option<u64>)) -> bool {
    let used = |context: (Option<u64>, Option<u64>)| context.0.unwrap_or(0);
    let size = now.1.unwrap_or(0).max(1);
    used(now).abs_diff(used(logged)) >= size.div_ceil(20)
}

/// What a total has grown by. One that is lower than before is that of a new process.
fn increase(total: Usage, before: Usage) -> Usage {
    let increase = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
    Usage {
        input_tokens: increase(total.input_tokens, before.input_tokens),
        output_tokens: increase(total.output_tokens, before.output_tokens),
        cached_tokens: increase(total.cached_tokens, before.cached_tokens),
        thought_tokens: increase(total.thought_tokens, before.thought_tokens),
        unpriced_turns: 0,
    }
}

impl SessionActor<'_> {
    /// Whether the gate counts what the agent uses: then its own figures do not count.
    fn is_metered(&self) -> bool {
        let live = self.process.live.as_ref();
        let has_placeholder = live.is_some_and(|live| !live.placeholders.is_empty());
        let used = || self.session.choices.used_model.clone();
        let model = self.chosen_model().or_else(used);
        has_placeholder && !model.is_some_and(|model| is_own_model(&self.agent, &model))
    }

    /// Takes over what the gate has counted until now.
    pub(super) async fn take_metered_usage(&mut self) -> Result<(), ActorError> {
        if !self.is_metered() {
            return Ok(());
        }
        if let Err(error) = self.engine.gateway().count_charges().await {
            tracing::warn!(session = %self.session.id, %error, "could not count what a turn cost");
        }
        if let Some(stored) = self.engine.store().session(self.session.id).await? {
            (self.session.usage, self.session.cost_usd) = (stored.usage, stored.cost_usd);
        }
        Ok(())
    }

    /// Stops the turns of the tree if the gate has counted more than it may cost.
    pub(super) async fn enforce_metered_budget(&mut self) -> Result<(), ActorError> {
        if self.process.in_turn() && self.is_metered() {
            self.enforce_budget().await?;
        }
        Ok(())
    }

    /// Logs the context of a session whose tokens the gate counts.
    fn log_context(&mut self) {
        let Some(live) = &mut self.process.live else {
            return;
        };
        let context = live.context;
        if !is_notable_change(live.logged_context, context) {
            return;
        }
        live.logged_context = context;
        self.step.events.push(Event::Usage {
            usage: self.session.usage,
            cost_usd: self.session.total_cost_usd(),
            model: self.session.choices.used_model.clone(),
            context_used: context.0,
            context_size: context.1,
            is_estimate: false,
        });
    }

    /// Adds the usage that an agent reported; whether usage or cost changed.
    pub(super) fn add_usage(&mut self, reported: UsageReport) -> bool {
        let is_metered = self.is_metered();
        let Some(live) = &mut self.process.live else {
            return false;
        };
        if reported.context_used.is_some() {
            live.context = (reported.context_used, reported.context_size);
        }
        if is_metered {
            return false;
        }
        if let Some(call) = reported.call {
            live.call_tokens = live.call_tokens.saturating_add(call);
        }
        let context = live.context;
        let context_changed = is_notable_change(live.logged_context, context);
        let (mut usage, mut cost) = (self.session.usage, self.session.cost_usd);
        if let Some(total) = reported.cost_usd {
            // A total that is lower than before is that of a new process.
            let counted = Some(live.reported_cost_usd).filter(|before| total >= *before);
            cost += total - counted.unwrap_or(0.0);
            live.reported_cost_usd = total;
            live.reports_cost = true;
        }
        let reports_cost = live.reports_cost;
        if let Some(turn) = reported.turn {
            usage = usage.saturating_add(turn);
            if !reports_cost {
                cost += self.price(turn).unwrap_or(0.0);
            }
        }
        let usage_changed = usage != self.session.usage || cost != self.session.cost_usd;
        if usage_changed || context_changed {
            if let Some(live) = &mut self.process.live {
                live.logged_context = context;
            }
            self.session.usage = usage;
            self.session.cost_usd = cost;
            self.step.changes.usage = Some((usage, cost));
            self.step.events.push(Event::Usage {
                usage,
                cost_usd: self.session.total_cost_usd(),
                model: self.session.choices.used_model.clone(),
                context_used: context.0,
                context_size: context.1,
                is_estimate: false,
            });
        }
        usage_changed
    }

    /// Counts a turn that ended. If its cost is unknown, that is counted too, and said once.
    pub(super) fn count_turn_cost(&mut self, reported: UsageReport) {
        if self.is_metered() {
            self.log_context();
            return;
        }
        let live = self.process.live.as_ref();
        let known = self.agent.is_free
            || reported.cost_usd.is_some()
            || live.is_some_and(|live| live.reports_cost)
            || reported.turn.is_some_and(|turn| self.price(turn).is_some());
        if known {
            self.add_usage(reported);
            return;
        }
        if self.session.usage.unpriced_turns == 0 {
            self.step.events.log(format!(
                "the cost of this session is unknown: {} reports none, and the configuration has no \
                 price for its model (`[models.\"NAME\"]`, with `model` set for the project or the \
                 session); `max_cost_usd` does not limit what it spends",
                self.agent.name
            ));
        }
        let mut turn = reported.turn.unwrap_or_default();
        turn.unpriced_turns = 1;
        self.add_usage(UsageReport {
            turn: Some(turn),
            ..reported
        });
    }

    /// The cost of tokens by the configured prices; none if the model has no price.
    fn price(&self, usage: Usage) -> Option<f64> {
        let used = || self.session.choices.used_model.clone();
        let model = self.chosen_model().or_else(used)?;
        let price = self.engine.settings().models.get(&model)?;
        let cost = |tokens: u64, usd_per_million: f64| tokens as f64 * usd_per_million / 1e6;
        let uncached = usage.input_tokens.saturating_sub(usage.cached_tokens);
        Some(
            cost(uncached, price.input_usd)
                + cost(usage.cached_tokens, price.cached_usd)
                + cost(usage.output_tokens + usage.thought_tokens, price.output_usd),
        )
    }

    /// The tokens of the turn that ends, from what the agent reports with its end or has reported during it.
    pub(super) fn tokens_of_turn(&mut self, reported: Option<Usage>) -> Option<Usage> {
        let live = self.process.live.as_mut()?;
        let calls = std::mem::take(&mut live.call_tokens);
        let turn = match reported {
            Some(total) if self.agent.reports_totals => {
                let before = std::mem::replace(&mut live.reported_tokens, total);
                Some(increase(total, before))
            }
            reported => reported,
        };
        turn.or(Some(calls)).filter(|turn| !turn.is_zero())
    }

    /// The tokens of this turn, computed from the totals that the agent keeps in a file.
    pub(super) async fn read_usage_file(&self, file: UsageFile) -> Option<Usage> {
        let path = file
            .file
            .glob(self.agent_home(), self.session.agent_session_id.as_deref()?)?;
        let text = self.run_script(&format!("cat {path}")).await?;
        let total = (file.parse_totals)(&text)?;
        Some(increase(total, self.session.usage))
    }

    /// The cost limit of each tree in the project of the root, as it is now: `project_update` changes it while agents
    /// run. A child can be in another project, which its agent may have created with a higher limit.
    async fn root_cost_limit(&self) -> Result<f64, ActorError> {
        let limits = self.engine.sessions().tree_limits(&self.session).await?;
        Ok(limits.cost_usd)
    }

    /// What the tree has used, and the limit of its cost.
    async fn tree_cost(&self) -> Result<(TreeUsage, f64), ActorError> {
        let store = self.engine.store();
        let used = store
            .tree_usage(self.session.root_id, self.engine.now())
            .await?;
        let limit = match used.cost_limit {
            Some(limit) => limit,
            None => self.root_cost_limit().await?,
        };
        Ok((used, limit))
    }

    pub(super) async fn is_over_budget(&self) -> Result<bool, ActorError> {
        let (used, limit) = self.tree_cost().await?;
        Ok(used.cost_usd >= limit)
    }

    /// Stops all turns of the tree when it has reached its cost limit, and asks for a higher one.
    pub(super) async fn enforce_budget(&mut self) -> Result<(), ActorError> {
        if self.session.cost_usd == 0.0 || !self.is_over_budget().await? {
            return Ok(());
        }
        let (root, own) = (self.session.root_id, self.session.id);
        match self.process.turn() {
            Some(turn) if turn.cancelled.is_none() => {
                self.cancel_turn(CancelReason::Budget).await?;
                self.commit().await?;
                self.engine.sessions().interrupt_tree(root, own).await?;
            }
            None if self.session.status == Status::Idle => {
                self.engine.sessions().interrupt_tree(root, own).await?;
                // Another session of the tree may have asked to interrupt the turn that has just ended.
                self.step.changes.handled_stop_request = Some(StopRequest::Interrupt);
                self.request_budget().await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The error of a turn that the cost limit has stopped.
    pub(super) async fn over_budget_error(&self) -> Result<String, ActorError> {
        let (used, limit) = self.tree_cost().await?;
        Ok(format!(
            "the tree of sessions has cost {:.4} USD of its `max_cost_usd`, {limit:.4}; answer the request in \
             `waiting_for` of `session_get` with `session_permit` to raise the limit of this tree, or raise \
             the project's limit with `project_update`",
            used.cost_usd
        ))
    }

    /// What a turn ends with. If it failed because its last call had no room in the budget, it says so: agents name
    /// other reasons for a request that was forbidden.
    pub(super) fn explained_by_budget(
        &self,
        stop_reason: StopReason,
        error: Option<String>,
    ) -> (StopReason, Option<String>) {
        let refusal = self.engine.gateway().take_refusal(self.session.id);
        match refusal.filter(|_| stop_reason == StopReason::Error) {
            Some(reason) => (StopReason::Limit, Some(reason)),
            None => (stop_reason, error),
        }
    }

    /// The limit of the tree after an `allow` that names none: the project's limit once more.
    async fn raised_limit(&self, used: &TreeUsage) -> Result<f64, ActorError> {
        let increase = self.root_cost_limit().await?.max(MIN_BUDGET_INCREASE_USD);
        Ok(used.cost_usd + increase)
    }

    /// Asks callers for a higher cost limit.
    pub(super) async fn request_budget(&mut self) -> Result<(), ActorError> {
        let (used, limit) = self.tree_cost().await?;
        let raised = self.raised_limit(&used).await?;
        let title = format!(
            "the tree of sessions has cost {:.4} USD; its limit is {limit:.4} (`max_cost_usd`)",
            used.cost_usd
        );
        let input = serde_json::json!({
            "cost_usd": used.cost_usd, "max_cost_usd": limit, "raised_max_cost_usd": raised,
        });
        self.request_decision(AwaitedRequestKind::Budget, title, input, "{}".to_owned())
            .await
    }

    /// Asks callers for a higher cost limit while the gate holds calls of the turn that have no room in it, and no
    /// longer.
    pub(super) async fn follow_held_calls(&mut self) -> Result<(), ActorError> {
        if !self.is_metered() {
            return Ok(());
        }
        let gateway = self.engine.gateway();
        if let Some(note) = gateway.take_note(self.session.id) {
            self.step.events.log(note);
            self.commit().await?;
        }
        let turn = self.process.turn();
        let may_ask = turn.is_some_and(|turn| turn.cancelled.is_none());
        match (gateway.hold_of(self.session.id), self.held_request.take()) {
            (CallHold::Budget(call), None) if may_ask => self.request_call_budget(&call).await,
            (CallHold::Nothing { went_on }, Some(request)) => {
                let decision = if went_on {
                    PermissionDecision::Allow
                } else {
                    PermissionDecision::Deny
                };
                self.withdraw_decision(request, decision).await
            }
            (_, request) => {
                self.held_request = request;
                Ok(())
            }
        }
    }

    /// Asks callers for a higher cost limit, for a call that the gate holds.
    async fn request_call_budget(&mut self, call: &HeldCall) -> Result<(), ActorError> {
        let (used, limit) = self.tree_cost().await?;
        let raised = self.raised_limit(&used).await?;
        let title = format!(
            "a call of `{}` could cost {:.4} USD; the tree of sessions has cost {:.4}, and its limit is {limit:.4} \
             (`max_cost_usd`)",
            call.model, call.cost_usd, used.cost_usd
        );
        let input = serde_json::json!({
            "call_cost_usd": call.cost_usd, "cost_usd": used.cost_usd, "max_cost_usd": limit,
            "raised_max_cost_usd": raised,
        });
        let (kind, detail) = (AwaitedRequestKind::Budget, HELD_DETAIL.to_owned());
        if let Some(live) = &mut self.process.live {
            self.step.events.end_text(live);
        }
        let requested = self.request_decision_until(kind, title, input, detail, call.until);
        self.held_request = Some(requested.await?);
        Ok(())
    }

    /// Raises the cost limit of the tree.
    pub(super) async fn raise_budget(&mut self, answer: Option<String>) -> Result<(), ActorError> {
        let answer = answer.and_then(|answer| serde_json::from_str(&answer).ok());
        let BudgetAnswer { max_cost_usd } = answer.unwrap_or_default();
        let (used, _) = self.tree_cost().await?;
        let limit = match max_cost_usd {
            Some(limit) => limit,
            None => self.raised_limit(&used).await?,
        };
        self.step.changes.cost_limit = Some(limit);
        Ok(())
    }

    /// Ends the queued messages, because the tree may not cost more.
    pub(super) async fn end_queued_messages(&mut self) -> Result<(), ActorError> {
        let error = self.over_budget_error().await?;
        while let Some(message) = self.engine.store().next_message(self.session.id).await? {
            self.complete_unstarted(&message, StopReason::Limit, Some(error.clone()));
            self.commit().await?;
        }
        Ok(())
    }
}
