//! Connections by [`ConnId`]: dense slots that are used again under a new generation.

use super::ConnId;

/// A table of what is alive. A slot is used again only after [`Slots::remove`], and then under another generation, so
/// that an old id finds nothing.
pub(super) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slots<T> {
    pub fn new() -> Slots<T> {
        Slots { slots: vec![], free: vec![] }
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn insert(&mut self, value: T) -> ConnId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 connections")
        });
        let entry = &mut self.slots[slot as usize];
        assert!(entry.value.is_none(), "slot {slot} is in use");
        entry.generation = entry.generation.wrapping_add(1);
        entry.value = Some(value);
        ConnId { slot, generation: entry.generation }
    }

    pub fn get(&mut self, id: ConnId) -> Option<&mut T> {
        let entry = self.slots.get_mut(id.slot as usize)?;
        if entry.generation == id.generation { entry.value.as_mut() } else { None }
    }

    /// Whoever is in the slot now, with its id.
    pub fn at(&mut self, slot: u32) -> Option<(ConnId, &mut T)> {
        let entry = self.slots.get_mut(slot as usize)?;
        let id = ConnId { slot, generation: entry.generation };
        entry.value.as_mut().map(|value| (id, value))
    }

    pub fn remove(&mut self, id: ConnId) -> Option<T> {
        self.get(id)?;
        self.free.push(id.slot);
        self.slots[id.slot as usize].value.take()
    }

    pub fn ids(&self) -> Vec<ConnId> {
        let id = |(slot, entry): (usize, &Slot<T>)| {
            entry.value.as_ref().map(|_| ConnId { slot: slot as u32, generation: entry.generation })
        };
        self.slots.iter().enumerate().filter_map(id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: one client would get what is meant for another.
    #[test]
    fn an_old_id_does_not_find_the_new_owner_of_its_slot() {
        let mut slots = Slots::new();
        let a = slots.insert('a');
        assert_eq!(slots.remove(a), Some('a'));
        let b = slots.insert('b');
        assert_eq!(a.slot, b.slot);
        assert_eq!(slots.get(a), None);
        assert_eq!(slots.remove(a), None);
        assert_eq!(slots.get(b), Some(&mut 'b'));
        assert_eq!((slots.len(), slots.ids()), (1, vec![b]));
    }
}
