//! Inputs from inputs.

use serde_json::{Map, Value, json};
use support::Random;

/// Where something is to be drawn from nothing, there is nothing to do.
fn index(length: usize, random: &mut Random) -> usize {
    random.below(length.max(1) as u64) as usize
}

pub(crate) fn one_of<'a, T>(all: &'a [T], random: &mut Random) -> &'a T {
    &all[index(all.len(), random)]
}

/// Bytes from bytes: a few of the usual accidents.
pub(crate) fn bytes(inputs: &[Vec<u8>], words: &[&str], random: &mut Random) -> Vec<u8> {
    let mut input = one_of(inputs, random).clone();
    for _ in 0..=random.below(4) {
        let at = index(input.len() + 1, random);
        let end = (at + index(32, random)).min(input.len());
        match random.below(8) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 => drop(input.drain(at..end)),
            2 => {
                let part = input[at..end].to_vec();
                let times = 1 + index(40, random);
                input.splice(at..at, part.repeat(times));
            }
            3 => {
                let other = one_of(inputs, random);
                let from = index(other.len(), random);
                input.splice(at..end, other[from..].iter().copied());
            }
            4 => input.insert(at, random.below(256) as u8),
            5 => input.truncate(at),
            6 => {
                let other = one_of(inputs, random).clone();
                input.push(b'\n');
                input.extend(other);
            }
            _ => {
                let word = one_of(words, random);
                input.splice(at..end, word.bytes());
            }
        }
        input.truncate(1 << 18);
    }
    input
}

/// JSON from JSON: what it is made of, in other places.
pub(crate) fn tree(inputs: &[Value], words: &[&str], random: &mut Random) -> Value {
    let mut input = one_of(inputs, random).clone();
    for _ in 0..=random.below(4) {
        let new = match random.below(4) {
            0 => {
                let mut other = one_of(inputs, random).clone();
                node(&mut other, random).clone()
            }
            1 => Value::from(*one_of(words, random)),
            _ => odd(random),
        };
        let place = node(&mut input, random);
        match (random.below(6), place) {
            (0, Value::Object(fields)) => {
                let word = (*one_of(words, random)).to_owned();
                fields.insert(word, new);
            }
            (1, Value::Object(fields)) => {
                let key = fields.keys().nth(index(fields.len(), random)).cloned();
                let gone = key.and_then(|key| fields.remove(&key));
                if let (Some(gone), true) = (gone, random.below(2) == 0) {
                    fields.insert((*one_of(words, random)).to_owned(), gone);
                }
            }
            (0 | 1, Value::Array(items)) if !items.is_empty() => {
                let item = items[index(items.len(), random)].clone();
                let times = if random.below(8) == 0 { 600 } else { 2 };
                items.extend(std::iter::repeat_n(item, times));
            }
            (2, place) => {
                let deep = 1 + index(150, random);
                let word = *one_of(words, random);
                for _ in 0..deep {
                    *place = json!({ word: place.take() });
                }
            }
            (_, place) => *place = new,
        }
        if input.to_string().len() > 1 << 18 {
            break;
        }
    }
    input
}

/// Some part of a value.
fn node<'a>(value: &'a mut Value, random: &mut Random) -> &'a mut Value {
    let parts = match &*value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if parts == 0 || random.below(4) == 0 {
        return value;
    }
    let at = index(parts, random);
    let part = match value {
        Value::Array(items) => items.get_mut(at),
        Value::Object(fields) => fields.values_mut().nth(at),
        _ => None,
    };
    node(part.expect("it has so many parts"), random)
}

fn odd(random: &mut Random) -> Value {
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
