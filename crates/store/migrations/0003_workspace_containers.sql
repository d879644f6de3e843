-- The workspace of a container, where each workspace has one of its own.
alter table containers add column workspace_id text;
