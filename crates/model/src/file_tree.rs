//! The files of a workspace, as `openspec` reads them; the engine implements it (`files/tree.rs`).

/// A workspace with limits on how much of it may be read. Paths are relative to its root.
pub trait FileTree {
    /// Follows a path through links.
    fn find(&self, path: &str) -> Result<Found, ReadError>;

    /// Lists a directory, sorted by the bytes of the names.
    fn list(&self, path: &str) -> Result<Vec<FileEntry>, ReadError>;

    /// Reads a file; bytes that are not UTF-8 become replacement characters.
    fn read(&self, path: &str) -> Result<String, ReadError>;

    /// Fails once the limits are used up. A caller that took an earlier failure for a missing file
    /// checks here whether a limit caused it.
    fn check_limits(&self) -> Result<(), ReadError>;

    /// The absolute path by which agents see a path of the tree.
    fn container_path(&self, path: &str) -> String;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    Directory,
    File,
    Link,
    Other,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    pub name: String,
    pub kind: FileKind,
    /// Milliseconds since 1970; 0 for directories.
    pub modified_ms: i64,
}

/// What a path leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The path from the root, with links resolved.
    pub path: String,
    /// Never a link.
    pub kind: FileKind,
    /// Milliseconds since 1970.
    pub modified_ms: i64,
}

/// Why a path cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Holds the missing path, with links resolved.
    #[error("it does not exist")]
    NotFound(String),
    #[error("a link in its path leads to a missing file")]
    DanglingLink,
    #[error("a link in its path leads out of the workspace")]
    OutsideWorkspace,
    #[error("the links in its path form a loop")]
    LinkLoop,
    #[error("a part of its path is not a directory")]
    NotADirectory,
    #[error("it is not a file")]
    NotAFile,
    #[error("it is larger than {0} bytes")]
    FileTooLarge(u64),
    #[error("a limit for one call was reached: {0}")]
    LimitReached(&'static str),
    #[error("{0}")]
    Io(String),
}
