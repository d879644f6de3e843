//! The server name in the first message of a TLS connection, by hand: hostile input, in any pieces, of bounded
//! size. Nothing else of the message is looked at.

/// A whole message in its records. Those of browsers have 2 KiB.
pub(crate) const MAX_CLIENT_HELLO_BYTES: usize = 32 << 10;

const HANDSHAKE_RECORD: u8 = 22;
/// The types of records, of which only a handshake begins a connection.
const TLS_RECORDS: std::ops::RangeInclusive<u8> = 20..=24;
const CLIENT_HELLO: u8 = 1;
const RECORD_HEADER_BYTES: usize = 5;
const MAX_RECORD_BYTES: usize = 16 << 10;
const SERVER_NAME_EXTENSION: u16 = 0;
const HOST_NAME: u8 = 0;

/// What the first bytes of a connection are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FirstBytes {
    /// More bytes are needed to know.
    Incomplete,
    /// Another protocol than TLS.
    NotTls,
    /// The message, with the server name that it asks for. With encrypted names this is the outer one, which the
    /// server that is connected to sees.
    ClientHello(Option<String>),
    /// TLS, but not a message that a client sends first.
    Invalid(&'static str),
}

/// Looks at what a client has sent so far.
pub(crate) fn inspect(bytes: &[u8]) -> FirstBytes {
    let Some(first) = bytes.first() else {
        return FirstBytes::Incomplete;
    };
    if !TLS_RECORDS.contains(first) {
        return FirstBytes::NotTls;
    }
    match bytes.get(1) {
        None => return FirstBytes::Incomplete,
        // Every version since SSL 3.0 has the major number 3.
        Some(3) => {}
        Some(_) => return FirstBytes::NotTls,
    }
    // Some servers ignore a warning before the handshake, whose name would not be checked then.
    if *first != HANDSHAKE_RECORD {
        return FirstBytes::Invalid("a record of TLS before the first message of a client");
    }
    match join_records(bytes) {
        Ok(Some(message)) => match parse(&message) {
            Some(name) => name,
            None => FirstBytes::Invalid("a damaged first message of TLS"),
        },
        Ok(None) if bytes.len() >= MAX_CLIENT_HELLO_BYTES => {
            FirstBytes::Invalid("a first message of TLS that is too long")
        }
        Ok(None) => FirstBytes::Incomplete,
        Err(why) => FirstBytes::Invalid(why),
    }
}

/// The handshake message, put together from its records; None if it is not complete.
fn join_records(mut bytes: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    let mut message = Vec::new();
    loop {
        let Some((header, rest)) = bytes.split_at_checked(RECORD_HEADER_BYTES) else {
            return Ok(None);
        };
        if header[0] != HANDSHAKE_RECORD {
            return Err("a first message of TLS with other records in it");
        }
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if length == 0 || length > MAX_RECORD_BYTES {
            return Err("a record of TLS with an invalid length");
        }
        let available = rest.len().min(length);
        message.extend_from_slice(&rest[..available]);
        if let Some([kind, a, b, c]) = message.get(..4).and_then(|it| <[u8; 4]>::try_from(it).ok())
        {
            if kind != CLIENT_HELLO {
                return Err("another message of TLS than a client's first");
            }
            let end = 4 + u32::from_be_bytes([0, a, b, c]) as usize;
            if end > MAX_CLIENT_HELLO_BYTES {
                return Err("a first message of TLS that is too long");
            }
            if message.len() >= end {
                // More messages in the same record are not sent by clients.
                if message.len() > end {
                    return Err("more than a client's first message of TLS");
                }
                return Ok(Some(message));
            }
        }
        if available < length {
            return Ok(None);
        }
        bytes = &rest[length..];
    }
}

/// The name in a complete message; None if the message is damaged.
fn parse(message: &[u8]) -> Option<FirstBytes> {
    let mut body = Reader(message.get(4..)?);
    // Version and random number.
    body.take(2 + 32)?;
    let session = usize::from(body.byte()?);
    body.take(session)?;
    let suites = usize::from(body.number()?);
    body.take(suites)?;
    let compressions = usize::from(body.byte()?);
    body.take(compressions)?;
    if body.0.is_empty() {
        return Some(FirstBytes::ClientHello(None));
    }
    let length = usize::from(body.number()?);
    let mut extensions = Reader(body.take(length)?);
    if !body.0.is_empty() {
        return None;
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number()?;
        let length = usize::from(extensions.number()?);
        let content = extensions.take(length)?;
        if kind == SERVER_NAME_EXTENSION {
            // Two could be read differently by the server.
            if found.is_some() {
                return None;
            }
            found = Some(server_name(content)?);
        }
    }
    Some(FirstBytes::ClientHello(found))
}

/// The only entry of a list of names.
fn server_name(extension: &[u8]) -> Option<String> {
    let mut reader = Reader(extension);
    let length = usize::from(reader.number()?);
    let mut list = Reader(reader.take(length)?);
    if !reader.0.is_empty() || list.byte()? != HOST_NAME {
        return None;
    }
    let length = usize::from(list.number()?);
    let name = list.take(length)?;
    if !list.0.is_empty() || name.is_empty() || !name.is_ascii() {
        return None;
    }
    String::from_utf8(name.to_vec()).ok()
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number(&mut self) -> Option<u16> {
        self.take(2)
            .map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_be_bytes().to_vec();
        bytes.extend((content.len() as u16).to_be_bytes());
        bytes.extend(content);
        bytes
    }

    fn name_extension(name: &str) -> Vec<u8> {
        let mut list = vec![0];
        list.extend((name.len() as u16).to_be_bytes());
        list.extend(name.as_bytes());
        let mut content = (list.len() as u16).to_be_bytes().to_vec();
        content.extend(list);
        extension(0, &content)
    }

    fn message(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.push(32);
        body.extend([9; 32]);
        body.extend([0, 2, 0x13, 1, 1, 0]);
        body.extend((extensions.len() as u16).to_be_bytes());
        body.extend(extensions);
        let mut message = vec![1];
        message.extend(&(body.len() as u32).to_be_bytes()[1..]);
        message.extend(body);
        message
    }

    /// In records of at most `size` bytes.
    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let records = message.chunks(size).flat_map(|part| {
            let mut record = vec![22, 3, 1];
            record.extend((part.len() as u16).to_be_bytes());
            record.extend(part);
            record
        });
        records.collect()
    }

    /// A first message that asks for a name.
    pub(crate) fn client_hello(name: &str) -> Vec<u8> {
        records(&message(&name_extension(name)), 10_000)
    }

    fn named(name: &str) -> FirstBytes {
        FirstBytes::ClientHello(Some(name.to_owned()))
    }

    #[test]
    fn the_name_is_found_in_whole_and_fragmented_messages() {
        let mut extensions = extension(43, &[2, 3, 4]);
        extensions.extend(name_extension("example.org"));
        // An encrypted name besides: the outer one counts.
        extensions.extend(extension(0xfe0d, &[0; 200]));
        let message = message(&extensions);
        for size in [1, 2, 5, 100, 10_000] {
            let bytes = records(&message, size);
            assert_eq!(inspect(&bytes), named("example.org"), "{size}");
            for cut in 0..bytes.len() {
                let found = inspect(&bytes[..cut]);
                assert_eq!(found, FirstBytes::Incomplete, "{size} {cut}");
            }
        }
    }

    #[test]
    fn other_protocols_and_damaged_messages_are_told_apart() {
        assert_eq!(inspect(b""), FirstBytes::Incomplete);
        assert_eq!(inspect(b"GET / HTTP/1.1\r\n"), FirstBytes::NotTls);
        assert_eq!(inspect(b"SSH-2.0-x\r\n"), FirstBytes::NotTls);
        // A warning, after which some servers read on.
        let mut warned = vec![21, 3, 1, 0, 2, 1, 90];
        warned.extend(records(&message(&name_extension("a.org")), 10_000));
        assert!(matches!(inspect(&warned), FirstBytes::Invalid(_)));
        let none = records(&message(&[]), 10_000);
        assert_eq!(inspect(&none), FirstBytes::ClientHello(None));
        let mut twice = name_extension("a.org");
        twice.extend(name_extension("b.org"));
        let mut two_names = vec![0, 0, 5];
        two_names.extend(b"a.org");
        two_names.extend([0, 0, 5]);
        two_names.extend(b"b.org");
        let mut content = (two_names.len() as u16).to_be_bytes().to_vec();
        content.extend(two_names);
        let mut longer = message(&name_extension("a.org"));
        longer.extend([1, 0, 0, 0]);
        for (case, bytes) in [
            (
                "the same extension twice",
                records(&message(&twice), 10_000),
            ),
            (
                "two names",
                records(&message(&extension(0, &content)), 10_000),
            ),
            ("no name", records(&message(&name_extension("")), 10_000)),
            ("a length of zero", vec![22, 3, 1, 0, 0]),
            (
                "another record inside",
                [&client_hello("a.org")[..20], &[23; 300]].concat(),
            ),
            ("a server's message", records(&[2, 0, 0, 1, 0], 100)),
            ("two messages", records(&longer, 10_000)),
            ("a huge message", records(&[1, 0xff, 0xff, 0xff], 100)),
        ] {
            let found = inspect(&bytes);
            assert!(
                matches!(found, FirstBytes::Invalid(_) | FirstBytes::Incomplete),
                "{case}: {found:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let _ = inspect(&bytes);
            let mut hello = vec![22, 3, 1];
            hello.extend((bytes.len() as u16).to_be_bytes());
            hello.extend(&bytes);
            let _ = inspect(&hello);
        }

        #[test]
        fn a_changed_message_never_gives_a_third_name(
            at in 0..200usize, to in any::<u8>(), name in "[a-z]{1,20}\\.org",
        ) {
            let mut bytes = client_hello(&name);
            let at = at % bytes.len();
            bytes[at] = to;
            if let FirstBytes::ClientHello(Some(found)) = inspect(&bytes) {
                // A changed byte of the name itself is another name of the same length.
                prop_assert_eq!(found.len(), name.len());
            }
        }
    }
}
