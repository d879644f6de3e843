-- The key of a container's supervisor, as a hash: the key itself is only in the container.
create table containers (
    id          text primary key,
    project_id  text not null references projects (id) on delete cascade,
    key_hash    blob not null,
    created_at  integer not null
);

create index containers_by_project on containers (project_id);

-- Commands that their caller named, so that a repeated call joins the first.
create table execs (
    project_id  text not null references projects (id) on delete cascade,
    exec_id     text not null,
    boot_id     text not null,
    started_at  integer not null,
    result      text,
    primary key (project_id, exec_id)
) without rowid;
