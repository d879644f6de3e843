//! Containers: the commands in them, their relay sockets, and what remains of them.

mod cleanup;
mod commands;
mod crashes;
mod docker_faults;
mod full_disk;
mod host_differences;
mod hostile_commands;
mod races;
mod relay_connections;
mod supervisor_versions;
mod terminal;
mod workspaces;
