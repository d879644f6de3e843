//! Runs asynchronous work to its end.

use tokio::runtime::{Builder, Runtime};

use crate::failure::Failure;

/// Runs work on this thread alone.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    run(Builder::new_current_thread(), work)
}

/// Runs work that also blocks, for example on a program, while other threads serve its connections.
pub(crate) fn block_on_with_threads<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2);
    run(builder, work)
}

fn run<T>(mut builder: Builder, work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime: Runtime = builder
        .enable_all()
        .build()
        .map_err(|error| Failure::with_cause("cannot start", &error))?;
    let result = runtime.block_on(work);
    // A blocked read of the input must not delay the exit.
    runtime.shutdown_background();
    Ok(result)
}
