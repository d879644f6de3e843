-- The trees of the workspace at the start and end of each turn. Null where it could not be read.
create table checkpoints (
    session  integer not null references sessions (seq) on delete cascade,
    turn     integer not null,
    before   blob,
    after    blob,
    primary key (session, turn)
) without rowid;

-- Trees of workspaces before sessions were set back.
create table kept_trees (
    session  integer not null references sessions (seq) on delete cascade,
    tree     blob not null,
    at       integer not null,
    primary key (session, tree)
) without rowid;

-- The turn up to which somebody has looked at the changes of a session.
alter table sessions add column reviewed_turn integer;
