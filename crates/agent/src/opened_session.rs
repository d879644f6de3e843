//! What an agent's answer says that opens a session: its options, and the models that it offers.

use serde_json::Value;

/// Of the name of a model that an agent reports.
pub(crate) const MAX_MODEL_CHARS: usize = 200;
/// What the value of a model starts with that Qwen Code makes up from a variable of its environment.
const MADE_UP_PREFIX: &str = "$runtime|";
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
    let mut entries = Vec::new();
    collect_entries(&option["options"], &mut entries);
    let values = entries.iter().filter_map(|entry| entry["value"].as_str());
    let values = values.map(str::to_owned).collect();
    Some((option["id"].as_str()?.to_owned(), values))
}

/// The names of the models that the agent offers.
pub fn offered_models(opened: &Value) -> Vec<String> {
    let mut models: Vec<String> = match find_config_option(opened, "model", &["model"]) {
        Some((option, values)) => {
            let shown = |value: String| shown_value(opened, &option, &value);
            values.into_iter().map(shown).collect()
        }
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
    let current = option.and_then(|option| {
        let value = option["currentValue"].as_str()?;
        Some(shown_value(opened, option["id"].as_str()?, value))
    });
    let current = current.or(opened["models"]["currentModelId"]
        .as_str()
        .map(str::to_owned));
    let model = set.map(str::to_owned).or(current)?;
    Some(model.chars().take(MAX_MODEL_CHARS).collect())
}

/// The value of a configuration option with this name, if exactly one has it.
pub(crate) fn value_by_name(opened: &Value, option: &str, name: &str) -> Option<String> {
    let entries = entries_of(opened, option);
    let mut named = entries.iter().filter(|entry| entry["name"] == name);
    let value = named.next()?["value"].as_str()?;
    named.next().is_none().then(|| value.to_owned())
}

/// A value as people write it: its name, for a value that the agent has made up from a setting.
fn shown_value(opened: &Value, option: &str, value: &str) -> String {
    let entries = entries_of(opened, option);
    let entry = entries.iter().find(|entry| entry["value"] == value);
    let name = entry.and_then(|entry| entry["name"].as_str());
    let name = name.filter(|_| value.starts_with(MADE_UP_PREFIX));
    name.unwrap_or(value).to_owned()
}

fn entries_of<'a>(opened: &'a Value, option: &str) -> Vec<&'a Value> {
    let options = opened["configOptions"].as_array().into_iter().flatten();
    let options = options.filter(|one| one["id"] == option);
    let mut entries = Vec::new();
    options.for_each(|option| collect_entries(&option["options"], &mut entries));
    entries
}

/// The values of an option, also where they are in groups.
fn collect_entries<'a>(options: &'a Value, into: &mut Vec<&'a Value>) {
    for option in options.as_array().into_iter().flatten() {
        match option["value"].as_str() {
            Some(_) => into.push(option),
            None => collect_entries(&option["options"], into),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_made_up_value_is_shown_and_found_by_its_name() {
        let made_up = "$runtime|openai|mock(openai)";
        let options = json!([
            { "value": made_up, "name": "mock" },
            { "options": [{ "value": "a", "name": "A" }, { "value": "b", "name": "A" }] },
        ]);
        let opened = json!({ "configOptions": [
            { "id": "m", "category": "model", "currentValue": made_up, "options": options },
        ] });
        assert_eq!(offered_models(&opened), ["mock", "a", "b"]);
        assert_eq!(model_in_use(&opened, None).as_deref(), Some("mock"));
        assert_eq!(model_in_use(&opened, Some("x")).as_deref(), Some("x"));
        assert_eq!(
            value_by_name(&opened, "m", "mock").as_deref(),
            Some(made_up)
        );
        assert_eq!(value_by_name(&opened, "m", "A"), None);
    }
}
