//! Makes the home of an agent by commands, in a container whose client is too old to make it itself: clients do so
//! since version 2 of the protocol (`oubliette_wire::PROTOCOL_VERSION`). Can be deleted together with
//! `MIN_PROTOCOL_FOR_HOMES` when no container has a client of version 1 any more.

use std::sync::Arc;

use oubliette_runtime::ContainerId;
use oubliette_wire::{FileFormat, HomePlan};

use super::SessionActor;
use super::shared_home_error;
use crate::containers::{CommandResult, SupervisorLink};
use crate::sessions::actor::start::StartError;

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
    /// Makes the home and returns its path.
    pub(in crate::sessions::actor) async fn make_home_by_commands(
        &self,
        container: &ContainerId,
        link: &Arc<SupervisorLink>,
        plan: &HomePlan,
    ) -> Result<String, StartError> {
        let leftovers = plan.leftovers.iter();
        let leftovers = leftovers.map(|(path, marker)| format!("{path}|{marker}"));
        let arguments: [&str; 7] = [
            &plan.shared,
            &plan.own,
            if plan.resumed { "old" } else { "new" },
            &plan.private.join("\n"),
            &plan.copied.join("\n"),
            &plan.removed.join("\n"),
            &leftovers.collect::<Vec<_>>().join("\n"),
        ];
        let home = self
            .run_in_home(container, link, PREPARE, &arguments, Vec::new())
            .await?;
        if home == plan.shared && plan.requires_own {
            return Err(shared_home_error());
        }
        for file in &plan.files {
            let path = format!("{home}/{}", file.path);
            let given = match file.format {
                FileFormat::Whole | FileFormat::Program => String::new(),
                _ => {
                    self.run_in_home(container, link, READ_FILE, &[&path], Vec::new())
                        .await?
                }
            };
            let script = match file.format {
                FileFormat::Program => WRITE_PROGRAM,
                _ => WRITE_FILE,
            };
            let bytes = file.merge(&given).into_bytes();
            self.run_in_home(container, link, script, &[&path], bytes)
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
}
