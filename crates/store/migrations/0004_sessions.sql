-- One row per session. `live` belongs to the task that owns the session: which process its agent is,
-- how far its output has become events. It changes in the transaction that adds those events.
create table sessions (
    seq              integer primary key autoincrement,
    id               text not null unique,
    project_id       text not null references projects (id) on delete cascade,
    workspace_id     text not null,
    parent_id        text,
    root_id          text not null,
    depth            integer not null,
    owner_id         text,
    agent            text not null,
    choices          text not null,
    status           text not null,
    waiting          text,
    wanted           text check (wanted in ('interrupt', 'end')),
    error            text,
    usage            text not null,
    cost_usd         real not null,
    -- Of the whole tree, on its root: what a decision raised the limit to.
    cost_limit       real,
    turns            integer not null,
    key_hash         blob,
    agent_session_id text,
    live             text,
    log_end          integer not null,
    trimmed_before   integer not null,
    created_at       integer not null,
    updated_at       integer not null,
    ended_at         integer
);

create index sessions_by_workspace on sessions (project_id, workspace_id, seq);
create index sessions_by_root on sessions (root_id, created_at);
create index sessions_by_parent on sessions (parent_id) where parent_id is not null;
create index sessions_unsettled on sessions (seq) where live is not null or wanted is not null;

-- Appended only: `position` is the order of commits over all sessions, `idx` the place in one.
create table events (
    position  integer primary key,
    session   integer not null references sessions (seq) on delete cascade,
    idx       integer not null,
    at        integer not null,
    kind      text not null,
    body      text not null,
    unique (session, idx)
);

-- Messages that no turn has taken yet.
create table messages (
    id           integer primary key autoincrement,
    session      integer not null references sessions (seq) on delete cascade,
    text         text not null,
    attachments  text not null,
    created_at   integer not null
);

create index messages_by_session on messages (session, id);

-- What goes to an agent, by its place in the agent's input, until the agent has it.
create table agent_input (
    session  integer not null references sessions (seq) on delete cascade,
    at       integer not null,
    bytes    blob not null,
    primary key (session, at)
) without rowid;

-- Decisions that somebody has to take, or that the owner of the session has yet to carry out.
create table decisions (
    session     integer not null references sessions (seq) on delete cascade,
    request_id  text not null,
    kind        text not null,
    detail      text not null,
    deadline    integer not null,
    verdict     text,
    answer      text,
    primary key (session, request_id)
) without rowid;
