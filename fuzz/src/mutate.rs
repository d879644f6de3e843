//! Makes new inputs from known ones.

use serde_json::{Map, Value, json};
use support::Random;

/// A random index; 0 if there is nothing to choose from.
fn random_index(length: usize, random: &mut Random) -> usize {
    random.below(length.max(1) as u64) as usize
}

pub(crate) fn pick<'a, T>(all: &'a [T], random: &mut Random) -> &'a T {
    &all[random_index(all.len(), random)]
}

/// Applies a few random edits to an input: flips, cuts, repeats, splices.
pub(crate) fn mutate_bytes(inputs: &[Vec<u8>], words: &[&str], random: &mut Random) -> Vec<u8> {
    let mut input = pick(inputs, random).clone();
    for _ in 0..=random.below(4) {
        let at = random_index(input.len() + 1, random);
        let end = (at + random_index(32, random)).min(input.len());
        match random.below(8) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 => drop(input.drain(at..end)),
            2 => {
                let part = input[at..end].to_vec();
                let times = 1 + random_index(40, random);
                input.splice(at..at, part.repeat(times));
            }
            3 => {
                let other = pick(inputs, random);
                let from = random_index(other.len(), random);
                input.splice(at..end, other[from..].iter().copied());
            }
            4 => input.insert(at, random.below(256) as u8),
            5 => input.truncate(at),
            6 => {
                let other = pick(inputs, random).clone();
                input.push(b'\n');
                input.extend(other);
            }
            _ => {
                let word = pick(words, random);
                input.splice(at..end, word.bytes());
            }
        }
        input.truncate(1 << 18);
    }
    input
}

/// Replaces, moves, repeats and nests random parts of a JSON value.
pub(crate) fn mutate_json(inputs: &[Value], words: &[&str], random: &mut Random) -> Value {
    let mut input = pick(inputs, random).clone();
    for _ in 0..=random.below(4) {
        let new = match random.below(4) {
            0 => {
                let mut other = pick(inputs, random).clone();
                random_part(&mut other, random).clone()
            }
            1 => Value::from(*pick(words, random)),
            _ => edge_case(random),
        };
        let part = random_part(&mut input, random);
        match (random.below(6), part) {
            (0, Value::Object(fields)) => {
                let word = (*pick(words, random)).to_owned();
                fields.insert(word, new);
            }
            (1, Value::Object(fields)) => {
                let key = fields
                    .keys()
                    .nth(random_index(fields.len(), random))
                    .cloned();
                let removed = key.and_then(|key| fields.remove(&key));
                if let Some(value) = removed
                    && random.below(2) == 0
                {
                    fields.insert((*pick(words, random)).to_owned(), value);
                }
            }
            (0 | 1, Value::Array(items)) if !items.is_empty() => {
                let item = items[random_index(items.len(), random)].clone();
                let times = if random.below(8) == 0 { 600 } else { 2 };
                items.extend(std::iter::repeat_n(item, times));
            }
            (2, part) => {
                let depth = 1 + random_index(150, random);
                let word = *pick(words, random);
                for _ in 0..depth {
                    *part = json!({ word: part.take() });
                }
            }
            (_, part) => *part = new,
        }
        if input.to_string().len() > 1 << 18 {
            break;
        }
    }
    input
}

/// A random part of a value.
fn random_part<'a>(value: &'a mut Value, random: &mut Random) -> &'a mut Value {
    let parts = match &*value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if parts == 0 || random.below(4) == 0 {
        return value;
    }
    let at = random_index(parts, random);
    let part = match value {
        Value::Array(items) => items.get_mut(at),
        Value::Object(fields) => fields.values_mut().nth(at),
        _ => None,
    };
    random_part(
        part.expect("the index is below the number of parts"),
        random,
    )
}

fn edge_case(random: &mut Random) -> Value {
    match random.below(12) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(1e308),
        4 => json!(u64::MAX),
        5 => json!(""),
        6 => json!("x".repeat(1 << random.below(16))),
        7 => json!("\u{0}\u{202e}é😀"),
        8 => json!([]),
        9 => Value::Object(Map::new()),
        10 => json!({ "$ref": "#" }),
        _ => json!({ "type": "object" }),
    }
}
