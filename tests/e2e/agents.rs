//! Real agents in real containers, and the keys and tools that agents get.

mod full_session;
mod keys;
mod oubliette_tools;
mod relay_tools;
