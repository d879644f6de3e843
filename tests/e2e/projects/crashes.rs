//! `kill -9` at any moment loses nothing that was acknowledged.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use serde_json::json;
use support::{Server, wait_until};

#[test]
async fn every_acknowledged_write_survives_being_killed_or_stopped_in_a_loop() {
    let mut server = Server::start();
    let acknowledged: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    for round in 0..12 {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let admin = server.admin();
                let acknowledged = acknowledged.clone();
                tokio::spawn(async move {
                    for n in 0.. {
                        let name = format!("r{round} w{writer} n{n}");
                        let call =
                            json!({ "name": "project_create", "arguments": { "name": name } });
                        match admin.try_send("tools/call", call).await {
                            Some(reply) if reply.status == 200 && !reply.is_error() => {
                                // A reply that the kill cut off does not acknowledge.
                                if reply.body["result"]["structuredContent"].is_object() {
                                    acknowledged.lock().unwrap().insert(name);
                                }
                            }
                            _ => return,
                        }
                    }
                })
            })
            .collect();
        // Another moment in each round: after a growing number of writes.
        let before = acknowledged.lock().unwrap().len();
        wait_until("more writes", async || {
            acknowledged.lock().unwrap().len() >= before + 5 + round * 7
        })
        .await;
        match round % 3 {
            2 => assert_eq!(server.stop(), Some(0)),
            _ => server.kill(),
        }
        for writer in writers {
            writer.await.unwrap();
        }
        server.start_again();
        let expected = acknowledged.lock().unwrap().clone();
        let mut listed = BTreeSet::new();
        let mut page = json!({ "limit": 1000 });
        loop {
            let reply = server.admin().call("project_list", page.clone()).await;
            for project in reply.ok()["projects"].as_array().unwrap() {
                let id = project["project_id"].as_str().unwrap();
                assert!(server.workspace(id).join(".git/HEAD").exists(), "{project}");
                listed.insert(project["name"].as_str().unwrap().to_owned());
            }
            match reply.ok().get("next_cursor") {
                Some(cursor) => page["cursor"] = cursor.clone(),
                None => break,
            }
        }
        let lost: Vec<_> = expected.difference(&listed).collect();
        assert!(
            lost.is_empty(),
            "round {round}: {lost:?} were acknowledged and are gone"
        );
        let directories = std::fs::read_dir(server.home().join("projects")).unwrap();
        // What was deleted may still be on its way.
        let names = directories.map(|entry| entry.unwrap().file_name());
        let directories = names.filter(|name| name != ".deleted").count();
        assert_eq!(
            directories,
            listed.len(),
            "round {round}: files of half-made projects stay"
        );
    }
}

#[test]
async fn a_deletion_that_was_cut_off_is_finished_by_the_next_start() {
    let mut server = Server::start();
    let admin = server.admin();
    let mut ids = Vec::new();
    for n in 0..30 {
        ids.push(admin.project(&format!("p{n}")).await);
    }
    let deletions: Vec<_> = ids
        .iter()
        .map(|id| {
            let (admin, id) = (admin.clone(), id.clone());
            tokio::spawn(async move {
                let call = json!({ "name": "project_delete", "arguments": { "project_id": id } });
                admin
                    .try_send("tools/call", call)
                    .await
                    .is_some_and(|reply| reply.status == 200)
            })
        })
        .collect();
    wait_until("the first deletion", async || {
        !server.workspace(&ids[0]).exists()
    })
    .await;
    server.kill();
    for deletion in deletions {
        deletion.await.unwrap();
    }
    server.start_again();
    let listed = server
        .admin()
        .call("project_list", json!({ "limit": 1000 }))
        .await;
    let listed: BTreeSet<String> = listed.ok()["projects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|project| project["project_id"].as_str().unwrap().to_owned())
        .collect();
    for id in &ids {
        let has_files = server.home().join("projects").join(id).exists();
        assert_eq!(
            has_files,
            listed.contains(id),
            "{id}: files and row disagree"
        );
    }
    server
        .assert_only_left(&listed.into_iter().collect::<Vec<_>>())
        .await;
}
