//! Schedules on a real engine and a real store, on a clock that the tests set.
