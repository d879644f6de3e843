//! The lines that differ between two texts.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use similar::{Algorithm, DiffOp, DiffTag};

const CONTEXT_LINES: usize = 3;
/// Texts whose comparison would take more steps are replaced as a whole. A second has about 10^9.
const MAX_STEPS: u64 = 400_000_000;
/// For texts that take longer than was estimated.
const MAX_TIME: Duration = Duration::from_secs(10);

/// The hunks of a unified diff, with the number of added and removed lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LineDiff {
    pub(crate) hunks: String,
    pub(crate) added: u64,
    pub(crate) removed: u64,
}

fn split(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

/// The operations that turn one list of lines into the other.
fn operations(old: &[&str], new: &[&str]) -> Vec<DiffOp> {
    let mut numbers = HashMap::new();
    let (old, new) = (number(&mut numbers, old), number(&mut numbers, new));
    if estimated_steps(&old, &new) > MAX_STEPS {
        return vec![DiffOp::Replace {
            old_index: 0,
            old_len: old.len(),
            new_index: 0,
            new_len: new.len(),
        }];
    }
    let deadline = Instant::now() + MAX_TIME;
    similar::capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(deadline))
}

/// Numbers that are equal where lines are.
fn number<'a>(numbers: &mut HashMap<&'a str, u32>, lines: &[&'a str]) -> Vec<u32> {
    let mut number = |line: &&'a str| {
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        *numbers.entry(*line).or_insert(next)
    };
    lines.iter().map(&mut number).collect()
}

/// The steps of the algorithm are the number of lines times the number of differences, which is at least
/// the number of lines that only one text has.
fn estimated_steps(old: &[u32], new: &[u32]) -> u64 {
    let mut counts: HashMap<u32, i64> = HashMap::new();
    for line in old {
        *counts.entry(*line).or_default() += 1;
    }
    for line in new {
        *counts.entry(*line).or_default() -= 1;
    }
    let differences: u64 = counts.values().map(|count| count.unsigned_abs()).sum();
    differences.saturating_mul((old.len() + new.len()) as u64)
}

/// The number of added and removed lines.
pub(crate) fn count(old: &str, new: &str) -> (u64, u64) {
    let (old, new) = (split(old), split(new));
    if old.is_empty() || new.is_empty() {
        return (new.len() as u64, old.len() as u64);
    }
    let mut counts = (0, 0);
    for operation in operations(&old, &new) {
        let (tag, old, new) = operation.as_tag_tuple();
        if tag != DiffTag::Equal {
            counts.0 += new.len() as u64;
            counts.1 += old.len() as u64;
        }
    }
    counts
}

pub(crate) fn diff(old: &str, new: &str) -> LineDiff {
    let (old, new) = (split(old), split(new));
    let mut diff = LineDiff::default();
    for group in similar::group_diff_ops(operations(&old, &new), CONTEXT_LINES) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        let old_range = first.old_range().start..last.old_range().end;
        let new_range = first.new_range().start..last.new_range().end;
        diff.hunks.push_str(&format!(
            "@@ -{} +{} @@\n",
            range(&old_range),
            range(&new_range)
        ));
        for operation in &group {
            let (tag, from, to) = operation.as_tag_tuple();
            if tag == DiffTag::Equal {
                push_lines(&mut diff.hunks, ' ', &old[from]);
                continue;
            }
            diff.removed += from.len() as u64;
            diff.added += to.len() as u64;
            push_lines(&mut diff.hunks, '-', &old[from]);
            push_lines(&mut diff.hunks, '+', &new[to]);
        }
    }
    diff
}

fn range(lines: &std::ops::Range<usize>) -> String {
    match lines.len() {
        0 => format!("{},0", lines.start),
        1 => format!("{}", lines.start + 1),
        count => format!("{},{count}", lines.start + 1),
    }
}

fn push_lines(hunks: &mut String, sign: char, lines: &[&str]) {
    for line in lines {
        hunks.push(sign);
        hunks.push_str(line);
        if !line.ends_with('\n') {
            hunks.push_str("\n\\ No newline at end of file\n");
        }
    }
}
