//! Whether the memory limit of a container has killed processes: a killed process cannot say why it ended.

use std::path::{Path, PathBuf};

use oubliette_store::Project;

use super::{ContainerState, Containers, SupervisorLink};

/// Where the kernel counts the kills of a boot of a container.
#[derive(Debug)]
pub(super) struct MemoryEvents {
    boot_id: String,
    file: Option<PathBuf>,
}

/// The kills of a container's memory limit from a moment on.
#[derive(Debug)]
pub(crate) struct MemoryKills {
    file: Option<PathBuf>,
    before: u64,
}

impl MemoryKills {
    /// How many processes were killed since; 0 if that is not known.
    pub(crate) fn count(&self) -> u64 {
        let count = self.file.as_deref().and_then(read_kills);
        count.map_or(0, |count| count.saturating_sub(self.before))
    }

    /// The same, counted anew from now on.
    pub(crate) fn take(&mut self) -> u64 {
        let count = self.count();
        self.before += count;
        count
    }
}

impl ContainerState {
    /// Counts the kills from now on.
    pub(super) async fn watch_memory_kills(&self, link: &SupervisorLink) -> MemoryKills {
        let file = self.memory_events_file(link).await;
        let before = file.as_deref().and_then(read_kills).unwrap_or(0);
        MemoryKills { file, before }
    }

    /// The file is looked up once for each boot.
    async fn memory_events_file(&self, link: &SupervisorLink) -> Option<PathBuf> {
        let id = link.container();
        if let Some(known) = self.memory_events.lock().get(id)
            && known.boot_id == link.boot_id()
        {
            return known.file.clone();
        }
        let status = self.runtime().await.ok()?.inspect(id).await.ok()??;
        let known = MemoryEvents {
            boot_id: link.boot_id().to_owned(),
            file: status.memory_events.clone(),
        };
        self.memory_events.lock().insert(id.clone(), known);
        status.memory_events
    }
}

impl Containers<'_> {
    /// Counts the kills of a container from now on.
    pub(crate) async fn watch_memory_kills(self, link: &SupervisorLink) -> MemoryKills {
        self.state().watch_memory_kills(link).await
    }

    /// The memory limit of a project in MB.
    pub(crate) fn memory_mb(self, project: &Project) -> u32 {
        let default = self.engine.settings().limits.memory_mb;
        project.settings.limits.memory_mb.unwrap_or(default)
    }
}

/// What to say about killed processes; none if there were none.
pub(crate) fn describe_kills(count: u64, memory_mb: u32) -> Option<String> {
    let processes = match count {
        0 => return None,
        1 => "1 process".to_owned(),
        count => format!("{count} processes"),
    };
    Some(format!(
        "the memory limit of the project (`memory_mb`, {memory_mb} MB) was reached, and the kernel killed \
         {processes}; use less memory at once, or raise it with `project_update` and stop the container with \
         `container_stop`: it starts with the new limit"
    ))
}

/// The line `oom_kill N` of a file of a control group.
fn read_kills(file: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_counted_from_a_moment_on() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("memory.events");
        let set = |count: u64| {
            let text = format!("low 0\nmax 9\noom 7\noom_kill {count}\noom_group_kill 0\n");
            std::fs::write(&file, text).unwrap();
        };
        set(3);
        let mut kills = MemoryKills {
            file: Some(file.clone()),
            before: 3,
        };
        assert_eq!(kills.count(), 0);
        set(5);
        assert_eq!((kills.count(), kills.take(), kills.count()), (2, 2, 0));
        // The container has ended.
        std::fs::remove_file(&file).unwrap();
        assert_eq!(kills.count(), 0);
        assert_eq!(describe_kills(0, 64), None);
        assert!(describe_kills(1, 64).is_some_and(|text| text.contains("killed 1 process;")));
    }
}
