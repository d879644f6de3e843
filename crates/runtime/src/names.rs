//! What belongs to a data directory: the names and labels of everything a driver makes for it, so
//! that two servers on one machine never touch each other's containers.

use std::fmt::Write;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::{ContainerId, ImageSource, Result, RuntimeError};

/// The label with the hash of the data directory.
pub const DATA_DIR_LABEL: &str = "dev.oubliette.names";
/// The label with the container's id.
pub const CONTAINER_LABEL: &str = "dev.oubliette.container";
/// The label with the container's project.
pub const PROJECT_LABEL: &str = "dev.oubliette.project";

/// A data directory, as the names of containers and images show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataDirNames {
    hash: String,
}

impl DataDirNames {
    pub fn new(data_directory: &Path) -> Self {
        // However the directory was named: relative, or through a link, it is the same one.
        let path = std::fs::canonicalize(data_directory)
            .or_else(|_| std::path::absolute(data_directory))
            .unwrap_or_else(|_| data_directory.to_owned());
        let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
        let mut hash = String::with_capacity(16);
        for byte in digest.iter().take(8) {
            let _ = write!(hash, "{byte:02x}");
        }
        Self { hash }
    }

    /// The value of [`DATA_DIR_LABEL`].
    pub fn hash(&self) -> &str {
        &self.hash
    }

    pub(crate) fn container_name(&self, id: &ContainerId) -> String {
        format!("oubliette-{}-{id}", self.short())
    }

    /// What the image of a source is called: its own name, or one made for its container type.
    pub(crate) fn image_name(&self, source: &ImageSource) -> Result<String> {
        match (&source.image, &source.dockerfile) {
            (Some(image), _) => Ok(image.clone()),
            (None, Some(_)) => Ok(self.image_prefix() + &image_name_part(&source.name)),
            (None, None) => Err(RuntimeError::Unsupported(format!(
                "The container type `{}` names neither an image nor a Dockerfile, and this \
                 runtime needs one of them.",
                source.name
            ))),
        }
    }

    /// What the names of all images begin with that are built for this directory.
    pub(crate) fn image_prefix(&self) -> String {
        format!("oubliette-{}-", self.short())
    }

    fn short(&self) -> &str {
        self.hash.get(..8).unwrap_or(&self.hash)
    }
}

/// A name as image names may have it.
fn image_name_part(name: &str) -> String {
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let word: String = name.chars().map(safe).collect();
    // Separators may neither begin nor end it, nor stand in rows of three.
    let parts: Vec<&str> = word.split('-').filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        return "image".to_owned();
    }
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, image: Option<&str>, dockerfile: Option<&str>) -> ImageSource {
        ImageSource {
            name: name.to_owned(),
            image: image.map(str::to_owned),
            dockerfile: dockerfile.map(Into::into),
        }
    }

    #[test]
    fn a_directory_has_one_hash_however_it_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let names = DataDirNames::new(directory.path());
        assert_eq!(names.hash().len(), 16);
        assert_eq!(DataDirNames::new(&directory.path().join(".")), names);
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &link).unwrap();
        assert_eq!(DataDirNames::new(&link), names);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(DataDirNames::new(other.path()), names);
    }

    #[test]
    fn names_begin_with_the_home() {
        let names = DataDirNames::new(Path::new("/no/such/place"));
        let short = &names.hash()[..8];
        let id = ContainerId::new("p-1").unwrap();
        assert_eq!(names.container_name(&id), format!("oubliette-{short}-p-1"));
        for (name, word) in [("dev", "dev"), ("My Type_1", "my-type-1"), ("--", "image")] {
            let built = names.image_name(&source(name, None, Some("/d/Dockerfile")));
            assert_eq!(built.unwrap(), format!("oubliette-{short}-{word}"));
        }
        let given = names.image_name(&source("dev", Some("debian:12"), Some("/d/Dockerfile")));
        assert_eq!(given.unwrap(), "debian:12");
        assert!(names.image_name(&source("dev", None, None)).is_err());
    }
}
