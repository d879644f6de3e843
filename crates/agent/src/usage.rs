//! What agents report about tokens and cost; every part is optional.

use oubliette_model::Usage;
use serde_json::Value;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct UsageReport {
    /// Tokens of the turn that has just ended.
    pub turn: Option<Usage>,
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
            cost_usd: cost["amount"]
                .as_f64()
                .filter(|cost| is_usd && is_plausible(*cost)),
            context_used: update["used"].as_u64(),
            context_size: update["size"].as_u64(),
        }
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
    };
    (!usage.is_zero()).then_some(usage)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
