//! Containers: the commands in them, their relay sockets, and what remains of them.

mod cleanup;
mod commands;
mod crashes;
mod docker_faults;
mod docker_images;
mod docker_users;
mod exec_command;
mod full_disk;
mod host_differences;
mod hostile_commands;
mod races;
mod relay_connections;
mod supervisor_versions;
mod terminal;
mod unattended_commands;
mod workspace_creation;
mod workspaces;
