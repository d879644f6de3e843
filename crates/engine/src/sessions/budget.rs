//! What a session uses and costs, and what its tree may.

use oubliette_agent::{UsageFile, UsageReport};
use oubliette_model::{Event, Status, StopReason, Usage, Verdict, WaitingKind};
use serde::{Deserialize, Serialize};

use super::live::Cancelled;
use super::owner::{HOME, Owner, Stop};

/// What comes with a decision about money.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct BudgetAnswer {
    pub(super) max_cost_usd: Option<f64>,
}

impl Owner<'_> {
    /// Adds up what an agent reported; whether that changed anything.
    pub(super) fn take_usage(&mut self, reported: UsageReport) -> bool {
        let Some(live) = &mut self.live else {
            return false;
        };
        let context = (reported.context_used, reported.context_size);
        let moved = context.0.is_some() && context != live.context_seen;
        if moved {
            live.context_seen = context;
        }
        let (mut usage, mut cost) = (self.session.usage, self.session.cost_usd);
        if let Some(total) = reported.cost_usd {
            // A total that went down began again with another process.
            let more = match total >= live.cost_seen {
                true => total - live.cost_seen,
                false => total,
            };
            cost += more;
            live.cost_seen = total;
            live.reports_cost = true;
        }
        if let Some(turn) = reported.turn {
            usage = usage.plus(turn);
            if !live.reports_cost {
                cost += self.price(turn);
            }
        }
        let changed = usage != self.session.usage || cost != self.session.cost_usd;
        if changed || moved {
            self.session.usage = usage;
            self.session.cost_usd = cost;
            self.step.usage = Some((usage, cost));
            self.scribe.events.push(Event::Usage {
                usage,
                cost_usd: cost,
                context_used: reported.context_used,
                context_size: reported.context_size,
            });
        }
        changed
    }

    /// What tokens cost by the configuration's table.
    pub(super) fn price(&self, usage: Usage) -> f64 {
        let own = self.session.choices.model.as_ref();
        let Some(model) = own.or(self.project.settings.model.as_ref()) else {
            return 0.0;
        };
        let Some(price) = self.engine.settings().models.get(model) else {
            return 0.0;
        };
        let million = |tokens: u64, dollars: f64| tokens as f64 * dollars / 1e6;
        let fresh = usage.input_tokens.saturating_sub(usage.cached_tokens);
        million(fresh, price.input_usd)
            + million(usage.cached_tokens, price.cached_usd)
            + million(usage.output_tokens + usage.thought_tokens, price.output_usd)
    }

    /// The tokens of this turn, from the totals that the agent keeps in a file of its own.
    pub(super) async fn read_usage(&self, file: UsageFile) -> Option<Usage> {
        let path = file
            .file
            .glob(HOME, self.session.agent_session_id.as_deref()?)?;
        let text = self.shell(&format!("cat {path}")).await?;
        let total = (file.parse_totals)(&text)?;
        let before = self.session.usage;
        let less = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
        Some(Usage {
            input_tokens: less(total.input_tokens, before.input_tokens),
            output_tokens: less(total.output_tokens, before.output_tokens),
            cached_tokens: less(total.cached_tokens, before.cached_tokens),
            thought_tokens: less(total.thought_tokens, before.thought_tokens),
        })
    }

    pub(super) fn max_cost(&self) -> f64 {
        let own = self.project.settings.limits.max_cost_usd;
        own.unwrap_or(self.engine.settings().limits.max_cost_usd)
    }

    pub(super) async fn is_over_budget(&self) -> Result<bool, Stop> {
        let now = self.engine.now();
        let used = self
            .engine
            .store()
            .tree_use(self.session.root_id, now)
            .await?;
        Ok(used.cost_usd >= used.cost_limit.unwrap_or_else(|| self.max_cost()))
    }

    pub(super) fn budget_sentence(&self) -> String {
        "the tree of sessions has reached its `max_cost_usd`; answer the request with \
         `session_permit` to let it spend more, or raise the project's limit with `project_update`"
            .to_owned()
    }

    /// Stops the whole tree when it has spent what it may, and asks.
    pub(super) async fn mind_the_budget(&mut self) -> Result<(), Stop> {
        if self.session.cost_usd == 0.0 || !self.is_over_budget().await? {
            return Ok(());
        }
        let in_turn = self.live.as_ref().and_then(|live| live.turn.as_ref());
        match in_turn.map(|turn| turn.cancelled) {
            Some(None) => {
                self.cancel_turn(Cancelled::Budget).await?;
                self.commit().await?;
                self.engine
                    .interrupt_tree(self.session.root_id, self.session.id)
                    .await?;
                Ok(())
            }
            Some(Some(_)) => Ok(()),
            None if self.session.status == Status::Idle => {
                self.engine
                    .interrupt_tree(self.session.root_id, self.session.id)
                    .await?;
                self.ask_for_budget().await
            }
            None => Ok(()),
        }
    }

    /// Waits for somebody to let the tree spend more.
    pub(super) async fn ask_for_budget(&mut self) -> Result<(), Stop> {
        let now = self.engine.now();
        let used = self
            .engine
            .store()
            .tree_use(self.session.root_id, now)
            .await?;
        let limit = used.cost_limit.unwrap_or_else(|| self.max_cost());
        let title = format!(
            "the tree of sessions has cost {:.4} USD and may cost {limit:.4} (`max_cost_usd`)",
            used.cost_usd
        );
        let input = serde_json::json!({ "cost_usd": used.cost_usd, "max_cost_usd": limit });
        self.ask(WaitingKind::Budget, title, input, "{}".to_owned())
            .await
    }

    pub(super) async fn decide_budget(
        &mut self,
        verdict: Verdict,
        answer: Option<String>,
    ) -> Result<(), Stop> {
        if verdict != Verdict::Deny {
            let answer = answer.and_then(|answer| serde_json::from_str(&answer).ok());
            let BudgetAnswer { max_cost_usd } = answer.unwrap_or_default();
            let now = self.engine.now();
            let used = self
                .engine
                .store()
                .tree_use(self.session.root_id, now)
                .await?;
            // As much again, unless somebody said how much.
            let more = used.cost_usd + self.max_cost().max(0.01);
            self.step.cost_limit = Some(max_cost_usd.unwrap_or(more));
            return Ok(());
        }
        // Nobody pays for what waits.
        while let Some(message) = self.engine.store().next_message(self.session.id).await? {
            self.note_prompt(&message);
            self.scribe.events.push(Event::Completion {
                text: String::new(),
                stop_reason: StopReason::Limit,
                error: Some(self.budget_sentence()),
            });
            self.commit().await?;
        }
        Ok(())
    }
}
