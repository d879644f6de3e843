//! What each command does, with examples.

use super::{CommandText, text};

pub(super) const COMMANDS: &[CommandText] = &[
    text(
        "project_create",
        "Create a project with its own files, settings and container",
        "With --remote-url it gets a clone of that repository; without, it starts as an empty one.",
        &[
            "oubliette project create hello",
            "oubliette project create app --remote-url https://example.com/app.git",
            "oubliette project create app --agent claude --credential-refs work",
        ],
    ),
    text(
        "project_list",
        "List the projects",
        "",
        &["oubliette project list"],
    ),
    text(
        "project_get",
        "Show a project: settings, limits and its container",
        "Values of environment variables are never shown.",
        &["oubliette project get hello"],
    ),
    text(
        "project_update",
        "Change settings of a project",
        "Settings that are not named stay. The repository and --workspace-isolation cannot be changed. Project \
         tokens cannot change limits, the network, the agents' scope or the name, nor add credentials.",
        &[
            "oubliette project update app --agent codex --autonomy low",
            "oubliette project update app --protected-paths LICENSE",
            "oubliette project update app --protected-paths ''    nothing is protected",
            "oubliette project update app --credential-refs ''    use no credential",
            "oubliette project update app --agent-scope none      agents get no key",
            "oubliette project update app --env '{}'              no variables",
        ],
    ),
    text(
        "project_delete",
        "Delete a project with its files, container and tokens",
        "Asks first on a terminal.",
        &["oubliette project delete hello"],
    ),
    text(
        "project_options",
        "Show the agents, models, credentials and limits to choose from",
        "",
        &[],
    ),
    text(
        "project_push",
        "Push the commits of a workspace to the project's repository",
        "The server pushes with its own credential, which the container never sees, to a branch that \
         --push-branches of the project allows. Files that are not committed are not pushed.",
        &["oubliette project push app --branch oubliette/fix"],
    ),
    text(
        "project_changes",
        "List the OpenSpec changes of a project with their progress",
        "",
        &["oubliette project changes app"],
    ),
    text(
        "project_tasks",
        "Show the tasks of an OpenSpec change",
        "Also its state, the files to read first, and the sessions that work on it.",
        &["oubliette project tasks app add-login"],
    ),
    text(
        "container_start",
        "Start the container of a project",
        "This is seldom needed: commands and sessions start it.",
        &[],
    ),
    text(
        "container_stop",
        "Stop the container of a project and every process in it",
        "Its files stay; the next command or session starts it again. Asks first on a terminal.",
        &["oubliette container stop hello"],
    ),
    text(
        "container_exec",
        "Run a command in a project's container",
        "Prints its output and exits with its exit code. Starts the container if it is not running.",
        &[],
    ),
    text(
        "container_logs",
        "Show the log of a project's container",
        "Its start and end, warnings, and the output of commands that outlived a restart of the server.",
        &["oubliette container logs hello --lines 50"],
    ),
    text(
        "session_spawn",
        "Give an agent of a project a prompt, and return at once",
        "The newest session of the workspace continues with it, if it has the settings given here; else, and with \
         --new-session, a new session starts. `oubliette session attach` follows it; `oubliette run` does both.",
        &[
            "oubliette session spawn hello 'fix the failing test'",
            "oubliette session spawn hello --new-session --agent codex 'try again'",
        ],
    ),
    text(
        "session_message",
        "Send a message to a session, and return at once",
        "It waits for its turn while the agent works; an ended session is resumed.",
        &["oubliette session message gogol_8a73 'now add a test'"],
    ),
    text(
        "session_get",
        "Show a session: status, what it waits for, turns and cost",
        "",
        &["oubliette session get gogol_8a73"],
    ),
    text(
        "session_list",
        "List the sessions of one project or of all, newest first",
        "",
        &[
            "oubliette session list",
            "oubliette session list hello --status running",
        ],
    ),
    text(
        "session_events",
        "Show what happened in a session",
        "Prompts, texts, tool calls and their results, requests for permission, and the end of each turn.",
        &[
            "oubliette session events gogol_8a73",
            "oubliette session events gogol_8a73 --since 40 --wait 30",
        ],
    ),
    text(
        "session_interrupt",
        "Stop the current turn of a session",
        "The session goes on with the next message. An agent that does not stop within seconds is killed, and \
         resumed by the next message.",
        &["oubliette session interrupt gogol_8a73"],
    ),
    text(
        "session_permit",
        "Answer a request for permission of an agent",
        "It asks whether it may use a tool, or spend more than --max-cost-usd. Requests that are not answered in \
         time are denied.",
        &[
            "oubliette session permit gogol_8a73 allow",
            "oubliette session permit gogol_8a73 1f2e deny    if it has several requests",
        ],
    ),
    text(
        "session_end",
        "End a session and every session below it",
        "Returns when their processes have exited. The log stays, and a message resumes the session.",
        &["oubliette session end gogol_8a73"],
    ),
    text(
        "session_cleanup",
        "Delete ended sessions with their logs",
        "Those that ended at least --max-age-hours ago. Asks first on a terminal.",
        &["oubliette session cleanup hello --max-age-hours 168"],
    ),
    text(
        "session_diff",
        "Show what changed in the workspace of a session",
        "During one turn, between two turns, since the last `oubliette session review`, or during the whole \
         session: also what others did there at the same time. Files that git ignores are left out, and so is the \
         content of files over 10 MB.",
        &[
            "oubliette session diff gogol_8a73 --stat",
            "oubliette session diff gogol_8a73 --turn 2",
        ],
    ),
    text(
        "session_review",
        "Record that the changes of a session were reviewed",
        "`oubliette session diff --since-review` then shows what came later.",
        &["oubliette session review gogol_8a73"],
    ),
    text(
        "session_rewind",
        "Set a session back to where it was after a turn",
        "The files of its workspace, the conversation of its agent, or both. A checkpoint of the files as they are \
         is kept first; files that git ignores stay as they are. Fails while a turn runs in the workspace, and if \
         another session has worked there since. Asks first on a terminal.",
        &["oubliette session rewind gogol_8a73 2 files"],
    ),
    text(
        "session_fork",
        "Continue a session from one of its turns in another direction",
        "In a new workspace with the files as they were after that turn, and with a new session whose agent gets the \
         conversation up to it. A git repository is cloned to the branch oubliette/ID.",
        &["oubliette session fork gogol_8a73 --turn 2 'use another library'"],
    ),
    text(
        "workspace_list",
        "List the workspaces of a project",
        "",
        &["oubliette workspace list hello"],
    ),
    text(
        "workspace_create",
        "Create a workspace: a clone of the default one",
        "",
        &["oubliette workspace create hello --workspace experiment"],
    ),
    text(
        "workspace_delete",
        "Delete a workspace with its files",
        "Fails for the default workspace, and while a session is active in it. Asks first on a terminal.",
        &["oubliette workspace delete hello experiment"],
    ),
    text(
        "workspace_files",
        "List the files of a workspace",
        "Links are followed only inside the workspace.",
        &["oubliette workspace files hello --path src --recursive"],
    ),
    text(
        "workspace_read",
        "Print a file of a workspace",
        "Up to 4 MiB, as text or base64; `oubliette cp` copies larger ones. Links are followed only inside the \
         workspace.",
        &["oubliette workspace read hello README.md"],
    ),
    text(
        "workspace_write",
        "Write a file of a workspace, or replace it",
        "Up to 4 MiB; `oubliette cp` copies larger ones. A link with the name is replaced. Starts the container if \
         it is not running.",
        &["oubliette workspace write hello notes.txt --content 'hello'"],
    ),
    text(
        "schedule_create",
        "Send a prompt to agents at set times",
        "Prints the next times. Runs use your token with the scope it has at that time.",
        &[
            "oubliette schedule create tests '0 9 * * MON-FRI' 'run the tests' \\",
            "    --target hello --timezone Europe/Berlin",
        ],
    ),
    text(
        "schedule_list",
        "List schedules and their next runs, newest first",
        "",
        &["oubliette schedule list hello"],
    ),
    text(
        "schedule_get",
        "Show a schedule: its prompt, projects and next runs",
        "Also why it is disabled, if it is.",
        &["oubliette schedule get tests"],
    ),
    text(
        "schedule_update",
        "Change a schedule",
        "What is not named stays. Later runs use your token. A schedule that was disabled after failures runs \
         again, unless you give --enabled=false.",
        &["oubliette schedule update tests --cron-expr @daily"],
    ),
    text(
        "schedule_delete",
        "Delete a schedule and its history",
        "The sessions that it started stay, and their current turns go on. Asks first on a terminal.",
        &["oubliette schedule delete tests"],
    ),
    text(
        "schedule_trigger",
        "Run a schedule now, even if it is disabled",
        "Returns at once; `oubliette schedule history` shows the outcome.",
        &["oubliette schedule trigger tests"],
    ),
    text(
        "schedule_history",
        "List the runs of a schedule, newest first",
        "With the time, status, session, final text of the agent and cost of each.",
        &["oubliette schedule history tests"],
    ),
    text(
        "token_create",
        "Create an API token, and print its key once",
        "Keep the key out of logs, and choose the narrowest scope that is enough.",
        &[
            "oubliette token create ci project:hello",
            "oubliette token create dashboard read --expires-in-hours 720",
        ],
    ),
    text(
        "token_list",
        "List the API tokens and their scopes, oldest first",
        "Keys are never shown.",
        &["oubliette token list"],
    ),
    text(
        "token_revoke",
        "Revoke an API token at once",
        "Its next call fails and its connections end. The last valid admin token cannot be revoked. Asks first on a \
         terminal.",
        &["oubliette token revoke ci"],
    ),
    text(
        "credential_add",
        "Store a key or a login, or replace one",
        "",
        &[],
    ),
    text(
        "credential_list",
        "List the stored keys and logins, and which projects use them",
        "Values are never shown.",
        &["oubliette credential list"],
    ),
    text(
        "credential_remove",
        "Remove a stored key or login",
        "Agents that run keep what they were started with. Asks first on a terminal.",
        &["oubliette credential remove work"],
    ),
    text(
        "network_check",
        "Show whether a project's containers may reach a host, and why",
        "Nothing is connected to. A name that the rules allow is looked up, because its addresses are decided about, too.",
        &["oubliette network check app registry.npmjs.org"],
    ),
    text(
        "network_log",
        "Show what a project's containers reached and what was denied",
        "The newest first, of containers with the network `policy`.",
        &["oubliette network log app"],
    ),
    text(
        "network_allow",
        "Let a project's containers reach a host",
        "For new connections, at once. Addresses that are not public are reached only with the admin token.",
        &[
            "oubliette network allow app example.org",
            "oubliette network allow app api.example.org:443",
        ],
    ),
    text(
        "config_limits",
        "Show the limits of agents: depth, number and cost",
        "Of one project or of all, and whether each is the default. With --session also what has been used of \
         them.",
        &["oubliette config limits hello"],
    ),
    text(
        "caller_tool_response",
        "Answer an agent that called a tool of yours and waits",
        "For programs that offer tools to agents; give --result or --error. Only the token that created the session \
         can answer, and the first answer counts.",
        &[],
    ),
    text(
        "image_rebuild",
        "Rebuild the image of a container type",
        "Removes the containers made from it; their next use creates them again. Where there are no images, \
         everything that was installed in the containers is deleted. Files of projects stay. Asks first on a \
         terminal.",
        &["oubliette image rebuild --container-type node"],
    ),
    text(
        "audit_list",
        "List calls, newest first: when, by which token, what",
        "Every call: writes, reads (up to a second later) and refused ones; never keys, credentials or prompts.",
        &[
            "oubliette audit list hello",
            "oubliette audit list --by ci --outcome refused",
        ],
    ),
];
