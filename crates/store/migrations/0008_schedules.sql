-- A prompt that is given to projects at set times. `next_at` is the instant of the next run, absent while
-- the schedule is disabled. Whoever fires a schedule moves it on in the transaction that adds the runs,
-- so that each instant has its runs once, however many servers look.
create table schedules (
    seq              integer primary key autoincrement,
    id               text not null unique,
    revision         integer not null,
    name             text not null,
    cron_expr        text not null,
    timezone         text not null,
    prompt           text not null,
    enabled          integer not null,
    overlap          text not null,
    session_behavior text not null,
    missed_runs      text not null,
    -- The token that runs act with, as it is then.
    owner_id         text not null,
    -- The session whose agent made it, and below which its own stand.
    owner_session    text,
    next_at          integer,
    disabled_reason  text,
    -- Runs in a row that failed.
    failures         integer not null default 0,
    created_at       integer not null,
    updated_at       integer not null
);

create index schedules_due on schedules (next_at, seq) where next_at is not null;

-- `session` is the one that goes on from run to run. It may be gone by now.
create table schedule_targets (
    schedule      integer not null references schedules (seq) on delete cascade,
    position      integer not null,
    project_id    text not null references projects (id) on delete cascade,
    workspace_id  text,
    session       text,
    primary key (schedule, position)
) without rowid;

create index schedule_targets_by_project on schedule_targets (project_id);

-- One row for each run of each target. Whoever works on it holds a lease; its session and its message are
-- noted in the transaction that makes them. `prompted` is the index of its prompt in the session's log.
create table schedule_runs (
    seq           integer primary key autoincrement,
    id            text not null unique,
    schedule      integer not null references schedules (seq) on delete cascade,
    project_id    text not null references projects (id) on delete cascade,
    workspace_id  text,
    due_at        integer not null,
    cause         text not null,
    status        text not null,
    session       text,
    message       integer,
    prompted      integer,
    cost_before   real not null default 0,
    note          text,
    created_at    integer not null,
    started_at    integer,
    ended_at      integer,
    deadline      integer,
    lease_by      text,
    lease_until   integer,
    output        text,
    truncated     integer not null default 0,
    error         text,
    cost_usd      real
);

create index schedule_runs_by_schedule on schedule_runs (schedule, seq);
create index schedule_runs_by_project on schedule_runs (project_id);
create index schedule_runs_by_status on schedule_runs (schedule, status);
create index schedule_runs_queued on schedule_runs (seq) where status = 'queued';
create index schedule_runs_running on schedule_runs (seq) where status = 'running';
create index schedule_runs_by_end on schedule_runs (ended_at) where ended_at is not null;
create index schedule_runs_by_message on schedule_runs (message) where message is not null;
