//! The rules of Landlock by which no process of a sandbox can bind certain TCP ports of the host.
//!
//! There is one rule for each port that may be bound, and every domain has a copy of all of them, which takes
//! milliseconds and megabytes. So the server makes the rules once, the launcher gives PID 1 their
//! descriptor, and PID 1 applies them to each thread that starts processes and not to itself.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::spec::{NetworkNamespace, Spec};
use crate::{Method, sys};

/// The first version with rules for ports (Linux 6.7).
const MIN_LANDLOCK_ABI: i64 = 4;

/// The descriptor of the rules, in the environment of PID 1.
pub(crate) const VARIABLE: &str = "OUBLIETTE_PORT_RULES";

/// The rules that were made last: all sandboxes of a server refuse the same ports.
static LAST: Mutex<Option<KnownRules>> = Mutex::new(None);

struct KnownRules {
    refused: Vec<u16>,
    rules: Arc<OwnedFd>,
}

/// Whether this kernel can refuse ports.
pub(crate) fn are_supported() -> bool {
    sys::landlock_abi() >= MIN_LANDLOCK_ABI
}

/// The rules, if a sandbox needs them and the kernel has them.
///
/// Port 0 asks the kernel for a free port, which is never a refused one while those are outside the
/// range of such ports.
pub(crate) fn for_spec(spec: &Spec) -> io::Result<Option<Arc<OwnedFd>>> {
    let shares_ports = spec.network == NetworkNamespace::Host && !spec.refused_ports.is_empty();
    let is_possible = spec.method == Method::Native && !spec.nested && are_supported();
    if !shares_ports || !is_possible {
        return Ok(None);
    }
    let mut last = LAST.lock();
    match &*last {
        Some(known) if known.refused == spec.refused_ports => Ok(Some(known.rules.clone())),
        _ => {
            let rules = Arc::new(sys::port_rules(&spec.refused_ports)?);
            *last = Some(KnownRules {
                refused: spec.refused_ports.clone(),
                rules: rules.clone(),
            });
            Ok(Some(rules))
        }
    }
}

/// The rules that this process got from its launcher, as PID 1 of a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct PortRules {
    fd: RawFd,
}

impl PortRules {
    /// The rules, unless this sandbox has none. No process that is started later inherits the descriptor.
    pub fn inherited() -> io::Result<Option<Self>> {
        let Ok(number) = std::env::var(VARIABLE) else {
            return Ok(None);
        };
        let fd = number.parse().map_err(io::Error::other)?;
        sys::close_on_exec(fd)?;
        Ok(Some(Self { fd }))
    }

    /// Applies the rules to the calling thread and everything that it starts.
    pub fn restrict_thread(self) -> io::Result<()> {
        // SAFETY: the descriptor was inherited, so nothing in this process owns or closes it.
        let rules = unsafe { BorrowedFd::borrow_raw(self.fd) };
        sys::apply_port_rules(rules)
    }
}
