//! Messages of the control ring about receive-side hashing (netif.h, "Control requests"), by which
//! a frontend distributes its frames over its queues.
//!
//! The module is pure: the caller reads the frontend's pages. Their content is copied first and
//! checked afterwards, so that a frontend that rewrites it meanwhile gains nothing (XSA-155,
//! XSA-270).

use std::sync::Arc;

use frame::Headers;
use network::queue_selector::QueueSelector;

use crate::netif::toeplitz::{MAX_KEY, Toeplitz, kind};

/// Entries of the mapping table at most, as with Linux' backend.
pub const MAX_MAPPING: u32 = 128;

/// One slot of a control ring: `struct xen_netif_ctrl_request` or `_response`.
pub type CtrlSlot = [u32; 4];

/// Types of messages: `XEN_NETIF_CTRL_TYPE_`.
pub(crate) mod ctrl_type {
    pub const GET_HASH_FLAGS: u16 = 1;
    pub const SET_HASH_FLAGS: u16 = 2;
    pub const SET_HASH_KEY: u16 = 3;
    pub const GET_HASH_MAPPING_SIZE: u16 = 4;
    pub const SET_HASH_MAPPING_SIZE: u16 = 5;
    pub const SET_HASH_MAPPING: u16 = 6;
    pub const SET_HASH_ALGORITHM: u16 = 7;
    // The message types of `static_grants`.
    pub const GET_GREF_MAPPING_SIZE: u16 = 8;
    pub const ADD_GREF_MAPPING: u16 = 9;
    pub const DEL_GREF_MAPPING: u16 = 10;
}

/// The reason why a message was refused: `XEN_NETIF_CTRL_STATUS_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CtrlError {
    /// A type that is not known, or not valid in this state.
    NotSupported = 1,
    /// A parameter is out of range, or a page is not granted.
    InvalidParameter = 2,
    /// The content does not fit.
    BufferOverflow = 3,
}

const NONE: u32 = 0;
const TOEPLITZ: u32 = 1;

/// The hash settings of a frontend.
#[derive(Clone, Debug)]
pub struct HashControl {
    queues: u16,
    algorithm: u32,
    kinds: u32,
    key: Vec<u8>,
    mapping: Vec<u16>,
}

impl HashControl {
    /// No settings, for a vif with `queues` queues.
    pub fn new(queues: u16) -> Self {
        HashControl { queues, algorithm: NONE, kinds: 0, key: Vec::new(), mapping: Vec::new() }
    }

    /// All settings as text, for the daemon that serves the frontend next.
    pub fn save(&self) -> String {
        let key: String = self.key.iter().map(|byte| format!("{byte:02x}")).collect();
        let mapping: Vec<String> = self.mapping.iter().map(u16::to_string).collect();
        format!("{} {} key={key} mapping={}", self.algorithm, self.kinds, mapping.join(","))
    }

    /// Settings of a vif with `queues` queues that were [saved](Self::save). `None` when the text
    /// is not valid.
    pub fn restore(queues: u16, text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let mut number = || parts.next()?.parse::<u32>().ok();
        let (algorithm, kinds) = (number()?, number()?);
        let (key, mapping) =
            (parts.next()?.strip_prefix("key=")?, parts.next()?.strip_prefix("mapping=")?);
        let (pairs, odd) = key.as_bytes().as_chunks::<2>();
        let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let key: Vec<u8> = pairs.iter().map(byte).collect::<Option<_>>()?;
        let mapping =
            mapping.split(',').filter(|entry| !entry.is_empty()).map(|entry| entry.parse().ok());
        let mapping: Vec<u16> = mapping.collect::<Option<_>>()?;
        let possible = matches!(algorithm, NONE | TOEPLITZ)
            && kinds & !kind::ALL == 0
            && odd.is_empty()
            && key.len() <= MAX_KEY
            && mapping.len() <= MAX_MAPPING as usize
            && mapping.iter().all(|queue| *queue < queues);
        possible.then_some(HashControl { queues, algorithm, kinds, key, mapping })
    }

    /// Executes a message, and returns the response. `read` copies a number of bytes from the start
    /// of the page that a reference names.
    pub fn answer(
        &mut self,
        request: CtrlSlot,
        read: impl FnOnce(u32, usize) -> Option<Vec<u8>>,
    ) -> CtrlSlot {
        let [head, a, b, c] = request;
        let (status, data) = match self.execute((head >> 16) as u16, [a, b, c], read) {
            Ok(data) => (0, data),
            Err(error) => (error as u32, 0),
        };
        [head, status, data, 0]
    }

    fn execute(
        &mut self,
        kind: u16,
        data: [u32; 3],
        read: impl FnOnce(u32, usize) -> Option<Vec<u8>>,
    ) -> Result<u32, CtrlError> {
        match kind {
            ctrl_type::SET_HASH_ALGORITHM if matches!(data[0], NONE | TOEPLITZ) => {
                self.algorithm = data[0]
            }
            ctrl_type::SET_HASH_ALGORITHM => return Err(CtrlError::InvalidParameter),
            ctrl_type::GET_HASH_FLAGS | ctrl_type::SET_HASH_FLAGS if self.algorithm == NONE => {
                return Err(CtrlError::NotSupported);
            }
            ctrl_type::GET_HASH_FLAGS => return Ok(kind::ALL),
            ctrl_type::SET_HASH_FLAGS if data[0] & !kind::ALL != 0 => {
                return Err(CtrlError::InvalidParameter);
            }
            ctrl_type::SET_HASH_FLAGS => self.kinds = data[0],
            ctrl_type::SET_HASH_KEY => self.set_key(data, read)?,
            ctrl_type::GET_HASH_MAPPING_SIZE => return Ok(MAX_MAPPING),
            ctrl_type::SET_HASH_MAPPING_SIZE if data[0] > MAX_MAPPING => {
                return Err(CtrlError::InvalidParameter);
            }
            ctrl_type::SET_HASH_MAPPING_SIZE => self.mapping = vec![0; data[0] as usize],
            ctrl_type::SET_HASH_MAPPING => self.set_mapping(data, read)?,
            _ => return Err(CtrlError::NotSupported),
        }
        Ok(0)
    }

    fn set_key(
        &mut self,
        [reference, len, _]: [u32; 3],
        read: impl FnOnce(u32, usize) -> Option<Vec<u8>>,
    ) -> Result<(), CtrlError> {
        let len = len as usize;
        if len > MAX_KEY {
            return Err(CtrlError::BufferOverflow);
        }
        // An empty key lies in no page.
        self.key = if len == 0 {
            Vec::new()
        } else {
            read(reference, len).ok_or(CtrlError::InvalidParameter)?
        };
        Ok(())
    }

    fn set_mapping(
        &mut self,
        [reference, count, offset]: [u32; 3],
        read: impl FnOnce(u32, usize) -> Option<Vec<u8>>,
    ) -> Result<(), CtrlError> {
        let end = offset.checked_add(count).ok_or(CtrlError::InvalidParameter)?;
        if end > MAX_MAPPING {
            return Err(CtrlError::BufferOverflow);
        }
        let Some(part) = self.mapping.get_mut(offset as usize..end as usize) else {
            return Err(CtrlError::InvalidParameter);
        };
        if part.is_empty() {
            return Ok(());
        }
        let bytes = read(reference, part.len() * 4).ok_or(CtrlError::InvalidParameter)?;
        // The copies are checked, all of them, before the first is used.
        let (entries, _) = bytes.as_chunks::<4>();
        let entries: Vec<u16> =
            entries.iter().filter_map(|entry| u32::from_le_bytes(*entry).try_into().ok()).collect();
        if entries.len() != part.len() || entries.iter().any(|queue| *queue >= self.queues) {
            return Err(CtrlError::InvalidParameter);
        }
        part.copy_from_slice(&entries);
        Ok(())
    }

    /// The choice of a queue for each frame. `None`: the backend is free to choose.
    pub fn selector(&self) -> Option<Arc<dyn QueueSelector>> {
        if self.algorithm != TOEPLITZ || self.kinds == 0 {
            return None;
        }
        let (toeplitz, mapping) = (Toeplitz::new(&self.key), self.mapping.clone());
        Some(Arc::new(HashSelector {
            toeplitz,
            kinds: self.kinds,
            mapping,
            queues: self.queues.max(1),
        }))
    }
}

/// Chooses queues by one frontend's hash settings.
#[derive(Debug)]
struct HashSelector {
    toeplitz: Toeplitz,
    kinds: u32,
    mapping: Vec<u16>,
    queues: u16,
}

impl QueueSelector for HashSelector {
    /// A frame without a hash goes to the queue of hash zero, as with Linux' backend.
    fn queue(&self, headers: &Headers, head: &[u8]) -> u16 {
        let hash = self.toeplitz.of_frame(self.kinds, headers, head).unwrap_or(0);
        let modulo = |n: usize| (u64::from(hash) % n.max(1) as u64) as usize;
        match self.mapping.get(modulo(self.mapping.len())) {
            Some(queue) => *queue,
            None => modulo(usize::from(self.queues)) as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: u16, data: [u32; 3]) -> CtrlSlot {
        [7 | u32::from(kind) << 16, data[0], data[1], data[2]]
    }

    fn ask(control: &mut HashControl, kind: u16, data: [u32; 3]) -> (u32, u32) {
        ask_with(control, kind, data, &[])
    }

    fn ask_with(control: &mut HashControl, kind: u16, data: [u32; 3], page: &[u8]) -> (u32, u32) {
        let [head, status, value, _] = control.answer(request(kind, data), |reference, len| {
            (reference == 33).then(|| page.get(..len).map(<[u8]>::to_vec)).flatten()
        });
        assert_eq!(head, 7 | u32::from(kind) << 16, "number and type come back");
        (status, value)
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn frame(last: u8) -> (Headers, Vec<u8>) {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, last]);
        (frame::parse(&frame).unwrap(), frame)
    }

    #[test]
    fn flags_need_an_algorithm() {
        let mut control = HashControl::new(4);
        assert_eq!(ask(&mut control, ctrl_type::GET_HASH_FLAGS, [0; 3]), (1, 0));
        assert_eq!(ask(&mut control, ctrl_type::SET_HASH_FLAGS, [1, 0, 0]), (1, 0));
        assert_eq!(ask(&mut control, ctrl_type::SET_HASH_ALGORITHM, [2, 0, 0]), (2, 0));
        assert_eq!(ask(&mut control, ctrl_type::SET_HASH_ALGORITHM, [1, 0, 0]), (0, 0));
        assert_eq!(ask(&mut control, ctrl_type::GET_HASH_FLAGS, [0; 3]), (0, 15));
        assert_eq!(ask(&mut control, ctrl_type::SET_HASH_FLAGS, [16, 0, 0]), (2, 0));
        assert!(control.selector().is_none(), "nothing is to be hashed");
        assert_eq!(ask(&mut control, ctrl_type::SET_HASH_FLAGS, [15, 0, 0]), (0, 0));
        assert!(control.selector().is_some());
        assert_eq!(ask(&mut control, ctrl_type::SET_HASH_ALGORITHM, [0; 3]), (0, 0));
        assert!(control.selector().is_none());
    }

    #[test]
    fn keys_are_bounded_and_read() {
        let mut control = HashControl::new(4);
        let key: Vec<u8> = (0..40).collect();
        assert_eq!(ask_with(&mut control, ctrl_type::SET_HASH_KEY, [33, 41, 0], &key), (3, 0));
        assert_eq!(ask_with(&mut control, ctrl_type::SET_HASH_KEY, [33, 40, 0], &key), (0, 0));
        assert_eq!(control.key, key);
        assert_eq!(
            ask_with(&mut control, ctrl_type::SET_HASH_KEY, [1, 40, 0], &key),
            (2, 0),
            "not granted"
        );
        assert_eq!(control.key, key, "and nothing changed");
        assert_eq!(ask_with(&mut control, ctrl_type::SET_HASH_KEY, [0; 3], &key), (0, 0));
        assert_eq!(control.key, []);
    }

    #[test]
    fn mappings_are_checked_as_they_were_copied() {
        let mut control = HashControl::new(4);
        assert_eq!(ask(&mut control, ctrl_type::GET_HASH_MAPPING_SIZE, [0; 3]), (0, 128));
        assert_eq!(ask(&mut control, ctrl_type::SET_HASH_MAPPING_SIZE, [129, 0, 0]), (2, 0));
        assert_eq!(ask(&mut control, ctrl_type::SET_HASH_MAPPING_SIZE, [8, 0, 0]), (0, 0));
        let set = ctrl_type::SET_HASH_MAPPING;
        assert_eq!(ask_with(&mut control, set, [33, 4, 2], &words(&[3, 2, 1, 0])), (0, 0));
        assert_eq!(control.mapping, [0, 0, 3, 2, 1, 0, 0, 0]);
        for bad in [4, u32::MAX, 65_536, 65_537] {
            assert_eq!(
                ask_with(&mut control, set, [33, 4, 0], &words(&[1, 1, bad, 1])),
                (2, 0),
                "no queue {bad}"
            );
        }
        assert_eq!(control.mapping, [0, 0, 3, 2, 1, 0, 0, 0], "all or nothing");
        assert_eq!(
            ask_with(&mut control, set, [33, 4, 5], &words(&[0; 4])),
            (2, 0),
            "beyond the table"
        );
        assert_eq!(ask_with(&mut control, set, [33, 4, 126], &words(&[0; 4])), (3, 0));
        assert_eq!(
            ask_with(&mut control, set, [33, 2, u32::MAX], &words(&[0; 4])),
            (2, 0),
            "wraps"
        );
        assert_eq!(ask_with(&mut control, set, [33, 0, 8], &[]), (0, 0));
        assert_eq!(ask_with(&mut control, set, [1, 1, 0], &words(&[0])), (2, 0), "not granted");
    }

    #[test]
    fn what_is_set_can_be_kept() {
        let mut control = HashControl::new(4);
        let same = |control: &HashControl| {
            let text = control.save();
            assert_eq!(HashControl::restore(4, &text).map(|control| control.save()), Some(text));
        };
        same(&control);
        ask(&mut control, ctrl_type::SET_HASH_ALGORITHM, [1, 0, 0]);
        ask(&mut control, ctrl_type::SET_HASH_FLAGS, [15, 0, 0]);
        ask_with(&mut control, ctrl_type::SET_HASH_KEY, [33, 3, 0], &[1, 0xab, 0xff]);
        ask(&mut control, ctrl_type::SET_HASH_MAPPING_SIZE, [2, 0, 0]);
        ask_with(&mut control, ctrl_type::SET_HASH_MAPPING, [33, 2, 0], &words(&[3, 1]));
        assert_eq!(control.save(), "1 15 key=01abff mapping=3,1");
        same(&control);
        assert!(HashControl::restore(3, &control.save()).is_none(), "no such queue");
        for bad in [
            "",
            "1 15",
            "1 15 key=0 mapping=",
            "2 0 key= mapping=",
            "1 16 key= mapping=",
            "1 1 key=\u{e9} mapping=",
        ] {
            assert!(HashControl::restore(4, bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn unknown_messages_are_not_supported() {
        let mut control = HashControl::new(1);
        for kind in [0, 8, 9, 10, 11, u16::MAX] {
            assert_eq!(ask(&mut control, kind, [0; 3]), (1, 0));
        }
    }

    #[test]
    fn frames_go_where_the_table_says() {
        let mut control = HashControl::new(4);
        let key: Vec<u8> = (1..41).collect();
        ask(&mut control, ctrl_type::SET_HASH_ALGORITHM, [1, 0, 0]);
        ask(&mut control, ctrl_type::SET_HASH_FLAGS, [kind::IPV4, 0, 0]);
        ask_with(&mut control, ctrl_type::SET_HASH_KEY, [33, 40, 0], &key);
        let selector = control.selector().unwrap();
        let toeplitz = Toeplitz::new(&key);
        for last in 0..50 {
            let (headers, bytes) = frame(last);
            let hash = toeplitz.hash(&[10, 0, 0, 1, 10, 0, 0, last]);
            assert_eq!(u32::from(selector.queue(&headers, &bytes)), hash % 4);
        }
        ask(&mut control, ctrl_type::SET_HASH_MAPPING_SIZE, [5, 0, 0]);
        ask_with(&mut control, ctrl_type::SET_HASH_MAPPING, [33, 5, 0], &words(&[3, 1, 0, 2, 2]));
        let selector = control.selector().unwrap();
        for last in 0..50 {
            let (headers, bytes) = frame(last);
            let hash = toeplitz.hash(&[10, 0, 0, 1, 10, 0, 0, last]);
            assert_eq!(selector.queue(&headers, &bytes), [3, 1, 0, 2, 2][hash as usize % 5]);
        }
        let arp = [vec![0; 12], vec![8, 6], vec![0; 30]].concat();
        assert_eq!(selector.queue(&frame::parse(&arp).unwrap(), &arp), 3, "as a hash of zero");
    }
}
