//! Random frames, against a model of a switch.

use super::*;

/// The switch said again as plainly as possible: no indices, no limits, no caches.
#[derive(Clone, Default)]
struct Model {
    ports: BTreeMap<PortId, PortRule>,
    learned: BTreeMap<Station, (PortId, u32)>,
}

impl Model {
    fn owner(&self, at: Station) -> Option<PortId> {
        self.ports
            .iter()
            .find(|(_, rule)| rule.mac == Some(at.mac) && rule.vlan.is_in(at.network))
            .map(|(port, _)| *port)
    }

    fn decide(
        &mut self,
        now: u32,
        ingress: PortId,
        dst: Mac,
        src: Mac,
        tci: Option<u16>,
    ) -> Decision {
        let Some(rule) = self.ports.get(&ingress) else {
            return dropped(DropReason::NoPort);
        };
        if src.0[0] & 1 == 1 || src == Mac([0; 6]) {
            return dropped(DropReason::BadSource);
        }
        if rule.mac.is_some() && rule.mac != Some(src) {
            return dropped(DropReason::SourceLocked);
        }
        let (network, form) = match rule.vlan.admit(tci, false) {
            Ok(admitted) => admitted,
            Err(reason) => return dropped(reason),
        };
        match self.owner(Station { network, mac: src }) {
            Some(owner) if owner != ingress => return dropped(DropReason::SourceTaken),
            Some(_) => {}
            None => {
                self.learned.insert(Station { network, mac: src }, (ingress, now));
            }
        }
        let at = Station { network, mac: dst };
        let known = self.owner(at).or(self.learned.get(&at).map(|(port, _)| *port));
        let receivers: Vec<Target> = self
            .ports
            .iter()
            .filter(|(port, _)| **port != ingress && known.is_none_or(|known| known == **port))
            .filter_map(|(port, rule)| {
                Some(Target { port: *port, tag: rule.vlan.edit(network, form)? })
            })
            .collect();
        match (known, receivers.as_slice()) {
            (Some(port), _) if port == ingress => dropped(DropReason::Reflection),
            (Some(_), [one]) => Decision::To(*one),
            (_, []) => dropped(DropReason::NoReceiver),
            (_, several) => Decision::Flood(several.into()),
        }
    }

    fn install(&mut self, port: PortId, rule: PortRule) {
        self.learned.retain(|_, (at, _)| *at != port);
        if let Some(mac) = rule.mac {
            self.learned
                .retain(|station, _| station.mac != mac || !rule.vlan.is_in(station.network));
        }
        self.ports.insert(port, rule);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Frame { ingress: PortId, dst: Mac, src: Mac, tci: Option<u16> },
    Install(PortId, PortRule),
    Remove(PortId),
    Wait(u32),
}

fn any_vlan() -> impl Strategy<Value = Vlan> {
    prop_oneof![
        3 => Just(Vlan::None),
        2 => (1u16..4).prop_map(Vlan::Access),
        2 => prop::sample::subsequence(vec![1u16, 2, 3], 1..=3).prop_map(Vlan::Trunk),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let port = || (0u16..5).prop_map(PortId);
    let station = || (0u8..6).prop_map(mac);
    let dst = prop_oneof![6 => station(), 1 => Just(ALL)];
    let tci = prop_oneof![2 => Just(None), 3 => (0u16..5, 0u16..2).prop_map(|(vid, priority)| Some(priority << 13 | vid))];
    let rules = (any_vlan(), prop::option::weighted(0.2, station()))
        .prop_map(|(vlan, mac)| PortRule { vlan, mac });
    prop_oneof![
        20 => (port(), dst, station(), tci).prop_map(|(ingress, dst, src, tci)| Step::Frame { ingress, dst, src, tci }),
        2 => (port(), rules).prop_map(|(port, rule)| Step::Install(port, rule)),
        1 => port().prop_map(Step::Remove),
        2 => (1u32..200).prop_map(Step::Wait),
    ]
}

/// All that a cached verdict may depend on.
type Flow = (PortId, Mac, Mac, Option<u16>);

fn apply(
    step: Step,
    now: &mut u32,
    s: &mut Switch,
    model: &mut Model,
    cache: &mut HashMap<Flow, Verdict>,
) {
    match step {
        Step::Frame { ingress, dst, src, tci } => {
            let tag = tci.map(|tci| (0x8100, tci));
            let verdict = s.decide(*now, ingress, &headers(dst, src, tag));
            assert_eq!(verdict.decision, model.decide(*now, ingress, dst, src, tci));
            cache.insert((ingress, dst, src, tci), verdict);
        }
        Step::Install(port, rule) => {
            let known = model.ports.contains_key(&port);
            let done =
                if known { s.set_rule(port, rule.clone()) } else { s.add_port(port, rule.clone()) };
            let clash = rule.mac.is_some_and(|mac| {
                let others = model
                    .ports
                    .iter()
                    .filter(|(other, theirs)| **other != port && theirs.mac == Some(mac));
                others.into_iter().any(|(_, theirs)| {
                    theirs.vlan.networks().any(|network| rule.vlan.is_in(network))
                })
            });
            assert_eq!(done.is_err(), clash, "{done:?}");
            if !clash {
                model.install(port, rule);
            }
        }
        Step::Remove(port) => {
            assert_eq!(s.remove_port(port), model.ports.remove(&port).is_some());
            model.learned.retain(|_, (at, _)| *at != port);
        }
        Step::Wait(seconds) => {
            *now += seconds;
            s.age(*now);
            model.learned.retain(|_, (_, seen)| *now - *seen <= 300);
        }
    }
}

proptest! {
    /// Every verdict is the model's, and every verdict from the past that claims to stand is what
    /// would be decided now.
    #[test]
    fn agrees_with_the_model_and_a_standing_verdict_is_a_fresh_one(
        vlans in prop::collection::vec(any_vlan(), 5),
        steps in prop::collection::vec(any_step(), 1..120),
    ) {
        let mut s = Switch::new(Limits { age: Duration::from_secs(300), ..Limits::default() });
        let (mut model, mut cache, mut now) = (Model::default(), HashMap::new(), 1000);
        for (port, vlan) in vlans.into_iter().enumerate() {
            apply(Step::Install(PortId(port as u16), rule(vlan)), &mut now, &mut s, &mut model, &mut cache);
        }
        for step in steps {
            apply(step, &mut now, &mut s, &mut model, &mut cache);
            let standing = cache.iter().filter(|(_, verdict)| s.generations().holds(&verdict.stamp));
            for ((ingress, dst, src, tci), verdict) in standing {
                let fresh = model.clone().decide(now, *ingress, *dst, *src, *tci);
                prop_assert_eq!(&verdict.decision, &fresh, "{:?}", (ingress, dst, src, tci));
            }
            let learned = s.table(now).iter().filter(|row| row.idle.is_some()).count();
            prop_assert_eq!(learned, model.learned.len());
        }
    }
}
