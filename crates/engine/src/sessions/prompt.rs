//! What goes to the agent with a prompt: files into the workspace, and what it has forgotten.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oubliette_agent::Attachment;
use oubliette_model::Event;
use oubliette_store::Message;

use super::owner::{Owner, Stop, container_id};
use super::scribe::floor;
use crate::containers::exec::Inside;
use crate::workspaces::path_in_container;

/// Most bytes of a transcript: what an agent can still read.
const TRANSCRIPT: usize = 100 << 10;

impl Owner<'_> {
    /// Puts a message's files into the workspace, in the container: there a link leads nowhere but
    /// to what the agent could write anyway. The inner error is a sentence for the caller.
    pub(super) async fn attach_files(
        &self,
        message: &Message,
    ) -> Result<Result<Vec<Attachment>, String>, Stop> {
        let Some(live) = &self.live else {
            return Ok(Ok(Vec::new()));
        };
        let container = container_id(&live.container, &self.project);
        let workspace = path_in_container(&self.session.workspace_id);
        let mut attached = Vec::new();
        if message.attachments.is_empty() {
            return Ok(Ok(attached));
        }
        let Some(link) = self.link().await else {
            return Ok(Err("the container ended".to_owned()));
        };
        for file in &message.attachments {
            let path = format!("{workspace}/{}", file.name);
            let Ok(bytes) = STANDARD.decode(&file.content_base64) else {
                return Ok(Err(format!("the attachment `{}` is not base64", file.name)));
            };
            let script = "mkdir -p \"$(dirname \"$1\")\" && cat > \"$1\"";
            let argv = ["/bin/sh", "-c", script, "sh", &path].map(str::to_owned);
            let written = self
                .engine
                .run_inside(&container, link.clone(), argv.into(), bytes);
            match written.await {
                Ok(Inside::Done(_)) => attached.push(Attachment {
                    name: file.name.clone(),
                    path,
                }),
                Ok(Inside::Failed(why)) => {
                    let name = &file.name;
                    return Ok(Err(format!(
                        "the attachment `{name}` could not be written: {why}"
                    )));
                }
                Err(error) => return Ok(Err(error.to_string())),
            }
        }
        Ok(Ok(attached))
    }

    /// What was said before, for an agent that does not know it.
    pub(super) async fn transcript(&self) -> Result<Option<String>, Stop> {
        if !self.live.as_ref().is_some_and(|live| live.forgetful) {
            return Ok(None);
        }
        let mut since = -1;
        let mut text = String::new();
        loop {
            let store = self.engine.store();
            let page = store.events(self.session.id, since, 1000, 4 << 20).await?;
            let Some(last) = page.last() else { break };
            since = last.index;
            for event in &page {
                match serde_json::from_str(&event.body) {
                    Ok(Event::Prompt { text: said, .. }) => {
                        text.push_str(&format!("User: {said}\n\n"));
                    }
                    Ok(Event::Message { text: said }) => {
                        text.push_str(&format!("You: {said}\n\n"));
                    }
                    _ => {}
                }
            }
            if text.len() > 2 * TRANSCRIPT {
                text = newest(&text).to_owned();
            }
        }
        if text.is_empty() {
            return Ok(None);
        }
        Ok(Some(format!(
            "This conversation began in another session. What was said in it before:\n\n{}",
            newest(&text)
        )))
    }
}

fn newest(text: &str) -> &str {
    &text[floor(text, text.len().saturating_sub(TRANSCRIPT))..]
}
