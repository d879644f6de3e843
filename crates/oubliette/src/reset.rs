//! `oubliette token reset-admin`: a new admin key for when the old one is lost. It writes to the database
//! itself, because a server would require a key.

use std::io::IsTerminal;

use oubliette_engine::NewToken;
use oubliette_model::Scope;
use oubliette_store::TokenStore;
use oubliette_store::sqlite::Sqlite;
use serde_json::json;

use crate::down;
use crate::executor::block_on;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal;
use crate::terminal::output::{self, note};

pub(crate) fn run(home: &Home) -> Result<(), Failure> {
    if !home.database().exists() {
        return Err(Failure::new(format!(
            "there is no database in {}; the first command that needs a server creates one, with an admin token",
            home.path().display()
        )));
    }
    let _lock = down::lock_without_server(home)?;
    let store = Sqlite::open(&home.database())?;
    let now = jiff::Timestamp::now();
    let new_token = NewToken::generate("admin", Scope::Admin, now, None)
        .map_err(|error| Failure::with_cause("cannot create a key", &error))?;
    let old_key = home.admin_key();
    home.write_admin_key(&new_token.key)?;
    block_on(async {
        store
            .add_token(&new_token.token, new_token.key.hash(), None)
            .await?;
        // The old key may have been stolen.
        if let Some(old_key) = old_key
            && let Some(token) = store.token_by_hash(old_key.hash()).await?
        {
            store.revoke_token(token.id, now, None).await?;
        }
        Ok::<_, Failure>(())
    })??;
    if output::is_json() {
        terminal::print_json(&json!({
            "token_id": new_token.token.id, "file": home.admin_token_file(),
        }));
        return Ok(());
    }
    note!(
        "The new admin token is in {}; the old one is revoked.",
        home.admin_token_file().display()
    );
    // Other output goes to files and logs, which more people can read than the key is for.
    if std::io::stdout().is_terminal() {
        terminal::print_line(new_token.key.reveal());
    }
    Ok(())
}
