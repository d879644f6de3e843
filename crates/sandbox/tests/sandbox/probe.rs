//! What a machine is said to be able to do.
