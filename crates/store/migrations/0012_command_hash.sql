-- Tells a repeated call of a named command from one with the same name and another command.
alter table execs add column command_hash blob;
