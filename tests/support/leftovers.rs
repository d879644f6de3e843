//! Finds everything that a data directory has on the machine besides its permanent files.
//!
//! Nothing here trusts the product's own records: processes are found by their mounts,
//! command lines and environments, control groups by their names, containers by their labels.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Server, docker, eventually};
use oubliette_runtime::{DATA_DIR_LABEL, DataDirNames};

/// Files that a data directory keeps, and directories that stay and are empty.
const PERMANENT_FILES: [&str; 23] = [
    "admin.token",
    "agents",
    "charges",
    "layers",
    "network",
    "oubliette.db",
    "oubliette.db-shm",
    "oubliette.db-wal",
    "oubliette.toml",
    "projects",
    "run",
    "run/c",
    "run/gate.lock",
    "run/gate.log",
    "run/git",
    "run/lock",
    "run/probe",
    "run/s",
    "run/server.json",
    "run/server.json.spare",
    "run/server.sock",
    "server.log",
    "server.log.1",
];
/// How long killed processes may take to disappear on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Everything that was found, one line each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers {
    pub processes: BTreeSet<String>,
    pub mounts: BTreeSet<String>,
    pub groups: BTreeSet<String>,
    pub containers: BTreeSet<String>,
    /// Without those of projects, which are in `projects`.
    pub files: BTreeSet<String>,
    /// The ids of projects that have files.
    pub projects: BTreeSet<String>,
}

impl Leftovers {
    /// Looks at the machine as it is now. The server's own process is not one of them.
    pub fn find(home: &Path, server: u32) -> Self {
        let (files, projects) = files(home);
        Self {
            processes: processes(home, server),
            mounts: mounts(home),
            groups: groups(home),
            containers: containers(home),
            files,
            projects,
        }
    }
}

impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            ("process", &self.processes),
            ("mount", &self.mounts),
            ("control group", &self.groups),
            ("container", &self.containers),
            ("file", &self.files),
            ("project", &self.projects),
        ];
        for (kind, found) in kinds {
            for name in found {
                writeln!(f, "{kind}: {name}")?;
            }
        }
        Ok(())
    }
}

impl Server {
    pub fn leftovers(&self) -> Leftovers {
        Leftovers::find(self.home(), self.pid())
    }

    /// Waits until there is nothing on the machine but the server and the files of these projects.
    ///
    /// # Panics
    /// If something stays.
    pub async fn assert_only_left(&self, projects: &[String]) {
        let only = Leftovers {
            projects: projects.iter().cloned().collect(),
            ..Leftovers::default()
        };
        let mut left = Leftovers::default();
        let gone = eventually(WAIT_TIMEOUT, async || {
            left = self.leftovers();
            left == only
        });
        assert!(gone.await, "this is left, of {projects:?}:\n{left}");
    }

    /// Waits until there is nothing on the machine but the server.
    pub async fn assert_nothing_left(&self) {
        self.assert_only_left(&[]).await;
    }
}

/// Processes that have the directory in their command line or environment, that have files of it open,
/// or that have some of it mounted: all processes of a container share a mount namespace with its files.
fn processes(home: &Path, server: u32) -> BTreeSet<String> {
    let directory_path = home.to_str().unwrap();
    // A mount shows the path within its file system, which need not begin at the root.
    let directory_name = home.file_name().unwrap().to_str().unwrap();
    let mut namespaces: HashMap<PathBuf, bool> = HashMap::new();
    let own = fs::read_link("/proc/self/ns/mnt").unwrap();
    let mut found = BTreeSet::new();
    for pid in numbers(Path::new("/proc")) {
        if [server, std::process::id()].contains(&pid) {
            continue;
        }
        let process = PathBuf::from(format!("/proc/{pid}"));
        let text = |name: &str| {
            let bytes = fs::read(process.join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let command = text("cmdline");
        let names_directory =
            command.contains(directory_path) || text("environ").contains(directory_path);
        let links = ["cwd", "exe", "root", "fd/1", "fd/2"];
        let links_into_directory = links.iter().any(|name| {
            fs::read_link(process.join(name)).is_ok_and(|target| target.starts_with(home))
        });
        let namespace = fs::read_link(process.join("ns/mnt")).unwrap_or_default();
        let mounts_directory = namespace != own
            && *namespaces
                .entry(namespace)
                .or_insert_with(|| text("mountinfo").contains(directory_name));
        if names_directory || links_into_directory || mounts_directory {
            found.insert(format!("{pid} {command}"));
        }
    }
    found
}

fn numbers(directory: &Path) -> Vec<u32> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Mounts that the host itself sees, without one that the whole directory is on.
fn mounts(home: &Path) -> BTreeSet<String> {
    let below = format!("{}/", home.display());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let below = mounts.lines().filter(|line| line.contains(&below));
    below.map(str::to_owned).collect()
}

/// Control groups whose names are made from the directory of their sandbox's state.
fn groups(home: &Path) -> BTreeSet<String> {
    let run = home.join("run");
    let is_ours = |name: &str| {
        let (id, digest) = name.strip_prefix("oubliette-")?.rsplit_once('-')?;
        let states = [run.join("s").join(id), run.join("probe/probe/state")];
        states
            .iter()
            .any(|state| digest_of(state) == digest)
            .then_some(())
    };
    let mut found = BTreeSet::new();
    let mut queue = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = queue.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if is_ours(&entry.file_name().to_string_lossy()).is_some() {
                found.insert(entry.path().display().to_string());
            }
            queue.push(entry.path());
        }
    }
    found
}

/// The end of a group's name: FNV-1a of the path of the sandbox's state, its lower half.
fn digest_of(state: &Path) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let bytes = state.as_os_str().as_encoded_bytes();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, step);
    format!("{:08x}", hash as u32)
}

/// Containers of the Docker engine, where one answers.
fn containers(home: &Path) -> BTreeSet<String> {
    let listed = list_containers(home);
    listed
        .iter()
        .map(|one| format!("{} {}", one["Names"], one["State"]))
        .collect()
}

fn list_containers(home: &Path) -> Vec<serde_json::Value> {
    list("/containers/json?all=true&", home)
}

fn list(what: &str, home: &Path) -> Vec<serde_json::Value> {
    let label = format!("{DATA_DIR_LABEL}={}", DataDirNames::new(home).hash());
    let filters = format!("%7B%22label%22%3A%5B%22{label}%22%5D%7D");
    let listed = docker::request("GET", &format!("{what}filters={filters}"));
    let listed = listed.and_then(|listed| listed.as_array().cloned());
    listed.unwrap_or_default()
}

/// Has the Docker engine kill the containers of a data directory.
pub fn kill_containers(home: &Path) {
    for container in list_containers(home) {
        let id = container["Id"].as_str().unwrap();
        docker::request("POST", &format!("/containers/{id}/kill"));
    }
}

/// The images that the Docker engine has for a data directory.
pub fn images(home: &Path) -> Vec<serde_json::Value> {
    list("/images/json?", home)
}

/// Files that should not last, and the projects that have some.
fn files(home: &Path) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut found, mut projects) = (BTreeSet::new(), BTreeSet::new());
    // The journal of charges keeps its last file.
    let mut charges = Vec::new();
    let mut queue = vec![home.to_owned()];
    while let Some(directory) = queue.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.strip_prefix(home).unwrap().to_str().unwrap();
            if PERMANENT_FILES.contains(&name) {
                queue.push(path);
            } else if name.starts_with("charges/") {
                charges.push(name.to_owned());
            } else if let Some(project) = name.strip_prefix("projects/") {
                projects.insert(project.to_owned());
                let drafts = fs::read_dir(path.join("workspaces"));
                for draft in drafts.into_iter().flatten().flatten() {
                    if draft.file_name().to_string_lossy().starts_with('.') {
                        found.insert(draft.path().display().to_string());
                    }
                }
            } else {
                found.insert(name.to_owned());
            }
        }
    }
    if charges.len() > 1 {
        found.extend(charges);
    }
    (found, projects)
}
