//! What a push wants to change, read from the start of its request, and the answer to one that is refused.
//!
//! The list is read more strictly than servers read it: what a server could take for another list is refused.

use oubliette_model::{BranchName, BranchPattern};

use super::pkt_line::{MAX_PACKET_BYTES, Packet, first_packet, push_flush, push_packet};

/// Of the list of a push: some thousand refs.
const MAX_LIST_BYTES: usize = 1 << 20;
const MAX_REF_BYTES: usize = 1024;
/// Refs that a sentence names.
const MAX_NAMED_REFS: usize = 5;
const BRANCHES: &str = "refs/heads/";
/// Progress and errors, which git shows with `remote:` in front.
const MESSAGE_BAND: u8 = 2;
const REPORT_BAND: u8 = 1;
/// Of a packet with its length and the number of its band.
const MAX_BAND_BYTES: usize = MAX_PACKET_BYTES - 5;

/// Why a request is no push that can be decided about.
pub(super) type Malformed = &'static str;

/// Why a push is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Denial {
    /// A ref is not allowed.
    Refs,
    /// It has push options.
    Options,
}

const NO_LIST: Malformed = "the request is not a list of refs as `git push` sends it";

/// The start of the request of a push, up to the end of its list.
#[derive(Debug, Default)]
pub(super) struct PushList {
    received: Vec<u8>,
    /// How much of that has been read.
    read: usize,
    refs: Vec<Vec<u8>>,
    capabilities: Vec<u8>,
    is_complete: bool,
}

impl PushList {
    /// Takes some bytes of the request; returns whether the list is complete. Those after it are kept as well.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<bool, Malformed> {
        self.received.extend_from_slice(bytes);
        while !self.is_complete {
            let rest = self.received.get(self.read..).unwrap_or_default();
            let Some((packet, length)) = first_packet(rest).map_err(|_| NO_LIST)? else {
                break;
            };
            self.read += length;
            match packet {
                Packet::Flush => self.is_complete = true,
                Packet::Line(line) => {
                    let line = line.to_vec();
                    self.add_line(line.strip_suffix(b"\n").unwrap_or(&line))?;
                }
            }
            if self.read > MAX_LIST_BYTES {
                return Err("the push has too many refs at once");
            }
        }
        if !self.is_complete && self.received.len() > MAX_LIST_BYTES + MAX_PACKET_BYTES {
            return Err("the push has too many refs at once");
        }
        Ok(self.is_complete)
    }

    fn add_line(&mut self, line: &[u8]) -> Result<(), Malformed> {
        if line.starts_with(b"push-cert") {
            return Err("signed pushes are not supported; push without `--signed`");
        }
        if let Some(commit) = line.strip_prefix(b"shallow ")
            && self.refs.is_empty()
        {
            return if is_object_id(commit) {
                Ok(())
            } else {
                Err(NO_LIST)
            };
        }
        // What follows a zero byte are capabilities, in the first line; others would hide a part of the line.
        let mut command = line;
        if self.refs.is_empty()
            && let Some(end) = line.iter().position(|byte| *byte == 0)
        {
            command = line.get(..end).unwrap_or_default();
            self.capabilities = line.get(end + 1..).unwrap_or_default().to_vec();
        }
        let mut words = command.splitn(3, |byte| *byte == b' ');
        let (Some(old), Some(new), Some(name)) = (words.next(), words.next(), words.next()) else {
            return Err(NO_LIST);
        };
        let is_plain = |byte: &u8| *byte > b' ' && *byte != 0x7f;
        let is_ref = (1..=MAX_REF_BYTES).contains(&name.len()) && name.iter().all(is_plain);
        if !is_object_id(old) || !is_object_id(new) || old.len() != new.len() || !is_ref {
            return Err(NO_LIST);
        }
        self.refs.push(name.to_vec());
        Ok(())
    }

    /// Whether the request is only the end of a list, with which git asks whether it may push.
    pub(super) fn is_probe(&self) -> bool {
        self.is_complete && self.refs.is_empty() && self.received == b"0000"
    }

    pub(super) fn is_empty(&self) -> bool {
        self.refs.is_empty()
    }

    /// Everything that was taken, as it came.
    pub(super) fn into_received(self) -> Vec<u8> {
        self.received
    }

    pub(super) fn received_bytes(&self) -> usize {
        self.received.len()
    }

    /// Why the push may not be passed on; none if it may.
    pub(super) fn denial(&self, allowed: &[BranchPattern]) -> Option<Denial> {
        if !self.refused(allowed).is_empty() {
            Some(Denial::Refs)
        } else if self.has_options() {
            Some(Denial::Options)
        } else {
            None
        }
    }

    /// The refs that may not be changed. Creating, moving and deleting them is the same.
    fn refused(&self, allowed: &[BranchPattern]) -> Vec<&[u8]> {
        let refs = self.refs.iter().map(Vec::as_slice);
        refs.filter(|name| !is_allowed(name, allowed)).collect()
    }

    /// Whether the client wants something of the host that is not in the list: a host may merge into another branch for it.
    fn has_options(&self) -> bool {
        self.capabilities()
            .any(|word| word.starts_with(b"push-options"))
    }

    fn capabilities(&self) -> impl Iterator<Item = &[u8]> {
        self.capabilities.split(u8::is_ascii_whitespace)
    }

    /// The sentence for the person who pushes.
    pub(super) fn explain(&self, denial: Denial, allowed: &[BranchPattern]) -> String {
        if denial == Denial::Options {
            return "push options (`-o`, `push.pushOption`) are not allowed, because a host may change other branches for \
                    them. Nothing was pushed. Push without them."
                .to_owned();
        }
        let refused = self.refused(allowed);
        let names = refused.iter().take(MAX_NAMED_REFS);
        let names = names.map(|name| String::from_utf8_lossy(name).into_owned());
        format!(
            "the project does not allow to push to {}, only to {}. Nothing was pushed. `push_branches` of the project says \
             which branches are allowed.",
            enumerate(names.collect(), refused.len()),
            allowed_refs(allowed)
        )
    }

    /// The answer to a push that is refused, in which git finds a reason for each ref; none if the client wants no report.
    pub(super) fn refusal_report(
        &self,
        denial: Denial,
        allowed: &[BranchPattern],
    ) -> Option<Vec<u8>> {
        let has = |wanted: &[u8]| self.capabilities().any(|word| word == wanted);
        if !has(b"report-status") && !has(b"report-status-v2") {
            return None;
        }
        let mut report = Vec::new();
        push_packet(&mut report, b"unpack ok\n");
        let not_allowed = format!("not allowed, only {}", allowed_refs(allowed));
        for name in &self.refs {
            let reason = match denial {
                Denial::Options => "push options are not allowed",
                Denial::Refs if is_allowed(name, allowed) => {
                    "not pushed, because another ref is not allowed"
                }
                Denial::Refs => &not_allowed,
            };
            let line = [b"ng ", name.as_slice(), b" ", reason.as_bytes(), b"\n"].concat();
            push_packet(&mut report, &line);
        }
        push_flush(&mut report);
        if !has(b"side-band-64k") {
            return Some(report);
        }
        let mut answer = Vec::new();
        let mut send = |band: u8, content: &[u8]| {
            for part in content.chunks(MAX_BAND_BYTES) {
                push_packet(&mut answer, &[&[band], part].concat());
            }
        };
        let message = format!("Oubliette: {}\n", self.explain(denial, allowed));
        send(MESSAGE_BAND, message.as_bytes());
        send(REPORT_BAND, &report);
        push_flush(&mut answer);
        Some(answer)
    }
}

/// The refs that may be pushed, for a sentence.
fn allowed_refs(allowed: &[BranchPattern]) -> String {
    if allowed.is_empty() {
        return "no branch".to_owned();
    }
    let names = allowed.iter().take(MAX_NAMED_REFS);
    let names = names.map(|pattern| format!("{BRANCHES}{pattern}"));
    enumerate(names.collect(), allowed.len())
}

/// The names, which are the first of `count`.
fn enumerate(names: Vec<String>, count: usize) -> String {
    let more = match count.saturating_sub(names.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    names.join(", ") + &more
}

fn is_object_id(text: &[u8]) -> bool {
    matches!(text.len(), 40 | 64) && text.iter().all(u8::is_ascii_hexdigit)
}

fn is_allowed(name: &[u8], allowed: &[BranchPattern]) -> bool {
    let name = std::str::from_utf8(name).ok();
    let branch = name.and_then(|name| name.strip_prefix(BRANCHES));
    let branch = branch.and_then(|branch| branch.parse::<BranchName>().ok());
    branch.is_some_and(|branch| allowed.iter().any(|pattern| pattern.matches(&branch)))
}

#[cfg(test)]
mod tests;
