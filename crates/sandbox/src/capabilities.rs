//! The Linux capabilities that root in a container keeps, whichever runtime makes the container:
//! those that package managers and build tools use, and those that the supervisor needs to switch
//! users, own files and end processes.

/// A capability as `capabilities(7)` lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinuxCapability {
    /// With its prefix, for example `CAP_CHOWN`.
    pub name: &'static str,
    /// The bit in the kernel's capability sets.
    pub number: u32,
}

impl LinuxCapability {
    /// The name as Docker spells it, for example `CHOWN`.
    pub fn short_name(self) -> &'static str {
        self.name.strip_prefix("CAP_").unwrap_or(self.name)
    }
}

const fn capability(name: &'static str, number: u32) -> LinuxCapability {
    LinuxCapability { name, number }
}

pub const CONTAINER_CAPABILITIES: [LinuxCapability; 11] = [
    capability("CAP_CHOWN", 0),
    capability("CAP_DAC_OVERRIDE", 1),
    capability("CAP_FOWNER", 3),
    capability("CAP_FSETID", 4),
    capability("CAP_KILL", 5),
    capability("CAP_SETGID", 6),
    capability("CAP_SETUID", 7),
    capability("CAP_SETPCAP", 8),
    capability("CAP_NET_BIND_SERVICE", 10),
    capability("CAP_SYS_CHROOT", 18),
    capability("CAP_SETFCAP", 31),
];

/// [`CONTAINER_CAPABILITIES`] as a bit set, like the fields `Cap…` of `/proc/PID/status`.
pub fn container_capability_mask() -> u64 {
    CONTAINER_CAPABILITIES
        .iter()
        .fold(0, |mask, capability| mask | 1 << capability.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_the_reviewed_one() {
        assert_eq!(container_capability_mask(), 0x8004_05fb);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn names_and_numbers_are_the_kernels() {
        use rustix::thread::CapabilitySet;
        for capability in CONTAINER_CAPABILITIES {
            let bit = CapabilitySet::from_bits_retain(1 << capability.number);
            assert_eq!(
                CapabilitySet::from_name(capability.short_name()),
                Some(bit),
                "{capability:?}"
            );
        }
    }
}
