//! What agents report about tokens and money: three ways, all optional.

use oubliette_model::Usage;
use serde_json::Value;

/// What one report says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reported {
    /// Tokens of the turn that has just ended.
    pub turn: Option<Usage>,
    /// What the agent's session has cost so far.
    pub cost_usd: Option<f64>,
    pub context_used: Option<u64>,
    pub context_size: Option<u64>,
}

impl Reported {
    /// From a `usage_update`: how full the context is, and the money.
    pub(crate) fn from_update(update: &Value) -> Self {
        let cost = &update["cost"];
        let dollars = cost["currency"].as_str().is_none_or(|unit| unit == "USD");
        Self {
            turn: None,
            cost_usd: cost["amount"]
                .as_f64()
                .filter(|cost| dollars && sane(*cost)),
            context_used: update["used"].as_u64(),
            context_size: update["size"].as_u64(),
        }
    }

    /// From the reply to a prompt: `usage`, or the quota that some put beside it.
    pub fn from_reply(result: &Value) -> Self {
        let plain = tokens(&result["usage"]);
        let quota = tokens(&result["_meta"]["quota"]["token_count"]);
        Self {
            turn: plain.or(quota),
            ..Self::default()
        }
    }
}

fn sane(cost: f64) -> bool {
    cost.is_finite() && (0.0..1e9).contains(&cost)
}

fn tokens(counts: &Value) -> Option<Usage> {
    let counts = counts.as_object()?;
    let sum = |names: &[&str]| -> Option<u64> {
        names.iter().find_map(|name| counts.get(*name)?.as_u64())
    };
    let usage = Usage {
        input_tokens: sum(&["inputTokens", "input_tokens"]).unwrap_or(0),
        output_tokens: sum(&["outputTokens", "output_tokens"]).unwrap_or(0),
        cached_tokens: sum(&["cachedReadTokens", "cacheReadTokens"]).unwrap_or(0),
        thought_tokens: sum(&["thoughtTokens", "thinkingTokens"]).unwrap_or(0),
    };
    (!usage.is_zero()).then_some(usage)
}

/// The totals of a session in the file that an agent keeps about it.
pub fn usage_file(text: &str) -> Option<Usage> {
    let file: Value = serde_json::from_str(text).ok()?;
    tokens(&file["tokenUsage"])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_three_sources_are_understood() {
        let reply = json!({ "stopReason": "end_turn", "usage": {
            "inputTokens": 10, "outputTokens": 2, "totalTokens": 12, "cachedReadTokens": 5 } });
        let turn = Reported::from_reply(&reply).turn.unwrap();
        assert_eq!(
            (turn.input_tokens, turn.output_tokens, turn.cached_tokens),
            (10, 2, 5)
        );
        let quota = json!({ "_meta": { "quota": { "token_count": {
            "input_tokens": 3, "output_tokens": 4 } } } });
        assert_eq!(Reported::from_reply(&quota).turn.unwrap().output_tokens, 4);
        let update =
            json!({ "used": 11, "size": 128, "cost": { "amount": 0.5, "currency": "USD" } });
        let reported = Reported::from_update(&update);
        assert_eq!(
            (reported.cost_usd, reported.context_used),
            (Some(0.5), Some(11))
        );
        let file = r#"{"tokenUsage":{"inputTokens":7,"outputTokens":1,"thinkingTokens":2}}"#;
        assert_eq!(usage_file(file).unwrap().thought_tokens, 2);
    }

    #[test]
    fn nonsense_costs_nothing() {
        for cost in [json!(-1), json!(1e300), json!("x")] {
            let update = json!({ "cost": { "amount": cost } });
            assert_eq!(Reported::from_update(&update).cost_usd, None);
        }
        assert_eq!(Reported::from_reply(&json!(null)), Reported::default());
    }
}
