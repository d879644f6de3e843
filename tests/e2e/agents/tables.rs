//! Tables of `docs/agents.md` that tests find by trying. A test fails if the table says something else, and
//! writes it if `OUBLIETTE_TEST_WRITE_MATRIX` is set.

use std::fs::File;

use support::agents::row;

const WRITE_VARIABLE: &str = "OUBLIETTE_TEST_WRITE_MATRIX";
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/agents.md");
/// What an agent may not be able to do: each says why. A cell that says only "no" is a defect.
const ALLOWED_NO: [&str; 2] = [
    "no: its models have no tool for it",
    "no: it has no such setting",
];
const END: &str = "<!-- end of the table -->\n";

/// Compares the table that a test has found with the one in the document, which names the test. `columns` has
/// the cells of each agent, in the order of `rows`.
pub(super) fn check(test: &str, agents: &[&str], rows: &[&str], columns: &[Vec<String>]) {
    let mut head = "| |".to_owned();
    let mut rule = "| --- |".to_owned();
    for agent in agents {
        let version = row(agent).package.unwrap().version;
        head += &format!(" `{agent}` {version} |");
        rule += " --- |";
    }
    let mut table = format!("{head}\n{rule}\n");
    for (n, name) in rows.iter().enumerate() {
        let cells: Vec<&str> = columns.iter().map(|column| column[n].as_str()).collect();
        table += &format!("| {name} | {} |\n", cells.join(" | "));
    }

    for (agent, cells) in agents.iter().zip(columns) {
        for (row, cell) in rows.iter().zip(cells) {
            let is_no = cell == "no" || cell.starts_with("no:");
            assert!(
                !is_no || ALLOWED_NO.contains(&cell.as_str()),
                "{agent}: {row}: {cell}"
            );
        }
    }

    // Two tests may write their tables at once.
    let lock = File::open(DOCUMENT).unwrap();
    lock.lock().unwrap();
    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    let start = format!("<!-- written by tests/e2e/agents/{test} -->\n");
    let (before, rest) = document.split_once(&start).unwrap();
    let (written, after) = rest.split_once(END).unwrap();
    if std::env::var_os(WRITE_VARIABLE).is_some() {
        std::fs::write(DOCUMENT, format!("{before}{start}{table}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(
        written, table,
        "docs/agents.md is not what the agents do; set {WRITE_VARIABLE}=1 to write it"
    );
}
