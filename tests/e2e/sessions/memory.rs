//! What the server keeps in memory about sessions ends with them.

use std::time::Duration;

use serde_json::json;
use support::{Server, eventually, http};

/// Gauges that are zero when nothing runs and no call waits.
const GAUGES: [&str; 3] = [
    "oubliette_session_tasks",
    "oubliette_subscriptions",
    "oubliette_container_entries",
];

#[test(needs(sandbox))]
async fn nothing_is_kept_in_memory_of_ended_sessions_and_deleted_projects() {
    let server = Server::start();
    let admin = server.admin();
    let gauges = async || {
        let request = http().get(format!("{}/metrics", server.base()));
        let response = request.bearer_auth(server.admin_key()).send().await;
        let page = response.unwrap().text().await.unwrap();
        GAUGES.map(|name| {
            let mut lines = page.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.unwrap().parse::<u64>().unwrap()
        })
    };
    assert_eq!(gauges().await, [0; 3]);
    let shared = admin.project("shared").await;
    let isolated = json!({ "name": "isolated", "workspace_isolation": true });
    let isolated = admin.call("project_create", isolated).await.ok()["project_id"].clone();
    let isolated = isolated.as_str().unwrap().to_owned();
    let more = json!({ "new_session": true, "create_workspace": true });
    let mut sessions = Vec::new();
    for project in [&shared, &isolated, &shared, &isolated] {
        sessions.push(admin.spawn_with(project, "/say here", more.clone()).await);
    }
    for session in &sessions {
        admin.turn(session, 1).await;
        // A reader that gets nothing more.
        let page = json!({ "session_id": session, "since_index": 1000, "wait_seconds": 0.1 });
        admin.call("session_events", page).await.ok();
        let tree = json!({ "session_id": session, "include_children": true });
        admin.call("session_events", tree).await.ok();
    }
    let [tasks, subscriptions, entries] = gauges().await;
    assert_eq!((tasks, subscriptions), (4, 0), "agents run, no call waits");
    assert!(entries > 0);
    // Two sessions end, the others are deleted with their project.
    for session in [&sessions[0], &sessions[2]] {
        let end = json!({ "session_id": session });
        admin.call("session_end", end).await.ok();
    }
    for project in [&shared, &isolated] {
        let delete = json!({ "project_id": project });
        admin.call("project_delete", delete).await.ok();
    }
    let forgotten = eventually(Duration::from_secs(60), async || gauges().await == [0; 3]);
    assert!(forgotten.await, "{GAUGES:?} are {:?}", gauges().await);
}
