//! Finds many texts in one pass, in time that depends only on the length of what is searched
//! (Aho–Corasick).

use std::collections::VecDeque;
use std::fmt;

const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

/// A prefix of some patterns.
struct Node {
    byte: u8,
    depth: u32,
    first_child: u32,
    next_sibling: u32,
    /// The longest proper suffix of this prefix that is a prefix of a pattern.
    suffix: u32,
    /// The length of the longest pattern that ends here; 0 if none does.
    match_len: u32,
    /// One of the patterns that have this prefix.
    pattern: u32,
}

pub(super) struct Matcher {
    nodes: Vec<Node>,
    /// The children of the root, by their byte: most bytes are looked up only here.
    first: [u32; 256],
}

/// The end of a text that may be the start of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) bytes: usize,
    /// A pattern that starts with it.
    pub(super) pattern: usize,
}

impl Matcher {
    pub(super) fn new<'a>(patterns: impl Iterator<Item = &'a [u8]>) -> Self {
        let root = Node {
            byte: 0,
            depth: 0,
            first_child: NONE,
            next_sibling: NONE,
            suffix: ROOT,
            match_len: 0,
            pattern: 0,
        };
        let mut matcher = Self {
            nodes: vec![root],
            first: [NONE; 256],
        };
        for (number, pattern) in patterns.enumerate() {
            matcher.insert(number as u32, pattern);
        }
        matcher.link_suffixes();
        matcher
    }

    fn node(&self, id: u32) -> &Node {
        &self.nodes[id as usize]
    }

    fn insert(&mut self, number: u32, pattern: &[u8]) {
        let mut at = ROOT;
        for byte in pattern {
            at = match self.child(at, *byte) {
                NONE => self.add_child(at, *byte, number),
                child => child,
            };
        }
        let node = &mut self.nodes[at as usize];
        node.match_len = node.depth;
    }

    fn child(&self, of: u32, byte: u8) -> u32 {
        if of == ROOT {
            return self.first[usize::from(byte)];
        }
        let mut child = self.node(of).first_child;
        while child != NONE && self.node(child).byte != byte {
            child = self.node(child).next_sibling;
        }
        child
    }

    fn add_child(&mut self, of: u32, byte: u8, pattern: u32) -> u32 {
        let id = self.nodes.len() as u32;
        let parent = &mut self.nodes[of as usize];
        let next_sibling = std::mem::replace(&mut parent.first_child, id);
        let depth = parent.depth + 1;
        self.nodes.push(Node {
            byte,
            depth,
            first_child: NONE,
            next_sibling,
            suffix: ROOT,
            match_len: 0,
            pattern,
        });
        if of == ROOT {
            self.first[usize::from(byte)] = id;
        }
        id
    }

    /// Breadth first: the suffix of a node is less deep than the node.
    fn link_suffixes(&mut self) {
        let mut pending = VecDeque::from([ROOT]);
        while let Some(id) = pending.pop_front() {
            let mut child = self.node(id).first_child;
            while child != NONE {
                pending.push_back(child);
                if id != ROOT {
                    let suffix = self.next(self.node(id).suffix, self.node(child).byte);
                    let inherited = self.node(suffix).match_len;
                    let node = &mut self.nodes[child as usize];
                    node.suffix = suffix;
                    node.match_len = node.match_len.max(inherited);
                }
                child = self.node(child).next_sibling;
            }
        }
    }

    /// The longest prefix of a pattern that the text ends with after one more byte.
    fn next(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            match self.child(at, byte) {
                NONE if at == ROOT => return ROOT,
                NONE => at = self.node(at).suffix,
                child => return child,
            }
        }
    }

    /// Reports the longest match that ends at each position, as start and end, in the order of their
    /// ends. Returns the longest end of the text with which a match could still begin.
    pub(super) fn scan(&self, text: &[u8], mut on_match: impl FnMut(usize, usize)) -> Option<Tail> {
        let mut at = ROOT;
        for (position, byte) in text.iter().enumerate() {
            at = self.next(at, *byte);
            let match_len = self.node(at).match_len as usize;
            if match_len > 0 {
                let end = position + 1;
                on_match(end - match_len, end);
            }
        }
        // A node without children is a whole pattern.
        while at != ROOT && self.node(at).first_child == NONE {
            at = self.node(at).suffix;
        }
        let node = self.node(at);
        (at != ROOT).then_some(Tail {
            bytes: node.depth as usize,
            pattern: node.pattern as usize,
        })
    }
}

impl fmt::Debug for Matcher {
    /// Without the patterns, which are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn matches_and_the_tail_are_those_of_a_naive_search(
            patterns in proptest::collection::vec("[ab]{1,5}", 0..6),
            text in "[abc]{0,40}",
        ) {
            let matcher = Matcher::new(patterns.iter().map(|pattern| pattern.as_bytes()));
            let mut found = Vec::new();
            let tail = matcher.scan(text.as_bytes(), |start, end| found.push((start, end)));
            let expected: Vec<(usize, usize)> = (1..=text.len()).filter_map(|end| {
                let ending = patterns.iter().filter(|it| text[..end].ends_with(it.as_str()));
                ending.map(|it| (end - it.len(), end)).min()
            }).collect();
            prop_assert_eq!(found, expected);
            let is_start = |tail: &str| {
                patterns.iter().any(|it| it.len() > tail.len() && it.starts_with(tail))
            };
            let longest = (1..=text.len()).rev().find(|n| is_start(&text[text.len() - n..]));
            prop_assert_eq!(tail.map(|tail| tail.bytes), longest);
            if let Some(tail) = tail {
                prop_assert!(patterns[tail.pattern].starts_with(&text[text.len() - tail.bytes..]));
            }
        }
    }
}
