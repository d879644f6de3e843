-- Messages of agents to sessions below their own, by the name that the agent's client gave the call: a
-- call that is repeated finds what came of the first. `prompted` is the index of the prompt in the log of
-- the session that got the message; absent while the message waits, or when nobody wants it any more.
create table relay_calls (
    session     integer not null references sessions (seq) on delete cascade,
    call_id     text not null,
    child       integer not null references sessions (seq) on delete cascade,
    message     integer not null,
    prompted    integer,
    created_at  integer not null,
    primary key (session, call_id)
) without rowid;

create index relay_calls_by_message on relay_calls (message);
create index relay_calls_by_child on relay_calls (child);

create index events_completions on events (session, idx) where kind = 'completion';

-- On the root of a tree, and whatever was removed since: how many sessions it got besides itself, and
-- what those cost that are gone.
alter table sessions add column spawned integer not null default 0;
alter table sessions add column cost_gone real not null default 0;

update sessions set spawned =
    (select count(*) from sessions below where below.root_id = sessions.id and below.id <> sessions.id)
where parent_id is null;

-- When a tree got sessions, for as long as its rate asks.
create table spawns (
    root  integer not null references sessions (seq) on delete cascade,
    at    integer not null
);

create index spawns_by_root on spawns (root, at);
