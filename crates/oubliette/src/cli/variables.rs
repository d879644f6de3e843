//! Environment variables on the command line: `--env`, and `--secret` for those that are hidden in what
//! agents write.

use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// The values of `--env`: `NAME=VALUE`, `NAME` for the value of that variable here, or a JSON object as
/// the operation takes it.
pub(super) fn parse(texts: impl Iterator<Item = String>) -> Result<Map<String, Value>, Failure> {
    let mut variables = Map::new();
    for text in texts {
        if text.trim_start().starts_with('{') {
            let object: Map<String, Value> = serde_json::from_str(&text).map_err(|_| {
                // The text may contain a secret, and so may the error of the parser.
                Failure::new(
                    "a variable that begins with `{` must be JSON, `{\"NAME\": \"value\"}`",
                )
            })?;
            variables.extend(object);
            continue;
        }
        let (name, value) = split(&text)?;
        if is_marked_value(&value) {
            return Err(Failure::new(format!(
                "the value of {name} would be this JSON text itself; write --secret {name}=VALUE to hide \
                 VALUE in what agents write, or --env {name}=VALUE"
            )));
        }
        variables.insert(name, Value::from(value));
    }
    Ok(variables)
}

/// The values of `--secret`, as the operation takes them.
pub(super) fn parse_secrets(
    texts: impl Iterator<Item = String>,
) -> Result<Map<String, Value>, Failure> {
    texts
        .map(|text| {
            let (name, value) = split(&text)?;
            Ok((name, json!({ "value": value, "secret": true })))
        })
        .collect()
}

fn split(text: &str) -> Result<(String, String), Failure> {
    if let Some((name, value)) = text.split_once('=') {
        return Ok((name.to_owned(), value.to_owned()));
    }
    let value = std::env::var(text).map_err(|_| {
        Failure::new(format!(
            "the variable {text} is not set; write {text}=VALUE or set it first"
        ))
    })?;
    Ok((text.to_owned(), value))
}

/// Whether a text is the form in which the operation marks a secret.
fn is_marked_value(text: &str) -> bool {
    let object: Option<Map<String, Value>> = serde_json::from_str(text).ok();
    object.is_some_and(|object| {
        object.contains_key("value")
            && object
                .keys()
                .all(|key| matches!(key.as_str(), "value" | "secret"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(texts: &[&str]) -> Result<Value, String> {
        match parse(texts.iter().map(ToString::to_string)) {
            Ok(variables) => Ok(Value::Object(variables)),
            Err(Failure::Failed(sentence)) => Err(sentence),
            Err(other) => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn a_secret_is_marked_and_the_json_form_is_never_taken_for_a_value() {
        let secrets = parse_secrets(["PIN=abcdefghij".to_owned()].into_iter());
        assert_eq!(
            secrets.map(Value::Object).ok(),
            Some(json!({ "PIN": { "value": "abcdefghij", "secret": true } }))
        );
        let marked = r#"{"PIN": {"value": "abcdefghij", "secret": true}, "A": "1"}"#;
        assert_eq!(
            parsed(&[marked, "B=2", "C={\"x\":1}"]),
            Ok(json!({
                "PIN": { "value": "abcdefghij", "secret": true }, "A": "1", "B": "2", "C": "{\"x\":1}"
            }))
        );
        let guessed = r#"PIN={"value": "abcdefghij", "secret": true}"#;
        let refused = parsed(&[guessed]);
        assert!(
            matches!(&refused, Err(why) if why.contains("--secret PIN=VALUE") && !why.contains("abcdefghij")),
            "{refused:?}"
        );
        assert!(matches!(parsed(&["{\"PIN\": hunter2"]), Err(why) if !why.contains("hunter2")));
    }
}
