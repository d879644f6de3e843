//! The part of DNS that names of hosts need, by hand: one question, addresses as answers. Both the resolver inside
//! a container and the gate's own questions to a server use it; all of it is hostile input of bounded size.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use oubliette_model::{Host, MAX_NAME_BYTES};

pub(crate) const TYPE_A: u16 = 1;
pub(crate) const TYPE_AAAA: u16 = 28;
const TYPE_CNAME: u16 = 5;
const CLASS_IN: u16 = 1;
const HEADER_BYTES: usize = 12;
const MAX_LABEL_BYTES: usize = 63;
/// Of one answer.
const MAX_RECORDS: usize = 64;
/// Names that refer to another place of the message, of which there may be rings.
const MAX_POINTERS: usize = 16;
const MAX_ALIASES: usize = 16;

const RESPONSE_FLAG: u16 = 0x8000;
const TRUNCATED_FLAG: u16 = 0x0200;
const OPCODE_MASK: u16 = 0x7800;
const RECURSION_DESIRED_FLAG: u16 = 0x0100;
const RECURSION_AVAILABLE_FLAG: u16 = 0x0080;
const CODE_MASK: u16 = 0x000f;

/// How a question is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Ok = 0,
    ServerFailure = 2,
    NoSuchName = 3,
}

/// A question for one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) id: u16,
    flags: u16,
    /// In the case that the program used: some compare the question in the reply.
    name: String,
    pub(crate) kind: u16,
    class: u16,
}

impl Question {
    /// The question for the addresses of a name.
    pub(crate) fn new(id: u16, name: &str, kind: u16) -> Self {
        Self {
            id,
            flags: RECURSION_DESIRED_FLAG,
            name: name.to_owned(),
            kind,
            class: CLASS_IN,
        }
    }

    /// Reads a query. None if it is not one question, of which nothing can be said.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let word = |at: usize| word_at(message, at);
        let (id, flags, questions) = (word(0)?, word(2)?, word(4)?);
        if flags & (RESPONSE_FLAG | OPCODE_MASK) != 0 || questions != 1 {
            return None;
        }
        let (name, end) = read_name(message, HEADER_BYTES)?;
        Some(Self {
            id,
            flags,
            name,
            kind: word(end)?,
            class: word(end + 2)?,
        })
    }

    /// The name, if it can be that of a host.
    pub(crate) fn host(&self) -> Option<Host> {
        let host = self.name.parse::<Host>().ok()?;
        let is_address = self.name.parse::<IpAddr>().is_ok();
        (self.class == CLASS_IN && !is_address).then_some(host)
    }

    pub(crate) fn to_bytes(&self) -> Option<Vec<u8>> {
        let mut message = header(self.id, self.flags, 0);
        self.write(&mut message)?;
        Some(message)
    }

    /// The reply with these IPv4 addresses.
    pub(crate) fn reply(&self, code: Code, addresses: &[Ipv4Addr], ttl: u32) -> Option<Vec<u8>> {
        let flags = RESPONSE_FLAG
            | RECURSION_AVAILABLE_FLAG
            | (self.flags & RECURSION_DESIRED_FLAG)
            | code as u16;
        let mut message = header(self.id, flags, addresses.len() as u16);
        self.write(&mut message)?;
        for address in addresses {
            // The name is that of the question.
            message.extend((0xc000 | HEADER_BYTES as u16).to_be_bytes());
            message.extend(TYPE_A.to_be_bytes());
            message.extend(CLASS_IN.to_be_bytes());
            message.extend(ttl.to_be_bytes());
            message.extend(4_u16.to_be_bytes());
            message.extend(address.octets());
        }
        Some(message)
    }

    fn write(&self, message: &mut Vec<u8>) -> Option<()> {
        for label in self.name.split('.').filter(|label| !label.is_empty()) {
            if label.len() > MAX_LABEL_BYTES {
                return None;
            }
            message.push(label.len() as u8);
            message.extend(label.as_bytes());
        }
        message.push(0);
        message.extend(self.kind.to_be_bytes());
        message.extend(self.class.to_be_bytes());
        Some(())
    }

    /// The addresses in a server's reply to this question. `Err` if the server knows no such name or the reply is
    /// of no use; None if it is not a reply to this question.
    pub(crate) fn answers(&self, reply: &[u8]) -> Option<Result<Answers, &'static str>> {
        let (id, flags) = (word_at(reply, 0)?, word_at(reply, 2)?);
        let (name, end) = read_name(reply, HEADER_BYTES)?;
        let is_reply = id == self.id
            && flags & RESPONSE_FLAG != 0
            && word_at(reply, 4)? == 1
            && name.eq_ignore_ascii_case(&self.name)
            && word_at(reply, end)? == self.kind;
        if !is_reply {
            return None;
        }
        if flags & TRUNCATED_FLAG != 0 {
            return Some(Ok(Answers::Truncated));
        }
        Some(match flags & CODE_MASK {
            0 => self.read_answers(reply, end + 4).ok_or("a damaged reply"),
            3 => Ok(Answers::Addresses(Vec::new())),
            _ => Err("the name server reports a failure"),
        })
    }

    fn read_answers(&self, reply: &[u8], mut at: usize) -> Option<Answers> {
        let count = usize::from(word_at(reply, 6)?).min(MAX_RECORDS);
        let (mut aliases, mut addresses) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (owner, end) = read_name(reply, at)?;
            let (kind, length) = (word_at(reply, end)?, usize::from(word_at(reply, end + 8)?));
            let content = end + 10;
            let data = reply.get(content..content + length)?;
            let owner = owner.to_ascii_lowercase();
            match kind {
                TYPE_CNAME => {
                    aliases.push((owner, read_name(reply, content)?.0.to_ascii_lowercase()));
                }
                TYPE_A => {
                    let octets: [u8; 4] = data.try_into().ok()?;
                    addresses.push((owner, IpAddr::V4(Ipv4Addr::from(octets))));
                }
                TYPE_AAAA => {
                    let octets: [u8; 16] = data.try_into().ok()?;
                    addresses.push((owner, IpAddr::V6(Ipv6Addr::from(octets))));
                }
                _ => {}
            }
            at = content + length;
        }
        let mut name = self.name.to_ascii_lowercase();
        for _ in 0..MAX_ALIASES {
            match aliases.iter().find(|(owner, _)| *owner == name) {
                Some((_, target)) => name = target.clone(),
                None => break,
            }
        }
        let own = addresses.into_iter().filter(|(owner, _)| *owner == name);
        Some(Answers::Addresses(
            own.map(|(_, address)| address).collect(),
        ))
    }
}

/// What a server replied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answers {
    Addresses(Vec<IpAddr>),
    /// The whole reply is there over TCP.
    Truncated,
}

fn header(id: u16, flags: u16, answers: u16) -> Vec<u8> {
    let words = [id, flags, 1, answers, 0, 0];
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn word_at(message: &[u8], at: usize) -> Option<u16> {
    let bytes = message.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// A name, and where the message continues after it.
fn read_name(message: &[u8], start: usize) -> Option<(String, usize)> {
    let (mut name, mut at, mut end) = (String::new(), start, None);
    let mut pointers = 0;
    loop {
        let length = *message.get(at)?;
        match length {
            0 => break,
            1..=63 => {
                let label = message.get(at + 1..at + 1 + usize::from(length))?;
                // Dots and other bytes in a label would change their meaning in a text.
                let is_plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'.';
                if !label.iter().all(is_plain) {
                    return None;
                }
                if !name.is_empty() {
                    name.push('.');
                }
                name.push_str(std::str::from_utf8(label).ok()?);
                if name.len() > MAX_NAME_BYTES {
                    return None;
                }
                at += 1 + usize::from(length);
            }
            0xc0..=0xff => {
                pointers += 1;
                if pointers > MAX_POINTERS {
                    return None;
                }
                end.get_or_insert(at + 2);
                at = usize::from(word_at(message, at)? & 0x3fff);
            }
            _ => return None,
        }
    }
    Some((name, end.unwrap_or(at + 1)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_question_and_its_reply_survive_being_written_and_read() {
        let question = Question::new(7, "www.Example.org", TYPE_A);
        let parsed = Question::parse(&question.to_bytes().unwrap()).unwrap();
        assert_eq!(parsed, question);
        assert_eq!(
            parsed.host(),
            Some(Host::Name("www.example.org".to_owned()))
        );
        let addresses = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
        let reply = question.reply(Code::Ok, &addresses, 5).unwrap();
        let expected = Answers::Addresses(addresses.map(IpAddr::V4).to_vec());
        assert_eq!(question.answers(&reply), Some(Ok(expected)));
        let missing = question.reply(Code::NoSuchName, &[], 0).unwrap();
        assert_eq!(
            question.answers(&missing),
            Some(Ok(Answers::Addresses(vec![])))
        );
        let failed = question.reply(Code::ServerFailure, &[], 0).unwrap();
        assert!(question.answers(&failed).unwrap().is_err());
        let other = Question::new(8, "www.example.org", TYPE_A);
        assert_eq!(other.answers(&reply), None, "another number");
        let other = Question::new(7, "other.example.org", TYPE_A);
        assert_eq!(other.answers(&reply), None, "another name");
    }

    #[test]
    fn addresses_of_other_names_in_a_reply_are_ignored() {
        let question = Question::new(1, "a.org", TYPE_A);
        let mut reply = question.reply(Code::Ok, &[], 0).unwrap();
        // An alias of the name, the address of the alias, and that of a third name.
        reply[7] = 3;
        let alias = b"\xc0\x0c\0\x05\0\x01\0\0\0\0\0\x07\x01b\x03org\0";
        let own = b"\x01b\x03org\0\0\x01\0\x01\0\0\0\0\0\x04\x08\x08\x08\x08";
        let foreign = b"\x01c\x03org\0\0\x01\0\x01\0\0\0\0\0\x04\x7f\0\0\x01";
        for record in [&alias[..], own, foreign] {
            reply.extend(record);
        }
        let expected = Answers::Addresses(vec![IpAddr::from([8, 8, 8, 8])]);
        assert_eq!(question.answers(&reply), Some(Ok(expected)));
    }

    #[test]
    fn rings_of_pointers_and_odd_names_are_refused() {
        let mut ring = header(1, 0, 0);
        ring.extend([0xc0, 12, 0, 1, 0, 1]);
        assert_eq!(Question::parse(&ring), None);
        for name in [&b"\x03a.b\0"[..], b"\x02a\n\0", b"\x02a\xff\0", b"\x05ab"] {
            let mut message = header(1, 0, 0);
            message.extend(name);
            message.extend([0, 1, 0, 1]);
            assert_eq!(Question::parse(&message), None, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_question_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let mut query = header(3, 0, 0);
            query.extend(&bytes);
            for message in [&bytes, &query] {
                if let Some(question) = Question::parse(message) {
                    prop_assert!(question.name.len() <= MAX_NAME_BYTES);
                    let _ = question.reply(Code::Ok, &[Ipv4Addr::LOCALHOST], 1);
                }
            }
            let question = Question::new(3, "a.org", TYPE_A);
            let mut reply = question.reply(Code::Ok, &[], 0).unwrap();
            reply[7] = 9;
            reply.extend(&bytes);
            let _ = question.answers(&reply);
        }
    }
}
