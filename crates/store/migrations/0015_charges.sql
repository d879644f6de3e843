-- How far the journal of the gate, which has what calls of models took, has been counted.
create table gate_journal (
    id            integer primary key check (id = 1),
    charges_read  integer not null
);
insert into gate_journal (id, charges_read) values (1, 0);
