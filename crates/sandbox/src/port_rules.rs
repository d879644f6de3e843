//! The rules of Landlock by which no process of a sandbox can bind certain TCP ports of the host.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::spec::{NetworkNamespace, Spec};
use crate::{Method, sys};

/// The first version with rules for ports (Linux 6.7).
const MIN_LANDLOCK_ABI: i64 = 4;

/// The rules that were made last. There is one for each port that may be bound, which takes tens of
/// milliseconds, and all sandboxes of a server refuse the same ports.
static LAST: Mutex<Option<PortRules>> = Mutex::new(None);

struct PortRules {
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
            *last = Some(PortRules {
                refused: spec.refused_ports.clone(),
                rules: rules.clone(),
            });
            Ok(Some(rules))
        }
    }
}
