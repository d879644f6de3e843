//! `apply` where there is no space: nothing is changed, and it works again when there is.

use support::{binary, stderr, stdout};

use super::User;

/// Runs a script in a mount namespace, with the user's variables: $1 is the checkout, $2 the program, $3 the data
/// directory.
fn in_namespace(user: &User, script: &str) {
    let mut command = std::process::Command::new("unshare");
    let shell = user.command(&user.root());
    for (name, value) in shell.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let output = command
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(user.root())
        .arg(binary())
        .arg(user.server.home())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        stdout(&output),
        stderr(&output)
    );
}

async fn with_large_work() -> User {
    let user = User::new();
    user.ok(&[
        "run",
        "/sh dd if=/dev/urandom of=big bs=1M count=6 2> /dev/null; echo x > a",
    ])
    .await;
    user
}

#[test(needs(namespaces, sandbox))]
async fn work_that_does_not_fit_on_the_disk_changes_nothing() {
    let user = with_large_work().await;
    // The checkout as it is, on a small file system, at the same path.
    let script = r#"
        set -e
        cp -a "$1" "$1.copy"
        mount -t tmpfs -o size=4m none "$1"
        cp -a "$1.copy/." "$1"
        cd "$1"
        if "$2" apply 2> "$1.full"; then echo "it was applied"; exit 1; fi
        [ "$(git status --porcelain)" = "" ] || { git status; exit 1; }
        [ "$(ls -A)" = ".git
a" ] || { ls -A; exit 1; }
        mount -o remount,size=40m "$1"
        "$2" apply
        [ "$(cat a)" = x ] && [ "$(stat -c %s big)" = 6291456 ]
    "#;
    in_namespace(&user, script);
    let said = std::fs::read_to_string(user.directory.path().join("app.full")).unwrap();
    assert!(
        said.contains("nothing was changed") && said.contains("take 7 MB"),
        "{said}"
    );
    assert_eq!(user.read("a").len(), 16, "the file outside was changed");
}

#[test(needs(namespaces, sandbox))]
async fn a_full_data_directory_keeps_apply_from_changing_anything() {
    let user = with_large_work().await;
    // Where an apply prepares its files and keeps the old ones; $3 itself is that of the running server.
    let script = r#"
        set -e
        cp -a "$3/checkouts" "$1.checkouts"
        mount -t tmpfs -o size=40m,mode=700 none "$3/checkouts"
        cp -a "$1.checkouts/." "$3/checkouts"
        cd "$1"
        # From no space at all up to a little less than is needed.
        for left in 0 100 1000 4000 7000 10000; do
            dd if=/dev/zero of="$3/checkouts/filler" bs=1k 2> /dev/null || true
            truncate -s "-${left}K" "$3/checkouts/filler"
            if "$2" apply 2>> "$1.full"; then echo "applied with $left KB"; rm "$3/checkouts/filler"; break; fi
            [ "$(git status --porcelain)" = "" ] || { git status; exit 1; }
            [ "$(ls -A)" = ".git
a" ] || { ls -A; exit 1; }
            echo >> "$1.failed"
            rm "$3/checkouts/filler"
        done
        "$2" apply
        [ "$(cat a)" = x ] && [ "$(stat -c %s big)" = 6291456 ]
    "#;
    in_namespace(&user, script);
    let at = |name: &str| user.directory.path().join(name);
    let said = std::fs::read_to_string(at("app.full")).unwrap();
    assert!(said.contains("No space left on device"), "{said}");
    let failed = std::fs::read_to_string(at("app.failed")).unwrap();
    assert!(failed.lines().count() >= 4, "{said}");
}
