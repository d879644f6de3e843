//! Paths as text.
//!
//! A path that is UTF-8 is itself. One that is not, or that begins with a double quote, is written as
//! git writes it: in double quotes, with backslashes and octal numbers. So every path has a text, and no
//! text means two paths.

/// The text of a path.
pub fn path_to_text(path: &[u8]) -> String {
    match std::str::from_utf8(path) {
        Ok(text) if !text.starts_with('"') => text.to_owned(),
        _ => quote_path(path),
    }
}

/// The path that a text means; `None` if it begins with a quote and is not a quoted path.
pub fn path_from_text(text: &str) -> Option<Vec<u8>> {
    let Some(quoted) = text.strip_prefix('"') else {
        return Some(text.as_bytes().to_vec());
    };
    let quoted = quoted.strip_suffix('"')?.as_bytes();
    let mut path = Vec::with_capacity(quoted.len());
    let mut bytes = quoted.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return None,
            b'\\' => path.push(match bytes.next()? {
                b'a' => 7,
                b'b' => 8,
                b't' => b'\t',
                b'n' => b'\n',
                b'v' => 11,
                b'f' => 12,
                b'r' => b'\r',
                other @ (b'"' | b'\\') => other,
                first @ b'0'..=b'3' => {
                    let mut octal = || bytes.next().filter(|digit| (b'0'..=b'7').contains(digit));
                    let (second, third) = (octal()?, octal()?);
                    (first - b'0') << 6 | (second - b'0') << 3 | (third - b'0')
                }
                _ => return None,
            }),
            other => path.push(other),
        }
    }
    Some(path)
}

/// A path in double quotes, as git writes it.
pub fn quote_path(path: &[u8]) -> String {
    let mut text = String::from('"');
    for byte in path {
        match byte {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\r' => text.push_str("\\r"),
            b' '..=b'~' => text.push(char::from(*byte)),
            other => text.push_str(&format!("\\{other:03o}")),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_paths_that_need_it_are_quoted() {
        for (path, text) in [
            (&b"src/main.rs"[..], "src/main.rs"),
            ("caf\u{e9} \n\t".as_bytes(), "caf\u{e9} \n\t"),
            (b"a\xffb", r#""a\377b""#),
            (b"\"quoted\"", r#""\"quoted\"""#),
        ] {
            assert_eq!(path_to_text(path), text);
            assert_eq!(path_from_text(text).as_deref(), Some(path));
        }
        for text in [r#"""#, r#""a"#, r#""a"b""#, r#""\9""#, r#""\40""#, r#""\"#] {
            assert_eq!(path_from_text(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_path_is_found_by_its_text(path: Vec<u8>) {
            let text = path_to_text(&path);
            prop_assert_eq!(path_from_text(&text), Some(path));
        }
    }
}
