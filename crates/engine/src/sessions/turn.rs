//! One turn: a prompt, what comes of it, and the decisions on the way.

use jiff::SignedDuration;
use oubliette_agent::{Permission, Policy, Reported, RpcError, Said, UsageFile, usage_file};
use oubliette_model::{Event, Happening, Status, StopReason, Usage, Verdict, Waiting, WaitingKind};
use oubliette_store::{Decision, Message};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use super::live::{Cancelled, Turn};
use super::owner::{Owner, Stop, container_id};
use crate::EngineError;
use crate::containers::exec::Inside;

/// What the owner needs to carry out the answer to an agent's question.
#[derive(Debug, Serialize, Deserialize)]
struct Question {
    /// An agent's ids begin again with its process.
    process_id: String,
    permission: Permission,
}

/// What comes with a decision about money.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct BudgetAnswer {
    pub(super) max_cost_usd: Option<f64>,
}

impl Owner<'_> {
    /// Gives the agent a prompt.
    pub(super) async fn begin_turn(&mut self, message: Message) -> Result<(), Stop> {
        let attached = match self.attach_files(&message).await? {
            Ok(attached) => attached,
            Err(why) => {
                self.note_prompt(&message);
                self.scribe.events.push(Event::Completion {
                    text: String::new(),
                    stop_reason: StopReason::Error,
                    error: Some(why),
                });
                self.become_status(Happening::TurnEnded);
                return self.commit().await;
            }
        };
        let before = self.transcript().await?;
        let start = self.session.log_end;
        let session = self.session.agent_session_id.clone().unwrap_or_default();
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        let request = live.next_id;
        live.next_id += 1;
        let mut texts: Vec<&str> = before.iter().map(String::as_str).collect();
        texts.push(&message.text);
        let line = oubliette_agent::prompt(request, &session, &texts, &attached);
        live.forgetful = false;
        live.turn = Some(Turn {
            request,
            request_end: live.stdin + line.len() as u64,
            start,
            cancelled: None,
        });
        self.send(line);
        self.note_prompt(&message);
        self.become_status(Happening::Prompted);
        self.last_sign = Instant::now();
        self.commit().await
    }

    /// What the agent says while it works.
    pub(super) async fn hear_update(&mut self, params: &Value) -> Result<(), Stop> {
        let said = Said::read(params);
        if let Said::Usage(reported) = said {
            if self.take_usage(reported) {
                self.commit().await?;
                self.mind_the_budget().await?;
            }
            return Ok(());
        }
        let log_end = self.session.log_end;
        if let Some(live) = &mut self.live {
            self.scribe.hear(live, said, log_end);
        }
        Ok(())
    }

    /// Adds up what an agent reported; whether that changed anything.
    fn take_usage(&mut self, reported: Reported) -> bool {
        let Some(live) = &mut self.live else {
            return false;
        };
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
        if changed || reported.context_used.is_some() {
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
    fn price(&self, usage: Usage) -> f64 {
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

    /// The agent has answered the prompt.
    pub(super) async fn end_turn(&mut self, outcome: Result<Value, RpcError>) -> Result<(), Stop> {
        let mut reported = outcome
            .as_ref()
            .map(Reported::from_reply)
            .unwrap_or_default();
        if let Some(UsageFile(pattern)) = self.agent.usage_file.filter(|_| reported.turn.is_none())
        {
            reported.turn = self.read_usage(pattern).await;
        }
        let Some(turn) = self.live.as_mut().and_then(|live| live.turn.take()) else {
            return Ok(());
        };
        let text = match &mut self.live {
            Some(live) => self.scribe.end_turn(live),
            None => String::new(),
        };
        self.take_usage(reported);
        let (stop_reason, error) = match (&outcome, turn.cancelled) {
            (Ok(result), None) => (self.stop_reason(result), None),
            (_, Some(Cancelled::Wanted)) => (StopReason::Cancelled, None),
            (_, Some(Cancelled::Budget)) => (StopReason::Limit, Some(self.budget_sentence())),
            (Err(error), None) => (StopReason::Error, Some(error.to_string())),
        };
        self.withdraw_decisions("interrupt").await?;
        self.scribe.events.push(Event::Completion {
            text,
            stop_reason,
            error,
        });
        self.become_status(Happening::TurnEnded);
        self.step.input_taken = Some(turn.request_end);
        self.cancel_by = None;
        self.last_sign = Instant::now();
        self.commit().await?;
        self.mind_the_budget().await
    }

    fn stop_reason(&mut self, result: &Value) -> StopReason {
        match result["stopReason"].as_str().unwrap_or_default() {
            "end_turn" => StopReason::EndTurn,
            "cancelled" => StopReason::Cancelled,
            "refusal" => StopReason::Refused,
            "max_tokens" | "max_turn_requests" => StopReason::Limit,
            other => {
                let other: String = other.chars().take(60).collect();
                self.scribe
                    .log(format!("the agent stopped for an unknown reason `{other}`"));
                StopReason::EndTurn
            }
        }
    }

    /// The tokens of this turn, from the totals that the agent keeps in a file of its own.
    async fn read_usage(&self, pattern: &str) -> Option<Usage> {
        let live = self.live.as_ref()?;
        let session = self.session.agent_session_id.as_deref()?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if !session.chars().all(plain) {
            return None;
        }
        let path = pattern
            .replace("{home}", "/root")
            .replace("{session}", session);
        let argv = ["/bin/sh", "-c", &format!("cat {path}")].map(str::to_owned);
        let container = container_id(&live.container, &self.project);
        let read = self
            .engine
            .run_inside(&container, argv.into(), Vec::new())
            .await;
        let Ok(Inside::Done(text)) = read else {
            return None;
        };
        let total = usage_file(&text)?;
        let before = self.session.usage;
        let less = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
        Some(Usage {
            input_tokens: less(total.input_tokens, before.input_tokens),
            output_tokens: less(total.output_tokens, before.output_tokens),
            cached_tokens: less(total.cached_tokens, before.cached_tokens),
            thought_tokens: less(total.thought_tokens, before.thought_tokens),
        })
    }

    /// The agent asks whether it may do something.
    pub(super) async fn hear_question(&mut self, id: &str, params: &Value) -> Result<(), Stop> {
        let permission = Permission::read(id, params);
        let cancelled = self
            .live
            .as_ref()
            .and_then(|live| live.turn.as_ref()?.cancelled);
        if cancelled.is_some() {
            self.send(permission.withdraw());
            return Ok(());
        }
        if Policy(self.autonomy()).allows(&permission) {
            self.send(permission.answer(Verdict::Allow));
            return Ok(());
        }
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        self.scribe.close(live);
        // What some agents leave out here they have said when the tool was announced.
        let known = permission
            .tool_call_id
            .as_ref()
            .and_then(|id| live.tools.get(id));
        let title = match (permission.title.is_empty(), known) {
            (true, Some(tool)) => tool.title.clone(),
            _ => permission.title.clone(),
        };
        let question = Question {
            process_id: live.process_id.clone(),
            permission,
        };
        let detail = serde_json::to_string(&question).map_err(EngineError::fault)?;
        let input = question.permission.input;
        self.ask(WaitingKind::Permission, title, input, detail)
            .await
    }

    /// Has somebody decide something, and waits for it.
    async fn ask(
        &mut self,
        kind: WaitingKind,
        title: String,
        input: Value,
        detail: String,
    ) -> Result<(), Stop> {
        let seconds = self.engine.settings().sessions.permission_seconds;
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX / 1000);
        let until = self.engine.now() + SignedDuration::from_secs(seconds);
        let request_id = Uuid::new_v4().to_string();
        self.scribe.events.push(Event::PermissionRequest {
            request_id: request_id.clone(),
            kind,
            title,
            input,
            expires_at: until,
        });
        self.step.decisions.push(Decision {
            request_id: request_id.clone(),
            kind,
            detail,
            deadline: until,
            verdict: None,
            answer: None,
        });
        self.wait_for(Waiting {
            kind,
            request_id,
            until,
        });
        self.commit().await
    }

    fn wait_for(&mut self, waiting: Waiting) {
        let Some(status) = self.session.status.after(Happening::Asked) else {
            return;
        };
        if self.session.status == Status::Waiting && self.session.waiting.is_some() {
            return;
        }
        self.session.status = status;
        self.session.waiting = Some(waiting.clone());
        self.step.status = Some(status);
        self.step.waiting = Some(Some(waiting.clone()));
        self.scribe.events.push(Event::Status {
            status,
            waiting_for: Some(waiting),
            error: None,
        });
    }

    /// Carries out decisions that were taken, or that took too long.
    pub(super) async fn settle_decisions(&mut self) -> Result<(), Stop> {
        let now = self.engine.now();
        let all = self.engine.store().decisions(self.session.id).await?;
        let (due, open): (Vec<Decision>, Vec<Decision>) = all
            .into_iter()
            .partition(|decision| decision.verdict.is_some() || decision.deadline <= now);
        if due.is_empty() {
            return Ok(());
        }
        for decision in due {
            let (verdict, by) = match decision.verdict {
                Some(verdict) => (verdict, "caller"),
                None => (Verdict::Deny, "deadline"),
            };
            match decision.kind {
                WaitingKind::Permission => self.answer(&decision.detail, Some(verdict)),
                WaitingKind::Budget => self.decide_budget(verdict, decision.answer).await?,
                WaitingKind::CallerTool => {}
            }
            self.scribe.events.push(Event::PermissionAnswer {
                request_id: decision.request_id.clone(),
                decision: verdict,
                by: by.to_owned(),
            });
            self.step.decisions_done.push(decision.request_id);
        }
        match open.into_iter().next() {
            Some(next) => {
                self.session.waiting = None;
                self.wait_for(Waiting {
                    kind: next.kind,
                    request_id: next.request_id,
                    until: next.deadline,
                });
            }
            None => {
                let in_turn = self.live.as_ref().is_some_and(|live| live.turn.is_some());
                self.become_status(match in_turn {
                    true => Happening::Settled,
                    false => Happening::TurnEnded,
                });
            }
        }
        self.last_sign = Instant::now();
        self.commit().await
    }

    /// Answers a question of the agent that still runs; `None` takes the question back.
    fn answer(&mut self, detail: &str, verdict: Option<Verdict>) {
        let Ok(question) = serde_json::from_str::<Question>(detail) else {
            return;
        };
        let live = self.live.as_ref();
        if live.is_some_and(|live| live.process_id == question.process_id) {
            self.send(match verdict {
                Some(verdict) => question.permission.answer(verdict),
                None => question.permission.withdraw(),
            });
        }
    }

    /// Takes back every open question: what asked it is over.
    pub(super) async fn withdraw_decisions(&mut self, by: &str) -> Result<(), Stop> {
        for decision in self.engine.store().decisions(self.session.id).await? {
            if decision.kind == WaitingKind::Permission {
                self.answer(&decision.detail, None);
            }
            self.scribe.events.push(Event::PermissionAnswer {
                request_id: decision.request_id.clone(),
                decision: Verdict::Deny,
                by: by.to_owned(),
            });
            self.step.decisions_done.push(decision.request_id);
        }
        Ok(())
    }

    /// Stops the turn, as somebody wanted; the session stays.
    pub(super) async fn interrupt(&mut self) -> Result<(), Stop> {
        self.step.wanted_done = true;
        let in_turn = self.live.as_ref().and_then(|live| live.turn.as_ref());
        match in_turn.map(|turn| turn.cancelled) {
            Some(None) => self.cancel_turn(Cancelled::Wanted).await?,
            Some(Some(_)) => {}
            None => {
                // A turn that has not begun never will.
                let next = self.engine.store().next_message(self.session.id).await?;
                if let Some(message) = next.filter(|_| !self.session.status.is_ended()) {
                    self.note_prompt(&message);
                    self.scribe.events.push(Event::Completion {
                        text: String::new(),
                        stop_reason: StopReason::Cancelled,
                        error: None,
                    });
                    self.become_status(Happening::TurnEnded);
                }
            }
        }
        self.session.wanted = None;
        self.commit().await
    }

    async fn cancel_turn(&mut self, why: Cancelled) -> Result<(), Stop> {
        self.withdraw_decisions("interrupt").await?;
        if self.session.status == Status::Waiting {
            self.become_status(Happening::Settled);
        }
        let session = self.session.agent_session_id.clone().unwrap_or_default();
        self.send(oubliette_agent::cancel(&session));
        if let Some(turn) = self.live.as_mut().and_then(|live| live.turn.as_mut()) {
            turn.cancelled = Some(why);
        }
        self.cancel_by = Some(Instant::now() + self.cancel_patience());
        Ok(())
    }

    /// Ends an agent that does not stop its turn.
    pub(super) async fn kill_deaf_agent(&mut self) -> Result<(), Stop> {
        self.cancel_by = None;
        let cancelled = self
            .live
            .as_ref()
            .and_then(|live| live.turn.as_ref()?.cancelled);
        let text = match &mut self.live {
            Some(live) => self.scribe.end_turn(live),
            None => String::new(),
        };
        self.discard_agent().await;
        self.withdraw_decisions("interrupt").await?;
        self.scribe
            .log("the agent did not stop its turn and was ended; the next message resumes it");
        let (stop_reason, error) = match cancelled {
            Some(Cancelled::Budget) => (StopReason::Limit, Some(self.budget_sentence())),
            _ => (StopReason::Cancelled, None),
        };
        self.scribe.events.push(Event::Completion {
            text,
            stop_reason,
            error,
        });
        self.become_status(Happening::TurnEnded);
        self.commit().await?;
        self.mind_the_budget().await
    }

    fn max_cost(&self) -> f64 {
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

    fn budget_sentence(&self) -> String {
        "the tree of sessions has reached its `max_cost_usd`; answer the request with \
         `session_permit` to let it spend more, or raise the project's limit with `project_update`"
            .to_owned()
    }

    /// Stops the whole tree when it has spent what it may, and asks.
    async fn mind_the_budget(&mut self) -> Result<(), Stop> {
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

    async fn decide_budget(
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
