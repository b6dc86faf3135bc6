//! A thread's lane: its name, the draws to serve, and the draws noted.
//!
//! A lane's file is mapped and closed again. So a program that closes unknown files, or counts its files, is
//! not disturbed, and a draw costs no system call. The file is filled with zeros before it is mapped: a full
//! disk then shows as an error, not as a signal. Only its own thread uses a lane.

use core::cell::{Cell, UnsafeCell};
use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::format::{self, Clock, DrawReader, HEADER_BYTES, LANE_BYTES_MAX, LaneDraw, MAGIC, NAME_BYTES_MAX};
use crate::{process, sys};

const PAGE_BYTES: usize = 4096;
static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// The name of a lane; empty where there is none.
#[derive(Clone, Copy)]
pub(crate) struct LaneName {
    bytes: [u8; NAME_BYTES_MAX],
    length: usize,
}

impl LaneName {
    pub(crate) const NONE: Self = Self { bytes: [0; NAME_BYTES_MAX], length: 0 };

    pub(crate) fn new(text: &[u8]) -> Self {
        let mut name = Self::NONE;
        let fits = name.push(text) && text.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'~');
        if fits { name } else { Self::NONE }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    pub(crate) fn is_none(&self) -> bool {
        self.length == 0
    }

    /// The name of a child of this lane: `p` for a process, `t` for a thread, `~` if its position is unknown.
    /// Empty if it would be too long.
    pub(crate) fn child(&self, kind: u8, number: u32) -> Self {
        let mut digits = [0; 10];
        let mut rest = number;
        let mut from = digits.len();
        for digit in digits.iter_mut().rev() {
            *digit = b'0'.wrapping_add((rest % 10) as u8);
            rest /= 10;
            from = from.wrapping_sub(1);
            if rest == 0 {
                break;
            }
        }
        let mut name = *self;
        let fits = !self.is_none() && name.push(&[kind]) && name.push(digits.get(from..).unwrap_or_default());
        if fits { name } else { Self::NONE }
    }

    fn push(&mut self, text: &[u8]) -> bool {
        let end = self.length.wrapping_add(text.len());
        let Some(to) = self.bytes.get_mut(self.length..end) else { return false };
        to.copy_from_slice(text);
        self.length = end;
        true
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LanePhase {
    New,
    Open,
    Off,
}

/// The state of a thread.
pub(crate) struct ThreadLane {
    phase: LanePhase,
    pub(crate) name: LaneName,
    /// Number of threads and processes started by this thread.
    pub(crate) threads: u32,
    pub(crate) processes: u32,
    noted: *mut u8,
    noted_size: usize,
    noted_used: usize,
    noted_clock_ns: u64,
    served: *const u8,
    served_size: usize,
    served_used: usize,
    served_clock_ns: u64,
}

thread_local! {
    static LANE: UnsafeCell<ThreadLane> = const { UnsafeCell::new(ThreadLane::NEW) };
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Calls `work` with this thread's lane; `None` if called from within `work`.
pub(crate) fn with<R>(work: impl FnOnce(&mut ThreadLane) -> R) -> Option<R> {
    not_reentered(|| {
        LANE.with(|lane| {
            // SAFETY: the lane belongs to this thread, and BUSY prevents a second reference.
            work(unsafe { &mut *lane.get() })
        })
    })
}

/// Runs code that one thread must not enter twice; `None` from within.
pub(crate) fn not_reentered<R>(work: impl FnOnce() -> R) -> Option<R> {
    BUSY.with(|busy| {
        if busy.replace(true) {
            return None;
        }
        let done = work();
        busy.set(false);
        Some(done)
    })
}

/// The time that the program gets when a clock reads `real_ns`.
pub(crate) fn clock(clock: Clock, real_ns: u64) -> u64 {
    if !process::is_on() {
        return real_ns;
    }
    with(|lane| lane.clock(clock, real_ns)).unwrap_or(real_ns)
}

/// Fills `to` like `real`, which returns a number of bytes or an error. `real` is called first, also in a
/// replay, because its errors belong to the program.
pub(crate) fn entropy(to: &mut [u8], real: impl Fn(&mut [u8]) -> isize) -> isize {
    let done = real(to);
    if let Ok(length @ 1..) = usize::try_from(done)
        && process::is_on()
        && let Some(drawn) = to.get_mut(..length)
    {
        with(|lane| lane.entropy(drawn));
    }
    done
}

impl ThreadLane {
    const NEW: Self = Self {
        phase: LanePhase::New,
        name: LaneName::NONE,
        threads: 0,
        processes: 0,
        noted: ptr::null_mut(),
        noted_size: 0,
        noted_used: 0,
        noted_clock_ns: 0,
        served: ptr::null(),
        served_size: 0,
        served_used: 0,
        served_clock_ns: 0,
    };

    fn clock(&mut self, clock: Clock, real_ns: u64) -> u64 {
        if !self.is_ready() {
            return real_ns;
        }
        let ns = match self.next() {
            Some((LaneDraw::Clock(of, ns), behind)) if of == clock => {
                self.advance(&behind);
                ns
            }
            _ => {
                self.stop_serving();
                real_ns
            }
        };
        let (head, length) = format::clock_draw(clock, self.noted_clock_ns, ns);
        self.noted_clock_ns = ns;
        self.note(head.get(..length).unwrap_or_default(), &[]);
        ns
    }

    /// Replaces drawn bytes by the served ones.
    fn entropy(&mut self, drawn: &mut [u8]) {
        if !self.is_ready() {
            return;
        }
        match self.next() {
            Some((LaneDraw::Bytes(served), behind)) if served.len() == drawn.len() => {
                drawn.copy_from_slice(served);
                self.advance(&behind);
            }
            _ => self.stop_serving(),
        }
        let (head, length) = format::bytes_head(drawn.len());
        self.note(head.get(..length).unwrap_or_default(), drawn);
    }

    /// The next draw to serve, and the reader after it.
    fn next(&self) -> Option<(LaneDraw<'static>, DrawReader<'static>)> {
        if self.served.is_null() {
            return None;
        }
        // SAFETY: mapped for reading with this size, and unmapped only after the last draw was served.
        let bytes = unsafe { core::slice::from_raw_parts(self.served, self.served_size) };
        let mut reader = DrawReader::at(bytes, self.served_used, self.served_clock_ns);
        reader.next().map(|draw| (draw, reader))
    }

    fn advance(&mut self, behind: &DrawReader<'_>) {
        (self.served_used, self.served_clock_ns) = (behind.position(), behind.clock_ns());
    }

    fn stop_serving(&mut self) {
        if !self.served.is_null() {
            sys::unmap(self.served, self.served_size);
            self.served = ptr::null();
        }
    }

    /// Opens the lane at its first draw.
    pub(crate) fn is_ready(&mut self) -> bool {
        if process::was_forked_past_fork() {
            process::adopt(self);
        }
        if self.phase == LanePhase::New {
            self.phase = LanePhase::Off;
            if self.name.is_none() {
                self.name = process::unnamed_thread_lane();
            }
            let mut path = [0; process::PATH_BYTES_MAX];
            if let Some(path) = process::path(&mut path, b"/out/", &self.name) {
                self.open(sys::create(path), path);
            }
        }
        self.phase == LanePhase::Open
    }

    /// Maps a lane's new file.
    pub(crate) fn open(&mut self, fd: isize, path: &CStr) {
        self.phase = LanePhase::Off;
        if fd < 0 {
            return;
        }
        sys::close(fd);
        if !self.grow(PAGE_BYTES, path) {
            return;
        }
        // SAFETY: a page is mapped for writing there.
        unsafe { ptr::copy_nonoverlapping(MAGIC.as_ptr(), self.noted, MAGIC.len()) };
        self.phase = LanePhase::Open;
        process::unmap_at_thread_end();
        let mut path = [0; process::PATH_BYTES_MAX];
        let Some(path) = process::path(&mut path, b"/in/", &self.name) else { return };
        let fd = sys::open_again(path);
        if fd < 0 {
            return;
        }
        let size = sys::size(fd);
        if size > 0
            && let Some(served) = sys::map(fd, size, false)
        {
            (self.served, self.served_size) = (served, size);
        }
        sys::close(fd);
    }

    fn grow(&mut self, size: usize, path: &CStr) -> bool {
        let fd = sys::open_again(path);
        if fd < 0 {
            return false;
        }
        let mut at = self.noted_size;
        while at < size && sys::write_at(fd, &ZEROS, at) == PAGE_BYTES.cast_signed() {
            at = at.wrapping_add(PAGE_BYTES);
        }
        let mapped = if at >= size { sys::map(fd, size, true) } else { None };
        sys::close(fd);
        let Some(mapped) = mapped else { return false };
        if !self.noted.is_null() {
            sys::unmap(self.noted, self.noted_size);
        }
        (self.noted, self.noted_size) = (mapped, size);
        true
    }

    /// Notes a complete draw: its length is written after its bytes.
    fn note(&mut self, head: &[u8], tail: &[u8]) {
        let from = HEADER_BYTES.wrapping_add(self.noted_used);
        let end = from.saturating_add(head.len()).saturating_add(tail.len());
        if end > LANE_BYTES_MAX {
            self.phase = LanePhase::Off;
            return;
        }
        if end > self.noted_size {
            let size = end.next_power_of_two();
            let mut path = [0; process::PATH_BYTES_MAX];
            if !process::path(&mut path, b"/out/", &self.name).is_some_and(|path| self.grow(size, path)) {
                self.phase = LanePhase::Off;
                return;
            }
        }
        self.noted_used = end.wrapping_sub(HEADER_BYTES);
        // SAFETY: `end` lies in the writable map; the map is page-aligned, so offset 8 is aligned for u64.
        unsafe {
            ptr::copy_nonoverlapping(head.as_ptr(), self.noted.add(from), head.len());
            ptr::copy_nonoverlapping(tail.as_ptr(), self.noted.add(from).add(head.len()), tail.len());
            let used = &*self.noted.add(MAGIC.len()).cast::<AtomicU64>();
            used.store((self.noted_used as u64).to_le(), Ordering::Release);
        }
    }

    /// Resets the lane in a forked process: only the name is taken from the parent.
    pub(crate) fn begin(&mut self, name: LaneName) {
        self.unmap();
        *self = Self { name, ..Self::NEW };
    }

    /// Unmaps the lane; later draws are not noted.
    pub(crate) fn unmap(&mut self) {
        self.stop_serving();
        if !self.noted.is_null() {
            sys::unmap(self.noted, self.noted_size);
            self.noted = ptr::null_mut();
        }
        self.phase = LanePhase::Off;
    }
}
