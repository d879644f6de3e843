//! What a workspace contained after each turn of a session.
//!
//! A scan walks a workspace by descriptors and makes a tree of objects: a blob per file and link, a
//! listing per directory, each known by its hash. The [`ObjectStore`] of a project keeps every object
//! once. Two trees are compared without looking at what is equal in both, and the changes are written
//! as a patch that `git apply` takes.
//!
//! Files that agents wrote are data here: nothing is executed, followed through a link or waited for.

mod change;
mod compare;
mod git_binary;
mod hash;
mod ignore_rules;
mod lines;
mod listing;
mod object_store;
mod pack;
mod patch;
mod restore;
mod scan;
mod stat_cache;

#[cfg(test)]
mod tests;

pub use change::{Change, ChangeKind, changes};
pub use hash::Hash;
pub use listing::{EntryKind, Listing, ListingEntry};
pub use object_store::ObjectStore;
pub use patch::{LineCounts, Patch, count_lines, patch};
pub use restore::{RestoreAction, RestorePlan, RestoreStep, restore_plan};
pub use scan::{MAX_KEPT_FILE_BYTES, Scan, ScanError, ScanLimits, scan};
pub use stat_cache::StatCache;
