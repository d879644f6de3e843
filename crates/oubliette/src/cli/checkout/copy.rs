//! `oubliette cp`: files between this machine and a workspace, as a tar stream.

mod unpack;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use oubliette_model::WorkspaceId;
use serde_json::json;
use tokio::net::unix::pipe;

use super::reconnecting;
use super::remote::{self, Place};
use crate::cli::access::Access;
use crate::cli::client::Client;
use crate::cli::names;
use crate::executor::block_on_with_threads;
use crate::failure::Failure;
use crate::terminal;
use crate::terminal::output::{self, note};

/// Packs what $1 names, or the file or directory that a link leads to. The names in the archive begin with
/// `./`, so that a name never means something to tar.
const PACK: &str = r#"
[ -e "$1" ] || [ -L "$1" ] || { echo "$1 does not exist in the workspace" >&2; exit 1; }
if [ -d "$1" ]; then cd -- "$1" && exec tar -cf - .; fi
case $1 in */*) cd -- "${1%/*}/" || exit ;; esac
exec tar -chf - "./${1##*/}"
"#;
/// Unpacks as `cp -r` would write to $1: a `directory` named $2 into $1 if that is a directory, otherwise as $1; the
/// `contents` of one into $1; a `file` named $2 into $1 if that is a directory, otherwise as $1. $3 says which.
const UNPACK: &str = r#"
to=$1
if [ "$3" = directory ] && [ -d "$1" ]; then to=${1%/}/$2; fi
if [ "$3" != file ]; then
    if [ ! -d "$to" ] && { [ -e "$to" ] || [ -L "$to" ]; }; then
        echo "$to is a file in the workspace, not a directory" >&2
        exit 1
    fi
    mkdir -p -- "$to" && cd -- "$to" && exec tar -xf - --no-same-owner
fi
if [ -d "$1" ]; then cd -- "$1" && exec tar -xf - --no-same-owner; fi
case $1 in */*) mkdir -p -- "${1%/*}/" || exit ;; esac
dir=$(mktemp -d -- "${1}.XXXXXX") && tar -xf - --no-same-owner -C "$dir" && mv -f -- "$dir/$2" "$1"
code=$?
rm -rf -- "$dir"
exit $code
"#;

pub(in crate::cli) fn command() -> Command {
    Command::new("cp")
        .about("Copy files between this machine and a workspace")
        .long_about(
            "Copy a file or a directory between this machine and a workspace, as `cp -r` does: into TO if that is \
             a directory, otherwise as TO; `DIR/.` means what is in DIR. A place in a workspace is \
             written PROJECT:PATH or PROJECT:WORKSPACE:PATH; a path without a colon, or one that starts with \
             `.` or `/`, is on this machine. What comes from a workspace never changes a directory that is here \
             already, and repositories in it are left out: their settings could run commands here.",
        )
        .after_help(
            "Examples:\n  oubliette cp app:report.pdf .\n  oubliette cp ./data app:in      as in/data if there is a \
             directory in\n  oubliette cp ./data/. app:in    what is in data\n  oubliette cp \
             app:two:target/log.txt log.txt",
        )
        .arg(Arg::new("FROM").required(true).help("What to copy"))
        .arg(Arg::new("TO").required(true).help("Where to"))
}

/// One of the two places of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Side {
    Here(PathBuf),
    There {
        project: String,
        workspace: String,
        path: String,
    },
}

impl Side {
    fn parse(text: &str) -> Self {
        let here = || Self::Here(PathBuf::from(text));
        if text.starts_with(['.', '/']) {
            return here();
        }
        let parts: Vec<&str> = text.splitn(3, ':').collect();
        let there = |project: &str, workspace: &str, path: &str| Self::There {
            project: project.to_owned(),
            workspace: workspace.to_owned(),
            path: if path.is_empty() {
                ".".to_owned()
            } else {
                path.to_owned()
            },
        };
        match parts.as_slice() {
            [project, path] => there(project, WorkspaceId::DEFAULT, path),
            [project, workspace, path] => there(project, workspace, path),
            _ => here(),
        }
    }
}

pub(in crate::cli) fn run(matches: &ArgMatches, access: &Access) -> Result<(), Failure> {
    let given = |name: &str| matches.get_one::<String>(name).map_or("", String::as_str);
    let sides = (Side::parse(given("FROM")), Side::parse(given("TO")));
    block_on_with_threads(async {
        let client = Client::connect(access).await?;
        match sides {
            (
                Side::Here(from),
                Side::There {
                    project,
                    workspace,
                    path,
                },
            ) => {
                let place = place(&client, &project, workspace).await?;
                send(access, client, &from, &place, &path).await
            }
            (
                Side::There {
                    project,
                    workspace,
                    path,
                },
                Side::Here(to),
            ) => {
                let place = place(&client, &project, workspace).await?;
                let name = unpack::requested_name(&path).unwrap_or_else(|| project.into());
                receive(access, client, &place, &path, name, &to).await
            }
            _ => Err(Failure::new(
                "one of the two places must be in a workspace, as in PROJECT:PATH, and the other here",
            )),
        }
    })??;
    if output::is_json() {
        terminal::print_json(&json!({ "from": given("FROM"), "to": given("TO") }));
    }
    Ok(())
}

async fn place(client: &Client, project: &str, workspace: String) -> Result<Place, Failure> {
    Ok(Place {
        project_id: names::project_id(project, client).await?,
        workspace_id: workspace,
    })
}

async fn send(
    access: &Access,
    client: Client,
    from: &Path,
    place: &Place,
    path: &str,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::with_cause(format!("cannot read {}", from.display()), &error)
    };
    let found = std::fs::symlink_metadata(from).map_err(failed)?;
    let absolute = std::path::absolute(from).map_err(failed)?;
    let kind = match found.is_dir() {
        true if means_contents(from) => "contents",
        true => "directory",
        false => "file",
    };
    let name = match absolute.file_name().and_then(|name| name.to_str()) {
        _ if kind == "contents" => ".".to_owned(),
        Some(name) => name.to_owned(),
        None => {
            return Err(Failure::new(format!(
                "{} has no name that is text",
                from.display()
            )));
        }
    };
    let client = reconnecting(access, client);
    let (remote_input, to_remote) = std::io::pipe().map_err(|error| no_pipe(&error))?;
    let remote_input = pipe::Receiver::from_owned_fd(remote_input.into());
    let remote_input = remote_input.map_err(|error| no_pipe(&error))?;
    let (source, is_dir, entry) = (absolute, found.is_dir(), name.clone());
    let packing = tokio::task::spawn_blocking(move || {
        let mut archive = tar::Builder::new(std::io::BufWriter::with_capacity(64 << 10, to_remote));
        archive.follow_symlinks(false);
        if is_dir {
            archive.append_dir_all(".", &source)?;
        } else {
            archive.append_path_with_name(&source, &entry)?;
        }
        std::io::Write::flush(&mut archive.into_inner()?)
    });
    let argv = ["/bin/sh", "-c", UNPACK, "sh", path, &name, kind];
    let running = remote::run(&client, place, &argv, remote_input, tokio::io::sink());
    let (finished, packed) = tokio::join!(running, packing);
    finished?.success("the files could not be written")?;
    match packed {
        Ok(packed) => packed.map_err(failed),
        Err(error) => Err(Failure::with_cause("cannot read the files", &error)),
    }
}

async fn receive(
    access: &Access,
    client: Client,
    place: &Place,
    path: &str,
    name: OsString,
    to: &Path,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::with_cause(format!("cannot write {}", to.display()), &error)
    };
    let target = if means_contents(Path::new(path)) && path != "." {
        to.to_owned()
    } else {
        unpack::target(to, &name).map_err(failed)?
    };
    let client = reconnecting(access, client);
    let (from_remote, remote_output) = std::io::pipe().map_err(|error| no_pipe(&error))?;
    let remote_output = pipe::Sender::from_owned_fd(remote_output.into());
    let remote_output = remote_output.map_err(|error| no_pipe(&error))?;
    let argv = ["/bin/sh", "-c", PACK, "sh", path];
    let running = remote::run(&client, place, &argv, tokio::io::empty(), remote_output);
    let unpacking = tokio::task::spawn_blocking(move || unpack::unpack(from_remote, &target));
    let (finished, unpacked) = tokio::join!(running, unpacking);
    let left_out = match unpacked {
        // What was refused here is the reason why the command in the container could not write.
        Ok(Err(error)) => return Err(failed(error)),
        Ok(Ok(left_out)) => left_out,
        Err(error) => return Err(Failure::with_cause("cannot write the files", &error)),
    };
    finished?.success("the files could not be read")?;
    if left_out.git > 0 {
        note!(
            "note: left out {} of git (.git), whose settings could run commands here; `oubliette fetch` takes commits",
            count(left_out.git, "repository", "repositories")
        );
    }
    if left_out.special > 0 {
        note!(
            "note: left out {}",
            count(
                left_out.special,
                "pipe, socket or device",
                "pipes, sockets or devices"
            )
        );
    }
    Ok(())
}

/// Whether a path means what is in a directory, as `DIR/.` does.
fn means_contents(path: &Path) -> bool {
    let text = path.as_os_str().as_encoded_bytes();
    let last = text
        .rsplit(|byte| *byte == b'/')
        .find(|name| !name.is_empty());
    matches!(last, Some(b"." | b".."))
}

fn count(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

fn no_pipe(error: &std::io::Error) -> Failure {
    Failure::with_cause("cannot make a pipe", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_at_the_end_means_what_is_in_a_directory() {
        for (path, expected) in [
            (".", true),
            ("data/.", true),
            ("data/./", true),
            ("..", true),
            ("data", false),
            ("./data/", false),
            ("data.", false),
            ("/", false),
        ] {
            assert_eq!(means_contents(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn a_place_with_a_colon_is_in_a_workspace() {
        let there = |project: &str, workspace: &str, path: &str| Side::There {
            project: project.to_owned(),
            workspace: workspace.to_owned(),
            path: path.to_owned(),
        };
        for (text, side) in [
            ("app:a/b", there("app", "default", "a/b")),
            ("app:two:a:b", there("app", "two", "a:b")),
            ("app:", there("app", "default", ".")),
            ("./a:b", Side::Here(PathBuf::from("./a:b"))),
            ("/a:b", Side::Here(PathBuf::from("/a:b"))),
            ("a", Side::Here(PathBuf::from("a"))),
        ] {
            assert_eq!(Side::parse(text), side, "{text}");
        }
    }
}
