//! Commands in containers, from a caller's side.

use serde_json::{Value, json};

use crate::{Modern, Reply};

impl Modern {
    /// Runs a command, a line of shell or a list of arguments, and returns its result.
    pub async fn exec(&self, project: &str, command: impl Into<Value>) -> Value {
        self.exec_with(project, json!({ "command": command.into() }))
            .await
    }

    /// Runs a command with the parameters of `container_exec`, and returns its result.
    pub async fn exec_with(&self, project: &str, parameters: Value) -> Value {
        self.try_exec(project, parameters).await.ok().clone()
    }

    /// Runs a command that may be refused. The result has the whole output.
    pub async fn try_exec(&self, project: &str, mut parameters: Value) -> Reply {
        parameters["project_id"] = json!(project);
        parameters["full"] = json!(true);
        self.call("container_exec", parameters).await
    }
}
