//! What the agent gets with a prompt: attachments, and a transcript of what it does not remember.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oubliette_agent::{Attachment, Image};
use oubliette_store::SessionMessage;

use super::{ActorError, SessionActor};
use crate::containers::CommandResult;
use crate::workspaces::path_in_container;

impl SessionActor<'_> {
    /// Writes a message's attachments into the workspace. That is done in the container, where a symbolic
    /// link leads only to files that the agent could write anyway. The inner error is for the caller.
    pub(super) async fn write_attachments(
        &self,
        message: &SessionMessage,
    ) -> Result<Result<Vec<Attachment>, String>, ActorError> {
        let mut written = Vec::new();
        let Some(live) = self.process.live.as_ref() else {
            return Ok(Ok(written));
        };
        if message.attachments.is_empty() {
            return Ok(Ok(written));
        }
        let container = live.container_id(&self.project);
        let workspace = path_in_container(&self.session.workspace_id);
        let Some(link) = self.link().await else {
            return Ok(Err("the container ended".to_owned()));
        };
        for file in &message.attachments {
            let name = &file.name;
            let path = format!("{workspace}/{name}");
            let Ok(bytes) = STANDARD.decode(&file.content_base64) else {
                return Ok(Err(format!("the attachment `{name}` is not base64")));
            };
            let image = Image::from_bytes(&bytes, &file.content_base64);
            let script = "mkdir -p \"$(dirname \"$1\")\" && cat > \"$1\"";
            let argv = ["/bin/sh", "-c", script, "sh", &path].map(str::to_owned);
            let writing =
                self.engine
                    .containers()
                    .run_command(&container, link.clone(), argv.into(), bytes);
            match writing.await {
                Ok(CommandResult::Succeeded(_)) => written.push(Attachment {
                    name: name.clone(),
                    path,
                    image: image.filter(|_| live.takes_images),
                }),
                Ok(CommandResult::Failed(reason)) => {
                    return Ok(Err(format!(
                        "the attachment `{name}` could not be written: {reason}"
                    )));
                }
                Err(error) => return Ok(Err(error.to_string())),
            }
        }
        Ok(Ok(written))
    }

    /// The conversation so far, for an agent that does not remember it.
    pub(super) async fn transcript(&self) -> Result<Option<String>, ActorError> {
        let live = self.process.live.as_ref();
        if !live.is_some_and(|live| live.needs_transcript) {
            return Ok(None);
        }
        let transcript = self.engine.sessions().transcript(&self.session).await?;
        if transcript.is_empty() {
            return Ok(None);
        }
        // What was said must not look like the end of it.
        let transcript = transcript.replace("</transcript>", "</ transcript>");
        Ok(Some(format!(
            "This conversation began in another session. What was said and done in it before:\n\
             <transcript>\n{transcript}</transcript>\n"
        )))
    }
}
