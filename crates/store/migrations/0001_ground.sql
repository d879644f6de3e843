-- Times are milliseconds since 1970 in UTC. Keys are stored only as hashes.

create table tokens (
    id          text primary key,
    name        text not null,
    hash        blob not null unique,
    scope       text not null,
    created_at  integer not null,
    expires_at  integer,
    revoked_at  integer
);

create table projects (
    id          text primary key,
    name        text not null unique,
    state       text not null check (state in ('creating', 'ready', 'deleting')),
    revision    integer not null default 1,
    settings    text not null,
    created_at  integer not null,
    updated_at  integer not null
);

create table workspaces (
    project_id  text not null references projects (id) on delete cascade,
    id          text not null,
    created_at  integer not null,
    primary key (project_id, id)
) without rowid;

create table audit (
    id          integer primary key autoincrement,
    at          integer not null,
    token_id    text,
    operation   text not null,
    project_id  text,
    outcome     text not null,
    address     text
);

create index audit_by_time on audit (at);

create table mcp_sessions (
    id          text primary key,
    token_id    text not null,
    state       text not null,
    seen_at     integer not null
);

create index mcp_sessions_by_token on mcp_sessions (token_id);
