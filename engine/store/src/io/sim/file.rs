//! One open file of the simulated disk.

use std::io::{Error, ErrorKind, IoSlice};
use std::path::Path;
use std::sync::Arc;

use super::faults::{SimFault, no_space};
use super::history::OpDetail;
use super::tree::{Ino, write_bytes};
use super::{OpKind, SimIo};
use crate::io::{File, FileBytes, FileId, IoError, IoResult, LockKind};

/// The longest file of a simulated disk, 1 GiB: a wild offset fails instead of using up memory.
pub const FILE_BYTES_MAX: u64 = 1 << 30;

/// "Bad file descriptor": the system's error for a write through a read-only handle.
const EBADF: i32 = 9;

#[derive(Debug)]
pub(super) struct SimFile {
    io: SimIo,
    path: Arc<Path>,
    ino: Ino,
    handle: u64,
    writable: bool,
}

impl SimFile {
    pub(super) fn new(io: SimIo, path: &Path, ino: Ino, handle: u64, writable: bool) -> Self {
        Self { io, path: Arc::from(path), ino, handle, writable }
    }

    fn fail(&self, op: &'static str) -> impl FnOnce(Error) -> IoError {
        move |e| IoError::new(op, &self.path, e)
    }

    fn check_writable(&self) -> Result<(), Error> {
        if self.writable { Ok(()) } else { Err(Error::from_raw_os_error(EBADF)) }
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        self.check_writable()?;
        if bytes.is_empty() {
            return Ok(());
        }
        let from = checked_offset(offset, bytes.len() as u64)?;
        let mut state = self.io.state();
        let len = state.tree.bytes(self.ino).len();
        let (mut bytes, mut outcome) = (bytes, Ok(()));
        match state.faults.next_fault(OpKind::Write, &self.path) {
            None => {}
            Some(SimFault::Errno(errno)) => {
                (bytes, outcome) = (&bytes[..bytes.len() / 2], Err(Error::from_raw_os_error(errno)));
            }
            Some(SimFault::Lost) => {
                state.grow(self.ino, &self.path, from + bytes.len());
                return Ok(());
            }
            Some(SimFault::Misdirected(seed)) => {
                state.grow(self.ino, &self.path, from + bytes.len());
                state.misdirect((self.ino, &self.path), from, bytes, seed);
                return Ok(());
            }
        }
        let (free, roomy) = state.room_for(self.ino);
        let growth = ((from + bytes.len()) as u64).saturating_sub(roomy);
        if growth > free {
            // Writes what fits, like a system's short write. A gap before the write takes space too.
            let end = usize::try_from(roomy + free).unwrap_or(len);
            bytes = &bytes[..end.saturating_sub(from).min(bytes.len())];
            outcome = outcome.and(Err(no_space()));
        }
        if !bytes.is_empty() {
            write_bytes(state.tree.bytes_mut(self.ino), from, bytes);
            let what = OpDetail::Write { ino: self.ino, offset: from, bytes: Arc::from(bytes) };
            state.log(Arc::clone(&self.path), what);
        }
        outcome
    }

    fn truncate_or_extend(&self, len: u64) -> Result<(), Error> {
        self.check_writable()?;
        let len = checked_offset(len, 0)?;
        let mut state = self.io.state();
        state.faults.check(OpKind::SetLen, &self.path)?;
        let (free, roomy) = state.room_for(self.ino);
        if (len as u64).saturating_sub(roomy) > free {
            return Err(no_space());
        }
        state.allocated.remove(&self.ino);
        state.tree.bytes_mut(self.ino).resize(len, 0);
        state.log(Arc::clone(&self.path), OpDetail::SetLen { ino: self.ino, len });
        Ok(())
    }
}

/// The start of a range, checked against the longest simulated file.
fn checked_offset(offset: u64, len: u64) -> Result<usize, Error> {
    match offset.checked_add(len) {
        Some(end) if end <= FILE_BYTES_MAX => usize::try_from(offset).map_err(Error::other),
        _ => Err(ErrorKind::FileTooLarge.into()),
    }
}

impl File for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> IoResult<usize> {
        let mut state = self.io.state();
        state.faults.check(OpKind::Read, &self.path).map_err(self.fail("read"))?;
        let bytes = state.tree.bytes(self.ino);
        let rest = usize::try_from(offset).ok().and_then(|from| bytes.get(from..)).unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> IoResult<()> {
        let written = match bufs {
            [one] => self.write(one, offset),
            many => self.write(&many.iter().flat_map(|buf| buf.iter().copied()).collect::<Vec<_>>(), offset),
        };
        written.map_err(self.fail("write"))
    }

    fn len(&self) -> IoResult<u64> {
        Ok(self.io.state().tree.bytes(self.ino).len() as u64)
    }

    fn set_len(&self, len: u64) -> IoResult<()> {
        self.truncate_or_extend(len).map_err(self.fail("set the length of"))
    }

    /// Space is not part of the history: a crash gives it back.
    fn allocate(&self, len: u64) -> IoResult<bool> {
        let mut state = self.io.state();
        let (free, roomy) = state.room_for(self.ino);
        if len.saturating_sub(roomy) > free {
            // As on ext4: what there was stays allocated.
            state.allocated.insert(self.ino, roomy.saturating_add(free));
            return Err(self.fail("allocate space for")(no_space()));
        }
        state.allocated.insert(self.ino, len.max(roomy));
        Ok(true)
    }

    fn sync(&self) -> IoResult<()> {
        let mut state = self.io.state();
        let outcome = state.faults.check(OpKind::Sync, &self.path);
        state.log(Arc::clone(&self.path), OpDetail::Sync { ino: self.ino, ok: outcome.is_ok() });
        outcome.map_err(self.fail("sync"))
    }

    fn map(&self) -> IoResult<FileBytes> {
        let mut state = self.io.state();
        state.faults.check(OpKind::Read, &self.path).map_err(self.fail("map"))?;
        Ok(FileBytes::owned(Arc::from(state.tree.bytes(self.ino))))
    }

    fn id(&self) -> IoResult<FileId> {
        Ok(FileId { device: 0, inode: self.ino })
    }

    fn try_lock(&self, lock: LockKind) -> IoResult<bool> {
        let mut state = self.io.state();
        let locks = state.locks.entry(self.ino).or_default();
        let held = locks.iter().any(|(holder, held)| {
            *holder != self.handle && (lock == LockKind::Exclusive || *held == LockKind::Exclusive)
        });
        if !held {
            locks.retain(|(holder, _)| *holder != self.handle);
            locks.push((self.handle, lock));
        }
        Ok(!held)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.io.state().drop_handle(self.ino, self.handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Io, OpenMode};

    #[test]
    fn lock_belongs_to_its_handle_until_dropped() {
        let sim = SimIo::new(1);
        let open = || sim.open(Path::new("a"), OpenMode::CreateOrOpen).unwrap();
        let (one, two, three) = (open(), open(), open());
        assert!(one.try_lock(LockKind::Shared).unwrap() && two.try_lock(LockKind::Shared).unwrap());
        assert!(!three.try_lock(LockKind::Exclusive).unwrap());
        drop(two);
        assert!(!three.try_lock(LockKind::Exclusive).unwrap(), "the first one still has it");
        assert!(three.try_lock(LockKind::Shared).unwrap());
        drop(three);
        assert!(one.try_lock(LockKind::Exclusive).unwrap(), "its own shared lock is no hindrance");
        assert!(!open().try_lock(LockKind::Shared).unwrap());
        drop(one);
        assert!(open().try_lock(LockKind::Exclusive).unwrap());
        // A lock is per file.
        let (a, b) = (open(), sim.open(Path::new("b"), OpenMode::CreateNew).unwrap());
        assert!(a.try_lock(LockKind::Exclusive).unwrap() && b.try_lock(LockKind::Exclusive).unwrap());
    }

    #[test]
    fn offset_past_the_longest_simulated_file_is_refused() {
        assert_eq!(checked_offset(FILE_BYTES_MAX - 5, 5).unwrap() as u64, FILE_BYTES_MAX - 5);
        assert_eq!(checked_offset(FILE_BYTES_MAX, 0).unwrap() as u64, FILE_BYTES_MAX);
        for (offset, len) in [(FILE_BYTES_MAX - 5, 6), (FILE_BYTES_MAX + 1, 0), (u64::MAX, 1), (1, u64::MAX)]
        {
            assert_eq!(
                checked_offset(offset, len).unwrap_err().kind(),
                ErrorKind::FileTooLarge,
                "{len} at {offset}"
            );
        }
    }

    #[test]
    fn full_disk_accepts_exactly_the_remaining_bytes() {
        let sim = SimIo::new(1);
        let file = sim.open(Path::new("a"), OpenMode::CreateNew).unwrap();
        let put = |bytes: &[u8], at| file.write_at(&[IoSlice::new(bytes)], at).is_ok();
        sim.set_capacity(Some(10));
        assert!(put(b"0123456", 0) && !put(b"789abc", 7));
        assert_eq!(sim.read(Path::new("a")).unwrap(), b"0123456789");
        assert!(put(b"XY", 8) && !put(b"Zw", 9) && !put(b"q", 10) && !put(b"q", 20));
        assert_eq!(sim.read(Path::new("a")).unwrap(), b"01234567XZ");
        assert!(file.set_len(11).is_err() && file.set_len(4).is_ok() && file.set_len(10).is_ok());
        assert_eq!(sim.free_bytes(Path::new("")).unwrap(), Some(0));
    }

    #[test]
    fn allocated_space_stays_writable_on_a_full_disk() {
        let sim = SimIo::new(1);
        let file = sim.open(Path::new("a"), OpenMode::CreateNew).unwrap();
        let other = sim.open(Path::new("b"), OpenMode::CreateNew).unwrap();
        let put =
            |file: &Arc<dyn File>, len: usize, at| file.write_at(&[IoSlice::new(&vec![1; len])], at).is_ok();
        sim.set_capacity(Some(100));
        assert!(file.allocate(101).is_err() && sim.free_bytes(Path::new("")).unwrap() == Some(0));
        file.set_len(0).unwrap();
        assert!(file.allocate(60).unwrap());
        assert_eq!((sim.used_bytes(), sim.free_bytes(Path::new("")).unwrap()), (60, Some(40)));
        assert!(put(&other, 40, 0) && !put(&other, 1, 40) && other.allocate(41).is_err());
        assert!(put(&file, 60, 0) && !put(&file, 1, 60));
        // Cutting gives back what was allocated behind the cut.
        file.set_len(10).unwrap();
        assert!(file.allocate(60).unwrap() && !put(&other, 1, 40));
        file.set_len(10).unwrap();
        assert!(put(&other, 50, 40) && !put(&file, 1, 10));
        drop(other);
        sim.remove(Path::new("b")).unwrap();
        assert_eq!(sim.used_bytes(), 10);
    }
}
