//! The time, which tests can set.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

/// How often the clock is read where the system does not report that it was set.
const CLOCK_POLL_INTERVAL: Duration = Duration::from_secs(30);

/// The source of the time.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// The clock of the system.
    #[default]
    System,
    /// A clock that shows one time until it is set.
    Manual(Arc<watch::Sender<Timestamp>>),
}

impl Clock {
    pub fn manual(at: Timestamp) -> Self {
        Self::Manual(Arc::new(watch::Sender::new(at)))
    }

    /// Sets a manual clock.
    pub fn set(&self, at: Timestamp) {
        if let Self::Manual(time) = self {
            time.send_replace(at);
        }
    }

    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            Self::Manual(time) => *time.borrow(),
        }
    }

    /// Returns at that time. Returns earlier when the clock was set, so the caller must compare the
    /// time again.
    pub(crate) async fn sleep_until(&self, at: Timestamp) {
        match self {
            Self::System if at <= Timestamp::now() => {}
            Self::System => {
                if timer::wait(at).await.is_err() {
                    sleep_at_most_poll_interval(at).await;
                }
            }
            Self::Manual(time) => {
                let reached = |now: &Timestamp| *now >= at;
                // The sender lives as long as the clock.
                let _ = time.subscribe().wait_for(reached).await;
            }
        }
    }
}

async fn sleep_at_most_poll_interval(until: Timestamp) {
    let left = Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default();
    tokio::time::sleep(left.min(CLOCK_POLL_INTERVAL)).await;
}

/// A timer on the wall clock. Unlike a sleep it runs on while the machine is suspended and reports
/// that the clock was set.
#[cfg(target_os = "linux")]
mod timer {
    use std::io;

    use jiff::Timestamp;
    use rustix::io::Errno;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::net::unix::pipe::Receiver;

    pub(super) async fn wait(at: Timestamp) -> io::Result<()> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Realtime, flags)?;
        let never = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let value = Timespec {
            tv_sec: at.as_second().max(0),
            tv_nsec: i64::from(at.subsec_nanosecond().max(0)),
        };
        let once = Itimerspec {
            it_interval: never,
            it_value: value,
        };
        let how = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        timerfd_settime(&timer, how, &once)?;
        // A timer descriptor is read like a pipe.
        let timer = Receiver::from_owned_fd_unchecked(timer)?;
        loop {
            timer.readable().await?;
            match timer.try_read(&mut [0; 8]) {
                Ok(_) => return Ok(()),
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN | Errno::INTR) => {}
                    // The clock was set.
                    Some(Errno::CANCELED) => return Ok(()),
                    _ => return Err(error),
                },
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod timer {
    use std::io;

    use jiff::Timestamp;

    pub(super) async fn wait(_: Timestamp) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[tokio::test]
    async fn the_system_clock_is_awaited_to_the_millisecond() {
        let clock = Clock::System;
        let at = clock.now() + SignedDuration::from_millis(30);
        clock.sleep_until(at).await;
        assert!(clock.now() >= at);
        clock.sleep_until(at).await;
    }

    #[tokio::test]
    async fn a_manual_clock_changes_when_it_is_set() {
        let start = Timestamp::from_second(1_800_000_000).unwrap();
        let hour = SignedDuration::from_hours(1);
        let clock = Clock::manual(start);
        let waiting = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(start + hour).await }
        });
        clock.set(start - hour);
        assert_eq!(clock.now(), start - hour);
        assert!(!waiting.is_finished());
        clock.set(start + hour);
        waiting.await.unwrap();
    }
}
