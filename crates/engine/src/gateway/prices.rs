//! What models cost, as their providers published it. `[models]` of the configuration overrides it.
//!
//! In US dollars per million tokens. As of 2026-10-16 for Anthropic, of 2026-06-04 for OpenAI, and of April 2026 for Google. Prices for priority or batch
//! processing, and of tools that providers run themselves, are not in it.

use oubliette_gate::gateway::TokenCounts;

use crate::Price;

/// What a token of an unknown model costs at most: more than of any model in the table that agents use by default.
const CEILING: ModelPrice = price("", 30.0, 3.0, 180.0);

/// A write into the cache for five minutes costs as much more than plain input, for an hour twice as much.
const CACHE_WRITE_FACTOR: f64 = 1.25;
const CACHE_WRITE_HOUR_FACTOR: f64 = 2.0;

/// What an answer has at most if neither the request nor the configuration says, for models of these prefixes,
const LARGEST_OUTPUTS: &[(&str, u64)] =
    &[("gemini-", 65_536), ("gpt-4.1", 32_768), ("gpt-4o", 16_384)];
/// for the other models whose price is known,
const LARGEST_OUTPUT_TOKENS: u64 = 128_000;
/// and for unknown ones, whatever the request says. At the ceiling price that is as much money as the largest answer of
/// an expensive model.
const LARGEST_UNKNOWN_OUTPUT_TOKENS: u64 = 32_000;

/// The price of the models whose names start with a prefix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ModelPrice {
    prefix: &'static str,
    input_usd: f64,
    cached_usd: f64,
    output_usd: f64,
    /// Requests with more tokens than this cost more, by these factors for input and output.
    long: Option<(u64, f64, f64)>,
}

const fn price(
    prefix: &'static str,
    input_usd: f64,
    cached_usd: f64,
    output_usd: f64,
) -> ModelPrice {
    ModelPrice {
        prefix,
        input_usd,
        cached_usd,
        output_usd,
        long: None,
    }
}

const fn tiered(base: ModelPrice, above: u64, input_factor: f64, output_factor: f64) -> ModelPrice {
    ModelPrice {
        long: Some((above, input_factor, output_factor)),
        ..base
    }
}

/// The longest prefix counts.
const TABLE: &[ModelPrice] = &[
    price("claude-fable-5-1", 10.0, 0.25, 50.0),
    price("claude-fable-5", 10.0, 1.0, 50.0),
    price("claude-mythos-5-1", 10.0, 0.25, 50.0),
    price("claude-mythos-5", 10.0, 1.0, 50.0),
    price("claude-opus-5-5", 4.0, 0.2, 20.0),
    price("claude-opus-5", 5.0, 0.5, 25.0),
    price("claude-opus-4-8", 5.0, 0.5, 25.0),
    price("claude-opus-4-7", 5.0, 0.5, 25.0),
    price("claude-opus-4-6", 5.0, 0.5, 25.0),
    price("claude-opus-4-5", 5.0, 0.5, 25.0),
    price("claude-opus-4", 15.0, 1.5, 75.0),
    price("claude-3-opus", 15.0, 1.5, 75.0),
    price("claude-sonnet-5-5", 2.0, 0.1, 10.0),
    price("claude-sonnet-5", 2.0, 0.2, 10.0),
    price("claude-sonnet-4", 3.0, 0.3, 15.0),
    price("claude-3-7-sonnet", 3.0, 0.3, 15.0),
    price("claude-3-5-sonnet", 3.0, 0.3, 15.0),
    tiered(price("claude-haiku-5-5", 0.1, 0.01, 0.5), 100_000, 5.0, 5.0),
    price("claude-haiku-4-5", 1.0, 0.1, 5.0),
    price("claude-3-5-haiku", 0.8, 0.08, 4.0),
    price("claude-3-haiku", 0.25, 0.03, 1.25),
    price("gpt-5.5-pro", 30.0, 30.0, 180.0),
    price("gpt-5.5", 5.0, 0.5, 30.0),
    price("gpt-5.4-pro", 30.0, 30.0, 180.0),
    price("gpt-5.4-mini", 0.75, 0.075, 4.5),
    price("gpt-5.4-nano", 0.2, 0.02, 1.25),
    price("gpt-5.4", 2.5, 0.25, 15.0),
    price("gpt-5-mini", 0.25, 0.025, 2.0),
    price("gpt-5-nano", 0.05, 0.005, 0.4),
    price("gpt-5-codex", 1.25, 0.125, 10.0),
    price("gpt-4.1-mini", 0.4, 0.1, 1.6),
    price("gpt-4.1-nano", 0.1, 0.025, 0.4),
    price("gpt-4.1", 2.0, 0.5, 8.0),
    price("gpt-4o-mini", 0.15, 0.075, 0.6),
    price("gpt-4o", 2.5, 1.25, 10.0),
    tiered(price("gemini-3.1-pro", 2.0, 0.2, 12.0), 200_000, 2.0, 1.5),
    price("gemini-3.1-flash-lite", 0.25, 0.025, 1.5),
    price("gemini-3-flash", 0.5, 0.05, 3.0),
    tiered(price("gemini-2.5-pro", 1.25, 0.31, 10.0), 200_000, 2.0, 1.5),
    price("gemini-2.5-flash-lite", 0.1, 0.025, 0.4),
    price("gemini-2.5-flash", 0.3, 0.075, 2.5),
];

impl ModelPrice {
    /// The price of a model in the table. `provider/` before its name, as gateways have it, is left out.
    fn find(model: &str) -> Option<Self> {
        let model = model.rsplit('/').next().unwrap_or(model);
        let fits = TABLE.iter().filter(|row| {
            let rest = model.strip_prefix(row.prefix);
            // `gpt-5.4` is not the price of `gpt-5.45`, and a date or `-latest` may follow.
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '@', ':']))
        });
        fits.max_by_key(|row| row.prefix.len()).copied()
    }

    fn from_settings(price: Price) -> Self {
        Self {
            prefix: "",
            input_usd: price.input_usd,
            cached_usd: price.cached_usd,
            output_usd: price.output_usd,
            long: None,
        }
    }

    fn cost_usd(self, tokens: TokenCounts) -> f64 {
        let prompt = tokens.input + tokens.cache_read + tokens.cache_write;
        let (input_factor, output_factor) = match self.long {
            Some((above, input, output)) if prompt > above => (input, output),
            _ => (1.0, 1.0),
        };
        let hour = tokens.cache_write_hour.min(tokens.cache_write);
        let written = (tokens.cache_write - hour) as f64 * CACHE_WRITE_FACTOR
            + hour as f64 * CACHE_WRITE_HOUR_FACTOR;
        let input = (tokens.input as f64 + written) * self.input_usd
            + tokens.cache_read as f64 * self.cached_usd;
        let output = (tokens.output as f64 + tokens.thoughts as f64) * self.output_usd;
        (input * input_factor + output * output_factor) / 1e6
    }
}

/// What a call cost, and whether that is known. An unknown model costs as much as the most expensive ones, so that a
/// budget holds. `configured` finds prices of the configuration.
pub(super) fn cost_of(
    model: &str,
    answered_by: Option<&str>,
    tokens: TokenCounts,
    configured: impl Fn(&str) -> Option<Price>,
) -> (f64, bool) {
    let names = || [Some(model), answered_by].into_iter().flatten();
    let own = names().find_map(&configured).map(ModelPrice::from_settings);
    // The dearer of the two: a gateway of another company may have sent the call to another model.
    let known = || {
        let costs = names().filter_map(ModelPrice::find);
        costs
            .map(|price| price.cost_usd(tokens))
            .max_by(f64::total_cmp)
    };
    match own.map(|price| price.cost_usd(tokens)).or_else(known) {
        Some(cost) => (cost, true),
        // Nothing costs nothing, whatever the price.
        None if tokens == TokenCounts::default() => (0.0, true),
        None => (CEILING.cost_usd(tokens), false),
    }
}

/// The most tokens of the answers of a call: those that its request names, and for each of the others the most that the
/// model makes.
pub(super) fn largest_output(
    model: &str,
    named: u64,
    (limited_answers, unlimited_answers): (u64, u64),
    configured: impl Fn(&str) -> Option<Price>,
) -> u64 {
    let largest = match configured(model) {
        Some(price) => price.max_output_tokens.unwrap_or(LARGEST_OUTPUT_TOKENS),
        None if ModelPrice::find(model).is_none() => {
            let unlimited = unlimited_answers.saturating_mul(LARGEST_UNKNOWN_OUTPUT_TOKENS);
            let limited = limited_answers
                .max(1)
                .saturating_mul(LARGEST_UNKNOWN_OUTPUT_TOKENS);
            return named.min(limited).saturating_add(unlimited);
        }
        None => {
            let name = model.rsplit('/').next().unwrap_or(model);
            let mut known = LARGEST_OUTPUTS.iter();
            let known = known.find(|(prefix, _)| name.starts_with(prefix));
            known.map_or(LARGEST_OUTPUT_TOKENS, |(_, tokens)| *tokens)
        }
    };
    named.saturating_add(unlimited_answers.saturating_mul(largest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLION: TokenCounts = TokenCounts {
        input: 1_000_000,
        cache_read: 0,
        cache_write: 0,
        cache_write_hour: 0,
        output: 1_000_000,
        thoughts: 0,
    };

    fn cost(model: &str, tokens: TokenCounts) -> (f64, bool) {
        cost_of(model, None, tokens, |_| None)
    }

    #[test]
    fn the_longest_prefix_is_the_price() {
        assert_eq!(cost("claude-sonnet-4-6-20260101", MILLION), (18.0, true));
        assert_eq!(cost("claude-opus-4-1", MILLION), (90.0, true));
        assert_eq!(cost("anthropic/claude-opus-4-6", MILLION), (30.0, true));
        assert_eq!(cost("gpt-5.4-mini", MILLION), (5.25, true));
        assert_eq!(cost("gpt-5.4", MILLION), (17.5, true));
        for unknown in ["gpt-5.45", "claude", "mock-model", ""] {
            assert_eq!(cost(unknown, MILLION), (210.0, false), "{unknown}");
        }
        assert_eq!(cost("mock-model", TokenCounts::default()), (0.0, true));
    }

    #[test]
    fn the_configuration_and_the_model_that_answered_are_used() {
        let configured = |model: &str| {
            (model == "mine").then_some(Price {
                input_usd: 1.0,
                output_usd: 2.0,
                cached_usd: 0.5,
                max_output_tokens: Some(7),
            })
        };
        assert_eq!(cost_of("mine", None, MILLION, configured), (3.0, true));
        assert_eq!(
            cost_of("alias", Some("mine"), MILLION, configured),
            (3.0, true)
        );
        assert_eq!(
            cost_of("alias", Some("gpt-5.5"), MILLION, configured),
            (35.0, true)
        );
    }

    #[test]
    fn an_answer_without_a_named_maximum_has_one() {
        let configured = |model: &str| {
            let max_output_tokens = (model == "mine").then_some(7);
            model.starts_with('m').then_some(Price {
                max_output_tokens,
                ..Price::default()
            })
        };
        let largest = |model: &str| largest_output(model, 0, (0, 1), configured);
        assert_eq!(largest("mine"), 7);
        assert_eq!(largest("mx"), 128_000);
        assert_eq!(largest("gpt-5.5"), 128_000);
        assert_eq!(largest("google/gemini-2.5-pro"), 65_536);
        assert_eq!(largest("gpt-4o-mini"), 16_384);
        assert_eq!(largest("unknown"), 32_000);
        assert_eq!(largest_output("mine", 5, (1, 2), configured), 19);
        assert_eq!(
            largest_output("gpt-5.5", 500_000, (1, 0), configured),
            500_000
        );
        assert_eq!(
            largest_output("unknown", 500_000, (1, 0), configured),
            32_000
        );
        assert_eq!(
            largest_output("unknown", 500_000, (3, 0), configured),
            96_000
        );
        assert_eq!(largest_output("mx", u64::MAX, (1, 9), configured), u64::MAX);
        // An unknown model can be tried within the budget that trees have by default.
        let tokens = TokenCounts {
            output: LARGEST_UNKNOWN_OUTPUT_TOKENS,
            ..TokenCounts::default()
        };
        assert!(cost("unknown", tokens).0 < crate::settings::Limits::default().max_cost_usd);
    }

    #[test]
    fn caches_and_long_requests_have_prices_of_their_own() {
        let cached = TokenCounts {
            cache_read: 1_000_000,
            cache_write: 1_000_000,
            cache_write_hour: 400_000,
            ..TokenCounts::default()
        };
        let (usd, _) = cost("claude-sonnet-4-6", cached);
        assert!(
            (usd - (0.3 + 0.6 * 3.0 * 1.25 + 0.4 * 3.0 * 2.0)).abs() < 1e-9,
            "{usd}"
        );
        assert_eq!(cost("gemini-2.5-pro", MILLION), (2.5 + 15.0, true));
    }

    #[test]
    fn every_model_is_cheaper_than_the_ceiling() {
        for row in TABLE {
            assert!(row.input_usd <= CEILING.input_usd && row.output_usd <= CEILING.output_usd);
            assert_eq!(ModelPrice::find(row.prefix), Some(*row), "{}", row.prefix);
        }
    }
}
