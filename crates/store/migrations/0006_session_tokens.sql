-- A token that belongs to a session and ends with it. `minted` is the one that its agent was started
-- with, which ends with the agent.
alter table tokens add column session text references sessions (id) on delete cascade;
alter table tokens add column minted integer not null default 0;

create index tokens_by_session on tokens (session) where session is not null;

-- Calls of operations from inside containers that change something, by the name that the caller gave
-- them: begun once, and with what came of it if somebody lived to note that.
create table tool_calls (
    token_id   text not null,
    call_id    text not null,
    begun_at   integer not null,
    outcome    text,
    primary key (token_id, call_id)
) without rowid;
