//! The costs of frames between guests, and the scene in which they are carried.

use super::super::inputs::{Carried, Inputs};
use super::{Costs, Era, HANDOFF_LINES, PAGE, RING, scale, scheduling, spread, table_of_ends};
use serde::{Deserialize, Serialize};
use simulation::event::ns;
use simulation::scene::{BURST, Duties, Guest, Host, Limit, Scene, Work};

/// Bytes of a frame that are copied with its head.
const HEAD: f64 = 128.0;

/// Interrupts for each frame that are too few to tell what one costs.
const FEW: f64 = 0.002;

/// How frames come from a guest to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// By grant copies of the hypervisor: Xen's rings.
    Grants(Era),
    /// By copies between mapped memories: vhost-user.
    VhostUser,
}

impl Transport {
    /// All of them.
    pub const ALL: [Transport; 3] =
        [Transport::Grants(Era::Old), Transport::Grants(Era::New), Transport::VhostUser];

    /// Those with a hypervisor.
    pub const GRANTS: [Transport; 2] = [Transport::Grants(Era::Old), Transport::Grants(Era::New)];

    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Grants(era) => era.name(),
            Transport::VhostUser => "vhost-user",
        }
    }
}

/// The costs of frames with one transport, from the measurements.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    inputs: &'a Inputs,
    transport: Transport,
}

impl<'a> Frames<'a> {
    /// With that transport.
    pub fn new(inputs: &'a Inputs, transport: Transport) -> Self {
        Frames { inputs, transport }
    }

    /// Bytes of the large frames that were measured.
    pub fn large(&self) -> f64 {
        self.measured().1.bytes
    }

    /// Small and large frames.
    fn measured(&self) -> (&'a Carried, &'a Carried) {
        let generation = match self.transport {
            Transport::Grants(Era::Old) => &self.inputs.old,
            Transport::Grants(Era::New) => &self.inputs.new,
            Transport::VhostUser => {
                return (&self.inputs.vhost_user.small, &self.inputs.vhost_user.large);
            }
        };
        (&generation.small, &generation.large)
    }

    /// Frames of `bytes` bytes between guests: the senders and receivers of a scene, with all costs
    /// filled in.
    pub fn carrying(&self, scene: Scene, bytes: f64, host: Host) -> Scene {
        let pages = if bytes > HEAD { (bytes / PAGE).ceil() as usize } else { 0 };
        let alone = self.at(bytes, |it| it.frame + it.publish + it.sender + it.receiver);
        let scale = scale(host, self.at(bytes, |it| it.together), alone);
        let at = |of: fn(&Carried) -> f64| self.at(bytes, of) * scale;
        // A burst of large frames has fewer of them: a worker takes so many slots at once.
        let frames_per_burst = self.at(bytes, |it| it.frames_per_burst).max(1.0);
        // On one CPU, an interrupt is a part of what is measured there. To another CPU, it is
        // counted where it wakes somebody.
        let interrupt = self.at(bytes, |it| self.interrupt(it));
        let burst = match host {
            Host::Together => at(|it| it.publish * it.frames_per_burst),
            Host::Apart { .. } => self.publishing(),
        };
        let ring = (RING / pages.max(1)).max(1);
        Scene {
            limit: limit(&scene, ring),
            burst: (frames_per_burst.round() as usize).min(BURST),
            host,
            scheduling: scheduling(host, self.inputs.wake, interrupt),
            duties: Duties {
                worker: Work { burst: ns(burst), ..self.work(pages, at(|it| it.frame)) },
                sender: Guest { burst: 0, frame: ns(at(|it| it.sender)) },
                receiver: Guest { burst: 0, frame: ns(at(|it| it.receiver)) },
            },
            ..scene
        }
    }

    /// A worker's work for a frame of that many pages behind its head, which takes `frame` ns.
    fn work(&self, pages: usize, frame: f64) -> Work {
        match self.transport {
            Transport::Grants(era) => {
                let costs = Costs::new(self.inputs, era);
                let holds = table_of_ends(2 * (1 + pages)).flat_map(|end| costs.claim(end));
                costs.work(spread(holds.collect(), frame))
            }
            Transport::VhostUser => Work {
                parts: spread(Vec::new(), frame),
                handoff: ns(self.inputs.line * HANDOFF_LINES),
                ..Work::default()
            },
        }
    }

    /// Publishing the rings of a burst without an interrupt: guests of vhost-user with small frames
    /// hardly sleep.
    fn publishing(&self) -> f64 {
        let Carried { publish, frames_per_burst, .. } = self.inputs.vhost_user.small;
        publish * frames_per_burst
    }

    /// An interrupt of a guest on another CPU: what publishing takes longer with interrupts.
    fn interrupt(&self, it: &Carried) -> f64 {
        let all = it.publish - self.publishing() / it.frames_per_burst.max(1.0);
        if it.interrupts < FEW { self.inputs.notify } else { (all / it.interrupts).max(0.0) }
    }

    /// A cost for frames of that length: between the two lengths that were measured, and beyond,
    /// along a straight line.
    fn at(&self, bytes: f64, of: impl Fn(&Carried) -> f64) -> f64 {
        let (small, large) = self.measured();
        let along = (bytes - small.bytes) / (large.bytes - small.bytes).max(1.0);
        of(small) + (of(large) - of(small)) * along.max(0.0)
    }

    /// The times that a worker, a sender and a receiver need for a frame, in ns, if bursts are
    /// full.
    pub fn frame(&self, bytes: f64) -> [f64; 3] {
        [
            self.at(bytes, |it| it.frame + it.publish),
            self.at(bytes, |it| it.sender),
            self.at(bytes, |it| it.receiver),
        ]
    }
}

/// What limits frames under way, with rings of `ring` frames. The traffic generator keeps to what a
/// receiver's ring holds, because frames without a buffer would be dropped.
fn limit(scene: &Scene, ring: usize) -> Limit {
    if !scene.joint {
        return Limit::Rings { tx: ring, rx: ring };
    }
    let streams =
        (scene.links.len() * scene.streams).div_ceil((scene.guests * scene.queues).max(1));
    Limit::Window((ring / streams.max(1)).max(1))
}

#[cfg(test)]
mod tests {
    use super::super::super::inputs::tests::some;
    use super::super::tests::near;
    use super::*;
    use simulation::run;

    #[test]
    fn one_worker_carries_what_it_was_measured_to() {
        let inputs = some();
        for (transport, worker) in [(Transport::Grants(Era::New), 1.0), (Transport::VhostUser, 0.5)]
        {
            // Rings of few frames run empty while guests wake.
            for (bytes, all, least) in [(64.0, 310.0, 0.85), (64_000.0, 6000.0, 0.6)] {
                let scene = Scene { frames: 60_000, ..Scene::pairs(1, 1, 1, 8) };
                let frames = Frames::new(&inputs, transport);
                let rate = run(&frames.carrying(scene, bytes, Host::ENDLESS)).rate();
                let most = 1e9 / (all * worker);
                assert!(rate <= 1.02 * most && rate > least * most, "{rate}, {bytes} bytes");
            }
        }
        let between = Frames::new(&inputs, Transport::Grants(Era::New));
        near(between.frame((64.0 + 64_000.0) / 2.0)[0], 3155.0 + 5.0);
    }

    #[test]
    fn an_interrupt_costs_the_worker_where_a_guest_sleeps() {
        let mut inputs = some();
        let rate = |inputs: &Inputs| {
            let frames = Frames::new(inputs, Transport::Grants(Era::New));
            let scene = Scene::pairs(1, 1, 1, 8);
            run(&frames.carrying(scene, 64_000.0, Host::ENDLESS)).rate()
        };
        let cheap = rate(&inputs);
        inputs.notify *= 10.0;
        assert!(rate(&inputs) < cheap);
    }
}
