//! The content of a binary file in a patch, as git writes it.

use miniz_oxide::deflate::compress_to_vec_zlib;

const ALPHABET: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
const LINE_BYTES: usize = 52;
const COMPRESSION_LEVEL: u8 = 6;

/// The new and the old content: git can apply the patch in both directions.
pub(crate) fn binary_patch(old: &[u8], new: &[u8]) -> String {
    let mut text = String::from("GIT binary patch\n");
    push_literal(&mut text, new);
    push_literal(&mut text, old);
    text
}

fn push_literal(text: &mut String, content: &[u8]) {
    text.push_str(&format!("literal {}\n", content.len()));
    for line in compress_to_vec_zlib(content, COMPRESSION_LEVEL).chunks(LINE_BYTES) {
        let length = u8::try_from(line.len()).unwrap_or(0);
        text.push(char::from(match length {
            1..=26 => b'A' + length - 1,
            _ => b'a' + length - 27,
        }));
        for group in line.chunks(4) {
            let mut padded = [0; 4];
            padded[..group.len()].copy_from_slice(group);
            let mut number = u32::from_be_bytes(padded);
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = ALPHABET[(number % 85) as usize];
                number /= 85;
            }
            text.extend(digits.map(char::from));
        }
        text.push('\n');
    }
    text.push('\n');
}
