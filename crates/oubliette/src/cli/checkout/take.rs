//! `oubliette diff`, `apply`, `fetch` and `push`: the work of a session, by default of the newest one that
//! worked on a copy of this directory.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Value, json};

use super::apply;
use super::checkpoint_diff::diff_of_server;
use super::git::Git;
use super::receive::{self, Work};
use super::record::SentSession;
use super::remote::Place;
use super::snapshot::Quarantine;
use super::stat;
use super::{Checkout, directory, reconnecting};
use crate::cli::access::Access;
use crate::cli::client::{Client, parameters};
use crate::cli::help;
use crate::cli::last_session;
use crate::cli::reconnecting::ReconnectingClient;
use crate::executor::block_on_with_threads;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::output::{self, note};
use crate::terminal::{print_json, printable};

pub(in crate::cli) fn commands() -> Vec<Command> {
    let session = || {
        Arg::new("SESSION").help(format!(
            "{} [default: the newest of this directory that has changed something]",
            last_session::HELP
        ))
    };
    let dir = || {
        Arg::new("dir")
            .long("dir")
            .value_name("DIR")
            .value_parser(value_parser!(PathBuf))
            .help("Work on DIR instead of the current directory")
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
            .after_help(help::examples(&[
                "oubliette diff                       the newest session of this directory",
                "oubliette diff --stat",
                "oubliette diff gogol_8a73 -- src     only files below src",
                "oubliette diff gogol_8a73 --turn 2   what one turn has changed",
            ]))
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
            .arg(dir()),
        Command::new("apply")
            .about("Merge what a session has changed into the files here")
            .long_about(
                "Merge what a session has changed into the files here, also if they have changed meanwhile. \
                 On a conflict nothing is changed, and the files are named; with --merge they get both versions, \
                 between conflict markers. Nothing is staged or committed. Work that has changed since \
                 `oubliette diff` showed it is not applied without a question.",
            )
            .after_help(
                "Examples:\n  oubliette apply\n  oubliette apply gogol_8a73\n  oubliette apply --merge    after a \
                 conflict\n  oubliette apply --undo     set the files back",
            )
            .arg(session())
            .arg(flag("merge", "On a conflict write both versions into the file, between conflict markers; the exit code is then 1"))
            .arg(
                flag("undo", "Set the files back to what they were before the last `apply` here; a file that was changed since is kept as NAME.oubliette")
                    .conflicts_with_all(["SESSION", "merge", "yes"]),
            )
            .arg(flag("yes", "Apply the work also if it has changed since `oubliette diff` showed it"))
            .arg(dir()),
        Command::new("fetch")
            .about("Fetch the work of a session as a local branch")
            .long_about(
                "Fetch the commits of a session, and its uncommitted work as one more commit, as the branch \
                 oubliette/SESSION of this repository. If files were uncommitted here when the session started, \
                 they are the first commit of the branch, and the others have only the work of the agent. Files \
                 and other branches stay as they are.",
            )
            .after_help("Examples:\n  oubliette fetch\n  oubliette fetch gogol_8a73")
            .arg(session())
            .arg(flag("force", "Replace the branch, also if it has other commits than those fetched before"))
            .arg(dir()),
        Command::new("push")
            .about("Push the work of a session to the project's remote")
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
            .arg(dir()),
    ]
}

pub(in crate::cli) fn run(
    verb: &str,
    home: &Home,
    matches: &ArgMatches,
    access: &Access,
) -> Result<(), Failure> {
    if verb == "apply" && matches.get_flag("undo") {
        return apply::undo_command(home, matches, access);
    }
    block_on_with_threads(async {
        let client = Client::connect(access).await?;
        match verb {
            "push" => push(home, matches, access, client).await,
            _ => Box::pin(take(verb, home, matches, access, client)).await,
        }
    })?
}

/// The session that a command is about.
pub(super) struct Chosen<'a> {
    pub(super) checkout: Checkout<'a>,
    pub(super) session: SentSession,
    place: Place,
    /// The directory of the command below that of the checkout.
    prefix: PathBuf,
}

/// The session that was named, by its id or as `latest`; None for the newest one that has changed something.
fn given_session(
    home: &Home,
    matches: &ArgMatches,
    access: &Access,
) -> Result<Option<String>, Failure> {
    match matches.get_one::<String>("SESSION").map(String::as_str) {
        None => Ok(None),
        Some(last_session::LAST_USED) => last_session::last_used(home, access).map(Some),
        Some(other) => Ok(Some(other.to_owned())),
    }
}

/// Finds the session in the record of this directory; None if it is another one.
fn choose<'a>(
    home: &'a Home,
    matches: &ArgMatches,
    access: &Access,
) -> Result<Option<Chosen<'a>>, Failure> {
    let directory = directory(matches.get_one::<PathBuf>("dir"))?;
    let given = given_session(home, matches, access)?;
    let Some(checkout) = Checkout::find(home, access, &directory, true)? else {
        return Ok(None);
    };
    let file = checkout.open_record()?;
    let session = match given.as_deref() {
        Some(last_session::LATEST) => file.record.latest().cloned(),
        Some(prefix) => file.record.find(prefix)?.cloned(),
        None => file.record.latest_with_changes().cloned(),
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
            chosen.say_that_files_are_here(verb)
        }
        Some(chosen) if !by_turn && !chosen.session.is_mounted() => {
            let client = reconnecting(access, client);
            match verb {
                "diff" => Box::pin(chosen.diff(&client, matches)).await,
                "apply" => Box::pin(chosen.apply(&client, &access.command(), matches)).await,
                _ => Box::pin(chosen.fetch(&client, &access.command(), matches)).await,
            }
        }
        chosen if verb == "diff" => {
            if !by_turn
                && chosen
                    .as_ref()
                    .is_some_and(|chosen| chosen.session.is_mounted())
            {
                note!(
                    "note: the session works on the files here, which have all of this already; shown is what \
                     changed during its turns"
                );
            }
            let (session, prefix) = match chosen {
                Some(chosen) => (chosen.session.session_id, chosen.prefix),
                None => {
                    let given = given_session(home, matches, access)?.unwrap_or_default();
                    let session = last_session::resolve(&given, home, access, &client).await?;
                    (session, PathBuf::new())
                }
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
    fn say_that_files_are_here(&self, verb: &str) -> Result<(), Failure> {
        let id = &self.session.session_id;
        if verb == "fetch" {
            return Err(Failure::new(format!(
                "the session {id} works on the files here and in this repository: its commits are on the branch \
                 that it committed to, and there is nothing to fetch"
            )));
        }
        if output::is_json() {
            print_json(&json!({ "session_id": id, "written": 0, "removed": 0, "skipped": [] }));
        } else {
            note!("There is nothing to apply: the session {id} works on the files here.");
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
        let work = self.receive(client, &git).await?;
        self.remember_seen(&apply::tree_of(&git, &work.commit)?)?;
        let paths = matches.get_many::<String>("PATH").into_iter().flatten();
        let paths: Vec<String> = paths
            .map(|path| self.prefix.join(path).display().to_string())
            .collect();
        let paths = ["--"].into_iter().chain(paths.iter().map(String::as_str));
        let range = [self.session.sent.as_str(), work.commit.as_str()];
        if output::is_json() {
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
            print_json(&result);
            return Ok(());
        }
        if matches.get_flag("stat") {
            // Only files that were moved as they are count as renamed, as in the server's checkpoints.
            let format = ["diff", "--no-ext-diff", "--numstat", "-z", "-M100%"].into_iter();
            let numbers = git.output(format.chain(range).chain(paths))?;
            stat::print(&stat::from_git(&numbers));
            return Ok(());
        }
        let words = range.into_iter().chain(paths);
        let code = if std::io::stdout().is_terminal() {
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

    pub(super) async fn receive(
        &self,
        client: &ReconnectingClient<'_>,
        git: &Git,
    ) -> Result<Work, Failure> {
        Box::pin(receive::receive(client, &self.place, &self.session, git)).await
    }
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
            parameters(json!({ "project_id": project, "workspace_id": given("workspace") }))
        }
        None => {
            let Some(chosen) = choose(home, matches, access)? else {
                return Err(Failure::new(
                    "the session did not work on a copy of this directory; name its project with --project",
                ));
            };
            let place = chosen.place;
            parameters(
                json!({ "project_id": place.project_id, "workspace_id": place.workspace_id }),
            )
        }
    };
    call.retain(|_, value| !value.is_null());
    for name in ["branch", "credential"] {
        if let Some(value) = given(name) {
            call.insert(name.to_owned(), json!(value));
        }
    }
    let result = client.call("project_push", call).await?;
    if output::is_json() {
        print_json(&result);
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

/// Keeps signals that end a program from doing so while this lives.
pub(super) fn hold_signals() -> Vec<tokio::signal::unix::Signal> {
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
