//! The names and labels of everything that drivers make for a data directory. They contain its hash,
//! so that two servers on one machine never change each other's containers.

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

/// Names of the containers and images of a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataDirNames {
    hash: String,
}

impl DataDirNames {
    pub fn new(data_directory: &Path) -> Self {
        // Canonical: a relative path or a symbolic link means the same directory.
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

    /// The name of the image of a source: its own, or one derived from its container type.
    pub(crate) fn image_name(&self, source: &ImageSource) -> Result<String> {
        match (&source.image, source.dockerfile()) {
            (Some(image), _) => Ok(image.clone()),
            (None, Some(_)) => Ok(self.image_prefix() + &image_name_part(&source.name)),
            (None, None) => Err(RuntimeError::Unsupported(format!(
                "The container type `{name}` has neither an image nor a Dockerfile. Write `image = \
                 \"NAME\"` or `dockerfile = \"PATH\"` below [container_types.{name}] in \
                 oubliette.toml, or use the type `base` or `dev`.",
                name = source.name
            ))),
        }
    }

    /// The prefix of the names of all images that are built for this data directory.
    pub(crate) fn image_prefix(&self) -> String {
        format!("oubliette-{}-", self.short())
    }

    fn short(&self) -> &str {
        self.hash.get(..8).unwrap_or(&self.hash)
    }
}

/// A name with only the characters that image names may have.
fn image_name_part(name: &str) -> String {
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let word: String = name.chars().map(safe).collect();
    // Image names may not start or end with separators, nor have three in a row.
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
            build_args: Default::default(),
        }
    }

    #[test]
    fn every_path_of_a_directory_has_the_same_hash() {
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
    fn names_start_with_the_hash() {
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
        let built_in = names.image_name(&source("dev", None, None));
        assert_eq!(built_in.unwrap(), format!("oubliette-{short}-dev"));
        let unknown = names.image_name(&source("mine", None, None)).unwrap_err();
        assert!(
            unknown.to_string().contains("[container_types.mine]"),
            "{unknown}"
        );
    }
}
