//! What an agent's answer says that opens a session: its options, and the models that it offers.

use serde_json::Value;

/// Of the name of a model that an agent reports.
pub(crate) const MAX_MODEL_CHARS: usize = 200;
/// Of the models that an agent offers.
const MAX_MODELS: usize = 1000;

/// A configuration option of the session, by category or id, and its possible values.
pub(crate) fn find_config_option(
    opened: &Value,
    category: &str,
    ids: &[&str],
) -> Option<(String, Vec<String>)> {
    let options = opened["configOptions"].as_array()?;
    let is_wanted = |option: &&Value| {
        let id = option["id"].as_str().unwrap_or_default();
        option["category"] == category || ids.contains(&id)
    };
    let option = options.iter().find(is_wanted)?;
    let mut values = Vec::new();
    collect_values(&option["options"], &mut values);
    Some((option["id"].as_str()?.to_owned(), values))
}

/// The names of the models that the agent offers.
pub fn offered_models(opened: &Value) -> Vec<String> {
    let mut models = match find_config_option(opened, "model", &["model"]) {
        Some((_, values)) => values,
        None => {
            let offered = opened["models"]["availableModels"].as_array();
            let offered = offered.into_iter().flatten();
            let ids = offered.filter_map(|model| model["modelId"].as_str());
            ids.map(str::to_owned).collect()
        }
    };
    models.retain(|model| model.len() <= MAX_MODEL_CHARS);
    models.truncate(MAX_MODELS);
    models
}

/// The model that was set, or the one that the session was opened with.
pub(crate) fn model_in_use(opened: &Value, set: Option<&str>) -> Option<String> {
    let options = opened["configOptions"].as_array();
    let mut options = options.into_iter().flatten();
    let option = options.find(|option| option["category"] == "model" || option["id"] == "model");
    let current = option.and_then(|option| option["currentValue"].as_str());
    let current = current.or(opened["models"]["currentModelId"].as_str());
    let model = set.or(current)?;
    Some(model.chars().take(MAX_MODEL_CHARS).collect())
}

/// The values of an option, also where they are in groups.
fn collect_values(options: &Value, into: &mut Vec<String>) {
    for option in options.as_array().into_iter().flatten() {
        match option["value"].as_str() {
            Some(value) => into.push(value.to_owned()),
            None => collect_values(&option["options"], into),
        }
    }
}
