//! Restores the order of jobs that the queue fixed. A caller fills in its batch after its place is fixed, so
//! a later batch may arrive first.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::Seqno;

/// A job with a position in the order of the log.
pub trait LogOrdered {
    /// All jobs below this seqno come first.
    fn first_seqno(&self) -> Seqno;
    /// The seqno at which the next job begins.
    fn end_seqno(&self) -> Seqno;
}

/// Buffers early jobs and returns jobs in order.
#[derive(Debug)]
pub struct JobSequence<T> {
    /// End of the ready jobs.
    next: Seqno,
    ready: VecDeque<T>,
    early: BTreeMap<(Seqno, u64), T>,
    arrived: u64,
}

impl<T: LogOrdered> JobSequence<T> {
    /// The first job begins at `next`.
    pub fn new(next: Seqno) -> Self {
        Self { next, ready: VecDeque::new(), early: BTreeMap::new(), arrived: 0 }
    }

    /// Adds a job that arrived.
    pub fn push(&mut self, job: T) {
        if self.early.is_empty() && job.first_seqno() <= self.next {
            self.next = self.next.max(job.end_seqno());
            self.ready.push_back(job);
            return;
        }
        self.arrived += 1;
        // Among jobs at one position, those without records keep their order of arrival, and precede the
        // batch: a barrier comes before the batch after it.
        let class = if job.end_seqno() == job.first_seqno() { self.arrived } else { u64::MAX };
        self.early.insert((job.first_seqno(), class), job);
        while let Some(first) = self.early.first_entry().filter(|entry| entry.key().0 <= self.next) {
            let job = first.remove();
            self.next = self.next.max(job.end_seqno());
            self.ready.push_back(job);
        }
    }

    /// The next job in order, if it has arrived.
    pub fn pop(&mut self) -> Option<T> {
        self.ready.pop_front()
    }

    /// Whether a job waits for an earlier one that has not arrived.
    pub fn awaits_earlier(&self) -> bool {
        !self.early.is_empty()
    }

    /// The job that [`JobSequence::pop`] would return.
    pub fn peek(&self) -> Option<&T> {
        self.ready.front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq, Clone, Copy)]
    struct TestJob(u64, u64);

    impl LogOrdered for TestJob {
        fn first_seqno(&self) -> Seqno {
            Seqno(self.0)
        }
        fn end_seqno(&self) -> Seqno {
            Seqno(self.0 + self.1)
        }
    }

    #[test]
    fn jobs_come_out_in_place_order() {
        let mut sequence = JobSequence::new(Seqno(1));
        for job in [TestJob(6, 2), TestJob(6, 0), TestJob(3, 3)] {
            sequence.push(job);
            assert_eq!(sequence.pop(), None);
        }
        sequence.push(TestJob(1, 2));
        let order: Vec<TestJob> = std::iter::from_fn(|| sequence.pop()).collect();
        assert_eq!(order, [TestJob(1, 2), TestJob(3, 3), TestJob(6, 0), TestJob(6, 2)]);
        sequence.push(TestJob(8, 0));
        assert_eq!(sequence.pop(), Some(TestJob(8, 0)), "a barrier where nothing is missing passes at once");
        sequence.push(TestJob(5, 0));
        assert_eq!(sequence.pop(), Some(TestJob(5, 0)), "a barrier that comes late passes at once");
    }
}
