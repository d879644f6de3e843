//! Images: built from a Dockerfile, or pulled by name if there is none.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker as Api;
use bollard::query_parameters::{
    BuildImageOptionsBuilder, CreateImageOptionsBuilder, ListImagesOptionsBuilder,
    PruneImagesOptionsBuilder, RemoveImageOptionsBuilder,
};
use futures_util::{Stream, StreamExt};

use super::build_context::BuildContext;
use super::engine::{EngineClient, QUERY_TIMEOUT, status_code, with_timeout};
use crate::names::{DATA_DIR_LABEL, DataDirNames};
use crate::plain_lines::PlainLines;
use crate::spec::Dockerfile;
use crate::{ImageSource, Progress, Result, RuntimeError};

/// Enough for a build that installs a toolchain over a slow connection.
const BUILD_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// How often a build is repeated because a cached layer was removed while it ran.
const MAX_BUILD_RETRIES: usize = 5;

pub(super) async fn build_or_pull(
    engine: &EngineClient,
    names: &DataDirNames,
    source: &ImageSource,
    progress: Progress<'_>,
) -> Result<String> {
    let name = names.image_name(source)?;
    let Some(dockerfile) = source.dockerfile() else {
        if !exists(engine, &name).await? {
            let pulled = pull(engine, &name, progress).await;
            pulled.map_err(|error| not_pulled(source, &name, error))?;
        }
        return Ok(name);
    };
    let args: HashMap<&str, &str> = source
        .build_args
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    let options = BuildImageOptionsBuilder::default()
        .t(&name)
        .labels(&HashMap::from([(DATA_DIR_LABEL, names.hash())]))
        .buildargs(&args)
        .rm(true)
        .forcerm(true);
    let mut outcome = build(engine, options.clone(), dockerfile, progress).await;
    for _ in 0..MAX_BUILD_RETRIES {
        match &outcome {
            Err(RuntimeError::Failed(text)) if is_missing_layer(text) => {
                progress("A cached layer was removed during the build; building again.");
                outcome = build(engine, options.clone(), dockerfile, progress).await;
            }
            _ => break,
        }
    }
    outcome.map_err(|error| not_built(source, dockerfile, error))?;
    prune_replaced(&engine.api, names).await;
    Ok(name)
}

/// Adds to an engine's error what the configuration can change about it.
fn not_pulled(source: &ImageSource, image: &str, error: RuntimeError) -> RuntimeError {
    let RuntimeError::Failed(why) = error else {
        return error;
    };
    let name = &source.name;
    RuntimeError::Failed(format!(
        "The image `{image}` of the container type `{name}` is not on this machine and could not be \
         pulled: {why}. Pull or build it yourself, or write another `image` or a `dockerfile` below \
         [container_types.{name}] in oubliette.toml."
    ))
}

fn not_built(
    source: &ImageSource,
    dockerfile: Dockerfile<'_>,
    error: RuntimeError,
) -> RuntimeError {
    match (dockerfile, error) {
        (Dockerfile::BuiltIn(_), RuntimeError::Failed(why)) => RuntimeError::Failed(format!(
            "The image of the container type `{name}` could not be built from Oubliette's own \
             Dockerfile: {why}. It needs its base image and packages from the network. Without one, \
             write below [container_types.{name}] in oubliette.toml either `image = \"NAME\"` with \
             an image that has a shell and git, or `build_args = {{ BASE = \"NAME\" }}` with another \
             base image.",
            name = source.name
        )),
        (_, error) => error,
    }
}

async fn build(
    engine: &EngineClient,
    options: BuildImageOptionsBuilder,
    dockerfile: Dockerfile<'_>,
    progress: Progress<'_>,
) -> Result<()> {
    let context = match dockerfile {
        Dockerfile::BuiltIn(text) => BuildContext::of_text(text)?,
        Dockerfile::Path(path) => {
            let path = path.to_owned();
            tokio::task::spawn_blocking(move || BuildContext::read(&path))
                .await
                .map_err(RuntimeError::fault)??
        }
    };
    let options = options.dockerfile(&context.dockerfile).build();
    let body = bollard::body_full(context.archive.into());
    let building = engine.api.build_image(options, None, Some(body));
    let texts = building.map(|item| {
        item.map(|info| match (info.stream, info.status) {
            (Some(text), _) => text,
            // Layers of the base image also come with progress bars, which are left out.
            (None, Some(text)) if info.progress_detail.is_none() => format!("{text}\n"),
            _ => String::new(),
        })
    });
    stream_progress(engine, texts, progress).await
}

/// Whether a cached layer was removed while a build used it.
fn is_missing_layer(error: &str) -> bool {
    let error = error.to_ascii_lowercase();
    error.contains("sha256:")
        && [
            "unable to find image",
            "no such image",
            "failed to get digest",
        ]
        .iter()
        .any(|text| error.contains(text))
}

async fn exists(engine: &EngineClient, name: &str) -> Result<bool> {
    match with_timeout(QUERY_TIMEOUT, engine.api.inspect_image(name)).await {
        Ok(_) => Ok(true),
        Err(error) if status_code(&error) == Some(404) => Ok(false),
        Err(error) => Err(engine.to_runtime_error(error)),
    }
}

async fn pull(engine: &EngineClient, name: &str, progress: Progress<'_>) -> Result<()> {
    // Without a tag the engine would pull every tag.
    let tagged = name
        .rsplit('/')
        .next()
        .is_some_and(|last| last.contains([':', '@']));
    let tag = if tagged { "" } else { "latest" };
    let options = CreateImageOptionsBuilder::default()
        .from_image(name)
        .tag(tag)
        .build();
    let fetching = engine.api.create_image(Some(options), None, None);
    let texts = fetching.map(|item| {
        item.map(|info| match info.status {
            Some(text) if info.progress_detail.is_none() => format!("{text}\n"),
            _ => String::new(),
        })
    });
    stream_progress(engine, texts, progress).await
}

/// Reports the engine's output line by line until it ends.
async fn stream_progress(
    engine: &EngineClient,
    texts: impl Stream<Item = Result<String, bollard::errors::Error>>,
    progress: Progress<'_>,
) -> Result<()> {
    let mut plain = PlainLines::default();
    let mut texts = std::pin::pin!(texts);
    let following = async {
        while let Some(text) = texts.next().await {
            for line in plain.push(&text?) {
                progress(&line);
            }
        }
        Ok(())
    };
    let outcome = with_timeout(BUILD_TIMEOUT, following).await;
    if let Some(line) = plain.finish() {
        progress(&line);
    }
    outcome.map_err(|error| match engine.to_runtime_error(error) {
        RuntimeError::Failed(text) => RuntimeError::Failed(text.trim().to_owned()),
        other => other,
    })
}

/// Removes every image that was built for a data directory.
pub(super) async fn remove_all(engine: &EngineClient, names: &DataDirNames) -> Result<()> {
    let label = format!("{DATA_DIR_LABEL}={}", names.hash());
    let options = ListImagesOptionsBuilder::default()
        .filters(&HashMap::from([("label", vec![label])]))
        .build();
    let listing = || engine.api.list_images(Some(options.clone()));
    let images = engine.query(listing).await;
    for image in images.map_err(|error| engine.to_runtime_error(error))? {
        let tags = image.repo_tags.into_iter();
        let names: Vec<String> = tags
            .filter(|tag| tag.starts_with(&names.image_prefix()))
            .collect();
        // An image without a name was replaced by a newer one.
        let names = if names.is_empty() {
            vec![image.id]
        } else {
            names
        };
        for name in names {
            // Also while a container that is not of this data directory uses it: the name goes, and the rest with
            // that container.
            let options = RemoveImageOptionsBuilder::default().force(true).build();
            let removal = engine.api.remove_image(&name, Some(options), None);
            match with_timeout(QUERY_TIMEOUT, removal).await {
                Ok(_) => {}
                Err(error) if status_code(&error) == Some(404) => {}
                Err(error) => return Err(engine.to_runtime_error(error)),
            }
        }
    }
    Ok(())
}

/// Removes the images that newer ones replaced, unless a container still uses them.
async fn prune_replaced(api: &Api, names: &DataDirNames) {
    let label = format!("{DATA_DIR_LABEL}={}", names.hash());
    let filters = HashMap::from([
        ("dangling", vec!["true".to_owned()]),
        ("label", vec![label]),
    ]);
    let options = PruneImagesOptionsBuilder::default()
        .filters(&filters)
        .build();
    // A failure only costs disk space, and the next build tries again.
    let _ = tokio::time::timeout(QUERY_TIMEOUT, Box::pin(api.prune_images(Some(options)))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_layer_is_a_reason_to_build_again() {
        assert!(is_missing_layer(
            r#"unable to find image "sha256:7aa904e4""#
        ));
        assert!(is_missing_layer("No such image: sha256:7aa904e4"));
        assert!(is_missing_layer(
            "failed to get digest sha256:7aa904e4: open /var/lib: no such file or directory"
        ));
        assert!(!is_missing_layer("unable to find image \"debian:13\""));
        assert!(!is_missing_layer(
            "manifest for x@sha256:7aa904e4 not found"
        ));
    }
}
