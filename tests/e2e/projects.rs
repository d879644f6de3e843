//! Projects: their life, their repositories, and their crashes.

mod clone;
mod crashes;
mod lifecycle;
