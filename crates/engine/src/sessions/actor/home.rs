//! The home directory of an agent: one for each session, below the home of the project's container.
//!
//! It has links to what the project's home has, so that caches and tools are shared, copies of the
//! user's settings for the agent, and nothing of another session's state or logins. Sessions of older
//! versions, whose agents keep their conversation in the project's home, stay there.

use std::collections::BTreeSet;
use std::sync::Arc;

use oubliette_agent::{FileFormat, HomeFile, catalogue};
use oubliette_runtime::ContainerId;

use super::SessionActor;
use super::start::StartError;
use crate::containers::{CommandResult, SupervisorLink};
use crate::credentials::GivenLogin;
use crate::files::SESSION_HOMES_DIR;

/// The home of the container's other processes.
const PROJECT_HOME: &str = "/root";

/// Prints the agent's home. Arguments: the project's home, the name of the session's below it, whether
/// the agent has a conversation already, private paths, paths to copy, paths that are
/// written anew, leftovers. Starts few programs, because every session waits for it.
const PREPARE: &str = r#"
umask 077
shared=$1; home=$1/$2; age=$3; private=$4; copied=$5; written=$6; leftovers=$7
while IFS='|' read -r path marker; do
    [ -n "$path" ] && [ -e "$shared/$path" ] || continue
    if [ -z "$marker" ] || grep -qF "$marker" "$shared/$path"; then rm -rf "$shared/$path"; fi
done <<END
$leftovers
END
if [ "$age" = old ] && [ ! -d "$home" ]; then
    printf '%s' "$shared"; exit 0
fi
mkdir -p "$home/.config" "$home/.local/share" "$home/.local/state" \
    "$shared/.cache" "$shared/.cargo" "$shared/.npm" || exit 1
links=0
for dir in . .config .local .local/share .local/state; do
    case $dir in
    .) up=../.. ;;
    */*) up=../../../../$dir ;;
    *) up=../../../$dir ;;
    esac
    set --
    for entry in "$shared/$dir"/* "$shared/$dir"/.[!.]*; do
        name=${entry##*/}
        case $dir in .) path=$name ;; *) path=$dir/$name ;; esac
        case "
$private
" in *"
$path
"*) continue ;; esac
        [ -e "$entry" ] && [ ! -e "$home/$path" ] && [ ! -L "$home/$path" ] || continue
        links=$((links + 1)); [ $links -gt 1000 ] && break
        set -- "$@" "$up/$name"
    done
    [ $# = 0 ] || ln -s "$@" "$home/$dir/"
done
while read -r path; do
    [ -z "$path" ] || rm -f "$home/$path"
done <<END
$written
END
while read -r path; do
    [ -n "$path" ] && [ -e "$shared/$path" ] || continue
    mkdir -p "$(dirname "$home/$path")" && rm -rf "$home/$path" && cp -R "$shared/$path" "$home/$path"
done <<END
$copied
END
printf '%s' "$home"
"#;

const READ_FILE: &str = "[ ! -f \"$1\" ] || cat \"$1\"";
const WRITE_FILE: &str =
    "umask 077; mkdir -p \"$(dirname \"$1\")\" && rm -f \"$1\" && cat > \"$1\"";

const WRITE_PROGRAM: &str = "umask 077; mkdir -p \"$(dirname \"$1\")\" && rm -f \"$1\" && \
     cat > \"$1\" && chmod 700 \"$1\"";

impl SessionActor<'_> {
    /// Makes the home of the agent as it needs it, and returns its path.
    pub(super) async fn prepare_home(
        &self,
        container: &ContainerId,
        link: &Arc<SupervisorLink>,
        login: Option<&GivenLogin>,
    ) -> Result<String, StartError> {
        let layout = &self.agent.home;
        let agents = catalogue();
        let private = agents.iter().flat_map(|agent| agent.home.private);
        let private = private.chain([&SESSION_HOMES_DIR, &".config", &".local"]);
        let private = private.chain([&".local/share", &".local/state"]);
        let files = self.agent.restricted(self.autonomy(), &self.tools()).files;
        let ours = files.iter().map(|file| file.path);
        // Also those that this session needs no longer.
        let ours = ours.chain(self.agent.restrictions.paths.iter().copied());
        let configured = self.agent.files.keys().map(String::as_str);
        // A login of an earlier start does not outlive its credential.
        let logins = self.agent.sign_in.login_files.iter().map(|file| file.path);
        let written: BTreeSet<&str> = ours.chain(configured).chain(logins).collect();
        let lines = |paths: Vec<&str>| paths.join("\n");
        let name = format!("{SESSION_HOMES_DIR}/{}", self.session.id);
        let age = match self.session.agent_session_id {
            Some(_) => "old",
            None => "new",
        };
        let private = lines(private.copied().collect());
        let copied = lines(layout.copied.to_vec());
        let written = lines(written.into_iter().collect());
        let leftovers = layout.leftovers.iter();
        let leftovers = leftovers.map(|(path, marker)| format!("{path}|{marker}"));
        let leftovers = leftovers.collect::<Vec<_>>().join("\n");
        let arguments = [
            PROJECT_HOME,
            &name,
            age,
            &private,
            &copied,
            &written,
            &leftovers,
        ];
        let home = self
            .run_in_home(container, link, PREPARE, &arguments, Vec::new())
            .await?;
        for (path, content) in &self.agent.files {
            let path = format!("{home}/{path}");
            let bytes = content.clone().into_bytes();
            self.run_in_home(container, link, WRITE_FILE, &[&path], bytes)
                .await?;
        }
        let settings = login.into_iter().flat_map(|login| login.file.settings);
        let settings: Vec<HomeFile> = settings
            .map(|(path, format, content)| HomeFile::new(path, *format, *content))
            .collect();
        for file in files.iter().chain(&settings) {
            let path = format!("{home}/{}", file.path);
            let given = self
                .run_in_home(container, link, READ_FILE, &[&path], Vec::new())
                .await?;
            let bytes = file.merge(&given).into_bytes();
            let script = match file.format {
                FileFormat::Program => WRITE_PROGRAM,
                _ => WRITE_FILE,
            };
            self.run_in_home(container, link, script, &[&path], bytes)
                .await?;
        }
        if let Some(login) = login {
            if home == PROJECT_HOME {
                return Err(StartError::Failed(
                    "the session is of an older version, whose agents share a home, and gets no login; start \
                     a new session"
                        .to_owned(),
                ));
            }
            let path = format!("{home}/{}", login.file.path);
            let bytes = login.text.reveal().as_bytes().to_vec();
            self.run_in_home(container, link, WRITE_FILE, &[&path], bytes)
                .await?;
        }
        Ok(home)
    }

    async fn run_in_home(
        &self,
        container: &ContainerId,
        link: &Arc<SupervisorLink>,
        script: &str,
        arguments: &[&str],
        stdin: Vec<u8>,
    ) -> Result<String, StartError> {
        let fixed = ["/bin/sh", "-c", script, "sh"].into_iter();
        let argv = fixed.chain(arguments.iter().copied()).map(str::to_owned);
        let containers = self.engine.containers();
        let running = containers.run_command(container, link.clone(), argv.collect(), stdin);
        match running.await? {
            CommandResult::Succeeded(output) => Ok(output),
            CommandResult::Failed(reason) => Err(StartError::Failed(format!(
                "the agent's home could not be prepared: {reason}"
            ))),
        }
    }

    /// The home of the running agent.
    pub(super) fn agent_home(&self) -> &str {
        let live = self.process.live.as_ref();
        live.and_then(|live| live.home.as_deref())
            .unwrap_or(PROJECT_HOME)
    }
}
