//! `oubliette diff`, `apply`, `fetch` and `push`: the work of a session, by default of the newest one that
//! worked on a copy of this directory.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Value, json};

use super::apply;
use super::checkpoint_diff::diff_of_server;
use super::ignored;
use super::receive::{self, Into, Work};
use super::record::SentSession;
use super::remote::Place;
use super::snapshot::{Quarantine, Snapshot};
use super::{Checkout, arguments, directory, reconnecting};
use crate::cli::access::Access;
use crate::cli::client::Client;
use crate::cli::confirm;
use crate::cli::reconnecting::ReconnectingClient;
use crate::cli::run::connect;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::{self, printable};

pub(in crate::cli) fn commands() -> Vec<Command> {
    let session = || {
        Arg::new("SESSION").help(
            "Id of the session, or the beginning of it [default: the newest of this directory]",
        )
    };
    let dir = || {
        Arg::new("dir")
            .long("dir")
            .value_name("DIR")
            .value_parser(value_parser!(PathBuf))
            .help("Work on DIR instead of the current directory")
    };
    let json = || {
        Arg::new("json")
            .long("json")
            .action(ArgAction::SetTrue)
            .help("Print the result as JSON")
    };
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    vec![
        Command::new("diff")
            .about("Show what a session has changed in its copy of this directory")
            .after_help(
                "Examples:\n  oubliette diff                      the newest session of this directory\n  \
                 oubliette diff --stat\n  oubliette diff gogol_8a73 -- src    only files below src\n  oubliette \
                 diff gogol_8a73 --turn 2     what one turn has changed",
            )
            .arg(session())
            .arg(
                Arg::new("PATH")
                    .num_args(0..)
                    .last(true)
                    .help("Only these files and directories"),
            )
            .arg(flag("stat", "Show how many lines of each file have changed, not the changes"))
            .arg(
                Arg::new("turn")
                    .long("turn")
                    .value_name("N")
                    .value_parser(value_parser!(u64))
                    .help("Show only what one turn has changed"),
            )
            .arg(dir())
            .arg(json()),
        Command::new("apply")
            .about("Merge what a session has changed into the files here")
            .long_about(
                "Merge what a session has changed into the files here, also if they have changed meanwhile. \
                 On a conflict nothing is changed, and the files are named. Nothing is staged or committed. Work \
                 that has changed since `oubliette diff` showed it is not applied without a question.",
            )
            .after_help("Examples:\n  oubliette apply\n  oubliette apply gogol_8a73")
            .arg(session())
            .arg(flag("yes", "Apply the work also if it has changed since `oubliette diff` showed it"))
            .arg(dir())
            .arg(json()),
        Command::new("fetch")
            .about("Fetch the commits of a session, and its uncommitted work, as a local branch")
            .long_about(
                "Fetch the commits of a session, and its uncommitted work as one more commit, as the branch \
                 oubliette/SESSION of this repository. Files and other branches stay as they are.",
            )
            .after_help("Examples:\n  oubliette fetch && git log -p oubliette/gogol_8a73…\n  oubliette fetch gogol_8a73")
            .arg(session())
            .arg(flag("force", "Replace the branch, also if it has other commits than those fetched before"))
            .arg(dir())
            .arg(json()),
        Command::new("push")
            .about("Push the work of a session to the project's remote, by the server")
            .long_about(
                "Push the commits of a session to the project's remote. The server does it with its own \
                 credential, which the container never sees, and only to branches that the project allows.",
            )
            .after_help(
                "Examples:\n  oubliette push\n  oubliette push --project app --branch oubliette/fix\n  oubliette \
                 push --project app --credential github",
            )
            .arg(session())
            .arg(Arg::new("project").long("project").value_name("NAME").conflicts_with("SESSION").help("Project, by name or id"))
            .arg(Arg::new("workspace").long("workspace").value_name("ID").requires("project").help("Workspace of the project"))
            .arg(Arg::new("branch").long("branch").value_name("NAME").help("Branch to push to [default: oubliette/WORKSPACE]"))
            .arg(Arg::new("credential").long("credential").value_name("NAME").help("Credential to push with [default: the project's]"))
            .arg(dir())
            .arg(json()),
    ]
}

pub(in crate::cli) fn run(
    verb: &str,
    home: &Home,
    matches: &ArgMatches,
    access: &Access,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::with_cause("cannot start", &error))?;
    let result = runtime.block_on(async {
        let (client, embedded) = connect(home, access).await?;
        let result = match verb {
            "push" => push(home, matches, access, client).await,
            _ => Box::pin(take(verb, home, matches, access, client)).await,
        };
        if let Some(embedded) = embedded {
            embedded.stop().await;
        }
        result
    });
    runtime.shutdown_background();
    result
}

/// The session that a command is about.
struct Chosen<'a> {
    checkout: Checkout<'a>,
    session: SentSession,
    place: Place,
    /// The directory of the command below that of the checkout.
    prefix: PathBuf,
}

/// Finds the session in the record of this directory; None if it is another one.
fn choose<'a>(
    home: &'a Home,
    matches: &ArgMatches,
    access: &Access,
) -> Result<Option<Chosen<'a>>, Failure> {
    let directory = directory(matches.get_one::<PathBuf>("dir"))?;
    let given = matches.get_one::<String>("SESSION");
    let given = given.filter(|session| *session != "latest");
    let Some(checkout) = Checkout::find(home, access, &directory, true)? else {
        return Ok(None);
    };
    let file = checkout.open_record()?;
    let session = match given {
        Some(prefix) => file.record.find(prefix)?.cloned(),
        None => file.record.latest().cloned(),
    };
    let place = session
        .as_ref()
        .and_then(|session| file.record.place(session));
    drop(file);
    match (session, place) {
        (Some(session), Some(place)) => Ok(Some(Chosen {
            prefix: directory
                .strip_prefix(checkout.root())
                .map(Path::to_owned)
                .unwrap_or_default(),
            checkout,
            session,
            place,
        })),
        _ if given.is_some() => Ok(None),
        _ => Err(Failure::new(format!(
            "no session has worked on {}; start one there with `oubliette run`, or name a session",
            checkout.root().display()
        ))),
    }
}

async fn take(
    verb: &str,
    home: &Home,
    matches: &ArgMatches,
    access: &Access,
    client: Client,
) -> Result<(), Failure> {
    let chosen = choose(home, matches, access)?;
    let by_turn = verb == "diff" && matches.get_one::<u64>("turn").is_some();
    match chosen {
        Some(chosen) if chosen.session.is_mounted() && verb != "diff" => {
            chosen.say_that_files_are_here(verb, matches)
        }
        Some(chosen) if !by_turn && !chosen.session.is_mounted() => {
            let client = reconnecting(access, client);
            match verb {
                "diff" => Box::pin(chosen.diff(&client, matches)).await,
                "apply" => Box::pin(chosen.apply(&client, matches)).await,
                _ => Box::pin(chosen.fetch(&client, matches)).await,
            }
        }
        chosen if verb == "diff" => {
            if !by_turn
                && chosen
                    .as_ref()
                    .is_some_and(|chosen| chosen.session.is_mounted())
            {
                eprintln!(
                    "note: the session works on the files here, which have all of this already; shown is what \
                     changed during its turns"
                );
            }
            let given = matches.get_one::<String>("SESSION").cloned();
            let (session, prefix) = match chosen {
                Some(chosen) => (chosen.session.session_id, chosen.prefix),
                None => (given.unwrap_or_default(), PathBuf::new()),
            };
            diff_of_server(&client, &session, &prefix, matches).await
        }
        _ => Err(Failure::new(format!(
            "the session did not work on a copy of this directory; run `oubliette {verb}` where it was started, \
             or see its changes with `oubliette diff`"
        ))),
    }
}

impl Chosen<'_> {
    /// The answer to `apply` and `fetch` for a session that works in this directory itself.
    fn say_that_files_are_here(&self, verb: &str, matches: &ArgMatches) -> Result<(), Failure> {
        let id = &self.session.session_id;
        if verb == "fetch" {
            return Err(Failure::new(format!(
                "the session {id} works on the files here and in this repository: its commits are on the branch \
                 that it committed to, and there is nothing to fetch"
            )));
        }
        if matches.get_flag("json") {
            print_json(json!({ "session_id": id, "written": 0, "removed": 0, "skipped": [] }));
        } else {
            eprintln!("There is nothing to apply: the session {id} works on the files here.");
        }
        Ok(())
    }

    async fn diff(
        &self,
        client: &ReconnectingClient<'_>,
        matches: &ArgMatches,
    ) -> Result<(), Failure> {
        let repository = &self.checkout.repository;
        let (_quarantine, git) = Quarantine::new(repository)?;
        let work = self.receive(client, Into::Git(&git)).await?;
        self.remember_seen(&apply::tree_of(&git, &work.commit)?)?;
        let paths = matches.get_many::<String>("PATH").into_iter().flatten();
        let paths: Vec<String> = paths
            .map(|path| self.prefix.join(path).display().to_string())
            .collect();
        let paths = ["--"].into_iter().chain(paths.iter().map(String::as_str));
        let range = [self.session.sent.as_str(), work.commit.as_str()];
        if matches.get_flag("json") {
            let format = ["diff", "--no-ext-diff", "--no-color"].into_iter();
            let diff = git.output(format.clone().chain(range).chain(paths.clone()))?;
            let numbers = git.output(
                format
                    .chain(["--numstat", "-z", "--no-renames"])
                    .chain(range)
                    .chain(paths),
            )?;
            let result = json!({
                "session_id": self.session.session_id,
                "files": numstat(&numbers),
                "diff": String::from_utf8_lossy(&diff),
            });
            terminal::print_line(&serde_json::to_string_pretty(&result).unwrap_or_default());
            return Ok(());
        }
        let stat = matches.get_flag("stat").then_some("--stat");
        let words = stat.into_iter().chain(range).chain(paths);
        let code = if stat.is_none() && std::io::stdout().is_terminal() {
            // Those are for the pager.
            let _signals = hold_signals();
            super::show::diff(&git, words)?
        } else {
            // Git writes the names of files so that they cannot control a terminal.
            let settings = ["-c", "core.quotePath=true", "diff"];
            let mut command = git.command(settings.into_iter().chain(words));
            // The user's own language and colours.
            match std::env::var_os("LC_ALL") {
                Some(locale) => command.env("LC_ALL", locale),
                None => command.env_remove("LC_ALL"),
            };
            let status = command
                .stdin(Stdio::inherit())
                .stdout(Stdio::inherit())
                .stderr(Stdio::inherit())
                .status()
                .map_err(|error| super::git::not_started(&error))?;
            status.code()
        };
        match code {
            Some(0) | None => Ok(()),
            Some(code) => Err(Failure::Exit(u8::try_from(code).unwrap_or(1))),
        }
    }

    async fn apply(
        &self,
        client: &ReconnectingClient<'_>,
        matches: &ArgMatches,
    ) -> Result<(), Failure> {
        let repository = &self.checkout.repository;
        // Also waits for an apply of the same checkout.
        let mut file = self.checkout.open_record()?;
        let snapshot = Snapshot::take(repository)?;
        let work = self.receive(client, Into::Git(&snapshot.git)).await?;
        // Read anew: this command may have waited for a `diff`.
        let seen = file.record.find(&self.session.session_id)?;
        let seen = seen.and_then(|session| session.seen.clone());
        let tree = apply::tree_of(&snapshot.git, &work.commit)?;
        if seen.is_some_and(|seen| seen != tree) && !matches.get_flag("yes") {
            confirm_unseen()?;
        }
        ignored::remember(repository, &file)?;
        // From here on a signal must not leave a half of it.
        let _signals = hold_signals();
        let applied = apply::apply(
            repository,
            &snapshot,
            &self.session.sent,
            &work.commit,
            &file.apply_dir(),
        )?;
        file.record
            .set_taken(&self.session.session_id, Some(&work.commit));
        file.save()?;
        if matches.get_flag("json") {
            print_json(json!({
                "session_id": self.session.session_id, "written": applied.written,
                "removed": applied.removed, "skipped": applied.skipped, "can_run": applied.can_run,
            }));
            return Ok(());
        }
        super::report_kept(&applied.kept);
        for name in &applied.skipped {
            eprintln!(
                "note: {} is a repository of its own and was left alone",
                printable(name)
            );
        }
        if !applied.can_run.is_empty() {
            eprintln!(
                "warning: look at these files before you go on; git, an editor or a shell may run what they say: {}",
                printable(&applied.can_run.join(", "))
            );
        }
        let files = |count: usize| format!("{count} {}", if count == 1 { "file" } else { "files" });
        eprintln!(
            "{}",
            match (applied.written, applied.removed) {
                (0, 0) => "There is nothing to apply: the files here have it already.".to_owned(),
                (written, 0) => format!("Applied: {} written.", files(written)),
                (written, removed) => format!(
                    "Applied: {} written, {} removed.",
                    files(written),
                    files(removed)
                ),
            }
        );
        Ok(())
    }

    async fn fetch(
        &self,
        client: &ReconnectingClient<'_>,
        matches: &ArgMatches,
    ) -> Result<(), Failure> {
        let repository = &self.checkout.repository;
        if repository.is_temporary() {
            return Err(Failure::new(
                "this directory is not a git repository and has no branches; use `oubliette apply`",
            ));
        }
        let git = &repository.git;
        let id = &self.session.session_id;
        let (branch, name) = (
            format!("oubliette/{id}"),
            format!("refs/heads/oubliette/{id}"),
        );
        let mut file = self.checkout.open_record()?;
        let before = git.run(["rev-parse", "-q", "--verify", &name])?;
        let before = String::from_utf8_lossy(&before.stdout).trim().to_owned();
        let is_ours = before.is_empty() || self.session.fetched.as_ref() == Some(&before);
        if !is_ours && !matches.get_flag("force") {
            return Err(Failure::new(format!(
                "the branch {branch} has commits that were made here; rename it, or replace it with --force"
            )));
        }
        let used = git.text(["worktree", "list", "--porcelain"])?;
        if used.lines().any(|line| line == format!("branch {name}")) {
            return Err(Failure::new(format!(
                "the branch {branch} is checked out; switch to another one first"
            )));
        }
        let (_quarantine, receiving) = Quarantine::new(repository)?;
        let work = self.receive(client, Into::Git(&receiving)).await?;
        receive::keep_pack(&receiving, git, &work)?;
        git.output([
            "update-ref",
            "-m",
            "oubliette fetch",
            &name,
            &work.commit,
            &before,
        ])?;
        for session in &mut file.record.sessions {
            if session.session_id == *id {
                session.fetched = Some(work.commit.clone());
                session.taken = Some(work.commit.clone());
            }
        }
        file.save()?;
        if matches.get_flag("json") {
            print_json(json!({ "session_id": id, "branch": branch, "commit": work.commit }));
            return Ok(());
        }
        let range = match &self.session.head {
            Some(head) => format!("{head}..{name}"),
            None => name,
        };
        let count = git.text(["rev-list", "--count", &range])?;
        let commits = if count == "1" { "commit" } else { "commits" };
        eprintln!("Fetched {count} {commits} as the branch {branch}.");
        terminal::print_line(&branch);
        Ok(())
    }

    /// Records what `diff` shows, for `apply`.
    fn remember_seen(&self, tree: &str) -> Result<(), Failure> {
        let mut file = self.checkout.open_record()?;
        let id = &self.session.session_id;
        let before = file
            .record
            .find(id)?
            .and_then(|session| session.seen.clone());
        if before.as_deref() == Some(tree) {
            return Ok(());
        }
        if before.is_some() {
            eprintln!("note: the work has changed since you looked at it last");
        }
        file.record.set_seen(id, Some(tree));
        file.save()
    }

    async fn receive(
        &self,
        client: &ReconnectingClient<'_>,
        into: Into<'_>,
    ) -> Result<Work, Failure> {
        receive::receive(client, &self.place, &self.session, into).await
    }
}

/// Asks whether to apply work that differs from what `diff` has shown; an error if the answer is no.
fn confirm_unseen() -> Result<(), Failure> {
    let changed = "the work has changed since you looked at it";
    if confirm::can_ask() && confirm::ask(&format!("{changed}. Apply it as it is now?"))? {
        return Ok(());
    }
    Err(Failure::new(format!(
        "nothing was changed: {changed}; `oubliette diff` shows it, and `oubliette apply --yes` takes it unseen"
    )))
}

/// The paths with their added and removed lines, from `--numstat -z`.
fn numstat(output: &[u8]) -> Vec<Value> {
    let lines = output
        .split(|byte| *byte == 0)
        .filter(|line| !line.is_empty());
    let file = |line: &[u8]| {
        let text = String::from_utf8_lossy(line).into_owned();
        let mut fields = text.splitn(3, '\t');
        let (added, removed) = (fields.next()?, fields.next()?);
        let count = |text: &str| text.parse::<u64>().ok();
        Some(json!({
            "path": fields.next()?, "added": count(added).unwrap_or(0),
            "removed": count(removed).unwrap_or(0), "binary": count(added).is_none(),
        }))
    };
    lines.filter_map(file).collect()
}

/// `oubliette push`.
async fn push(
    home: &Home,
    matches: &ArgMatches,
    access: &Access,
    client: Client,
) -> Result<(), Failure> {
    let given = |name: &str| matches.get_one::<String>(name).cloned();
    let mut call = match given("project") {
        Some(project) => {
            let project = crate::cli::names::project_id(&project, &client).await?;
            arguments(json!({ "project_id": project, "workspace_id": given("workspace") }))
        }
        None => {
            let Some(chosen) = choose(home, matches, access)? else {
                return Err(Failure::new(
                    "the session did not work on a copy of this directory; name its project with --project",
                ));
            };
            let place = chosen.place;
            arguments(json!({ "project_id": place.project_id, "workspace_id": place.workspace_id }))
        }
    };
    call.retain(|_, value| !value.is_null());
    for name in ["branch", "credential"] {
        if let Some(value) = given(name) {
            call.insert(name.to_owned(), json!(value));
        }
    }
    let result = client.call("project_push", call).await?;
    if matches.get_flag("json") {
        print_json(Value::Object(result));
    } else {
        let field = |name: &str| result.get(name).and_then(Value::as_str).unwrap_or_default();
        eprintln!(
            "Pushed {} to {}.",
            field("branch"),
            printable(field("remote_url"))
        );
    }
    Ok(())
}

pub(super) fn print_json(value: Value) {
    terminal::print_line(&serde_json::to_string_pretty(&value).unwrap_or_default());
}

/// Keeps signals that end a program from doing so while this lives.
fn hold_signals() -> Vec<tokio::signal::unix::Signal> {
    use tokio::signal::unix::{SignalKind, signal};
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    kinds
        .into_iter()
        .filter_map(|kind| signal(kind).ok())
        .collect()
}
