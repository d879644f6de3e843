//! The input and output of a program that the engine runs in a container, as one stream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::engine::{EngineClient, QUERY_TIMEOUT, status_code, with_timeout};
use crate::{Channel, Program, Result, RuntimeError};

type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;

/// The attached streams of the program.
struct ExecStream {
    output: Output,
    input: Pin<Box<dyn AsyncWrite + Send>>,
    /// The last chunk, and how many of its bytes were read.
    unread: (Vec<u8>, usize),
}

/// Runs a program in a container.
pub(super) async fn open(
    engine: &EngineClient,
    container: &str,
    program: &Program,
) -> Result<Box<dyn Channel>> {
    let options = CreateExecOptions {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        cmd: Some(program.argv.clone()),
        env: Some(
            program
                .unset_env
                .iter()
                .map(|name| format!("{name}="))
                .collect(),
        ),
        user: Some("0:0".to_owned()),
        working_dir: Some("/".to_owned()),
        ..CreateExecOptions::default()
    };
    let running = async {
        let exec = engine.api.create_exec(container, options).await?;
        let start = StartExecOptions {
            // The size of the chunks that the engine sends.
            output_capacity: Some(64 << 10),
            ..StartExecOptions::default()
        };
        engine.api.start_exec(&exec.id, Some(start)).await
    };
    let started = with_timeout(QUERY_TIMEOUT, running)
        .await
        .map_err(|error| match status_code(&error) {
            Some(404) => RuntimeError::NoContainer(container.to_owned()),
            _ => engine.to_runtime_error(error),
        })?;
    match started {
        StartExecResults::Attached { output, input } => Ok(Box::new(ExecStream {
            output,
            input,
            unread: (Vec::new(), 0),
        })),
        StartExecResults::Detached => Err(RuntimeError::Failed(
            "The engine started a program and did not attach to it.".to_owned(),
        )),
    }
}

impl AsyncRead for ExecStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let (bytes, offset) = &mut this.unread;
            if *offset < bytes.len() {
                let count = buffer.remaining().min(bytes.len() - *offset);
                buffer.put_slice(&bytes[*offset..*offset + count]);
                *offset += count;
                return Poll::Ready(Ok(()));
            }
            match this.output.as_mut().poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(io::Error::other(error))),
                Poll::Ready(Some(Ok(
                    LogOutput::StdOut { message } | LogOutput::Console { message },
                ))) => this.unread = (message.to_vec(), 0),
                // stderr is not part of the stream.
                Poll::Ready(Some(Ok(_))) => {}
            }
        }
    }
}

impl AsyncWrite for ExecStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.input.as_mut().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_shutdown(context)
    }
}
