//! The commands of every page, one test per page.

use super::page::Rule::{After, Asks, Before, NotRun};
use super::page::{Page, pieces, top};

/// A repository of the user's, which the pages call `~/src/app`.
const REPOSITORY: &str = "\
mkdir -p ~/src/app; cd ~/src/app; git init -q -b main; echo broken > test
git add test; git -c user.name=you -c user.email=you@example.com commit -q -m first";

/// The demo agent only talks about such a prompt: so that there is something to take, the same session goes on.
const SOME_WORK: &str = "oubliette run --continue '/sh echo fixed > test; git commit -q -a -m fixed; echo new > more' > /dev/null 2>&1";

const CHANGES_THE_MACHINE: &str = "it changes the machine that the tests run on";
const NEEDS_INTERNET: &str = "it needs the internet";
const TAKES_MINUTES: &str = "it takes minutes; `.ci/dist` and `.ci/run` do it";
/// `cli/install.rs` runs the script with a prefix.
const INSTALLS: &str = "for root it installs into /usr/local";

static PAGES: [Page; 12] = [
    Page {
        name: "README.md",
        setup: REPOSITORY,
        agents: &["opencode"],
        rules: &[
            ("cargo test", NotRun(TAKES_MINUTES)),
            ("oubliette run --agent opencode", After(SOME_WORK)),
            ("oubliette apply", After("[ \"$(cat test more)\" = \"fixed\nnew\" ]")),
            ("cargo run -- agent install", NotRun(NEEDS_INTERNET)),
        ],
    },
    Page {
        name: "docs/admin-agents.md",
        setup: "",
        agents: &[],
        rules: &[],
    },
    Page {
        name: "docs/agents.md",
        setup: "",
        agents: &["claude"],
        rules: &[],
    },
    Page {
        name: "docs/caller-tools.md",
        setup: "",
        agents: &[],
        rules: &[],
    },
    Page {
        name: "docs/clients.md",
        setup: "",
        agents: &[],
        rules: &[("oubliette mcp setup", After("grep -q oubliette ~/.claude.json"))],
    },
    Page {
        name: "docs/install.md",
        setup: "oubliette project create app > /dev/null 2>&1",
        agents: &[],
        rules: &[
            ("tar -xzf", NotRun(INSTALLS)),
            ("oubliette-*/install.sh", NotRun(INSTALLS)),
            ("source <(oubliette", After("complete -p oubliette > /dev/null")),
            ("oubliette backup", After("[ -s ~/oubliette-before.tar ]")),
            ("oubliette down --remove", Asks),
            ("rm -rf ~/.oubliette", After("[ ! -e ~/.oubliette ]")),
            ("cargo xtask dist", NotRun(TAKES_MINUTES)),
            ("rustup target add", NotRun(CHANGES_THE_MACHINE)),
            ("pip install", NotRun(CHANGES_THE_MACHINE)),
        ],
    },
    Page {
        name: "docs/network.md",
        setup: "",
        agents: &[],
        rules: &[("oubliette container exec app -- curl", NotRun(NEEDS_INTERNET))],
    },
    Page {
        name: "docs/openspec.md",
        setup: "\
oubliette project create hello > /dev/null 2>&1
oubliette container exec hello 'mkdir -p openspec/changes/add-login; echo \"- [ ] 1.1 A form\" > \
openspec/changes/add-login/tasks.md; echo x > openspec/changes/add-login/proposal.md'",
        agents: &[],
        rules: &[],
    },
    Page {
        name: "docs/schedules.md",
        setup: "\
oubliette project create app > /dev/null 2>&1
oubliette project create web > /dev/null
oubliette workspace create web --workspace experiments > /dev/null",
        agents: &[],
        rules: &[],
    },
    Page {
        name: "docs/service.md",
        setup: "",
        agents: &[],
        rules: &[
            ("install -m", NotRun(CHANGES_THE_MACHINE)),
            ("systemctl", NotRun(CHANGES_THE_MACHINE)),
            ("journalctl", NotRun(CHANGES_THE_MACHINE)),
        ],
    },
    Page {
        name: "docs/signing-in.md",
        setup: "\
export OPENAI_API_KEY=sk-of-the-shell-0123456789
echo sk-of-a-file-0123456789 > key.txt; mkdir keys; cp key.txt keys/openai",
        agents: &["claude"],
        rules: &[],
    },
    Page {
        name: "docs/work.md",
        setup: REPOSITORY,
        agents: &[],
        rules: &[
            ("oubliette run", After(SOME_WORK)),
            ("oubliette apply", After("[ \"$(cat test more)\" = \"fixed\nnew\" ]")),
            (
                "oubliette fetch",
                After("git branch --list 'oubliette/*' | grep -q oubliette/"),
            ),
            (
                "curl -fO",
                Before(
                    "cd ~; server=$(oubliette status --json | sed -n 's|.*\"url\": \"\\(.*\\)/mcp\".*|\\1|p')
url() { sed -n 's|.*\"url\": \"\\(.*\\)\".*|\\1|p' | sed \"s|^/|$server/|\"; }
oubliette container exec app 'head -c 6000000 /dev/zero > big.bin'
URL=$(oubliette workspace read app big.bin --json | url)",
                ),
            ),
            ("curl -fO", After("[ \"$(stat -c %s \"${URL##*/}\")\" = 6000000 ]")),
            (
                "curl -fT",
                Before(
                    "echo content > big.tar; URL=$(oubliette workspace write app big.tar --json | url)",
                ),
            ),
            (
                "curl -fT",
                After("[ \"$(oubliette container exec app 'cat big.tar')\" = content ]"),
            ),
        ],
    },
];

async fn run(name: &str) {
    let page = PAGES.iter().find(|page| page.name == name);
    page.unwrap().run().await;
}

#[test]
fn every_page_with_commands_is_run() {
    let docs = std::fs::read_dir(top().join("docs")).unwrap();
    let docs = docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().display()));
    let mut found: Vec<String> = docs
        .filter(|name| name.ends_with(".md"))
        .chain(["README.md".to_owned()])
        .filter(|name| pieces(name).iter().any(|(words, _)| words == "sh"))
        .collect();
    found.sort();
    let mut run: Vec<&str> = PAGES.iter().map(|page| page.name).collect();
    run.sort_unstable();
    assert_eq!(found, run);
}

#[test(needs(sandbox), limit = 240)]
async fn the_commands_of_the_readme_work() {
    run("README.md").await;
}

#[test(needs(sandbox), limit = 240)]
async fn the_commands_about_agents_that_administer_work() {
    run("docs/admin-agents.md").await;
}

#[test(needs(sandbox), limit = 240)]
async fn the_commands_about_agents_work() {
    run("docs/agents.md").await;
}

#[test(needs(sandbox), limit = 240)]
async fn the_commands_about_caller_tools_work() {
    run("docs/caller-tools.md").await;
}

#[test(needs(sandbox), limit = 240)]
async fn the_commands_about_clients_work() {
    run("docs/clients.md").await;
}

#[test(needs(sandbox), limit = 240)]
async fn the_commands_about_installing_work() {
    run("docs/install.md").await;
}

#[test(needs(sandbox), limit = 240)]
async fn the_commands_about_the_network_work() {
    run("docs/network.md").await;
}

#[test(needs(sandbox), limit = 240)]
async fn the_commands_about_openspec_work() {
    run("docs/openspec.md").await;
}

#[test(needs(sandbox), limit = 240)]
async fn the_commands_about_schedules_work() {
    run("docs/schedules.md").await;
}

#[test(needs(sandbox), limit = 240)]
async fn the_commands_about_the_service_are_named_as_not_run() {
    run("docs/service.md").await;
}

#[test(needs(sandbox), limit = 240)]
async fn the_commands_about_signing_in_work() {
    run("docs/signing-in.md").await;
}

#[test(needs(sandbox), limit = 240)]
async fn the_commands_about_your_checkout_work() {
    run("docs/work.md").await;
}
