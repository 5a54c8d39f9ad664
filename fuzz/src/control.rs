//! Messages of a control ring, with pages that hold anything.

use xen::netif::hash_control::HashControl;

use crate::input::Input;

/// Reads `data` as messages, and what comes of them.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let queues = 1 + input.u16() % 17;
    let mut control = HashControl::new(queues);
    while !input.is_empty() {
        let kind = input.u8();
        let kind = if kind < 250 { u32::from(kind % 9) } else { u32::from(input.u16()) };
        let mut word = || match input.u8() {
            0..32 => input.u32(),
            small => u32::from(small) % 140,
        };
        let data = [word(), word(), word()];
        let request = [7 | kind << 16, data[0], data[1], data[2]];
        let answer = control.answer(request, |reference, len| {
            let mut page = input.take(len).to_vec();
            page.resize(len, 0);
            // Numbers of queues, mostly.
            page.iter_mut()
                .enumerate()
                .filter(|(n, _)| n % 4 > 0 && reference % 4 > 0)
                .for_each(|(_, byte)| *byte = 0);
            (reference % 8 > 0).then_some(page)
        });
        assert!(answer[0] == request[0] && answer[1] <= 3 && answer[3] == 0);
        let saved = control.save();
        assert_eq!(HashControl::restore(queues, &saved).map(|control| control.save()), Some(saved));
    }
    if let Some(selector) = control.selector() {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0; 20]);
        if let Some(headers) = frame::parse(&frame) {
            assert!(selector.queue(&headers, &frame) < queues);
        }
    }
    let text = String::from_utf8_lossy(data);
    if let Some(control) = HashControl::restore(queues, &text) {
        let _ = control.selector();
    }
}
