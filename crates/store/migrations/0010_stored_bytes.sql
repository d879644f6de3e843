-- What a session's log and its waiting messages take, so that a project's share of the store is bounded.
alter table sessions add column log_bytes integer not null default 0;
alter table sessions add column queued_bytes integer not null default 0;

update sessions set
    log_bytes = (
        select coalesce(sum(octet_length(body)), 0) from events where session = seq
    ),
    queued_bytes = (
        select coalesce(sum(octet_length(text) + octet_length(attachments)), 0)
        from messages where session = seq
    );

create index sessions_with_queue on sessions (project_id, queued_bytes) where queued_bytes > 0;
