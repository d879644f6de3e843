//! The address that each name has in a container.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::Ipv4Addr;

/// Names that have an address; the oldest one loses it to a new one.
const MAX_NAMES: u32 = 16_384;

#[derive(Debug)]
pub(super) struct Names {
    base: u32,
    count: u32,
    table: RefCell<Table>,
}

#[derive(Debug)]
struct Table {
    /// The place of the next name.
    next: u32,
    places: HashMap<String, u32>,
    names: HashMap<u32, String>,
}

impl Names {
    /// Names get addresses from `base` on. They begin at a random one, so that an address that a program remembers
    /// from an earlier tunnel rarely means another name.
    pub(super) fn new(base: Ipv4Addr, count: u32) -> Self {
        let random = RandomState::new().build_hasher().finish() as u32;
        Self::starting_at(base, count, random)
    }

    fn starting_at(base: Ipv4Addr, count: u32, start: u32) -> Self {
        Self {
            base: base.to_bits(),
            count,
            table: RefCell::new(Table {
                next: start % count,
                places: HashMap::new(),
                names: HashMap::new(),
            }),
        }
    }

    /// The address of a name.
    pub(super) fn address_of(&self, name: &str) -> Ipv4Addr {
        let mut table = self.table.borrow_mut();
        if let Some(place) = table.places.get(name) {
            return Ipv4Addr::from_bits(self.base + place);
        }
        // Not the first and the last one, which programs may take for the network itself.
        let mut place = table.next;
        if place == 0 || place == self.count - 1 {
            place = 1;
        }
        table.next = (place + 1) % self.count;
        let limit = MAX_NAMES.min(self.count - 2);
        let oldest = (place + self.count - limit) % self.count;
        for outdated in [oldest, place] {
            if let Some(name) = table.names.remove(&outdated) {
                table.places.remove(&name);
            }
        }
        table.places.insert(name.to_owned(), place);
        table.names.insert(place, name.to_owned());
        Ipv4Addr::from_bits(self.base + place)
    }

    /// The name that was given this address.
    pub(super) fn name_of(&self, address: Ipv4Addr) -> Option<String> {
        let place = address.to_bits().checked_sub(self.base)?;
        self.table.borrow().names.get(&place).cloned()
    }

    /// Whether a name has an address already.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.table.borrow().places.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_addresses_and_the_oldest_is_forgotten() {
        let base = Ipv4Addr::new(198, 18, 0, 0);
        for start in [0, 5, (1 << 17) - 2] {
            let names = Names::starting_at(base, 1 << 17, start);
            let first = names.address_of("a.org");
            assert_eq!(names.address_of("a.org"), first);
            assert_eq!(names.name_of(first).as_deref(), Some("a.org"));
            for number in 0..MAX_NAMES {
                let name = format!("n{number}.org");
                let address = names.address_of(&name);
                assert_eq!(names.name_of(address), Some(name));
                assert!(address > base && address.octets()[1] <= 19);
            }
            assert_eq!(names.name_of(first), None);
            let table = names.table.borrow();
            assert_eq!(table.places.len(), table.names.len());
            assert!(table.names.len() <= MAX_NAMES as usize + 1);
        }
        let names = Names::new(base, 1 << 17);
        assert_eq!(names.name_of(Ipv4Addr::LOCALHOST), None);
        assert!(!names.contains("a.org"));
    }
}
