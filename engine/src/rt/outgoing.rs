//! What one connection is sending: the parts of a response, and how far the kernel has taken them.

use crate::limits::{SEND_BYTES_MAX, SEND_PARTS_MAX};
use bytes::Bytes;
use std::collections::VecDeque;

/// The rest of one `send`. Never holds an empty part.
pub(super) struct Outgoing {
    parts: VecDeque<Bytes>,
}

impl Outgoing {
    pub fn new(parts: Vec<Bytes>) -> Outgoing {
        Outgoing { parts: parts.into_iter().filter(|part| !part.is_empty()).collect() }
    }

    pub fn is_done(&self) -> bool {
        self.parts.is_empty()
    }

    /// The next parts to send: at most [`SEND_PARTS_MAX`], and [`SEND_BYTES_MAX`] together.
    pub fn next_parts(&self) -> impl Iterator<Item = &[u8]> {
        let next = self.parts.iter().take(SEND_PARTS_MAX).scan(SEND_BYTES_MAX, |room, part| {
            let bytes = part.len().min(*room);
            *room -= bytes;
            Some(&part[..bytes])
        });
        next.take_while(|part| !part.is_empty())
    }

    /// The kernel has taken `bytes` more.
    pub fn advance(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let first = self.parts.front_mut().expect("the kernel takes no more than it was given");
            if bytes < first.len() {
                let _ = first.split_to(bytes);
                return;
            }
            bytes -= first.len();
            self.parts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Lost if it fails: a slow reader would get a response with a hole in it.
        #[test]
        fn whatever_the_kernel_takes_at_a_time_all_bytes_leave_once_and_in_order(
            lens in proptest::collection::vec(0..4_000usize, 0..1_500),
            takes in proptest::collection::vec(1..500_000usize, 1..20),
        ) {
            let mut n = 0u32;
            let mut byte = || {
                n = n.wrapping_mul(31).wrapping_add(7);
                n as u8
            };
            let part = |len: &usize| Bytes::from_iter((0..*len).map(|_| byte()));
            let parts: Vec<Bytes> = lens.iter().map(part).collect();
            let all: Vec<u8> = parts.concat();
            let (mut out, mut sent) = (Outgoing::new(parts), vec![]);
            for take in takes.iter().cycle() {
                if out.is_done() { break; }
                let offered: Vec<u8> = out.next_parts().flat_map(|p| p.to_vec()).collect();
                prop_assert!(!offered.is_empty() && offered.len() <= SEND_BYTES_MAX);
                prop_assert!(out.next_parts().count() <= SEND_PARTS_MAX);
                let take = (*take).min(offered.len());
                sent.extend_from_slice(&offered[..take]);
                out.advance(take);
            }
            prop_assert_eq!(sent, all);
        }
    }
}
