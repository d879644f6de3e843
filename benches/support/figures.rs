//! Statistics of what was measured.

use std::time::Duration;

/// What one slice of time showed.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub p50: Duration,
    pub p99: Duration,
    /// Per second.
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

/// The middle of some figures; of an even number, the upper of the two in the middle.
pub fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The medians of samples, the sums of their calls, and the median of the ratio of their p50 to that of the sample beside them.
#[derive(Debug, Clone, Copy)]
pub struct Compared {
    pub sample: Sample,
    pub beside: Sample,
    pub ratio: f64,
}

impl Compared {
    /// Each round is a sample and the one it is compared with.
    pub fn of(rounds: &[(Sample, Sample)]) -> Self {
        let (samples, besides): (Vec<Sample>, Vec<Sample>) = rounds.iter().copied().unzip();
        let ratio = |(sample, beside): &(Sample, Sample)| {
            sample.p50.as_secs_f64() / beside.p50.as_secs_f64()
        };
        Self {
            sample: middle(&samples),
            beside: middle(&besides),
            ratio: median(rounds.iter().map(ratio)),
        }
    }
}

fn middle(samples: &[Sample]) -> Sample {
    let of = |part: fn(&Sample) -> f64| median(samples.iter().map(part));
    Sample {
        p50: Duration::from_secs_f64(of(|sample| sample.p50.as_secs_f64())),
        p99: Duration::from_secs_f64(of(|sample| sample.p99.as_secs_f64())),
        rate: of(|sample| sample.rate),
        calls: samples.iter().map(|sample| sample.calls).sum(),
    }
}
