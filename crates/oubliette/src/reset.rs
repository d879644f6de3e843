//! `oubliette token reset-admin`: a new admin key, when the old one is lost. It works on the data
//! directory itself, because without a key no server would listen.

use oubliette_engine::NewToken;
use oubliette_model::Scope;
use oubliette_store::Tokens;
use oubliette_store::sqlite::Sqlite;

use crate::failure::Failure;
use crate::home::Home;
use crate::terminal;

pub(crate) fn run(home: &Home) -> Result<(), Failure> {
    if !home.database().exists() {
        return Err(Failure::new(format!(
            "there is no database in {}; `oubliette serve` makes one, with an admin token",
            home.path().display()
        )));
    }
    let _hold = home.hold()?;
    let store = Sqlite::open(&home.database())?;
    let now = jiff::Timestamp::now();
    let minted = NewToken::generate("admin", Scope::Admin, now, None)
        .map_err(|error| Failure::of("cannot make a key", &error))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|error| Failure::of("cannot start", &error))?;
    let lost = home.admin_key();
    home.write_admin_key(&minted.key)?;
    runtime.block_on(async {
        store
            .add_token(&minted.token, minted.key.hash(), None)
            .await?;
        // Whoever resets the key does not trust the one before.
        if let Some(lost) = lost
            && let Some(token) = store.token_by_hash(lost.hash()).await?
        {
            store.revoke_token(token.id, now, None).await?;
        }
        Ok::<_, Failure>(())
    })?;
    eprintln!(
        "The new admin token is in {}; the old one has ended.",
        home.admin_token_file().display()
    );
    terminal::say(minted.key.reveal());
    Ok(())
}
