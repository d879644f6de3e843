//! Processes in a container of Docker that try to leave it, or to become its root or its supervisor.

use serde_json::json;
use support::{Modern, server_with};

/// Runs each attempt; every one must fail.
async fn assert_all_fail(admin: &Modern, project: &str, attempts: &[&str]) {
    for attempt in attempts {
        let ran = admin.exec(project, *attempt).await;
        assert_ne!(ran["exit_code"], 0, "`{attempt}` worked: {ran}");
    }
    let after = admin.exec(project, "echo fine").await;
    assert_eq!(after["stdout"], "fine\n", "{after}");
}

#[test(each(docker, docker_channel))]
async fn the_supervisor_cannot_be_read_signalled_or_replaced(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let before = admin.exec(&id, "stat -c %i /proc/1").await;
    assert_all_fail(
        &admin,
        &id,
        &[
            "cat /proc/1/environ",
            "cat /proc/1/mem",
            "ls /proc/1/fd",
            "ls /proc/1/root/",
            "readlink /proc/1/exe",
            "kill -9 1",
            "kill -STOP 1",
            "kill -TERM 1",
            "echo x > /usr/local/bin/oubliette-client",
            "rm -f /usr/local/bin/oubliette-client",
            "mv /usr/local/bin/oubliette-client /usr/local/bin/other",
            "mv /usr/local /usr/other",
            "rm -f /mcp/relay.sock",
            "mv /mcp /other",
            "touch /mcp/x",
        ],
    )
    .await;
    // Its key is nowhere that a command can read.
    let search = "cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep CONTAINER_KEY=oub";
    assert_all_fail(&admin, &id, &[search]).await;
    let after = admin.exec(&id, "stat -c %i /proc/1").await;
    assert_eq!(before["stdout"], after["stdout"], "it is another process");
}

#[test(needs(docker))]
async fn a_process_cannot_become_root_or_change_the_kernel() {
    let server = server_with("docker", "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    // A program of another user with the set-user-id bit gives no right.
    let own = "cp /bin/busybox busybox && chmod 6755 busybox && ./busybox id -u";
    let seen = admin.exec(&id, own).await;
    let plain = admin.exec(&id, "id -u").await;
    assert_eq!(seen["stdout"], plain["stdout"]);
    assert_ne!(plain["stdout"], "0\n");
    assert_all_fail(
        &admin,
        &id,
        &[
            "su -c id",
            "mount -t tmpfs none /mnt || mount -t tmpfs none /tmp",
            "umount /workspace",
            "unshare -U true",
            "unshare -m true",
            "chroot / true",
            "mknod device c 1 1",
            "nice -n -5 true 2>&1 | grep -q . && false; renice -n -5 $$",
            "echo -500 > /proc/self/oom_score_adj",
            "echo 0 0 1 > /proc/self/uid_map",
            "echo x > /proc/sys/kernel/core_pattern",
            "echo 1 > /proc/sys/kernel/hostname || hostname other",
            "echo b > /proc/sysrq-trigger",
            "cat /proc/kcore",
            "dmesg",
            "ulimit -H -n 100000000",
            "ping -c 1 -W 1 127.0.0.1",
            "chown 0:0 busybox",
            "echo x >> /etc/passwd",
            "touch /bin/x",
        ],
    )
    .await;
}

#[test(needs(docker))]
async fn nothing_of_the_host_or_of_another_project_is_there() {
    let server = server_with("docker", "").await;
    let admin = server.admin();
    let (one, two) = (admin.project("one").await, admin.project("two").await);
    admin.exec(&one, "echo secret > file; sleep 300 &").await;
    let home = server.home().display().to_string();
    let attempts = [
        format!("ls {home}"),
        "ls /var/run/docker.sock /run/docker.sock".to_owned(),
        "cat /etc/shadow".to_owned(),
        "grep -r secret /workspace /workspaces /root".to_owned(),
        // Neither processes of the host nor of another container.
        "ps | grep -v grep | grep -e dockerd -e 'sleep 300' -e serve".to_owned(),
        "test -e /dev/sda -o -e /dev/vda -o -e /dev/mem -o -e /dev/kmsg".to_owned(),
    ];
    let attempts: Vec<&str> = attempts.iter().map(String::as_str).collect();
    assert_all_fail(&admin, &two, &attempts).await;
}

#[test(needs(docker, root))]
async fn links_do_not_lead_the_change_of_owners_out_of_the_project() {
    let server = server_with("docker", "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let plant = "ln -s /etc etc; ln -s /bin/busybox program; ln -s / root; mkdir a; ln -s .. a/up; \
                 mkfifo pipe";
    assert_eq!(admin.exec(&id, plant).await["exit_code"], 0);
    let stop = json!({ "project_id": id });
    admin.call("container_stop", stop).await.ok();
    // A file of the server's user makes the supervisor change owners.
    std::fs::write(server.workspace(&id).join("of-server"), "").unwrap();
    let owners =
        "stat -c %u of-server | grep -qv '^0$' && stat -c %u /etc /etc/passwd /bin/busybox /";
    let seen = admin.exec(&id, owners).await;
    assert_eq!(seen["stdout"], "0\n0\n0\n0\n", "{seen}");
}
