//! The commits of an agent, on top of the files that were sent.
//!
//! In the workspace the user's uncommitted files are uncommitted, so that the agent's commits have those that it
//! added, too. Here the files that were sent are a commit of their own, and each commit after it has only what
//! the agent did.

use std::collections::HashMap;
use std::path::Path;

use super::apply::tree_of;
use super::git::Git;
use super::record::SentSession;
use super::snapshot::commit_tree;
use crate::failure::Failure;

/// More commits than this become one.
const MAX_COMMITS: usize = 1000;

/// The commits of an agent in the user's repository.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AgentCommits {
    pub(super) tip: String,
    /// Whether the agent's commits were too many, and are one now.
    pub(super) is_one: bool,
}

/// Makes the commits up to `work` follow the commit that was sent. `scratch` is a directory for an index.
pub(super) fn put_on_sent(
    git: &Git,
    session: &SentSession,
    work: &str,
    scratch: &Path,
) -> Result<AgentCommits, Failure> {
    let head = session.head.as_deref();
    let mut agent_commits = AgentCommits {
        tip: work.to_owned(),
        is_one: false,
    };
    if session.sent.is_empty() || head == Some(session.sent.as_str()) {
        return Ok(agent_commits);
    }
    let mut words = vec!["rev-list", "--topo-order", "--reverse", "--parents", work];
    words.extend(head.map(|_| "--not").into_iter().chain(head));
    let listed = git.text(words)?;
    let mut commits: Vec<&str> = listed.lines().collect();
    if commits.len() > MAX_COMMITS {
        agent_commits.is_one = true;
        commits.drain(..commits.len() - 1);
    }
    if commits.is_empty() {
        // The agent has gone back to the history, without the files that were sent.
        let tree = tree_of(git, work)?;
        let message = format!("Files of {}", session.session_id);
        agent_commits.tip = if tree == tree_of(git, &session.sent)? {
            session.sent.clone()
        } else {
            commit_tree(git, &tree, &[&session.sent], &message)?
        };
        return Ok(agent_commits);
    }
    let overlay = Overlay::new(git, head, &session.sent, scratch)?;
    let mut rewritten: HashMap<&str, Rewritten> = HashMap::new();
    let sent = Rewritten {
        commit: session.sent.clone(),
        tree: overlay.sent_tree.clone(),
        agent_tree: overlay.head_tree.clone(),
    };
    for line in commits {
        let mut names = line.split(' ');
        let Some(name) = names.next() else { continue };
        let mut parents: Vec<&Rewritten> = Vec::new();
        for parent in names {
            // One that is not the agent's is of the history that was sent.
            let parent = rewritten.get(parent).unwrap_or(&sent);
            if parents.iter().all(|other| other.commit != parent.commit) {
                parents.push(parent);
            }
        }
        if parents.is_empty() {
            parents.push(&sent);
        }
        let agent_tree = tree_of(git, name)?;
        // The last one has all files as they are in the workspace.
        let tree = if name == work {
            agent_tree.clone()
        } else {
            overlay.tree_with(&agent_tree)?
        };
        let new = match parents.as_slice() {
            // It has only what was sent.
            [only] if only.tree == tree && only.agent_tree != agent_tree => Rewritten {
                agent_tree,
                ..(*only).clone()
            },
            _ => {
                let parents = parents.iter().map(|parent| parent.commit.as_str());
                Rewritten {
                    commit: rewrite(git, name, &tree, parents)?,
                    tree,
                    agent_tree,
                }
            }
        };
        rewritten.insert(name, new);
    }
    agent_commits.tip = rewritten.remove(work).unwrap_or(sent).commit;
    Ok(agent_commits)
}

/// What a commit of the agent has become.
#[derive(Debug, Clone)]
struct Rewritten {
    commit: String,
    tree: String,
    /// Its tree in the workspace.
    agent_tree: String,
}

/// Adds what an agent has committed to what was sent.
#[derive(Debug)]
struct Overlay {
    /// Git with an index of its own.
    git: Git,
    head_tree: String,
    sent_tree: String,
    /// Commits without history, for a merge: of HEAD, and of the files that were sent.
    base: String,
    sent: String,
}

impl Overlay {
    fn new(git: &Git, head: Option<&str>, sent: &str, scratch: &Path) -> Result<Self, Failure> {
        let head_tree = match head {
            Some(head) => tree_of(git, head)?,
            None => git.text(["hash-object", "-w", "-t", "tree", "/dev/null"])?,
        };
        let sent_tree = tree_of(git, sent)?;
        let base = commit_tree(git, &head_tree, &[], "base")?;
        Ok(Self {
            sent: commit_tree(git, &sent_tree, &[&base], "sent")?,
            git: git.with_variable("GIT_INDEX_FILE", scratch.join("overlay-index")),
            base,
            head_tree,
            sent_tree,
        })
    }

    /// The files that were sent, with what a commit of the agent changes in HEAD.
    fn tree_with(&self, agent_tree: &str) -> Result<String, Failure> {
        let agent = commit_tree(&self.git, agent_tree, &[&self.base], "agent")?;
        let words = ["merge-tree", "--write-tree", "-z", "--no-messages"];
        let merged = self
            .git
            .run(words.into_iter().chain([self.sent.as_str(), &agent]))?;
        if merged.status.success() {
            let tree = String::from_utf8_lossy(&merged.stdout).into_owned();
            return Ok(tree.trim_matches(['\0', '\n']).to_owned());
        }
        // Where the agent has changed the user's own changes, or git is older than 2.38: whole files.
        self.git.output(["read-tree", &self.sent_tree])?;
        let raw = ["diff-tree", "-r", "-z", "--no-renames", "--raw"];
        let range = [self.head_tree.as_str(), agent_tree];
        let changes = self.git.output(raw.into_iter().chain(range))?;
        let mut fields = changes.split(|byte| *byte == 0);
        let mut edits = Vec::new();
        // `:OLDMODE MODE OLDOBJECT OBJECT STATUS`, and the path.
        while let (Some(header), Some(path)) = (fields.next(), fields.next()) {
            let header = String::from_utf8_lossy(header).into_owned();
            let mut words = header.split(' ').skip(1);
            let (mode, object) = (words.next(), words.nth(1));
            let (mode, object) = (mode.unwrap_or_default(), object.unwrap_or_default());
            let mode = if mode == "000000" { "0" } else { mode };
            edits.extend(format!("{mode} {object}\t").into_bytes());
            edits.extend_from_slice(path);
            edits.push(0);
        }
        let edit = ["update-index", "-z", "--replace", "--index-info"];
        self.git.filter(edit, edits)?;
        self.git.text(["write-tree"])
    }
}

/// Writes a commit with another tree and other parents. Its signature would not hold any more.
fn rewrite<'a>(
    git: &Git,
    commit: &str,
    tree: &str,
    parents: impl Iterator<Item = &'a str>,
) -> Result<String, Failure> {
    let object = git.output(["cat-file", "commit", commit])?;
    let mut written = format!("tree {tree}\n").into_bytes();
    for parent in parents {
        written.extend(format!("parent {parent}\n").into_bytes());
    }
    let (mut in_header, mut is_left_out) = (true, false);
    for line in object.split_inclusive(|byte| *byte == b'\n') {
        in_header = in_header && line != b"\n";
        if in_header && !line.starts_with(b" ") {
            let left_out: [&[u8]; 5] = [b"tree ", b"parent ", b"gpgsig ", b"gpgsig-", b"mergetag "];
            is_left_out = left_out.iter().any(|start| line.starts_with(start));
        }
        if !in_header || !is_left_out {
            written.extend_from_slice(line);
        }
    }
    let stored = git.filter(["hash-object", "-t", "commit", "-w", "--stdin"], written)?;
    Ok(String::from_utf8_lossy(&stored).trim().to_owned())
}
