-- The tools that the caller of a session has declared.
create table caller_tools (
    session    integer primary key references sessions (seq) on delete cascade,
    caller_id  text not null,
    tools      text not null
);

-- Calls of these tools. `call_id` is the name that the agent's client gave the call, `outcome` absent
-- while it is pending, `handed` whether the caller has got it as an answer to a question of its own.
create table caller_requests (
    session     integer not null references sessions (seq) on delete cascade,
    request_id  text not null unique,
    call_id     text not null,
    tool        text not null,
    arguments   text not null,
    asked_at    integer not null,
    deadline    integer not null,
    event_index integer not null,
    handed      integer not null default 0,
    outcome     text,
    answer      text,
    ended_at    integer,
    primary key (session, call_id)
) without rowid;

create index caller_requests_pending on caller_requests (session, asked_at) where outcome is null;

-- Where the caller of a session hears of it: the MCP session of its owner that named it last.
create table bound_sessions (
    session      integer primary key references sessions (seq) on delete cascade,
    mcp_session  text not null references mcp_sessions (id) on delete cascade
);

create index bound_sessions_by_mcp_session on bound_sessions (mcp_session);
