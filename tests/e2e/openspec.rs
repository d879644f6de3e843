//! OpenSpec as the server reads it, beside the real `openspec` command.

pub(crate) mod command;
mod corpus;

use std::path::PathBuf;

use command::OpenSpec;
use corpus::Case;
use serde_json::{Map, Value, json};
use support::{Chance, Modern, Server};

/// Directories that are drawn by chance, besides those that are chosen.
const DRAWN: usize = 600;

#[tokio::test]
async fn every_answer_is_that_of_the_real_command() {
    let Some(openspec) = OpenSpec::find() else {
        return;
    };
    let server = Server::start();
    let admin = server.admin();
    let mut cases = corpus::chosen();
    cases.extend(corpus::drawn(&mut Chance::new(), DRAWN));
    assert!(cases.len() >= 200);
    let mut made: Vec<(String, PathBuf)> = Vec::new();
    let mut questions: Vec<(PathBuf, Vec<String>)> = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let id = project(&admin, &format!("p{index}")).await;
        let top = server.workspace(&id).canonicalize().unwrap();
        case.write(&top);
        questions.push((top.clone(), case.changes(&top)));
        made.push((id, top));
    }
    let answers = openspec.ask(&questions).await;
    let (mut compared, mut failed, mut wrong) = (0, 0, Vec::new());
    for (((case, (id, top)), (_, changes)), said) in
        cases.iter().zip(&made).zip(&questions).zip(answers)
    {
        let top = top.to_str().unwrap();
        let mut compare = |what: String, ours: Value, theirs: Value| {
            compared += 1;
            failed += usize::from(theirs == "failed");
            if ours != theirs {
                wrong.push(format!(
                    "{}: {what}\nours   {ours}\ntheirs {theirs}\n{:?}",
                    case.name,
                    case.settings()
                ));
            }
        };
        let ours = list(&admin, id).await;
        compare("list".to_owned(), ours, theirs(&said["list"], top));
        for change in changes {
            let ours = tasks(&admin, id, change).await;
            let theirs = theirs(&said["apply"][change], top);
            compare(format!("tasks of {change:?}"), ours, theirs);
        }
    }
    let shown: String = wrong.iter().take(5).map(|text| shortened(text)).collect();
    assert!(
        wrong.is_empty(),
        "{} of {compared} differ\n{shown}",
        wrong.len()
    );
    assert!(failed * 2 < compared, "{failed} of {compared} say nothing");
    eprintln!(
        "{} directories, {compared} answers, all the same; {failed} were refusals",
        cases.len()
    );
}

async fn project(admin: &Modern, name: &str) -> String {
    let made = admin
        .call("project_create", json!({ "name": name, "init_git": false }))
        .await;
    made.ok()["project_id"].as_str().unwrap().to_owned()
}

/// What the server says, without what only it can say.
async fn list(admin: &Modern, id: &str) -> Value {
    let reply = admin
        .call(
            "project_changes",
            json!({ "project_id": id, "limit": 1000 }),
        )
        .await;
    if reply.is_error() {
        return json!("failed");
    }
    let mut ours = reply.ok().clone();
    for change in ours["changes"].as_array_mut().unwrap() {
        let sessions = change.as_object_mut().unwrap().remove("active_sessions");
        assert_eq!(sessions, Some(json!([])));
    }
    ours
}

async fn tasks(admin: &Modern, id: &str, change: &str) -> Value {
    let reply = admin
        .call(
            "project_tasks",
            json!({ "project_id": id, "change_id": change }),
        )
        .await;
    if reply.is_error() {
        return json!("failed");
    }
    let mut ours = reply.ok().clone();
    let sessions = ours.as_object_mut().unwrap().remove("active_sessions");
    assert_eq!(sessions, Some(json!([])));
    ours
}

/// What the command says, without the place it was asked in.
fn theirs(said: &Value, top: &str) -> Value {
    if said["code"] == "no_openspec_root" || said["code"] == "invalid_store_pointer" {
        // The contract: a project without OpenSpec has no changes. What has neither changes nor
        // specifications but a configuration that cannot be read is one.
        return json!({ "changes": [] });
    }
    if said.get("error").is_some() {
        return json!("failed");
    }
    let mut said = said.clone();
    said.as_object_mut().unwrap().remove("root");
    moved(&said, top)
}

/// The same with the paths as agents see them.
fn moved(value: &Value, top: &str) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace(top, "/workspace")),
        Value::Array(items) => items.iter().map(|item| moved(item, top)).collect(),
        Value::Object(pairs) => {
            let pairs = pairs.iter();
            let pairs: Map<String, Value> = pairs
                .map(|(name, value)| (name.clone(), moved(value, top)))
                .collect();
            Value::Object(pairs)
        }
        other => other.clone(),
    }
}

fn shortened(text: &str) -> String {
    let short = |line: &str| line.chars().take(1500).collect::<String>();
    text.lines().map(|line| short(line) + "\n").collect()
}
