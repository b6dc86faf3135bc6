//! The standard library's locks, with a rank in their type that only a scheduled build looks at.

use std::sync::{LockResult, MutexGuard, RwLockReadGuard, RwLockWriteGuard, TryLockResult};

/// `std::sync::Mutex`; `RANK` is one of [`super::rank`].
#[derive(Debug, Default)]
pub struct Mutex<T, const RANK: u8>(std::sync::Mutex<T>);

impl<T, const RANK: u8> Mutex<T, RANK> {
    #[inline]
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    #[inline]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        self.0.lock()
    }

    #[inline]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        self.0.try_lock()
    }

    #[inline]
    pub fn into_inner(self) -> LockResult<T> {
        self.0.into_inner()
    }
}

/// `std::sync::RwLock`; `RANK` is one of [`super::rank`].
#[derive(Debug, Default)]
pub struct RwLock<T, const RANK: u8>(std::sync::RwLock<T>);

impl<T, const RANK: u8> RwLock<T, RANK> {
    #[inline]
    pub const fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }

    #[inline]
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        self.0.read()
    }

    #[inline]
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        self.0.write()
    }
}
