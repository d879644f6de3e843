//! What a session uses and costs, and the cost limit of its tree.

use oubliette_agent::{UsageFile, UsageReport};
use oubliette_model::{AwaitedRequestKind, Event, PermissionDecision, Status, StopReason, Usage};
use oubliette_store::TreeUsage;

use super::output::AGENT_HOME;
use super::{ActorError, SessionActor};
use crate::sessions::live_agent::CancelReason;
use crate::sessions::permit::BudgetAnswer;

const MIN_BUDGET_INCREASE_USD: f64 = 0.01;

pub(super) const OVER_BUDGET: &str = "the tree of sessions has reached its `max_cost_usd`; answer \
    the request with `session_permit` to raise the limit of this tree, or raise the project's limit \
    with `project_update`";

impl SessionActor<'_> {
    /// Adds the usage that an agent reported; whether usage or cost changed.
    pub(super) fn add_usage(&mut self, reported: UsageReport) -> bool {
        let Some(live) = &mut self.process.live else {
            return false;
        };
        let context = (reported.context_used, reported.context_size);
        let context_changed = context.0.is_some() && context != live.logged_context;
        if context_changed {
            live.logged_context = context;
        }
        let (mut usage, mut cost) = (self.session.usage, self.session.cost_usd);
        if let Some(total) = reported.cost_usd {
            // A total that is lower than before is that of a new process.
            let counted = Some(live.reported_cost_usd).filter(|before| total >= *before);
            cost += total - counted.unwrap_or(0.0);
            live.reported_cost_usd = total;
            live.reports_cost = true;
        }
        if let Some(turn) = reported.turn {
            usage = usage.saturating_add(turn);
            if !live.reports_cost {
                cost += self.price(turn);
            }
        }
        let usage_changed = usage != self.session.usage || cost != self.session.cost_usd;
        if usage_changed || context_changed {
            self.session.usage = usage;
            self.session.cost_usd = cost;
            self.step.changes.usage = Some((usage, cost));
            self.step.events.push(Event::Usage {
                usage,
                cost_usd: cost,
                context_used: reported.context_used,
                context_size: reported.context_size,
            });
        }
        usage_changed
    }

    /// The cost of tokens by the configured prices.
    fn price(&self, usage: Usage) -> f64 {
        let own = self.session.choices.model.as_ref();
        let Some(model) = own.or(self.project.settings.model.as_ref()) else {
            return 0.0;
        };
        let Some(price) = self.engine.settings().models.get(model) else {
            return 0.0;
        };
        let cost = |tokens: u64, usd_per_million: f64| tokens as f64 * usd_per_million / 1e6;
        let uncached = usage.input_tokens.saturating_sub(usage.cached_tokens);
        cost(uncached, price.input_usd)
            + cost(usage.cached_tokens, price.cached_usd)
            + cost(usage.output_tokens + usage.thought_tokens, price.output_usd)
    }

    /// The tokens of this turn, computed from the totals that the agent keeps in a file.
    pub(super) async fn read_usage_file(&self, file: UsageFile) -> Option<Usage> {
        let path = file
            .file
            .glob(AGENT_HOME, self.session.agent_session_id.as_deref()?)?;
        let text = self.run_script(&format!("cat {path}")).await?;
        let total = (file.parse_totals)(&text)?;
        let before = self.session.usage;
        let increase = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        Some(Usage {
            input_tokens: increase(total.input_tokens, before.input_tokens),
            output_tokens: increase(total.output_tokens, before.output_tokens),
            cached_tokens: increase(total.cached_tokens, before.cached_tokens),
            thought_tokens: increase(total.thought_tokens, before.thought_tokens),
        })
    }

    fn project_cost_limit(&self) -> f64 {
        let own = self.project.settings.limits.max_cost_usd;
        own.unwrap_or(self.engine.settings().limits.max_cost_usd)
    }

    /// What the tree has used, and the limit of its cost.
    async fn tree_cost(&self) -> Result<(TreeUsage, f64), ActorError> {
        let store = self.engine.store();
        let used = store
            .tree_usage(self.session.root_id, self.engine.now())
            .await?;
        let limit = used.cost_limit.unwrap_or_else(|| self.project_cost_limit());
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
                self.request_budget().await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Asks callers for a higher cost limit.
    pub(super) async fn request_budget(&mut self) -> Result<(), ActorError> {
        let (used, limit) = self.tree_cost().await?;
        let title = format!(
            "the tree of sessions has cost {:.4} USD; its limit is {limit:.4} (`max_cost_usd`)",
            used.cost_usd
        );
        let input = serde_json::json!({ "cost_usd": used.cost_usd, "max_cost_usd": limit });
        self.request_decision(AwaitedRequestKind::Budget, title, input, "{}".to_owned())
            .await
    }

    /// Raises the cost limit of the tree, or ends the queued messages.
    pub(super) async fn apply_budget_decision(
        &mut self,
        verdict: PermissionDecision,
        answer: Option<String>,
    ) -> Result<(), ActorError> {
        if verdict != PermissionDecision::Deny {
            let answer = answer.and_then(|answer| serde_json::from_str(&answer).ok());
            let BudgetAnswer { max_cost_usd } = answer.unwrap_or_default();
            let (used, _) = self.tree_cost().await?;
            let increase = self.project_cost_limit().max(MIN_BUDGET_INCREASE_USD);
            let limit = max_cost_usd.unwrap_or(used.cost_usd + increase);
            self.step.changes.cost_limit = Some(limit);
            return Ok(());
        }
        while let Some(message) = self.engine.store().next_message(self.session.id).await? {
            let error = Some(OVER_BUDGET.to_owned());
            self.complete_unstarted(&message, StopReason::Limit, error);
            self.commit().await?;
        }
        Ok(())
    }
}
