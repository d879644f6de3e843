//! What agents report about tokens and cost; every part is optional.

use oubliette_model::Usage;
use serde_json::Value;

use crate::opened_session::MAX_MODEL_CHARS;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct UsageReport {
    /// Tokens of the turn that has just ended.
    pub turn: Option<Usage>,
    /// Tokens of one call of the model, in the turn that has not ended.
    pub call: Option<Usage>,
    /// The cost of the agent's session so far.
    pub cost_usd: Option<f64>,
    pub context_used: Option<u64>,
    pub context_size: Option<u64>,
}

impl UsageReport {
    /// From a `usage_update`: context size and cost.
    pub(crate) fn from_update(update: &Value) -> Self {
        let cost = &update["cost"];
        let is_usd = cost["currency"].as_str().is_none_or(|unit| unit == "USD");
        Self {
            turn: None,
            call: None,
            cost_usd: cost["amount"]
                .as_f64()
                .filter(|cost| is_usd && is_plausible(*cost)),
            context_used: update["used"].as_u64(),
            context_size: update["size"].as_u64(),
        }
    }

    /// From a part of an answer, in whose extensions some agents report the tokens of the call that made it.
    pub(crate) fn from_chunk(update: &Value) -> Option<Self> {
        let call = token_counts(&update["_meta"]["usage"])?;
        Some(Self {
            call: Some(call),
            ..Self::default()
        })
    }

    /// From the response to a prompt: `usage`, or the quota that some agents send instead.
    pub fn from_response(result: &Value) -> Self {
        let usage = token_counts(&result["usage"]);
        let quota = token_counts(&result["_meta"]["quota"]["token_count"]);
        Self {
            turn: usage.or(quota),
            ..Self::default()
        }
    }
}

/// The model that a turn has used most, from the response to its prompt.
pub fn model_of_turn(result: &Value) -> Option<String> {
    let used = result["_meta"]["quota"]["model_usage"].as_array()?;
    let tokens = |entry: &&Value| token_counts(&entry["token_count"]).map_or(0, total_tokens);
    let model = used.iter().max_by_key(tokens)?["model"].as_str()?;
    Some(model.chars().take(MAX_MODEL_CHARS).collect())
}

fn total_tokens(usage: Usage) -> u64 {
    usage.input_tokens.saturating_add(usage.output_tokens)
}

fn is_plausible(cost: f64) -> bool {
    cost.is_finite() && (0.0..1e9).contains(&cost)
}

pub(crate) fn token_counts(counts: &Value) -> Option<Usage> {
    let counts = counts.as_object()?;
    let first = |names: &[&str]| -> u64 {
        let mut counts = names.iter().filter_map(|name| counts.get(*name)?.as_u64());
        counts.next().unwrap_or(0)
    };
    let usage = Usage {
        input_tokens: first(&["inputTokens", "input_tokens"]),
        output_tokens: first(&["outputTokens", "output_tokens"]),
        cached_tokens: first(&["cachedReadTokens", "cacheReadTokens"]),
        thought_tokens: first(&["thoughtTokens", "thinkingTokens"]),
        unpriced_turns: 0,
    };
    (!usage.is_zero()).then_some(usage)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_model_of_a_turn_is_the_one_with_most_tokens() {
        let entry = |model: &str, tokens: u64| json!({ "model": model, "token_count": { "inputTokens": tokens } });
        let usage = json!([entry("small", 3), entry("large", 30)]);
        let result = json!({ "_meta": { "quota": { "model_usage": usage } } });
        assert_eq!(model_of_turn(&result).as_deref(), Some("large"));
        assert_eq!(model_of_turn(&json!({})), None);
    }

    #[test]
    fn responses_and_updates_are_read() {
        let reply = json!({ "stopReason": "end_turn", "usage": {
            "inputTokens": 10, "outputTokens": 2, "totalTokens": 12, "cachedReadTokens": 5 } });
        let turn = UsageReport::from_response(&reply).turn.unwrap();
        assert_eq!(
            (turn.input_tokens, turn.output_tokens, turn.cached_tokens),
            (10, 2, 5)
        );
        let quota = json!({ "_meta": { "quota": { "token_count": {
            "input_tokens": 3, "output_tokens": 4 } } } });
        assert_eq!(
            UsageReport::from_response(&quota)
                .turn
                .unwrap()
                .output_tokens,
            4
        );
        let update =
            json!({ "used": 11, "size": 128, "cost": { "amount": 0.5, "currency": "USD" } });
        let reported = UsageReport::from_update(&update);
        assert_eq!(
            (reported.cost_usd, reported.context_used),
            (Some(0.5), Some(11))
        );
    }

    #[test]
    fn an_implausible_cost_is_ignored() {
        for cost in [json!(-1), json!(1e300), json!("x")] {
            let update = json!({ "cost": { "amount": cost } });
            assert_eq!(UsageReport::from_update(&update).cost_usd, None);
        }
        assert_eq!(
            UsageReport::from_response(&json!(null)),
            UsageReport::default()
        );
    }
}
