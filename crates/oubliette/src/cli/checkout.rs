//! The user's checkout: a copy of it goes into a workspace, and the work of a session comes out again.
//!
//! A snapshot of the files is sent with the history; the container never sees the user's directory. Here
//! nothing changes until `apply`, `fetch` or `cp`. Only with `run --mount` is the directory itself the workspace.

mod agent_commits;
mod apply;
mod changed;
mod checkpoint_diff;
mod copy;
mod fetch;
mod git;
mod ignored;
mod mount;
mod own_keys;
mod receive;
mod record;
mod remote;
mod repository;
mod scratch;
mod send;
mod show;
mod snapshot;
mod stat;
mod take;

use std::path::{Path, PathBuf};

use oubliette_engine::{ALREADY_EXISTS, NOT_FOUND};
use oubliette_model::{Status, WorkspaceId};
use serde_json::{Value, json};

use super::access::Access;
use super::client::{Client, parameters};
use super::names::{self, Lookup};
use super::reconnecting::ReconnectingClient;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::output::note;
use crate::terminal::printable;
pub(super) use changed::{ChangedFiles, changed};
pub(super) use copy::{command as copy_command, run as run_copy};
use record::{RecordFile, SentSession};
use remote::Place;
use repository::Repository;
use snapshot::Snapshot;
pub(super) use stat::describe_diff;
pub(super) use take::{commands as take_commands, run as run_take};

/// A directory on this machine and the server that has copies of it.
pub(super) struct Checkout<'a> {
    repository: Repository,
    /// Whether the command runs in a directory below the top of the repository.
    is_below: bool,
    home: &'a Home,
    /// Which server: records of others do not matter.
    server: String,
}

/// A copy in a workspace, for a session that is yet to be started. Until `started`, other commands of this
/// checkout wait.
pub(super) struct Copy {
    place: Place,
    file: RecordFile,
    sent: String,
    head: Option<String>,
}

impl<'a> Checkout<'a> {
    /// The checkout that a directory is in; None if it is in none. With `any` every directory is one.
    pub(super) fn find(
        home: &'a Home,
        access: &Access,
        directory: &Path,
        any: bool,
    ) -> Result<Option<Self>, Failure> {
        let repository = match Repository::find(directory, home)? {
            Some(repository) => repository,
            None if any => Repository::without_history(directory, home)?,
            None => return Ok(None),
        };
        let directory = std::fs::canonicalize(directory);
        let is_below = directory.is_ok_and(|directory| directory != repository.root);
        Ok(Some(Self {
            repository,
            is_below,
            home,
            server: access.server_key(),
        }))
    }

    pub(super) fn root(&self) -> &Path {
        &self.repository.root
    }

    /// Whether it is the user's home directory, or all of the disk: then it has more than a project.
    pub(super) fn is_home(&self) -> bool {
        let home = std::env::home_dir().and_then(|home| std::fs::canonicalize(home).ok());
        home.as_deref() == Some(self.root()) || self.root().parent().is_none()
    }

    /// Reads what is known about the checkout, and finishes an apply that was killed.
    fn open_record(&self) -> Result<RecordFile, Failure> {
        let file = RecordFile::open(self.home, &self.server, self.root())?;
        if let Some(kept) = apply::finish_interrupted(&file.apply_paths().stage)? {
            note!("Finished an `oubliette apply` that had been interrupted.");
            report_kept(&kept);
        }
        Ok(file)
    }

    /// The newest session of the directory, and whether it works in the directory itself; with `mounted`
    /// only of those.
    pub(super) fn latest_session(&self, mounted: bool) -> Result<Option<(String, bool)>, Failure> {
        let file = self.open_record()?;
        let sessions = file.record.sessions.iter().rev();
        let mut fitting = sessions.filter(|session| !mounted || session.is_mounted());
        let latest = fitting.next();
        Ok(latest.map(|session| (session.session_id.clone(), session.is_mounted())))
    }

    /// Sends the files into a workspace: one whose work the user has already, or a new one. Files that git ignored
    /// at the last copy and no longer does are sent if `no_longer_ignored` says so.
    pub(super) async fn send(
        &self,
        client: &ReconnectingClient<'_>,
        project: Option<&str>,
        no_longer_ignored: bool,
    ) -> Result<Copy, Failure> {
        let mut snapshot = Snapshot::take(&self.repository)?;
        for note in &snapshot.notes {
            note!("note: {}", printable(note));
        }
        let mut file = self.open_record()?;
        ignored::leave_out(&self.repository, &file, &mut snapshot, no_longer_ignored)?;
        own_keys::leave_out(&mut snapshot)?;
        let project_id = self.project(client, &mut file, project).await?;
        let (place, keep_as) = self.choose_workspace(client, &file, &project_id).await?;
        let sent = send::send(
            client,
            &place,
            &self.repository,
            &snapshot,
            keep_as.as_deref(),
        )
        .await?;
        let files = match sent.bytes {
            0..100_000 => String::new(),
            bytes => format!(" ({:.1} MB)", bytes as f64 / 1e6),
        };
        let uncommitted = match &snapshot.head.commit {
            Some(head) if *head != snapshot.commit => ", with uncommitted changes",
            // Without any commit there is nothing that the files could differ from.
            _ => "",
        };
        let start = if self.is_below {
            " The agent starts in its top directory."
        } else {
            ""
        };
        note!(
            "Sent a copy of {}{uncommitted}{files}.{start}",
            printable(&self.root().display().to_string())
        );
        Ok(Copy {
            place,
            file,
            sent: snapshot.commit,
            head: snapshot.head.commit,
        })
    }

    /// The project of the checkout, created if there is none.
    async fn project(
        &self,
        client: &ReconnectingClient<'_>,
        file: &mut RecordFile,
        wanted: Option<&str>,
    ) -> Result<String, Failure> {
        let project_id = match (wanted, &file.record.project_id) {
            (Some(name), _) => match names::find_project(name, &client.current()).await? {
                Lookup::Found(id) => id,
                Lookup::Missing { .. } => create_project(client, &[name.to_owned()], None).await?,
            },
            (None, Some(id)) if project_exists(client, id).await? => return Ok(id.clone()),
            (None, _) => create_project(client, &self.project_names(), None).await?,
        };
        if file.record.project_id.as_ref() != Some(&project_id) {
            file.record.sessions.retain(SentSession::is_mounted);
            file.record.project_id = Some(project_id.clone());
            file.save()?;
        }
        Ok(project_id)
    }

    /// Names for a new project: that of the directory, and others in case it is taken.
    fn project_names(&self) -> Vec<String> {
        let name = self
            .root()
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let name: String = name
            .chars()
            .map(|c| if allowed(c) { c } else { '-' })
            .collect();
        let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
        let name: String = name.chars().take(60).collect();
        let name = if name.is_empty() {
            "checkout".to_owned()
        } else {
            name
        };
        let parent = self.root().parent().and_then(Path::file_name);
        let parent: String = parent
            .unwrap_or_default()
            .to_string_lossy()
            .chars()
            .filter(|c| allowed(*c))
            .take(30)
            .collect();
        let short = &uuid::Uuid::new_v4().simple().to_string()[..6];
        vec![
            name.clone(),
            format!("{name}-{parent}"),
            format!("{name}-{short}"),
        ]
    }

    /// A workspace for a copy, and the name under which to keep what it has.
    async fn choose_workspace(
        &self,
        client: &ReconnectingClient<'_>,
        file: &RecordFile,
        project_id: &str,
    ) -> Result<(Place, Option<String>), Failure> {
        let place = |workspace: &str| Place {
            project_id: project_id.to_owned(),
            workspace_id: workspace.to_owned(),
        };
        let busy = busy_workspaces(client, project_id).await?;
        let sessions = file.record.sessions.iter();
        let mut newest: Vec<&SentSession> = Vec::new();
        for session in sessions.rev().filter(|session| !session.is_mounted()) {
            if !newest
                .iter()
                .any(|other| other.workspace_id == session.workspace_id)
            {
                newest.push(session);
            }
        }
        let is_free = |session: &&&SentSession| {
            session.taken.is_some() && !busy.contains(&session.workspace_id)
        };
        if let Some(session) = newest.iter().find(is_free) {
            let keep_as = Some(session.session_id.clone());
            return Ok((place(&session.workspace_id), keep_as));
        }
        if newest.is_empty() && !busy.iter().any(|id| id == WorkspaceId::DEFAULT) {
            let is_empty = json!({
                "project_id": project_id,
                "command": "[ -z \"$(ls -A | grep -v '^[.]git$')\" ] && ! git rev-parse -q --verify HEAD",
            });
            let is_empty = client.call("container_exec", &parameters(is_empty)).await?;
            if is_empty.get("exit_code") == Some(&json!(0)) {
                return Ok((place(WorkspaceId::DEFAULT), None));
            }
        }
        let made =
            json!({ "project_id": project_id, "create_workspace": true, "command": ["true"] });
        // The id is chosen here, so that a repeated call creates no other.
        let id = format!("copy-{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
        let mut made = parameters(made);
        made.insert("workspace_id".to_owned(), json!(id));
        client.call("container_exec", &made).await?;
        Ok((place(&id), None))
    }
}

impl Copy {
    /// The parameters of a session that works on the copy.
    pub(super) fn spawn_parameters(&self) -> [(String, Value); 2] {
        [
            ("project_id".to_owned(), json!(self.place.project_id)),
            ("workspace_id".to_owned(), json!(self.place.workspace_id)),
        ]
    }

    /// Records the session that works on the copy.
    pub(super) fn started(mut self, session_id: &str) -> Result<(), Failure> {
        self.file.record.put(SentSession {
            session_id: session_id.to_owned(),
            workspace_id: self.place.workspace_id,
            sent: self.sent,
            head: self.head,
            ..SentSession::default()
        });
        self.file.save()
    }
}

/// Says which files an apply has left alone.
fn report_kept(kept: &[apply::KeptFile]) {
    for file in kept {
        let shown = |path: &Path| printable(&path.display().to_string());
        let path = shown(&file.path);
        match &file.merged_version {
            Some(version) => eprintln!(
                "note: {path} was changed meanwhile and left as it is; the merged version is {}",
                shown(version)
            ),
            None => eprintln!(
                "note: {path} was changed meanwhile and left as it is; the session has removed it"
            ),
        }
    }
}

/// The workspaces in which a session works, or waits to.
async fn busy_workspaces(
    client: &ReconnectingClient<'_>,
    project_id: &str,
) -> Result<Vec<String>, Failure> {
    let mut page = parameters(json!({ "project_id": project_id, "limit": 1000 }));
    let mut busy = Vec::new();
    loop {
        let mut result = client.call("session_list", &page).await?;
        let rows = result.get("sessions").and_then(Value::as_array);
        for row in rows.into_iter().flatten() {
            let field = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default();
            let status: Option<Status> = field("status").parse().ok();
            if !status.is_some_and(Status::is_resting) {
                busy.push(field("workspace_id").to_owned());
            }
        }
        match result.remove("next_cursor") {
            Some(cursor) => page.insert("cursor".to_owned(), cursor),
            None => return Ok(busy),
        };
    }
}

async fn project_exists(client: &ReconnectingClient<'_>, id: &str) -> Result<bool, Failure> {
    let get = parameters(json!({ "project_id": id }));
    match client.call("project_get", &get).await {
        Ok(_) => Ok(true),
        Err(Failure::Failed(text)) if text.contains(NOT_FOUND) => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Creates a project with the first of the names that is free; with `mount` it works in that directory.
async fn create_project(
    client: &ReconnectingClient<'_>,
    candidates: &[String],
    mount: Option<&Path>,
) -> Result<String, Failure> {
    let mut taken = Failure::new("no name is left for a project");
    for name in candidates {
        let mut create = parameters(json!({ "name": name }));
        if let Some(mount) = mount {
            create.insert("mount".to_owned(), json!(mount));
        }
        match client.call("project_create", &create).await {
            Ok(project) => {
                note!("Created the project {name}.");
                let id = project.get("project_id").and_then(Value::as_str);
                return Ok(id.unwrap_or_default().to_owned());
            }
            Err(Failure::Failed(text)) if text.contains(ALREADY_EXISTS) => {
                taken = Failure::Failed(text);
            }
            Err(failure) => return Err(failure),
        }
    }
    Err(taken)
}

/// The directory of a command: the given one, or where it was started.
pub(super) fn directory(given: Option<&PathBuf>) -> Result<PathBuf, Failure> {
    let directory = given.cloned().unwrap_or_else(|| PathBuf::from("."));
    match std::fs::canonicalize(&directory) {
        Ok(found) if found.is_dir() => Ok(found),
        Ok(_) => Err(Failure::new(format!(
            "{} is not a directory",
            directory.display()
        ))),
        Err(error) => Err(Failure::with_cause(
            format!("cannot use {}", directory.display()),
            &error,
        )),
    }
}

/// A client that survives a restart of the server.
pub(super) fn reconnecting<'a>(access: &'a Access, client: Client) -> ReconnectingClient<'a> {
    ReconnectingClient::new(access, client)
}
