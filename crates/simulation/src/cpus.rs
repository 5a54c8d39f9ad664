//! CPUs that threads share: the thread that waited longest runs next.

use std::collections::VecDeque;

/// Some CPUs, and the threads that wait for one.
#[derive(Debug)]
pub struct Cpus {
    free: usize,
    waiting: VecDeque<usize>,
}

impl Cpus {
    /// This number of CPUs, all free.
    pub fn new(count: usize) -> Self {
        Cpus { free: count, waiting: VecDeque::new() }
    }

    /// Requests a CPU for thread `who`. True: the thread has one. Otherwise [`Cpus::give_up`]
    /// returns the thread when it gets one.
    pub fn request(&mut self, who: usize) -> bool {
        if self.free == 0 {
            self.waiting.push_back(who);
            return false;
        }
        self.free -= 1;
        true
    }

    /// A CPU is given up. Returns the thread that has it now.
    pub fn give_up(&mut self) -> Option<usize> {
        let next = self.waiting.pop_front();
        self.free += usize::from(next.is_none());
        next
    }

    /// Whether any thread waits.
    pub fn are_short(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_runs_one_thread() {
        let mut cpus = Cpus::new(1);
        assert!(cpus.request(7) && !cpus.request(8) && !cpus.request(9) && cpus.are_short());
        assert_eq!((cpus.give_up(), cpus.give_up(), cpus.give_up()), (Some(8), Some(9), None));
        assert!(cpus.request(7));
    }
}
