//! The flows of the present burst that go to one port each.

use switch::Target;

use crate::flowcache::FlowKey;

/// How many flows are remembered. A burst has 64 frames, and flows that share an entry replace each
/// other, which a sender may provoke: its frames are looked up in the flow cache then.
const FLOWS: usize = 16;

/// Where frames of the present burst go. Nothing is checked but the key: the decisions are at most
/// as old as the burst, and all are forgotten when the switch is asked for another one.
#[derive(Default)]
pub struct RecentFlows(Option<Table>);

struct Table {
    keys: [FlowKey; FLOWS],
    targets: [Target; FLOWS],
}

impl RecentFlows {
    /// Where the flow goes, if it is remembered.
    #[inline]
    pub fn find(&self, key: FlowKey) -> Option<Target> {
        let (Table { keys, targets }, at) = (self.0.as_ref()?, key.destination() % FLOWS);
        (keys[at] == key).then(|| targets[at])
    }

    /// Remembers a flow.
    #[inline]
    pub fn note(&mut self, key: FlowKey, target: Target) {
        let table = || Table { keys: [FlowKey::NONE; FLOWS], targets: [target; FLOWS] };
        let Table { keys, targets } = self.0.get_or_insert_with(table);
        let at = key.destination() % FLOWS;
        (keys[at], targets[at]) = (key, target);
    }

    /// Forgets all flows.
    #[inline]
    pub fn clear(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use frame::{Headers, Mac, TagEdit};
    use switch::PortId;

    use super::*;

    #[test]
    fn a_flow_is_found_until_another_one_takes_its_entry() {
        let flow = |number: u8, to: u8| {
            let headers = Headers { dst: Mac([2, 0, 0, 0, 0, to]), ..Headers::default() };
            let target = Target { port: PortId(number.into()), tag: TagEdit::Keep };
            (FlowKey::new(PortId(number.into()), &headers), target)
        };
        let [first, second, third] = [flow(1, 1), flow(1, 2), flow(1, 1 + FLOWS as u8)];
        let mut flows = RecentFlows::default();
        assert_eq!(flows.find(first.0), None);
        flows.note(first.0, first.1);
        flows.note(second.0, second.1);
        assert_eq!((flows.find(first.0), flows.find(third.0)), (Some(first.1), None));
        flows.note(third.0, third.1);
        assert_eq!((flows.find(first.0), flows.find(second.0)), (None, Some(second.1)));
        assert_eq!(flows.find(third.0), Some(third.1));
        flows.clear();
        assert_eq!(flows.find(third.0), None);
    }
}
