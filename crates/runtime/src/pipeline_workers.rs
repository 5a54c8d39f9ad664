//! The workers as the control side of one pipeline sees them, whether or not they are shared.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use parking_lot::Mutex;

use crate::group::Group;
use crate::id::QueueId;
use crate::pair::{Either, Pair, Topologies};
use crate::pipeline::Pipeline;

/// A queue that is on its way back from its worker.
pub struct Returning<Q>(Box<dyn FnOnce() -> Option<Q> + Send>);

impl<Q> Returning<Q> {
    /// Waits until the queue has come. `None`: the worker does not have it, or keeps it.
    pub fn wait(self) -> Option<Q> {
        self.0()
    }
}

/// The workers of a pipeline. See [`Group`] for the methods.
pub trait PipelineWorkers<P: Pipeline>: Send + Sync {
    /// See [`Group::count`].
    fn count(&self) -> usize;
    /// See [`Group::publish`].
    fn publish(&self, topology: P::Topology) -> u64;
    /// See [`Group::await_version`].
    fn await_version(&self, version: u64);
    /// See [`Group::attach`].
    fn attach(&self, worker: usize, id: QueueId, queue: P::Queue);
    /// See [`Group::detach`].
    fn detach(&self, worker: usize, id: QueueId) -> Returning<P::Queue>;
    /// See [`Group::migrate`].
    fn migrate(&self, worker: usize, id: QueueId) -> Returning<P::Queue>;
    /// See [`Group::withdraw`].
    fn withdraw(&self, worker: usize, id: QueueId) -> Returning<P::Queue>;
    /// See [`Group::request`].
    fn request(&self, worker: usize, request: P::Request);
    /// See [`Group::workers_answer`].
    fn workers_answer(&self, limit: Duration) -> bool;
}

impl<P: Pipeline> PipelineWorkers<P> for Group<P> {
    fn count(&self) -> usize {
        self.count()
    }

    fn publish(&self, topology: P::Topology) -> u64 {
        self.publish(topology)
    }

    fn await_version(&self, version: u64) {
        self.await_version(version);
    }

    fn attach(&self, worker: usize, id: QueueId, queue: P::Queue) {
        self.attach(worker, id, queue);
    }

    fn detach(&self, worker: usize, id: QueueId) -> Returning<P::Queue> {
        received(self.detach(worker, id))
    }

    fn migrate(&self, worker: usize, id: QueueId) -> Returning<P::Queue> {
        received(self.migrate(worker, id))
    }

    fn withdraw(&self, worker: usize, id: QueueId) -> Returning<P::Queue> {
        received(self.withdraw(worker, id))
    }

    fn request(&self, worker: usize, request: P::Request) {
        self.request(worker, request);
    }

    fn workers_answer(&self, limit: Duration) -> bool {
        self.workers_answer(limit)
    }
}

fn received<Q: Send + 'static>(queue: Receiver<Q>) -> Returning<Q> {
    returning(queue, Some)
}

/// A queue of either pipeline.
type AnyQueue<A, B> = Either<<A as Pipeline>::Queue, <B as Pipeline>::Queue>;

/// A group of paired pipelines, and what its workers follow.
struct Shared<A: Pipeline, B: Pipeline> {
    group: Group<Pair<A, B>>,
    topologies: Mutex<Topologies<A::Topology, B::Topology>>,
}

impl<A: Pipeline, B: Pipeline> Shared<A, B> {
    /// Publishes a change of the topologies.
    fn publish(&self, change: impl FnOnce(&mut Topologies<A::Topology, B::Topology>)) -> u64 {
        let mut both = self.topologies.lock();
        change(&mut both);
        let (first, second) = (Arc::clone(&both.first), Arc::clone(&both.second));
        self.group.publish(Topologies { first, second })
    }
}

fn returning<Q: Send + 'static, T: 'static>(
    queue: Receiver<Q>,
    own: impl FnOnce(Q) -> Option<T> + Send + 'static,
) -> Returning<T> {
    Returning(Box::new(move || own(queue.recv().ok()?)))
}

/// The workers, as each of the two pipelines of a group sees them.
///
/// The threads end when both are dropped.
pub fn split<A: Pipeline, B: Pipeline>(
    group: Group<Pair<A, B>>,
) -> (Arc<dyn PipelineWorkers<A>>, Arc<dyn PipelineWorkers<B>>) {
    let shared = Arc::new(Shared { group, topologies: Mutex::default() });
    (Arc::new(FirstWorkers(Arc::clone(&shared))), Arc::new(SecondWorkers(shared)))
}

macro_rules! pipeline_workers {
    ($name:ident, $own:ident, $variant:ident, $number:literal, $field:ident) => {
        struct $name<A: Pipeline, B: Pipeline>(Arc<Shared<A, B>>);

        impl<A: Pipeline, B: Pipeline> $name<A, B> {
            /// The queue, if it is one of this pipeline.
            fn own(queue: AnyQueue<A, B>) -> Option<$own::Queue> {
                match queue {
                    Either::$variant(queue) => Some(queue),
                    _ => None,
                }
            }
        }

        impl<A: Pipeline, B: Pipeline> PipelineWorkers<$own> for $name<A, B> {
            fn count(&self) -> usize {
                self.0.group.count()
            }

            fn publish(&self, topology: $own::Topology) -> u64 {
                self.0.publish(|both| both.$field = Arc::new(topology))
            }

            fn await_version(&self, version: u64) {
                self.0.group.await_version(version);
            }

            fn attach(&self, worker: usize, id: QueueId, queue: $own::Queue) {
                self.0.group.attach(worker, id.of_pipeline($number), Either::$variant(queue));
            }

            fn detach(&self, worker: usize, id: QueueId) -> Returning<$own::Queue> {
                let queue = self.0.group.detach(worker, id.of_pipeline($number));
                returning(queue, $name::<A, B>::own)
            }

            fn migrate(&self, worker: usize, id: QueueId) -> Returning<$own::Queue> {
                let queue = self.0.group.migrate(worker, id.of_pipeline($number));
                returning(queue, $name::<A, B>::own)
            }

            fn withdraw(&self, worker: usize, id: QueueId) -> Returning<$own::Queue> {
                let queue = self.0.group.withdraw(worker, id.of_pipeline($number));
                returning(queue, $name::<A, B>::own)
            }

            fn request(&self, worker: usize, request: $own::Request) {
                self.0.group.request(worker, Either::$variant(request));
            }

            fn workers_answer(&self, limit: Duration) -> bool {
                self.0.group.workers_answer(limit)
            }
        }
    };
}

pipeline_workers!(FirstWorkers, A, First, 0, first);
pipeline_workers!(SecondWorkers, B, Second, 1, second);
