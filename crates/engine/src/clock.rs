//! The time, which tests can set.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

/// Where a wall clock cannot say that it was set, it is looked at this often.
const LOOK: Duration = Duration::from_secs(30);

/// What tells the time.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// The machine's.
    #[default]
    System,
    /// One that stands still until it is set.
    Set(Arc<watch::Sender<Timestamp>>),
}

impl Clock {
    pub fn standing_at(at: Timestamp) -> Self {
        Self::Set(Arc::new(watch::Sender::new(at)))
    }

    /// Sets a clock that can be set.
    pub fn set(&self, at: Timestamp) {
        if let Self::Set(time) = self {
            time.send_replace(at);
        }
    }

    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            Self::Set(time) => *time.borrow(),
        }
    }

    /// Returns when it is that time. May return earlier, when the clock was set: whoever waits looks at
    /// it again.
    pub(crate) async fn until(&self, at: Timestamp) {
        match self {
            Self::System if at <= Timestamp::now() => {}
            Self::System => match timer::wait(at).await {
                Ok(()) => {}
                Err(_) => pause(at).await,
            },
            Self::Set(time) => {
                let reached = |now: &Timestamp| *now >= at;
                // The sender lives as long as the clock.
                let _ = time.subscribe().wait_for(reached).await;
            }
        }
    }
}

async fn pause(at: Timestamp) {
    let left = at.duration_since(Timestamp::now());
    let left = Duration::try_from(left).unwrap_or_default();
    tokio::time::sleep(left.min(LOOK)).await;
}

/// A timer on the wall clock, which other than a sleep runs on while the machine is suspended and
/// tells when the clock is set.
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
        // It is read like a pipe.
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
    async fn the_systems_clock_is_waited_for_to_the_millisecond() {
        let clock = Clock::System;
        let at = clock.now() + SignedDuration::from_millis(30);
        clock.until(at).await;
        assert!(clock.now() >= at);
        clock.until(at).await;
    }

    #[tokio::test]
    async fn a_clock_that_stands_still_moves_when_it_is_set() {
        let start = Timestamp::from_second(1_800_000_000).unwrap();
        let hour = SignedDuration::from_hours(1);
        let clock = Clock::standing_at(start);
        let waiting = tokio::spawn({
            let clock = clock.clone();
            async move { clock.until(start + hour).await }
        });
        clock.set(start - hour);
        assert_eq!(clock.now(), start - hour);
        assert!(!waiting.is_finished());
        clock.set(start + hour);
        waiting.await.unwrap();
    }
}
