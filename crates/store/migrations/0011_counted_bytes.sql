-- What the results of commands, the outcomes of agents' calls and the requests to callers take, so that a
-- project's share of the store has all of it.
alter table execs add column result_bytes integer not null default 0;
alter table tool_calls add column outcome_bytes integer not null default 0;
alter table sessions add column request_bytes integer not null default 0;

update execs set result_bytes = octet_length(result) where result is not null;
update tool_calls set outcome_bytes = octet_length(outcome) where outcome is not null;
update sessions set request_bytes = (
    select coalesce(sum(octet_length(arguments) + coalesce(octet_length(answer), 0)), 0)
    from caller_requests where session = seq
);

create index execs_kept on execs (project_id, started_at, result_bytes);
create index tool_calls_kept on tool_calls (token_id, begun_at, outcome_bytes) where outcome_bytes > 0;
