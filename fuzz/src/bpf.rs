//! Programs of packet filters, and packets for them.

use frame::bpf::{Filter, Instruction, MAX_INSTRUCTIONS};

use crate::input::Input;

/// Takes `data` for a program and a packet: what is not refused, ends.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let count = usize::from(input.u16()) % (MAX_INSTRUCTIONS + 2);
    let mut program = Vec::new();
    while program.len() < count && !input.is_empty() {
        let (code, jt, jf) = (input.u16(), input.u8(), input.u8());
        // Small constants are offsets and words of memory that exist.
        let k = if code & 0x8000 == 0 { u32::from(input.u8()) } else { input.u32() };
        program.push(Instruction { code: code & 0xff | code & 0x4000, jt, jf, k });
    }
    if let Ok(filter) = Filter::new(&program) {
        let packet = input.take(usize::MAX);
        let wanted = filter.run(&mut &packet[..]);
        assert_eq!(wanted, filter.run(&mut &packet[..]), "a filter has no state");
    }
}
