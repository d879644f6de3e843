//! Statistics of measurements.

use std::time::Duration;

/// The calls of one slice of time.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub p50: Duration,
    pub p99: Duration,
    /// Calls per second.
    pub rate: f64,
    pub calls: usize,
}

impl Sample {
    pub fn new(mut latencies: Vec<Duration>, time: Duration) -> Self {
        latencies.sort_unstable();
        Self {
            p50: quantile(&latencies, 50),
            p99: quantile(&latencies, 99),
            rate: latencies.len() as f64 / time.as_secs_f64(),
            calls: latencies.len(),
        }
    }
}

fn quantile(sorted: &[Duration], percent: usize) -> Duration {
    let last = sorted.len() - 1;
    sorted[(sorted.len() * percent / 100).min(last)]
}

/// The median; of an even number of values, the upper of the two in the middle.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Medians over all rounds. `ratio` is the median of the ratio of the two p50 in each round.
#[derive(Debug, Clone, Copy)]
pub struct Compared {
    pub sample: Sample,
    pub baseline: Sample,
    pub ratio: f64,
}

impl Compared {
    /// Each round is a sample and its baseline.
    pub fn from_rounds(rounds: &[(Sample, Sample)]) -> Self {
        let (samples, baselines): (Vec<Sample>, Vec<Sample>) = rounds.iter().copied().unzip();
        let ratio = |(sample, baseline): &(Sample, Sample)| {
            sample.p50.as_secs_f64() / baseline.p50.as_secs_f64()
        };
        Self {
            sample: median_sample(&samples),
            baseline: median_sample(&baselines),
            ratio: median(rounds.iter().map(ratio)),
        }
    }
}

fn median_sample(samples: &[Sample]) -> Sample {
    let median_of = |part: fn(&Sample) -> f64| median(samples.iter().map(part));
    Sample {
        p50: Duration::from_secs_f64(median_of(|sample| sample.p50.as_secs_f64())),
        p99: Duration::from_secs_f64(median_of(|sample| sample.p99.as_secs_f64())),
        rate: median_of(|sample| sample.rate),
        calls: samples.iter().map(|sample| sample.calls).sum(),
    }
}
