//! Schedules on the real server, with the demo agent in real containers.

use serde_json::{Value, json};
use support::schedules::{history, until};
use support::{Modern, Server, ServerOptions, cli};

fn server(config: &str) -> Server {
    Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{config}"),
        ..ServerOptions::default()
    })
}

async fn create(caller: &Modern, project: &str, more: Value) -> Value {
    let mut parameters = json!({
        "name": "nightly", "cron_expr": "0 3 * * *", "prompt": "/say done",
        "targets": [{ "project_id": project }],
    });
    for (name, value) in more.as_object().unwrap() {
        parameters[name] = value.clone();
    }
    let reply = caller.call("schedule_create", parameters).await;
    reply.ok().clone()
}

fn id(schedule: &Value) -> String {
    schedule["schedule_id"].as_str().unwrap().to_owned()
}

async fn get(caller: &Modern, schedule: &str) -> Value {
    let parameters = json!({ "schedule_id": schedule });
    caller.call("schedule_get", parameters).await.ok().clone()
}

async fn update(caller: &Modern, schedule: &str, mut change: Value) -> Value {
    change["schedule_id"] = json!(schedule);
    caller.call("schedule_update", change).await.ok().clone()
}

async fn trigger(caller: &Modern, schedule: &str) -> Vec<Value> {
    let parameters = json!({ "schedule_id": schedule });
    let reply = caller.call("schedule_trigger", parameters).await;
    reply.ok()["runs"].as_array().unwrap().clone()
}

fn statuses(runs: &[Value]) -> Vec<&str> {
    runs.iter()
        .map(|run| run["status"].as_str().unwrap())
        .collect()
}

fn is_over(run: &Value) -> bool {
    run["ended_at"].is_string()
}

/// Triggers a schedule and waits until its run has ended.
async fn run_once(caller: &Modern, schedule: &str) -> Value {
    let run = trigger(caller, schedule).await.remove(0);
    let this = |other: &&Value| other["run_id"] == run["run_id"];
    let runs = until(caller, schedule, |runs| {
        runs.iter().find(this).is_some_and(is_over)
    });
    let runs = runs.await;
    runs.iter().find(this).unwrap().clone()
}

#[test(needs(sandbox))]
async fn a_schedule_shows_its_next_runs_and_the_results_of_past_ones() {
    let server = server("");
    let admin = server.admin();
    let project = admin.project("one").await;
    let zone = json!({ "timezone": "europe/berlin", "cron_expr": "0 9 * * MON-FRI" });
    let made = create(&admin, &project, zone).await;
    let schedule = id(&made);
    assert_eq!(made["timezone"], "Europe/Berlin");
    let next = made["next_runs"].as_array().unwrap();
    assert_eq!((next.len(), &next[0]), (5, &made["next_run"]));
    assert_eq!(get(&admin, &schedule).await, made);
    let listed = admin.call("schedule_list", json!({})).await.ok().clone();
    assert_eq!(listed["schedules"][0]["schedule_id"], made["schedule_id"]);

    let prompt = "/say Hello.\n/sh echo $((40 + 2))\n/usage 100 20 0.5";
    update(
        &admin,
        &schedule,
        json!({ "prompt": prompt, "enabled": false }),
    )
    .await;
    let seen = get(&admin, &schedule).await;
    assert!(seen["next_run"].is_null() && seen["next_runs"] == json!([]));
    // One that is disabled runs when it is triggered.
    let first = run_once(&admin, &schedule).await;
    assert_eq!(first["status"], "success", "{first}");
    assert_eq!(first["output"], "Hello.\n\n42");
    assert_eq!(
        (&first["cause"], &first["cost_usd"]),
        (&json!("trigger"), &json!(0.5))
    );
    assert!(first["duration_ms"].is_i64() && first["started_at"].is_string());
    let session = first["session_id"].as_str().unwrap();
    let seen = get(&admin, &schedule).await;
    assert_eq!(seen["targets"][0]["session_id"], session);
    let found = admin.session(session).await;
    assert_eq!(found["source"], format!("schedule {schedule}"));

    // Of a long text the history has the beginning.
    update(
        &admin,
        &schedule,
        json!({ "prompt": "/sh yes äöü | head -c 20000" }),
    )
    .await;
    let long = run_once(&admin, &schedule).await;
    assert_eq!(
        (&long["status"], &long["truncated"]),
        (&json!("success"), &json!(true))
    );
    assert!((8000..=8192).contains(&long["output"].as_str().unwrap().len()));
    update(
        &admin,
        &schedule,
        json!({ "prompt": prompt, "enabled": false }),
    )
    .await;

    // The next run uses the same session, also after it has ended.
    admin
        .call("session_end", json!({ "session_id": session }))
        .await
        .ok();
    let second = run_once(&admin, &schedule).await;
    assert_eq!(
        (&second["session_id"], &second["cost_usd"]),
        (&json!(session), &json!(0.5))
    );
    assert_eq!(admin.session(session).await["turns"], 3);

    let log = admin
        .call("audit_list", json!({ "operation": "session_message" }))
        .await;
    let log = log.ok().clone();
    assert_eq!(
        log["entries"][0]["address"],
        format!("schedule {schedule}"),
        "{log}"
    );

    let gone = admin
        .call("schedule_delete", json!({ "schedule_id": schedule }))
        .await;
    assert_eq!(gone.ok()["unfinished_runs"], 0);
    let gone = admin
        .call("schedule_get", json!({ "schedule_id": schedule }))
        .await;
    assert!(
        gone.sentence()
            .starts_with(&format!("schedule `{schedule}` not found"))
    );
    admin.session(session).await;
}

#[test(needs(sandbox))]
async fn each_new_session_ends_with_its_run_and_a_lost_one_is_replaced() {
    let server = server("");
    let admin = server.admin();
    let project = admin.project("one").await;
    let fresh = create(&admin, &project, json!({ "session_behavior": "new" })).await;
    let first = run_once(&admin, &id(&fresh)).await;
    let second = run_once(&admin, &id(&fresh)).await;
    assert_ne!(first["session_id"], second["session_id"]);
    for run in [first, second] {
        assert_eq!(run["output"], "done", "{run}");
        let session = run["session_id"].as_str().unwrap();
        admin.status(session, "completed").await;
    }
    let pinned = create(&admin, &project, json!({})).await;
    let first = run_once(&admin, &id(&pinned)).await;
    let session = first["session_id"].as_str().unwrap();
    admin
        .call("session_end", json!({ "session_id": session }))
        .await
        .ok();
    admin
        .call("session_cleanup", json!({ "max_age_hours": 0 }))
        .await
        .ok();
    let second = run_once(&admin, &id(&pinned)).await;
    assert_eq!(second["status"], "success");
    assert_ne!(second["session_id"], first["session_id"]);
    let note = second["note"].as_str().unwrap();
    assert!(
        note.contains(session) && note.contains("was deleted"),
        "{note}"
    );

    // Two targets are two runs.
    let elsewhere = json!({ "create_workspace": true, "workspace_id": "w2" });
    let elsewhere = admin.spawn_with(&project, "/say x", elsewhere).await;
    admin.turn(&elsewhere, 1).await;
    let both = json!([{ "project_id": project }, { "project_id": project, "workspace_id": "w2" }]);
    let both = create(
        &admin,
        &project,
        json!({ "targets": both, "prompt": "/sh pwd" }),
    )
    .await;
    assert_eq!(trigger(&admin, &id(&both)).await.len(), 2);
    let runs = until(&admin, &id(&both), |runs| runs.iter().all(is_over)).await;
    let outputs: Vec<&Value> = runs.iter().map(|run| &run["output"]).collect();
    assert_eq!(outputs, ["/workspace", "/workspaces/w2"]);
}

#[test(needs(sandbox))]
async fn overlapping_runs_are_skipped_queued_or_parallel_as_configured() {
    let server = server("");
    let admin = server.admin();
    let project = admin.project("one").await;
    let go = server.workspace(&project).join("go");
    let prompt = "/sh until [ -e go ]; do sleep 0.05; done";
    for (overlap, held, over) in [
        (
            "skip",
            ["running", "skipped", "skipped"],
            ["success", "skipped", "skipped"],
        ),
        (
            "queue",
            ["running", "queued", "skipped"],
            ["success", "success", "skipped"],
        ),
        (
            "parallel",
            ["running", "running", "running"],
            ["success", "success", "success"],
        ),
    ] {
        let _ = std::fs::remove_file(&go);
        let behaviour = json!({
            "overlap_behavior": overlap, "session_behavior": "new", "prompt": prompt,
        });
        let schedule = id(&create(&admin, &project, behaviour).await);
        for count in 1..=3 {
            trigger(&admin, &schedule).await;
            let settled = |runs: &[Value]| runs.len() == count && statuses(runs) == held[..count];
            until(&admin, &schedule, settled).await;
        }
        std::fs::write(&go, "").unwrap();
        until(&admin, &schedule, |runs| statuses(runs) == over).await;
    }
}

#[test(needs(sandbox))]
async fn a_run_that_takes_too_long_is_stopped() {
    let server = server("[schedules]\nrun_seconds = 5\n");
    let admin = server.admin();
    let project = admin.project("one").await;
    // The container starts before the run's time counts.
    admin.exec(&project, "true").await;
    for (behaviour, status) in [("resume", "idle"), ("new", "interrupted")] {
        let slow = json!({ "prompt": "/sleep 600", "session_behavior": behaviour });
        let schedule = create(&admin, &project, slow).await;
        let run = run_once(&admin, &id(&schedule)).await;
        assert_eq!(run["status"], "failed");
        let error = run["error"].as_str().unwrap();
        assert!(error.contains("longer than 5 seconds"), "{error}");
        admin
            .status(run["session_id"].as_str().unwrap(), status)
            .await;
    }
}

#[test(needs(sandbox))]
async fn five_failures_in_a_row_disable_a_schedule_until_it_is_edited() {
    let server = server("");
    let admin = server.admin();
    let project = admin.project("one").await;
    let failing = create(&admin, &project, json!({ "prompt": "/fail not today" })).await;
    let schedule = id(&failing);
    for n in 1..=5 {
        let run = run_once(&admin, &schedule).await;
        assert_eq!(run["status"], "failed");
        assert!(
            run["error"].as_str().unwrap().contains("not today"),
            "{run}"
        );
        let seen = get(&admin, &schedule).await;
        assert_eq!(
            (&seen["failures"], &seen["enabled"]),
            (&json!(n), &json!(n < 5))
        );
    }
    let seen = get(&admin, &schedule).await;
    let reason = seen["disabled_reason"].as_str().unwrap();
    assert!(reason.contains("5 runs in a row failed"), "{reason}");
    assert!(seen["next_run"].is_null());
    assert!(
        server
            .log()
            .contains("schedule disabled after 5 failed runs in a row"),
        "{}",
        server.log()
    );
    let listed = cli(server.home(), ["schedule", "list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("disabled: 5 runs"));

    let seen = update(&admin, &schedule, json!({ "prompt": "/say better" })).await;
    assert_eq!(
        (&seen["failures"], &seen["enabled"]),
        (&json!(0), &json!(true))
    );
    assert!(seen["disabled_reason"].is_null() && seen["next_run"].is_string());
    assert_eq!(run_once(&admin, &schedule).await["status"], "success");
}

#[test(needs(sandbox))]
async fn schedules_are_limited_by_their_token_and_lose_deleted_targets() {
    let server = server("");
    let admin = server.admin();
    let (own, other) = (admin.project("own").await, admin.project("other").await);
    let made = json!({ "name": "bot", "scope": format!("project:{own}") });
    let made = admin.call("token_create", made).await.ok().clone();
    let bot = server.with_key(made["key"].as_str().unwrap());
    let foreign = json!({
        "name": "x", "cron_expr": "@daily", "prompt": "hi",
        "targets": [{ "project_id": own }, { "project_id": other }],
    });
    let refused = bot.call("schedule_create", foreign.clone()).await;
    assert!(
        refused
            .sentence()
            .starts_with(&format!("project `{other}` not found"))
    );

    let schedule = id(&create(&bot, &own, json!({})).await);
    assert_eq!(run_once(&bot, &schedule).await["status"], "success");
    let revoke = json!({ "token_id": made["token_id"] });
    admin.call("token_revoke", revoke).await.ok();
    let run = run_once(&admin, &schedule).await;
    assert_eq!(run["status"], "failed");
    let error = run["error"].as_str().unwrap();
    assert!(
        error.contains("was revoked") && error.contains("schedule_update"),
        "{error}"
    );
    assert!(run["session_id"].is_null());
    // An update makes the updater's token the schedule's.
    update(&admin, &schedule, json!({ "name": "mine" })).await;
    assert_eq!(run_once(&admin, &schedule).await["status"], "success");

    // A project token sees its own targets of a schedule that has others, and cannot change it.
    let both = id(admin.call("schedule_create", foreign).await.ok());
    trigger(&admin, &both).await;
    until(&admin, &both, |runs| {
        runs.len() == 2 && runs.iter().all(is_over)
    })
    .await;
    let seeing = server.with_key(&admin.token(&format!("project:{own}")).await);
    let listed = seeing.call("schedule_list", json!({})).await;
    assert!(!listed.text.contains(&other), "{}", listed.text);
    assert_eq!(listed.ok()["schedules"].as_array().unwrap().len(), 2);
    let seen = get(&seeing, &both).await;
    assert_eq!(seen["targets"].as_array().unwrap().len(), 1);
    let runs = history(&seeing, &both).await;
    assert_eq!((runs.len(), &runs[0]["project_id"]), (1, &json!(own)));
    for operation in ["schedule_update", "schedule_delete", "schedule_trigger"] {
        let refused = seeing.call(operation, json!({ "schedule_id": both })).await;
        assert_eq!(refused.code(), -32002, "{operation}");
    }
    let peek = json!({ "schedule_id": both, "project_id": other });
    let peek = seeing.call("schedule_history", peek).await;
    assert!(peek.sentence().contains("not found"), "{}", peek.sentence());

    // Deleting a project removes its targets.
    admin
        .call("project_delete", json!({ "project_id": other }))
        .await
        .ok();
    assert_eq!(
        get(&admin, &both).await["targets"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    admin
        .call("project_delete", json!({ "project_id": own }))
        .await
        .ok();
    let seen = get(&admin, &both).await;
    assert_eq!(seen["enabled"], false);
    assert!(
        seen["disabled_reason"]
            .as_str()
            .unwrap()
            .contains("last target"),
        "{seen}"
    );
    let again = admin
        .call("schedule_trigger", json!({ "schedule_id": both }))
        .await;
    assert!(
        again.sentence().contains("no targets"),
        "{}",
        again.sentence()
    );
    let key = made["key"].as_str().unwrap();
    assert!(!server.log().contains(key));
}

#[test]
async fn invalid_schedules_are_refused_with_the_reason() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"none\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    let gone = admin.project("gone").await;
    admin
        .call("project_delete", json!({ "project_id": gone }))
        .await
        .ok();
    let target = json!({ "project_id": project });
    let many = vec![target.clone(); 101];
    for (field, value, expected) in [
        ("cron_expr", json!("61 * * * *"), "is not a cron expression"),
        ("cron_expr", json!("0 0 30 2 *"), "never matches a date"),
        (
            "cron_expr",
            json!("* * * * * *"),
            "the shortest interval is 60 seconds",
        ),
        ("cron_expr", json!("@every 5m"), "is not a cron expression"),
        ("cron_expr", json!(""), "is not a cron expression"),
        ("timezone", json!("Mars/Olympus"), "is not a time zone"),
        ("prompt", json!("  \n"), "`prompt` is empty"),
        (
            "prompt",
            json!("x".repeat((1 << 20) + 1)),
            "the maximum is 1048576",
        ),
        ("name", json!("a\u{7}b"), "is not a schedule name"),
        ("targets", json!([]), "`targets` is empty"),
        ("targets", json!(many), "the maximum is 100"),
        ("targets", json!([target, target]), "twice"),
        (
            "targets",
            json!([target, { "project_id": project, "workspace_id": "default" }]),
            "twice",
        ),
        ("targets", json!([{ "project_id": gone }]), "not found"),
        (
            "targets",
            json!([{ "project_id": project, "workspace_id": "w9" }]),
            "not found",
        ),
        ("targets", json!([{ "projct_id": project }]), "projct_id"),
        (
            "targets",
            json!([{ "project_id": "x" }]),
            "project `x` not found",
        ),
        ("overlap_behavior", json!("maybe"), "overlap_behavior"),
        ("missed_runs", json!(3), "missed_runs"),
    ] {
        let mut parameters = json!({
            "name": "n", "cron_expr": "@daily", "prompt": "p", "targets": [target],
        });
        parameters[field] = value.clone();
        let reply = admin.call("schedule_create", parameters).await;
        let sentence = reply.sentence();
        assert!(sentence.contains(expected), "{field} {value}: {sentence}");
        assert!(sentence.len() < 1000, "{sentence}");
    }
    assert_eq!(
        admin.call("schedule_list", json!({})).await.ok()["schedules"],
        json!([])
    );
    // A run that cannot start a session fails with an error.
    let made = create(&admin, &project, json!({})).await;
    let run = run_once(&admin, &id(&made)).await;
    assert_eq!(run["status"], "failed");
    assert!(run["error"].as_str().unwrap().len() > 10, "{run}");
}

#[test]
async fn the_command_line_takes_names_and_prints_times_in_words() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"none\"\n".to_owned(),
        ..ServerOptions::default()
    });
    server.admin().project("app").await;
    let run = async |arguments: &[&str]| {
        let home = server.home().to_owned();
        let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        let output = tokio::task::spawn_blocking(move || cli(&home, arguments));
        let output = output.await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let create = |cron_expr, target| {
        let zone = ["--timezone", "Asia/Tokyo", "--target", target];
        [
            &["schedule", "create", "yearly", cron_expr, "/say hi"],
            &zone[..],
        ]
        .concat()
    };
    let (code, made, _) = run(&create("0 9 1 1 *", "app")).await;
    assert!(
        code == Some(0) && made.contains("1 Jan") && made.contains("09:00 Asia/Tokyo"),
        "{made}"
    );
    let (_, listed, _) = run(&["schedule", "list"]).await;
    assert!(
        listed.contains("NEXT RUN") && listed.contains(" days, "),
        "{listed}"
    );
    let (_, triggered, _) = run(&["schedule", "trigger", "yearly"]).await;
    assert!(triggered.contains("queued"), "{triggered}");
    let (code, history, _) = run(&["schedule", "history", "yearly", "--json"]).await;
    let history: Value = serde_json::from_str(&history).unwrap();
    assert_eq!(
        (code, history["runs"].as_array().unwrap().len()),
        (Some(0), 1)
    );
    let (code, _, error) = run(&["schedule", "get", "yearyl"]).await;
    assert_eq!(
        (code, error.trim()),
        (
            Some(1),
            "error: schedule `yearyl` not found; did you mean `yearly`?"
        )
    );
    let (code, _, error) = run(&create("0 9 1 1 *", "ap")).await;
    assert!(
        code == Some(1) && error.contains("did you mean `app`?"),
        "{error}"
    );
    let (code, _, error) = run(&create("0 25 1 1 *", "app/default")).await;
    assert!(
        code == Some(1) && error.contains("is not a cron expression"),
        "{error}"
    );
    run(&create("0 9 1 1 *", "app")).await;
    let (code, _, error) = run(&["schedule", "delete", "yearly"]).await;
    assert!(
        code == Some(1) && error.contains("2 schedules match `yearly`"),
        "{error}"
    );
}
