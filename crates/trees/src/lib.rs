//! Directory trees that an agent made, and may change while they are read: walk, measure, move,
//! remove, give to another user.
//!
//! Everything works by descriptors and never follows a link. Stack and open descriptors are constant
//! at any depth and with names of any length. An entry that cannot be read or removed is reported and
//! does not stop the others. Nothing here opens a device, or waits for the other end of a pipe.

mod chown;
mod measure;
mod open;
mod position;
mod remove;
mod walk;

#[cfg(test)]
mod tests;

pub use chown::{NewOwner, chown_tree};
pub use measure::{Usage, disk_usage};
pub use open::{open_dir, open_file, open_without_links};
pub use position::Position;
pub use remove::{move_tree, remove_tree};
pub use walk::{Entry, Next, Visitor, walk};
