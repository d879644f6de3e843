//! The attributes of `oubliette-test-harness`, which documents them. They leave the function as it is
//! and register it, so that the runner finds it.

use proc_macro::{Delimiter, TokenStream, TokenTree};

const DEFAULT_LIMIT_SECONDS: &str = "120";
const RUNTIMES: [&str; 3] = ["sandbox", "docker", "docker_channel"];

/// Registers a test.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(arguments, item, false)
}

/// Registers a function that a test runs in a process of its own.
#[proc_macro_attribute]
pub fn helper(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(arguments, item, true)
}

fn expand(arguments: TokenStream, item: TokenStream, is_helper: bool) -> TokenStream {
    let registration = Attribute::parse(arguments).and_then(|attribute| {
        Ok(attribute.registration(&Function::parse(item.clone())?, is_helper))
    });
    let registration = registration.unwrap_or_else(|error| format!("compile_error!({error:?});"));
    let mut output = item;
    output.extend(registration.parse::<TokenStream>());
    output
}

#[derive(Default)]
struct Attribute {
    needs: Vec<String>,
    /// One test per value, which the function gets and which the test needs.
    each: Vec<String>,
    limit_seconds: Option<String>,
    is_multi_thread: bool,
    mostly_waits: bool,
}

impl Attribute {
    fn parse(arguments: TokenStream) -> Result<Self, String> {
        let mut attribute = Self::default();
        let mut tokens = arguments.into_iter();
        while let Some(token) = tokens.next() {
            match token.to_string().as_str() {
                "," => {}
                "needs" => attribute.needs = words(tokens.next())?,
                "each" => attribute.each = words(tokens.next())?,
                "runtimes" => attribute.each = RUNTIMES.map(str::to_owned).to_vec(),
                "mounted_runtimes" => {
                    attribute.each = RUNTIMES[..2].iter().map(ToString::to_string).collect();
                }
                "limit" => {
                    let value = tokens.nth(1).ok_or("`limit` has no value")?;
                    attribute.limit_seconds = Some(value.to_string());
                }
                "multi_thread" => attribute.is_multi_thread = true,
                "mostly_waits" => attribute.mostly_waits = true,
                other => return Err(format!("unknown argument `{other}`")),
            }
        }
        Ok(attribute)
    }

    fn registration(&self, function: &Function, is_helper: bool) -> String {
        if self.each.is_empty() {
            return self.register(function, None, is_helper);
        }
        let tests = self.each.iter();
        tests
            .map(|value| self.register(function, Some(value), is_helper))
            .collect()
    }

    fn register(&self, function: &Function, value: Option<&String>, is_helper: bool) -> String {
        let Function { name, is_async } = function;
        let argument = value.map(|value| value.replace('_', "-"));
        let literal = argument
            .as_ref()
            .map_or(String::new(), |value| format!("{value:?}"));
        let mut call = format!("{name}({literal})");
        if *is_async {
            call = format!(
                "::oubliette_test_harness::block_on({call}, {})",
                self.is_multi_thread
            );
        }
        let mut path = name.trim_start_matches("r#").to_owned();
        if let Some(value) = value {
            path = format!("{path}::{value}");
        }
        let mut needs: Vec<String> = self
            .needs
            .iter()
            .map(|need| need.replace('_', "-"))
            .collect();
        needs.extend(argument);
        let limit = self
            .limit_seconds
            .as_deref()
            .unwrap_or(DEFAULT_LIMIT_SECONDS);
        let mostly_waits = self.mostly_waits;
        format!(
            "::oubliette_test_harness::inventory::submit! {{ ::oubliette_test_harness::Test {{ \
             module: module_path!(), name: {path:?}, needs: &{needs:?}, limit_seconds: {limit}, \
             mostly_waits: {mostly_waits}, is_helper: {is_helper}, run: || {call}, }} }}"
        )
    }
}

/// The identifiers in parentheses.
fn words(token: Option<TokenTree>) -> Result<Vec<String>, String> {
    match token {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis => {
            let tokens = group.stream().into_iter();
            let words = tokens.filter(|token| matches!(token, TokenTree::Ident(_)));
            Ok(words.map(|word| word.to_string()).collect())
        }
        _ => Err("a list in parentheses is missing".to_owned()),
    }
}

struct Function {
    name: String,
    is_async: bool,
}

impl Function {
    fn parse(item: TokenStream) -> Result<Self, String> {
        let mut is_async = false;
        let mut tokens = item.into_iter();
        while let Some(token) = tokens.next() {
            match token.to_string().as_str() {
                "async" => is_async = true,
                "fn" => {
                    let name = tokens.next().ok_or("a function has no name")?.to_string();
                    return Ok(Self { name, is_async });
                }
                _ => {}
            }
        }
        Err("only a function can be a test".to_owned())
    }
}
