//! Locks with a rank, for builds with `--cfg annals_shuttle`: a thread that takes them out of order panics at once.
//!
//! A thread may take a lock only if each lock that it holds has a smaller rank ([`super::rank`]). So a deadlock is
//! reported by any schedule that takes the two locks, and not only by the schedule in which two threads wait for each other.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};
use std::time::Duration;

use super::rank;

shuttle::thread_local! {
    /// Ranks of the locks that this thread holds, in the order in which it took them.
    static HELD: RefCell<Vec<u8>> = RefCell::new(Vec::new());
}

/// Present from the attempt to take a lock until its release.
struct Rank(u8);

impl Rank {
    fn enter(rank: u8) -> Self {
        let over = HELD.with(|held| held.borrow().iter().copied().find(|held| *held >= rank));
        if let Some(over) = over {
            if !std::thread::panicking() {
                panic!("lock order: {} is taken while {} is held", rank::name(rank), rank::name(over));
            }
        }
        HELD.with(|held| held.borrow_mut().push(rank));
        Self(rank)
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // A thread that ends has no list any more.
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|rank| *rank == self.0) {
                held.remove(at);
            }
        });
    }
}

/// A guard of one of the locks below. The lock is released before its rank is.
pub struct Guard<G> {
    inner: G,
    rank: Rank,
}

pub type MutexGuard<'a, T> = Guard<shuttle::sync::MutexGuard<'a, T>>;
pub type RwLockReadGuard<'a, T> = Guard<shuttle::sync::RwLockReadGuard<'a, T>>;
pub type RwLockWriteGuard<'a, T> = Guard<shuttle::sync::RwLockWriteGuard<'a, T>>;

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

impl<G: fmt::Debug> fmt::Debug for Guard<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

fn guarded<G>(rank: Rank, taken: LockResult<G>) -> LockResult<Guard<G>> {
    match taken {
        Ok(inner) => Ok(Guard { inner, rank }),
        Err(poisoned) => Err(PoisonError::new(Guard { inner: poisoned.into_inner(), rank })),
    }
}

/// As `std::sync::Mutex`.
#[derive(Debug, Default)]
pub struct Mutex<T, const RANK: u8>(shuttle::sync::Mutex<T>);

impl<T, const RANK: u8> Mutex<T, RANK> {
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let rank = Rank::enter(RANK);
        guarded(rank, self.0.lock())
    }

    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let rank = Rank::enter(RANK);
        match self.0.try_lock() {
            Ok(inner) => Ok(Guard { inner, rank }),
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
            Err(TryLockError::Poisoned(poisoned)) => {
                Err(TryLockError::Poisoned(PoisonError::new(Guard { inner: poisoned.into_inner(), rank })))
            }
        }
    }

    pub fn into_inner(self) -> LockResult<T> {
        self.0.into_inner()
    }
}

/// As `std::sync::RwLock`.
#[derive(Debug, Default)]
pub struct RwLock<T, const RANK: u8>(shuttle::sync::RwLock<T>);

impl<T, const RANK: u8> RwLock<T, RANK> {
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::RwLock::new(value))
    }

    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        let rank = Rank::enter(RANK);
        guarded(rank, self.0.read())
    }

    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        let rank = Rank::enter(RANK);
        guarded(rank, self.0.write())
    }
}

/// As `std::sync::Condvar`. A waiting thread keeps the rank of its lock: it takes that lock again before it goes on.
#[derive(Debug, Default)]
pub struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let Guard { inner, rank } = guard;
        guarded(rank, self.0.wait(inner))
    }

    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        most: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, shuttle::sync::WaitTimeoutResult)> {
        let Guard { inner, rank } = guard;
        match self.0.wait_timeout(inner, most) {
            Ok((inner, waited)) => Ok((Guard { inner, rank }, waited)),
            Err(poisoned) => {
                let (inner, waited) = poisoned.into_inner();
                Err(PoisonError::new((Guard { inner, rank }, waited)))
            }
        }
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "lock order: QUEUE_ORDER is taken while MEMTABLE is held")]
    fn locks_taken_out_of_order_panic() {
        shuttle::check_random(
            || {
                let first = Mutex::<_, { rank::QUEUE_ORDER }>::new(());
                let second = RwLock::<_, { rank::MEMTABLE }>::new(());
                let _second = second.read().unwrap();
                let _first = first.lock().unwrap();
            },
            1,
        );
    }

    #[test]
    fn locks_taken_in_order_and_again_do_not_panic() {
        shuttle::check_random(
            || {
                let first = Mutex::<_, { rank::QUEUE_ORDER }>::new(());
                let second = RwLock::<_, { rank::MEMTABLE }>::new(());
                for _ in 0..2 {
                    let held = first.lock().unwrap();
                    let inner = second.write().unwrap();
                    // Released out of order, which is permitted.
                    drop(held);
                    drop(inner);
                }
            },
            1,
        );
    }
}
