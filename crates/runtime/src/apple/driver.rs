//! The row of the table.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::Apple;
use crate::{
    DataDirNames, OpenedRuntime, Platform, ProbeFinding, Result, RuntimeDriver, RuntimeSettings,
};

pub(crate) const DRIVER: RuntimeDriver = RuntimeDriver {
    name: "apple",
    about: "The `container` command of macOS, one virtual machine per container.",
    auto_on: &[Platform::MacOs],
    open,
    probe,
};

fn open(settings: &RuntimeSettings) -> BoxFuture<'_, Result<OpenedRuntime>> {
    async move {
        let apple = Apple::connect(DataDirNames::new(&settings.data_dir)).await?;
        let description = apple.description();
        Ok(OpenedRuntime::new(apple, description))
    }
    .boxed()
}

fn probe(settings: &RuntimeSettings) -> BoxFuture<'_, Vec<ProbeFinding>> {
    async move {
        vec![match open(settings).await {
            Ok(opened) => ProbeFinding::new(true, format!("{} answers", opened.description)),
            Err(error) => ProbeFinding::new(false, format!("apple: {error}")),
        }]
    }
    .boxed()
}
