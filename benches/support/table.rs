//! Tables on the terminal, and which targets were met.

use std::fmt;
use std::time::Duration;

/// Rows under a heading. The first column is left-aligned, the others are right-aligned.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self {
            rows: vec![heading.map(str::to_owned).to_vec()],
        }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    #[allow(clippy::print_stdout, reason = "a benchmark prints its results")]
    pub fn print(&self) {
        println!("{self}");
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "{cell:width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Targets and whether they were met, printed at the end.
#[derive(Debug, Default)]
pub struct Targets {
    lines: Vec<String>,
}

impl Targets {
    /// `measured` must be at most `bound`; `unit` follows both.
    pub fn at_most(&mut self, what: &str, measured: f64, bound: f64, unit: &str) {
        let verdict = verdict(measured <= bound);
        self.lines.push(format!(
            "{verdict}  {what}: {measured:.1}{unit} (at most {bound}{unit})"
        ));
    }

    /// `measured` must be at least `bound`; `unit` follows both.
    pub fn at_least(&mut self, what: &str, measured: f64, bound: f64, unit: &str) {
        let verdict = verdict(measured >= bound);
        self.lines.push(format!(
            "{verdict}  {what}: {measured:.2}{unit} (at least {bound}{unit})"
        ));
    }

    #[allow(clippy::print_stdout, reason = "a benchmark prints its results")]
    pub fn print(&self) {
        for line in &self.lines {
            println!("{line}");
        }
    }
}

fn verdict(met: bool) -> &'static str {
    if met { "met   " } else { "missed" }
}

/// `123 µs` or `1.23 ms`.
pub fn format_time(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    if micros < 1000.0 {
        format!("{micros:.0} µs")
    } else {
        format!("{:.2} ms", micros / 1000.0)
    }
}

/// `2.1×`.
pub fn format_ratio(ratio: f64) -> String {
    format!("{ratio:.2}×")
}
