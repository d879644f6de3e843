//! The output of `container list`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::names::{CONTAINER_LABEL, DATA_DIR_LABEL, DataDirNames, PROJECT_LABEL};
use crate::{ContainerId, ContainerStatus, Result, RunState, RuntimeError};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedContainer {
    configuration: Configuration,
    status: ListedStatus,
    /// Here before version 1.0; in `status` since.
    #[serde(default)]
    started_date: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Configuration {
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ListedStatus {
    Before1(String),
    #[serde(rename_all = "camelCase")]
    Since1 {
        state: String,
        #[serde(default)]
        started_date: Option<serde_json::Value>,
    },
}

/// The containers of a listing that belong to a data directory.
pub(super) fn parse(json: &str, names: &DataDirNames) -> Result<Vec<ContainerStatus>> {
    let listed: Vec<ListedContainer> = serde_json::from_str(json).map_err(|error| {
        RuntimeError::Failed(format!(
            "the output of `container list` cannot be parsed: {error}"
        ))
    })?;
    let statuses = listed.into_iter().filter_map(|one| one.status(names));
    Ok(statuses.collect())
}

impl ListedContainer {
    fn status(self, names: &DataDirNames) -> Option<ContainerStatus> {
        let labels = &self.configuration.labels;
        if labels.get(DATA_DIR_LABEL)? != names.hash() {
            return None;
        }
        let (state, started) = match self.status {
            ListedStatus::Before1(state) => (state, self.started_date),
            ListedStatus::Since1 {
                state,
                started_date,
            } => (state, started_date),
        };
        let state = match (state.as_str(), started) {
            // Its processes exist until it has stopped.
            ("running" | "stopping", _) => RunState::Running,
            (_, None) => RunState::Created,
            _ => RunState::Stopped,
        };
        Some(ContainerStatus {
            id: ContainerId::new(labels.get(CONTAINER_LABEL)?.as_str())?,
            project: labels.get(PROJECT_LABEL)?.clone(),
            state,
            memory_events: None,
            can_take_server_port: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn labels(names: &DataDirNames, id: &str) -> String {
        format!(
            r#"{{"{DATA_DIR_LABEL}":"{}","{CONTAINER_LABEL}":"{id}","{PROJECT_LABEL}":"p"}}"#,
            names.hash()
        )
    }

    fn states(json: &str, names: &DataDirNames) -> Vec<(String, RunState)> {
        let found = parse(json, names).unwrap();
        let pairs = found
            .into_iter()
            .map(|status| (status.id.to_string(), status.state));
        pairs.collect()
    }

    #[test]
    fn both_formats_are_parsed_and_other_containers_left_out() {
        let names = DataDirNames::new(Path::new("/h"));
        let (a, b, c) = (
            labels(&names, "a"),
            labels(&names, "b"),
            labels(&names, "c"),
        );
        let since = format!(
            r#"[{{"id":"x","configuration":{{"id":"x","labels":{a},"resources":{{"cpus":4}}}},
                "status":{{"state":"running","networks":[],"startedDate":"2026-06-09T08:28:08Z"}}}},
              {{"id":"y","configuration":{{"id":"y","labels":{b}}},
                "status":{{"state":"stopped","networks":[],"startedDate":"2026-06-09T08:28:08Z"}}}},
              {{"id":"z","configuration":{{"id":"z","labels":{c}}},
                "status":{{"state":"stopped","networks":[]}}}},
              {{"id":"other","configuration":{{"id":"other","labels":{{}}}},
                "status":{{"state":"running","networks":[]}}}}]"#
        );
        let expected = [
            ("a".to_owned(), RunState::Running),
            ("b".to_owned(), RunState::Stopped),
            ("c".to_owned(), RunState::Created),
        ];
        assert_eq!(states(&since, &names), expected);
        let before = format!(
            r#"[{{"status":"stopping","networks":[],"configuration":{{"labels":{a}}}}},
              {{"status":"stopped","startedDate":771000000.5,"configuration":{{"labels":{b}}}}},
              {{"status":"stopped","configuration":{{"labels":{c}}}}}]"#
        );
        assert_eq!(states(&before, &names), expected);
        assert_eq!(states("[]", &names), []);
    }

    #[test]
    fn unknown_output_is_an_error() {
        let names = DataDirNames::new(Path::new("/h"));
        for text in ["", "ID IMAGE", "{}", r#"[{"status":1}]"#] {
            assert!(parse(text, &names).is_err(), "{text:?}");
        }
    }
}
