//! `session_diff`.

use std::time::{Duration, Instant};

use oubliette_checkpoints::{Change, ChangeKind, Hash, ObjectStore, changes, patch};
use oubliette_model::{Access, Mode, ResourceUri, SessionId, path_from_text, path_to_text, quoted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result, paging};

const LIST: &str = "diff";
/// How much of a patch a page has.
const DEFAULT_PAGE_BYTES: usize = 48 << 10;
const MAX_PAGE_BYTES: usize = 512 << 10;
const MAX_PAGE_FILES: usize = 1000;
/// A page ends early when it takes longer to make.
const MAX_PAGE_TIME: Duration = Duration::from_secs(10);

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Session id, or the start of it.
    session_id: SessionId,
    /// Turn number.
    ///
    /// From 1. Without it and the others: the whole session.
    turn: Option<u32>,
    /// From the end of this turn (0).
    from_turn: Option<u32>,
    /// To the end of this turn.
    to_turn: Option<u32>,
    /// Since the last review.
    since_review: Option<bool>,
    /// Only this file or directory.
    path: Option<String>,
    /// Without the patch.
    stat: Option<bool>,
    /// Pages of up to 512 KiB instead of 48 KiB.
    #[schemars(extend("x-unlisted" = true))]
    full: Option<bool>,
    /// Last `next_cursor`.
    ///
    /// For the next page.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    session_id: SessionId,
    /// The state after this turn is compared; with `turn`, the state when that turn started.
    from_turn: u32,
    to_turn: u32,
    files: Vec<ChangedFile>,
    /// The patch, which `git apply` takes. Pages are put together in order.
    diff: String,
    /// Whether there are more pages.
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// The resource with the rest of the patch, if there are more pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    rest_uri: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct ChangedFile {
    path: String,
    /// `added`, `modified`, `deleted` or `renamed`.
    status: &'static str,
    /// The former path of a renamed file.
    #[serde(skip_serializing_if = "Option::is_none")]
    old_path: Option<String>,
    /// Lines.
    added: u64,
    removed: u64,
    binary: bool,
}

#[derive(Debug)]
pub(crate) struct Diff;

impl Operation for Diff {
    const NAME: &'static str = "session_diff";
    const ABOUT: &'static str = "Show changed files and a patch: of a `turn`, several, since the last review, or all.\n\n\
         The patch has git's format. It is what changed in the workspace, so it includes what others did \
         there at the same time. Files that git ignores are left out, and so is the content of files over \
         10 MB.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::work_of(params.session_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<Output> {
        let session = engine.sessions().get(params.session_id).await?;
        let range = Range::of_call(engine, &params).await?;
        let path = params.path.as_deref().map(|text| {
            let path = path_from_text(text.trim_start_matches("./").trim_end_matches('/'));
            path.ok_or_else(|| EngineError::invalid(format!("`path`: {} is no path", quoted(text))))
        });
        let path = path.transpose()?.filter(|path| !path.is_empty());
        let start = Position::parse(params.cursor.as_deref())?;
        let mut output = Output {
            session_id: session.id,
            from_turn: range.from_turn,
            to_turn: range.to_turn,
            files: Vec::new(),
            diff: String::new(),
            truncated: false,
            next_cursor: None,
            rest_uri: None,
        };
        let Some((from, to)) = range.trees else {
            return Ok(output);
        };
        let objects = engine.checkpoints().objects(session.project_id).await?;
        let with_patch = !params.stat.unwrap_or(false);
        let limit = match (with_patch, params.full) {
            (false, _) => None,
            (true, Some(true)) => Some(MAX_PAGE_BYTES),
            (true, _) => Some(DEFAULT_PAGE_BYTES),
        };
        let page = tokio::task::spawn_blocking(move || {
            page(&objects, (from, to), path.as_deref(), start, limit)
        });
        let page = page.await.map_err(EngineError::fault)?.map_err(|error| {
            EngineError::Failed(format!("the checkpoints cannot be compared: {error}"))
        })?;
        output.files = page.files;
        output.diff = page.text;
        output.truncated = page.next.is_some();
        output.next_cursor = page.next.map(Position::to_cursor);
        if with_patch && let Some(cursor) = &output.next_cursor {
            let given_turn = params.turn;
            let uri = ResourceUri::SessionDiff {
                session: session.id,
                turn: given_turn,
                // What `since_review` means changes with the next review.
                from_turn: given_turn.is_none().then_some(output.from_turn),
                to_turn: given_turn.is_none().then_some(output.to_turn),
                path: params.path,
                cursor: Some(cursor.clone()),
            };
            output.rest_uri = Some(uri.to_string());
        }
        Ok(output)
    }
}

/// What a call compares.
struct Range {
    from_turn: u32,
    to_turn: u32,
    /// None if no turn has ended yet.
    trees: Option<(Hash, Hash)>,
}

impl Range {
    async fn of_call(engine: &Engine, params: &Params) -> Result<Self> {
        let trees = engine.checkpoints().turn_trees(params.session_id).await?;
        let since_review = params.since_review.unwrap_or(false);
        let given = [
            params.turn.is_some(),
            params.from_turn.is_some() || params.to_turn.is_some(),
            since_review,
        ];
        if given.into_iter().filter(|given| *given).count() > 1 {
            return Err(EngineError::invalid(
                "give either `turn`, or `from_turn` and `to_turn`, or `since_review`",
            ));
        }
        if let Some(turn) = params.turn {
            return Ok(Self {
                from_turn: turn.saturating_sub(1),
                to_turn: turn,
                trees: Some((trees.before(turn)?, trees.after(turn)?)),
            });
        }
        let reviewed = if since_review {
            engine.store().reviewed_turn(params.session_id).await?
        } else {
            None
        };
        let last = trees.last_turn();
        let from_turn = params.from_turn.or(reviewed).unwrap_or(0);
        let to_turn = params.to_turn.unwrap_or(last);
        let has_nothing = last == 0 && from_turn == 0 && to_turn == 0;
        let ends = if has_nothing {
            None
        } else {
            Some((trees.after(from_turn)?, trees.after(to_turn)?))
        };
        Ok(Self {
            from_turn,
            to_turn,
            trees: ends,
        })
    }
}

/// Where a page starts: a change, and a byte of its patch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Position {
    change: usize,
    byte: usize,
}

impl Position {
    fn parse(cursor: Option<&str>) -> Result<Self> {
        let Some(cursor) = paging::decode_cursor(cursor, LIST)? else {
            return Ok(Self::default());
        };
        let position = cursor.split_once(':').and_then(|(change, byte)| {
            Some(Self {
                change: change.parse().ok()?,
                byte: byte.parse().ok()?,
            })
        });
        position.ok_or_else(|| {
            EngineError::invalid("`cursor` is not the `next_cursor` of a previous page")
        })
    }

    fn to_cursor(self) -> String {
        format!("{LIST}:{}:{}", self.change, self.byte)
    }
}

#[derive(Debug, Default)]
struct Page {
    files: Vec<ChangedFile>,
    text: String,
    next: Option<Position>,
}

fn page(
    objects: &ObjectStore,
    (from, to): (Hash, Hash),
    path: Option<&[u8]>,
    start: Position,
    max_patch_bytes: Option<usize>,
) -> std::io::Result<Page> {
    let max_bytes = max_patch_bytes.unwrap_or(MAX_PAGE_BYTES);
    let deadline = Instant::now() + MAX_PAGE_TIME;
    let mut all = changes(objects, from, to)?;
    if let Some(path) = path {
        all.retain(|change| is_below(change, path));
    }
    let mut page = Page::default();
    for (index, change) in all.iter().enumerate().skip(start.change) {
        let first_byte = if index == start.change { start.byte } else { 0 };
        let is_full = page.files.len() >= MAX_PAGE_FILES
            || page.text.len() >= max_bytes
            || Instant::now() > deadline;
        let has_content = !page.files.is_empty() || !page.text.is_empty();
        if is_full && has_content {
            page.next = Some(Position {
                change: index,
                byte: first_byte,
            });
            break;
        }
        let patch = patch(objects, change)?;
        if first_byte == 0 {
            page.files.push(ChangedFile {
                path: path_to_text(&change.path),
                status: match change.kind() {
                    ChangeKind::Added => "added",
                    ChangeKind::Modified => "modified",
                    ChangeKind::Deleted => "deleted",
                    ChangeKind::Renamed => "renamed",
                },
                old_path: change.renamed_from.as_deref().map(path_to_text),
                added: patch.added,
                removed: patch.removed,
                binary: patch.is_binary,
            });
        }
        if max_patch_bytes.is_none() {
            continue;
        }
        let rest = patch.text.get(first_byte..).unwrap_or_default();
        let room = max_bytes.saturating_sub(page.text.len());
        if rest.len() <= room {
            page.text.push_str(rest);
            continue;
        }
        let cut = rest.floor_char_boundary(room);
        // A line that is longer than a page is cut where it must be.
        let cut = rest[..cut].rfind('\n').map_or(cut, |newline| newline + 1);
        page.text.push_str(&rest[..cut]);
        page.next = Some(Position {
            change: index,
            byte: first_byte + cut,
        });
        break;
    }
    Ok(page)
}

fn is_below(change: &Change, path: &[u8]) -> bool {
    let matches = |changed: &[u8]| {
        let rest = changed.strip_prefix(path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    matches(&change.path) || change.renamed_from.as_deref().is_some_and(matches)
}
