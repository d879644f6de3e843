//! `agent`: makes the home directory of an agent and then becomes the agent. In the agent's own process,
//! because a session waits for every process that is started before its agent.

mod commit_hook;
mod home;

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use oubliette_wire::{HomePlan, HomeReport};
use rustix::fs::{Access, Mode};

/// More than the files of any configuration have.
const MAX_PLAN_BYTES: u64 = 64 << 20;

/// `agent BYTES PROGRAM ARGUMENTS…`
pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let bytes = arguments
        .next()
        .and_then(|text| text.to_str()?.parse().ok());
    let (Some(bytes), Some(program)) = (bytes, arguments.next()) else {
        return ExitCode::from(2);
    };
    let Some(plan) = read_plan(bytes) else {
        eprintln!("the plan of the agent's home is not complete");
        return ExitCode::from(2);
    };
    let mut command = Command::new(&program);
    command.args(arguments);
    let (report, code) = match prepare(&plan, &program, &mut command) {
        Ok(home) => (HomeReport::Ready(home), ExitCode::SUCCESS),
        Err(failure) => (failure, ExitCode::FAILURE),
    };
    let is_ready = matches!(report, HomeReport::Ready(_));
    if write_report(&report).is_err() || !is_ready {
        return code;
    }
    let error = command.exec();
    eprintln!("{}: {error}", program.to_string_lossy());
    ExitCode::from(126)
}

/// Reads exactly the plan: what follows in the input is the agent's.
fn read_plan(bytes: u64) -> Option<HomePlan> {
    if bytes > MAX_PLAN_BYTES {
        return None;
    }
    let mut json = vec![0; usize::try_from(bytes).ok()?];
    // Not `io::stdin`, which reads ahead.
    let mut stdin = std::fs::File::from(rustix::io::dup(rustix::stdio::stdin()).ok()?);
    stdin.read_exact(&mut json).ok()?;
    serde_json::from_slice(&json).ok()
}

fn write_report(report: &HomeReport) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    let mut stdout = io::stdout();
    stdout.write_all(&line)?;
    stdout.flush()
}

/// Makes the home and sets the environment of the agent. Returns the path of its home.
fn prepare(plan: &HomePlan, program: &OsStr, command: &mut Command) -> Result<String, HomeReport> {
    let umask = rustix::process::umask(Mode::from_raw_mode(0o077));
    let made = home::make(plan);
    rustix::process::umask(umask);
    // An agent starts without the hook, for example where the directory cannot be written.
    let _ = commit_hook::add(Path::new("."), &plan.commit_hook);
    let home = match made {
        Ok(home) if home == plan.shared && plan.requires_own => return Err(HomeReport::Shared),
        Ok(home) => home,
        Err(error) => return Err(HomeReport::Failed(error.to_string())),
    };
    let own = plan.own_path();
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    if home != own {
        for name in ["HOME", "PATH"] {
            let value = std::env::var_os(name).unwrap_or_default();
            let Some(rest) = value.as_bytes().strip_prefix(own.as_bytes()) else {
                continue;
            };
            let value = OsString::from_vec([home.as_bytes(), rest].concat());
            command.env(name, &value);
            if name == "PATH" {
                path = value;
            }
        }
    }
    find_program(program, &path)?;
    Ok(home)
}

/// Checks that a program exists and can be executed, which is reported better than a failed `execve`.
fn find_program(program: &OsStr, path: &OsStr) -> Result<(), HomeReport> {
    let candidates: Vec<PathBuf> = if program.as_bytes().contains(&b'/') {
        vec![PathBuf::from(program)]
    } else {
        let directories = std::env::split_paths(path);
        directories
            .map(|directory| directory.join(program))
            .collect()
    };
    let is_program = |file: &&PathBuf| {
        let is_executable = rustix::fs::access(file.as_path(), Access::EXEC_OK).is_ok();
        is_executable && file.is_file()
    };
    if candidates.iter().any(|file| is_program(&file)) {
        return Ok(());
    }
    let name = program.to_string_lossy();
    let exists = candidates.iter().any(|file| Path::exists(file));
    Err(if exists {
        HomeReport::Denied(format!("{name}: Permission denied (os error 13)"))
    } else {
        HomeReport::NotFound(format!("{name}: No such file or directory (os error 2)"))
    })
}
