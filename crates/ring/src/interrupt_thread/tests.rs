use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::thread::CpuSet;

use super::queue::{CAPACITY, FREQUENT};
use super::{InterruptQueue, InterruptThread, Target, interrupt};
use crate::violation::Violation;

/// A CPU that this process may use.
fn cpu() -> usize {
    let cpus = rustix::thread::sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).find(|cpu| cpus.is_set(*cpu)).unwrap()
}

fn target() -> Arc<Target> {
    Target::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap())
}

/// Interrupts since the last call.
fn taken(target: &Target) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(target, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(_) => 0,
    }
}

/// Waits until there is an interrupt, and takes it.
fn wait(target: &Target) {
    while taken(target) == 0 {
        let fd = target.as_fd();
        let limit = Timespec::try_from(Duration::from_secs(60)).unwrap();
        let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap();
        assert_eq!(ready, 1, "an interrupt was lost");
    }
}

/// Interrupts `target` until the thread sends the interrupts.
fn until_sent(thread: &InterruptThread, target: &Arc<Target>) {
    while thread.sent() == 0 {
        interrupt(target).unwrap();
    }
}

/// Runs `work` as a worker with a queue to a thread.
fn as_worker(work: impl FnOnce(InterruptThread) + Send) {
    let (thread, queues) = InterruptThread::start(cpu(), 1).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            queues.into_iter().for_each(InterruptQueue::install);
            work(thread);
        });
    });
}

#[test]
fn a_few_interrupts_are_sent_by_their_worker() {
    as_worker(|thread| {
        let target = target();
        for _ in 0..FREQUENT - 1 {
            interrupt(&target).unwrap();
        }
        assert_eq!((taken(&target), thread.sent()), (u64::from(FREQUENT - 1), 0));
    });
}

#[test]
fn many_interrupts_are_sent_by_the_thread() {
    as_worker(|thread| {
        let target = target();
        until_sent(&thread, &target);
        for _ in 0..100 {
            interrupt(&target).unwrap();
            wait(&target);
        }
    });
}

#[test]
fn the_thread_sends_what_is_queued_when_it_ends() {
    as_worker(|thread| {
        let (first, targets) = (target(), [(); 8].map(|()| target()));
        until_sent(&thread, &first);
        for target in &targets {
            interrupt(target).unwrap();
        }
        drop(thread);
        assert!(targets.iter().all(|target| taken(target) == 1));
        interrupt(&first).unwrap();
        wait(&first);
    });
}

#[test]
fn a_worker_with_a_full_queue_sends_by_itself() {
    as_worker(|thread| {
        let targets: Vec<_> = (0..2 * CAPACITY).map(|_| target()).collect();
        until_sent(&thread, &targets[0]);
        for target in &targets {
            interrupt(target).unwrap();
        }
        targets.iter().for_each(|target| wait(target));
    });
}

#[test]
fn the_worker_learns_of_a_peer_that_blocks() {
    as_worker(|thread| {
        let (good, bad) = (target(), target());
        until_sent(&thread, &good);
        rustix::io::write(&bad, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        fcntl_setfl(&bad, OFlags::empty()).unwrap();
        let mut result = interrupt(&bad);
        while result.is_ok() {
            // The thread may have found no other interrupts meanwhile, and be asleep.
            interrupt(&good).unwrap();
            result = interrupt(&bad);
        }
        assert_eq!(result, Err(Violation::InterruptBlocks));
        interrupt(&good).unwrap();
        wait(&good);
    });
}

/// Two workers at different paces, each with a peer that sleeps until it is interrupted.
#[test]
fn no_interrupt_is_lost() {
    const ROUNDS: u64 = 20_000;
    let (thread, queues) = InterruptThread::start(cpu(), 2).unwrap();
    let paces = Mutex::new(vec![0, 300]);
    thread::scope(|scope| {
        for queue in queues {
            let pause = paces.lock().unwrap().pop().unwrap();
            let (target, published) = (target(), Arc::new(AtomicU64::new(0)));
            let (its, seen) = (Arc::clone(&target), Arc::clone(&published));
            scope.spawn(move || {
                queue.install();
                for round in 1..=ROUNDS {
                    published.store(round, Ordering::Release);
                    interrupt(&target).unwrap();
                    if round % 100 < 50 {
                        (0..pause).for_each(|_| std::hint::spin_loop());
                    }
                    if round % 5000 == 0 {
                        // The thread falls asleep.
                        thread::sleep(Duration::from_millis(10));
                    }
                }
            });
            scope.spawn(move || {
                while seen.load(Ordering::Acquire) < ROUNDS {
                    wait(&its);
                }
            });
        }
    });
    assert!(thread.sent() > 0);
}
