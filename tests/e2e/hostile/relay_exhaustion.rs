//! A process in a container that takes all relay connections it can get. The agent's own client is served.

use serde_json::json;
use support::relay::{RECORDER_CONFIG, keys_of_session};
use support::{Relay, Server, ServerOptions};

/// Opens connections that look like clients and shows no key, then reports and waits.
const FLOOD: &str = r#"
use IO::Socket::UNIX;
for (1..400) {
    my $socket = IO::Socket::UNIX->new(Peer => "/mcp/relay.sock") or die "connect: $!";
    $socket->autoflush(1);
    print $socket "{\"id\":$_,\"method\":\"fly\"}\n";
    my $line = <$socket>;
    push @open, $socket;
}
open(my $report, ">", "/workspace/flooded"); print $report scalar(@open); close($report);
sleep 600;
"#;

#[test(needs(sandbox), limit = 240)]
async fn connections_without_a_session_do_not_lock_an_agent_out() {
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{RECORDER_CONFIG}"),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = json!({ "name": "one", "agent": "recorder", "init_git": false });
    let project = admin.call("project_create", project).await;
    let project = project.ok()["project_id"].as_str().unwrap().to_owned();
    let session = admin.spawn(&project, "/say hello").await;
    admin.turn(&session, 1).await;
    let keys = keys_of_session(&server, &project, &session);

    let command = "perl -e \"$FLOOD\" >/dev/null 2>/workspace/error &";
    let flood = json!({ "project_id": project, "command": command, "env": { "FLOOD": FLOOD } });
    admin.call("container_exec", flood).await.ok();
    let report = server.workspace(&project).join("flooded");
    support::wait_until("the flood of connections", async || report.exists()).await;

    // As an agent that was just started.
    let mut relay = Relay::attached(&server, &project, &keys).await;
    let limits = relay.request("config_limits", json!({})).await;
    assert!(limits["result"].is_object(), "{limits}");
    // And the agent that was there before works too.
    admin.message(&session, "/tool config_limits {}").await;
    let ended = admin.turn(&session, 2).await;
    assert_eq!(ended["stop_reason"], "end_turn", "{ended}");
    let new = json!({ "new_session": true });
    let second = admin
        .spawn_with(&project, "/tool config_limits {}", new)
        .await;
    let ended = admin.turn(&second, 1).await;
    assert_eq!(ended["stop_reason"], "end_turn", "{ended}");
    assert!(ended["text"].as_str().unwrap().contains("max_"), "{ended}");
}

#[test(needs(sandbox), limit = 240)]
async fn one_session_cannot_take_the_connections_of_all() {
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{RECORDER_CONFIG}"),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = json!({ "name": "one", "agent": "recorder", "init_git": false });
    let project = admin.call("project_create", project).await;
    let project = project.ok()["project_id"].as_str().unwrap().to_owned();
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let new = json!({ "new_session": true });
        let session = admin.spawn_with(&project, "/say hello", new).await;
        admin.turn(&session, 1).await;
        sessions.push(keys_of_session(&server, &project, &session));
    }
    let (greedy, other) = (&sessions[0], &sessions[1]);
    let mut open = Vec::new();
    let refused = loop {
        let mut relay = Relay::connect(&server, &project).await;
        let reply = relay.attach(&greedy.session_id, &greedy.session_key).await;
        if reply["result"].is_null() {
            break reply;
        }
        open.push(relay);
        assert!(
            open.len() < 300,
            "the connections of a session are not bounded"
        );
    };
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("too many connections from this session"),
        "{message}"
    );
    Relay::attached(&server, &project, other).await;
}
