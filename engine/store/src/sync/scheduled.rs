//! Types that shuttle lacks: a cell that is set once, and channels that can be shared.

use std::fmt;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, Ordering};

/// Like `std::sync::OnceLock`, which holds the value. The scheduler chooses which thread sets it and which
/// sees it.
pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    /// Read before the value, so that each read is a point at which another thread may run.
    is_set: AtomicBool,
    /// Held while a value is computed, which may block.
    making: Mutex<()>,
}

impl<T> OnceLock<T> {
    pub fn new() -> Self {
        Self { value: std::sync::OnceLock::new(), is_set: AtomicBool::new(false), making: Mutex::new(()) }
    }

    pub fn get(&self) -> Option<&T> {
        if self.is_set.load(Ordering::SeqCst) { self.value.get() } else { None }
    }

    pub fn set(&self, value: T) -> Result<(), T> {
        let _making = self.making.lock();
        let done = self.value.set(value);
        self.is_set.store(true, Ordering::SeqCst);
        done
    }

    pub fn take(&mut self) -> Option<T> {
        self.is_set = AtomicBool::new(false);
        self.value.take()
    }

    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _making = self.making.lock();
        if self.value.get().is_none() {
            let made = make();
            let _ = self.value.set(made);
            self.is_set.store(true, Ordering::SeqCst);
        }
        // Set above under the lock, and unset only by an exclusive borrow: the closure does not run.
        self.value.get_or_init(|| unreachable!("the value was set"))
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceLock").field(&self.value.get()).finish()
    }
}

/// Channels with the names and behaviour of crossbeam's, as far as the engine uses them.
pub mod channel {
    use std::collections::VecDeque;
    use std::sync::{Arc, PoisonError};

    use shuttle::sync::{Condvar, Mutex, MutexGuard};

    #[derive(Debug)]
    struct ChannelShared<T> {
        state: Mutex<ChannelState<T>>,
        changed: Condvar,
    }

    #[derive(Debug)]
    struct ChannelState<T> {
        waiting: VecDeque<T>,
        capacity: usize,
        senders: usize,
        receivers: usize,
    }

    impl<T> ChannelShared<T> {
        fn lock(&self) -> MutexGuard<'_, ChannelState<T>> {
            self.state.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn wait<'a>(&self, guard: MutexGuard<'a, ChannelState<T>>) -> MutexGuard<'a, ChannelState<T>> {
            self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// The other side is gone, or nothing is available.
    #[derive(Debug)]
    pub struct ChannelClosed;

    /// Why a timed wait ended without a message.
    #[derive(Debug)]
    pub enum RecvTimeoutError {
        Timeout,
        Disconnected,
    }

    #[derive(Debug)]
    pub struct Sender<T>(Arc<ChannelShared<T>>);

    #[derive(Debug)]
    pub struct Receiver<T>(Arc<ChannelShared<T>>);

    pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
        bounded(usize::MAX)
    }

    pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
        let state = ChannelState { waiting: VecDeque::new(), capacity, senders: 1, receivers: 1 };
        let shared = Arc::new(ChannelShared { state: Mutex::new(state), changed: Condvar::new() });
        (Sender(shared.clone()), Receiver(shared))
    }

    impl<T> Sender<T> {
        pub fn send(&self, message: T) -> Result<(), ChannelClosed> {
            let mut state = self.0.lock();
            while state.receivers > 0 && state.waiting.len() >= state.capacity {
                state = self.0.wait(state);
            }
            if state.receivers == 0 {
                // The message is dropped without the lock: its drop may take locks.
                drop(state);
                drop(message);
                return Err(ChannelClosed);
            }
            state.waiting.push_back(message);
            drop(state);
            self.0.changed.notify_all();
            Ok(())
        }
    }

    impl<T> Receiver<T> {
        pub fn recv(&self) -> Result<T, ChannelClosed> {
            let mut state = self.0.lock();
            loop {
                if let Some(message) = state.waiting.pop_front() {
                    drop(state);
                    self.0.changed.notify_all();
                    return Ok(message);
                }
                if state.senders == 0 {
                    return Err(ChannelClosed);
                }
                state = self.0.wait(state);
            }
        }

        /// Waits without a limit: no clock advances under the scheduler.
        pub fn recv_timeout(&self, _: std::time::Duration) -> Result<T, RecvTimeoutError> {
            self.recv().map_err(|_| RecvTimeoutError::Disconnected)
        }

        pub fn try_recv(&self) -> Result<T, ChannelClosed> {
            let message = self.0.lock().waiting.pop_front().ok_or(ChannelClosed)?;
            self.0.changed.notify_all();
            Ok(message)
        }

        pub fn try_iter(&self) -> impl Iterator<Item = T> {
            std::iter::from_fn(|| self.try_recv().ok())
        }
    }

    impl<T> Clone for Receiver<T> {
        fn clone(&self) -> Self {
            self.0.lock().receivers += 1;
            Self(self.0.clone())
        }
    }

    impl<T> Drop for Sender<T> {
        fn drop(&mut self) {
            self.0.lock().senders -= 1;
            self.0.changed.notify_all();
        }
    }

    impl<T> Drop for Receiver<T> {
        fn drop(&mut self) {
            let mut state = self.0.lock();
            state.receivers -= 1;
            // No receiver will take the remaining messages.
            let lost =
                if state.receivers == 0 { std::mem::take(&mut state.waiting) } else { VecDeque::new() };
            drop(state);
            self.0.changed.notify_all();
            drop(lost);
        }
    }
}
