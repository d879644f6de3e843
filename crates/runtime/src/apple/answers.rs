//! What the command line prints, as far as we need it.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::home::{CONTAINER_LABEL, HOME_LABEL, Home, PROJECT_LABEL};
use crate::{ContainerId, Result, RuntimeError, State, Status};

/// One container of a listing.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    configuration: Configuration,
    status: Progressed,
    /// Beside the status before 1.0, in it since.
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
enum Progressed {
    Before1(String),
    #[serde(rename_all = "camelCase")]
    Since1 {
        state: String,
        #[serde(default)]
        started_date: Option<serde_json::Value>,
    },
}

/// The containers of a listing that belong to a data directory.
pub(super) fn containers(json: &str, home: &Home) -> Result<Vec<Status>> {
    let listed: Vec<Listed> = serde_json::from_str(json).map_err(|error| {
        RuntimeError::Failed(format!(
            "`container list` printed something that is not understood: {error}"
        ))
    })?;
    let ours = listed.into_iter().filter_map(|one| one.status(home));
    Ok(ours.collect())
}

impl Listed {
    fn status(self, home: &Home) -> Option<Status> {
        let labels = &self.configuration.labels;
        if labels.get(HOME_LABEL)? != home.hash() {
            return None;
        }
        let (state, started) = match self.status {
            Progressed::Before1(state) => (state, self.started_date),
            Progressed::Since1 {
                state,
                started_date,
            } => (state, started_date),
        };
        let state = match (state.as_str(), started) {
            // Until it has stopped, it is there.
            ("running" | "stopping", _) => State::Running,
            (_, None) => State::Created,
            _ => State::Stopped,
        };
        Some(Status {
            id: ContainerId::new(labels.get(CONTAINER_LABEL)?.as_str())?,
            project: labels.get(PROJECT_LABEL)?.clone(),
            state,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn labels(home: &Home, id: &str) -> String {
        format!(
            r#"{{"{HOME_LABEL}":"{}","{CONTAINER_LABEL}":"{id}","{PROJECT_LABEL}":"p"}}"#,
            home.hash()
        )
    }

    fn states(json: &str, home: &Home) -> Vec<(String, State)> {
        let found = containers(json, home).unwrap();
        let pairs = found
            .into_iter()
            .map(|status| (status.id.to_string(), status.state));
        pairs.collect()
    }

    #[test]
    fn both_shapes_of_a_listing_are_read_and_only_ours_is_kept() {
        let home = Home::new(Path::new("/h"));
        let (a, b, c) = (labels(&home, "a"), labels(&home, "b"), labels(&home, "c"));
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
            ("a".to_owned(), State::Running),
            ("b".to_owned(), State::Stopped),
            ("c".to_owned(), State::Created),
        ];
        assert_eq!(states(&since, &home), expected);
        let before = format!(
            r#"[{{"status":"stopping","networks":[],"configuration":{{"labels":{a}}}}},
              {{"status":"stopped","startedDate":771000000.5,"configuration":{{"labels":{b}}}}},
              {{"status":"stopped","configuration":{{"labels":{c}}}}}]"#
        );
        assert_eq!(states(&before, &home), expected);
        assert_eq!(states("[]", &home), []);
    }

    #[test]
    fn what_is_no_listing_is_an_error() {
        let home = Home::new(Path::new("/h"));
        for text in ["", "ID IMAGE", "{}", r#"[{"status":1}]"#] {
            assert!(containers(text, &home).is_err(), "{text:?}");
        }
    }
}
