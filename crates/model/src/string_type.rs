//! Serde and JSON schema of types that are written as a string and parsed with `FromStr`.

/// Implements `Deserialize` by parsing, and an inline `JsonSchema` with the given fields.
macro_rules! string_type {
    ($name:ident, $schema:tt) => {
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        crate::string_type::string_schema!($name, $schema);
    };
}

macro_rules! string_schema {
    ($name:ident, $schema:tt) => {
        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}

pub(crate) use {string_schema, string_type};
