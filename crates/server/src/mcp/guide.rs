//! What a model can learn from the server: instructions, the guide, and prompts for common tasks.

use oubliette_engine::operations::ToolNames;
use rmcp::model::{
    CacheScope, ErrorData, GetPromptRequestParams, GetPromptResult, ListPromptsResult, Prompt,
    PromptArgument, PromptMessage, Role,
};
use serde_json::{Map, Value};

/// In the words of operations; clients get the names of their own tools.
const GUIDE: &str = include_str!("guide.md");

const INSTRUCTIONS: &str = "Oubliette runs coding agents in isolated containers. `project_create` makes a project, \
     `session_spawn` with `wait_seconds` gives an agent a task and returns its answer, `session_diff` shows what it \
     changed. If `completed` is false, answer what is pending (`session_permit`, `caller_tool_response`) and go on \
     waiting: `session_message` with `session_id` and `wait_seconds`, without a prompt. Names, and beginnings of ids, \
     are taken for ids. Errors say how to correct a call. The resource `oubliette://guide` and the prompts say more.";

pub(super) fn instructions(names: ToolNames) -> String {
    names.apply(INSTRUCTIONS).into_owned()
}

pub(super) fn text(names: ToolNames) -> String {
    names.apply(GUIDE).into_owned()
}

/// A prompt with the places of its arguments in braces.
struct Template {
    name: &'static str,
    title: &'static str,
    about: &'static str,
    /// Name, description, and the text if the argument is absent; required without one.
    arguments: &'static [(&'static str, &'static str, Option<&'static str>)],
    text: &'static str,
}

const PROJECT: (&str, &str, Option<&str>) = ("project", "The project, by name or id.", None);
const SESSION: (&str, &str, Option<&str>) = (
    "session",
    "The session, by its id or the start of it.",
    None,
);

const TEMPLATES: &[Template] = &[
    Template {
        name: "delegate",
        title: "Delegate a task",
        about: "Give a task to an agent, wait for it, and report what it changed.",
        arguments: &[
            PROJECT,
            ("task", "What the agent should do.", None),
            ("agent", "The agent; the project's own if absent.", Some("")),
        ],
        text: "Delegate this task to a coding agent in the Oubliette project `{project}`:\n\n{task}\n\n\
               1. Call `session_spawn` with that project, a self-contained prompt, `new_session: true` and \
               `wait_seconds: 50`. Agent to use, if one is named here: {agent}\n\
               2. While `completed` is false: answer what is in `pending_permissions` (`session_permit`) only as I \
               would, ask me if unsure; then call `session_message` with the `session_id` and `wait_seconds: 50`, \
               without a prompt.\n\
               3. Read `session_diff` of the session and check it against the task. If something is wrong, send a \
               correction with `session_message`, at most three times.\n\
               4. Report: what was done, the files that changed, what is open, the cost, and the session's id.",
    },
    Template {
        name: "review",
        title: "Review a change",
        about: "Review what the agent of a session changed, and try it.",
        arguments: &[
            SESSION,
            (
                "check",
                "A command that must succeed, for example `make test`.",
                Some(""),
            ),
        ],
        text: "Review the work of the Oubliette session `{session}`.\n\n\
               1. `session_get` names its project and workspace. `session_diff` with `stat: true` lists the files, \
               and without it, page by page, shows the patch; `workspace_read` shows a whole file.\n\
               2. Look for wrong behaviour, missing cases, tests that test nothing, and changes that the task did not \
               ask for.\n\
               3. Run the project's checks in its workspace with `container_exec`. Command, if one is named here: {check}\n\
               4. Report each finding with file and line, the worst first, and say whether the change can be kept. If it \
               can, mark it with `session_review`. Do not change files and do not push.",
    },
    Template {
        name: "parallel",
        title: "Run in parallel",
        about: "Give several tasks, or one task several times, to agents that work at once.",
        arguments: &[
            PROJECT,
            (
                "tasks",
                "The tasks, one per line; or one task and how many attempts.",
                None,
            ),
        ],
        text: "Run these tasks at the same time with coding agents in the Oubliette project `{project}`:\n\n{tasks}\n\n\
               1. For each, call `session_spawn` with a self-contained prompt, `create_workspace: true`, a short \
               `workspace_id` that names the task, and no `wait_seconds`: they start at once and cannot disturb each \
               other.\n\
               2. Wait for each in turn: `session_message` with its `session_id` and `wait_seconds: 50`, without a prompt, \
               until `completed` is true. Answer what is pending, ask me if unsure.\n\
               3. Compare `session_diff` with `stat: true` of all of them. For attempts at the same task, say which is best \
               and why; for different tasks, name files that several changed.\n\
               4. Report as a table: task, workspace, session, outcome, files, cost. Delete and push nothing.",
    },
];

pub(super) fn list_prompts() -> ListPromptsResult {
    let prompt = |template: &Template| {
        let arguments = template.arguments.iter().map(|(name, about, default)| {
            PromptArgument::new(*name)
                .with_description(*about)
                .with_required(default.is_none())
        });
        let arguments = Some(arguments.collect());
        Prompt::new(template.name, Some(template.about), arguments).with_title(template.title)
    };
    ListPromptsResult {
        ttl_ms: Some(0),
        cache_scope: Some(CacheScope::Private),
        ..ListPromptsResult::with_all_items(TEMPLATES.iter().map(prompt).collect())
    }
}

pub(super) fn get_prompt(
    request: GetPromptRequestParams,
    names: ToolNames,
) -> Result<GetPromptResult, ErrorData> {
    let Some(template) = TEMPLATES.iter().find(|known| known.name == request.name) else {
        let known: Vec<&str> = TEMPLATES.iter().map(|template| template.name).collect();
        let text = format!(
            "there is no such prompt; there are `{}`",
            known.join("`, `")
        );
        return Err(ErrorData::invalid_params(text, None));
    };
    let given = request.arguments.unwrap_or_default();
    let text = fill(&names.apply(template.text), template, &given).map_err(|missing| {
        ErrorData::invalid_params(format!("missing argument `{missing}`"), None)
    })?;
    let message = PromptMessage::new_text(Role::User, text);
    Ok(GetPromptResult::new(vec![message]).with_description(template.about))
}

/// A text with the arguments of its template; the name of one that is missing.
fn fill(
    text: &str,
    template: &Template,
    given: &Map<String, Value>,
) -> Result<String, &'static str> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        filled.push_str(before);
        let argument = template.arguments.iter().find(|(known, ..)| *known == name);
        if let Some((name, _, default)) = argument {
            let text = given.get(*name).and_then(Value::as_str).map(str::trim);
            let text = text.filter(|text| !text.is_empty()).or(*default);
            filled.push_str(match text.ok_or(*name)? {
                "" => "(none)",
                text => text,
            });
        }
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use oubliette_engine::operations;
    use oubliette_model::ToolStyle;
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_name_only_operations_that_exist() {
        let templates = TEMPLATES.iter().map(|template| template.text);
        for text in [GUIDE, INSTRUCTIONS].into_iter().chain(templates) {
            let named = text.split('`').skip(1).step_by(2);
            for name in named.filter(|name| {
                operations::NOUNS.iter().any(|noun| {
                    name.strip_prefix(noun.name)
                        .is_some_and(|rest| rest.starts_with('_'))
                })
            }) {
                let is_parameter = operations::all()
                    .iter()
                    .any(|entry| entry.properties().any(|(known, _)| known == name));
                assert!(is_parameter || operations::find(name).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn a_prompt_has_its_arguments_and_the_names_of_the_client() {
        let names = ToolNames::of_style(ToolStyle::Unified);
        let get = |name: &str, arguments: Value| {
            let mut request = GetPromptRequestParams::new(name);
            request.arguments = arguments.as_object().cloned();
            get_prompt(request, names)
        };
        let task = "keep {braces} and `session_get`";
        let found = get("delegate", json!({ "project": "app", "task": task })).unwrap();
        let text = serde_json::to_string(&found).unwrap();
        assert!(text.contains("`app`") && text.contains(task), "{text}");
        assert!(text.contains("`session` action `spawn`"), "{text}");
        let missing = get("delegate", json!({ "project": "app" })).unwrap_err();
        assert_eq!(missing.message, "missing argument `task`");
        let unknown = get("delegat", json!({})).unwrap_err();
        assert!(
            unknown.message.contains("`delegate`"),
            "{}",
            unknown.message
        );
    }
}
