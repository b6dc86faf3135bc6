//! Replacements for functions of the C library, with the same names, arguments and results.
//!
//! `open`, `openat` and `syscall` have a variable number of arguments in C. On x86-64 and AArch64 these use
//! the same registers as fixed arguments, so the hooks declare the maximum number; missing ones are passed on
//! without being read.
#![expect(clippy::missing_safety_doc, reason = "that of the C library's function of the name")]
#![expect(missing_docs, reason = "documented by the C library")]

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::c_function::{exec_hooks, real};
use crate::format::Clock;
use crate::lane::{self, LaneName};
use crate::sys::{self, CStringList, number};
use crate::{exec, process};

const SECOND_NS: u64 = 1_000_000_000;

/// Looks a function up. Null if there is none, or while this thread looks one up.
#[cold]
fn find(name: &CStr) -> *mut c_void {
    lane::not_reentered(|| sys::next(name)).unwrap_or(ptr::null_mut())
}

/// `struct timespec`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TimeSpec {
    seconds: i64,
    nanoseconds: c_long,
}

/// `struct timeval`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TimeVal {
    seconds: i64,
    microseconds: c_long,
}

impl TimeSpec {
    fn ns(self) -> u64 {
        self.seconds.cast_unsigned().wrapping_mul(SECOND_NS).wrapping_add(self.nanoseconds as u64)
    }

    fn from_ns(ns: u64) -> Self {
        Self { seconds: (ns / SECOND_NS).cast_signed(), nanoseconds: (ns % SECOND_NS) as c_long }
    }
}

unsafe fn real_clock(id: c_int, to: *mut TimeSpec) -> c_int {
    // SAFETY: promised by the caller.
    unsafe {
        match real!(c"clock_gettime", fn(c_int, *mut TimeSpec) -> c_int) {
            Some(real) => real(id, to),
            None => sys::with_errno(sys::call(number::CLOCK_GETTIME, [id as usize, to.addr(), 0, 0, 0, 0]))
                as c_int,
        }
    }
}

#[cfg_attr(annals_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn clock_gettime(id: c_int, to: *mut TimeSpec) -> c_int {
    // SAFETY: promised by the caller.
    unsafe {
        let done = real_clock(id, to);
        let clock = match id {
            0 => Clock::Realtime,
            5 => Clock::Coarse,
            _ => return done,
        };
        if done == 0 {
            *to = TimeSpec::from_ns(lane::clock(clock, (*to).ns()));
        }
        done
    }
}

#[cfg_attr(annals_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn timespec_get(to: *mut TimeSpec, base: c_int) -> c_int {
    // SAFETY: promised by the caller.
    unsafe {
        // TIME_UTC is 1; other bases are monotonic or undefined.
        if base == 1 {
            return if clock_gettime(0, to) == 0 { base } else { 0 };
        }
        real!(c"timespec_get", fn(*mut TimeSpec, c_int) -> c_int).map_or(0, |real| real(to, base))
    }
}

#[cfg_attr(annals_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn gettimeofday(to: *mut TimeVal, zone: *mut c_void) -> c_int {
    // SAFETY: promised by the caller.
    unsafe {
        if let Some(real) = real!(c"gettimeofday", fn(*mut TimeVal, *mut c_void) -> c_int)
            && (!zone.is_null() || to.is_null())
        {
            let done = real(to, zone);
            if done != 0 || to.is_null() {
                return done;
            }
        }
        let mut now = TimeSpec { seconds: 0, nanoseconds: 0 };
        let done = real_clock(0, &raw mut now);
        if done == 0 && !to.is_null() {
            let now = TimeSpec::from_ns(lane::clock(Clock::TimeOfDay, now.ns() / 1000 * 1000));
            *to = TimeVal { seconds: now.seconds, microseconds: now.nanoseconds / 1000 };
        }
        done
    }
}

#[cfg_attr(annals_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn time(to: *mut i64) -> i64 {
    // SAFETY: promised by the caller.
    unsafe {
        let mut now = TimeSpec { seconds: 0, nanoseconds: 0 };
        // `time` reads the coarse clock.
        real_clock(5, &raw mut now);
        let whole = now.seconds.cast_unsigned().wrapping_mul(SECOND_NS);
        let seconds = TimeSpec::from_ns(lane::clock(Clock::Time, whole)).seconds;
        if let Some(to) = to.as_mut() {
            *to = seconds;
        }
        seconds
    }
}

#[cfg_attr(annals_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn getrandom(to: *mut c_void, length: usize, flags: c_uint) -> isize {
    let real = |to: *mut c_void, length: usize| {
        // SAFETY: promised by the caller.
        unsafe {
            match real!(c"getrandom", fn(*mut c_void, usize, c_uint) -> isize) {
                Some(real) => real(to, length, flags),
                None => sys::with_errno(sys::call(
                    number::GETRANDOM,
                    [to.addr(), length, flags as usize, 0, 0, 0],
                )),
            }
        }
    };
    if to.is_null() || length > isize::MAX.cast_unsigned() {
        return real(to, length);
    }
    // SAFETY: the caller provides a buffer of this length; its bytes are written before any is read.
    let buffer = unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), length) };
    lane::entropy(buffer, |to| real(to.as_mut_ptr().cast(), to.len()))
}

#[cfg_attr(annals_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn getentropy(to: *mut c_void, length: usize) -> c_int {
    let real = |to: *mut c_void, length: usize| {
        // SAFETY: promised by the caller.
        unsafe { real!(c"getentropy", fn(*mut c_void, usize) -> c_int).map_or(-1, |real| real(to, length)) }
    };
    // More than 256 bytes are an error, which the C library's own function reports.
    if to.is_null() || length > 256 {
        return real(to, length);
    }
    // SAFETY: as above.
    let buffer = unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), length) };
    let filled = lane::entropy(buffer, |to| match real(to.as_mut_ptr().cast(), to.len()) {
        0 => to.len().cast_signed(),
        error => error as isize,
    });
    if filled < 0 { -1 } else { 0 }
}

#[cfg_attr(annals_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(
    call: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: promised by the caller.
    unsafe {
        match usize::try_from(call) {
            Ok(number::GETRANDOM) => getrandom(ptr::with_exposed_provenance_mut(a), b, c as c_uint) as c_long,
            Ok(number::CLOCK_GETTIME) => {
                clock_gettime(a as c_int, ptr::with_exposed_provenance_mut(b)).into()
            }
            _ => match real!(c"syscall", fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long) {
                Some(real) => real(call, a, b, c, d, e, f),
                None => sys::with_errno(sys::call(call as usize, [a, b, c, d, e, f])) as c_long,
            },
        }
    }
}

/// File descriptors that were opened as a random device. Each read checks whether one still is: not every way
/// of closing a file can be hooked.
static RANDOM: [AtomicI32; 16] = [const { AtomicI32::new(-1) }; 16];
static ANY_RANDOM: AtomicBool = AtomicBool::new(false);

/// Remembers a newly opened file if it is a random device.
unsafe fn opened(fd: c_int, path: *const c_char) -> c_int {
    if fd < 0 || path.is_null() {
        return fd;
    }
    // SAFETY: the C library's own function accepted it as a path.
    let path = unsafe { CStr::from_ptr(path) };
    if path == c"/dev/urandom" || path == c"/dev/random" {
        let free =
            |entry: &&AtomicI32| entry.compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Acquire).is_ok();
        let known = RANDOM.iter().any(|entry| entry.load(Ordering::Acquire) == fd);
        if known || RANDOM.iter().find(free).is_some() {
            ANY_RANDOM.store(true, Ordering::Release);
        }
    }
    fd
}

fn is_random(fd: c_int) -> bool {
    if !ANY_RANDOM.load(Ordering::Acquire) || fd < 0 {
        return false;
    }
    let Some(entry) = RANDOM.iter().find(|entry| entry.load(Ordering::Acquire) == fd) else { return false };
    let is = sys::is_random_device(fd);
    if !is {
        entry.store(-1, Ordering::Release);
    }
    is
}

#[cfg_attr(annals_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn read(fd: c_int, to: *mut c_void, length: usize) -> isize {
    let real = |to: *mut c_void, length: usize| {
        // SAFETY: promised by the caller.
        unsafe {
            match real!(c"read", fn(c_int, *mut c_void, usize) -> isize) {
                Some(real) => real(fd, to, length),
                None => sys::with_errno(sys::call(number::READ, [fd as usize, to.addr(), length, 0, 0, 0])),
            }
        }
    };
    if !is_random(fd) || to.is_null() || length > isize::MAX.cast_unsigned() {
        return real(to, length);
    }
    // SAFETY: as in `getrandom`.
    let buffer = unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), length) };
    lane::entropy(buffer, |to| real(to.as_mut_ptr().cast(), to.len()))
}

#[cfg_attr(annals_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn __read_chk(fd: c_int, to: *mut c_void, length: usize, room: usize) -> isize {
    // SAFETY: promised by the caller.
    unsafe {
        match real!(c"__read_chk", fn(c_int, *mut c_void, usize, usize) -> isize) {
            // The C library's own function ends the program if the buffer is too small.
            Some(real) if length > room => real(fd, to, length, room),
            _ => read(fd, to, length),
        }
    }
}

/// Defines functions that open a file.
macro_rules! opens {
    ($($name:ident $text:literal $path:ident ($($argument:ident: $type:ty),*) $fallback:expr;)*) => {$(
        #[cfg_attr(annals_preload, unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: promised by the caller.
            unsafe {
                let fd = match real!($text, fn($($type),*) -> c_int) {
                    Some(real) => real($($argument),*),
                    None => sys::with_errno(sys::call(number::OPENAT, $fallback)) as c_int,
                };
                opened(fd, $path)
            }
        }
    )*};
}

/// AT_FDCWD: relative paths start at the working directory.
const HERE: usize = -100_isize as usize;

opens! {
    open c"open" path (path: *const c_char, flags: c_int, mode: c_uint)
        [HERE, path.addr(), flags as usize, mode as usize, 0, 0];
    open64 c"open64" path (path: *const c_char, flags: c_int, mode: c_uint)
        [HERE, path.addr(), flags as usize, mode as usize, 0, 0];
    openat c"openat" path (at: c_int, path: *const c_char, flags: c_int, mode: c_uint)
        [at as usize, path.addr(), flags as usize, mode as usize, 0, 0];
    openat64 c"openat64" path (at: c_int, path: *const c_char, flags: c_int, mode: c_uint)
        [at as usize, path.addr(), flags as usize, mode as usize, 0, 0];
    __open_2 c"__open_2" path (path: *const c_char, flags: c_int) [HERE, path.addr(), flags as usize, 0, 0, 0];
    __open64_2 c"__open64_2" path (path: *const c_char, flags: c_int) [HERE, path.addr(), flags as usize, 0, 0, 0];
}

/// The main function of a thread started by `pthread_create`.
type ThreadMain = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

struct ThreadStart {
    start: ThreadMain,
    argument: *mut c_void,
    name: LaneName,
}

/// Ends in a tail call that leaves no frame of this function, so that code that ends the thread early finds
/// the stack it expects.
unsafe extern "C" fn thread_begins(starting: *mut c_void) -> *mut c_void {
    // SAFETY: allocated by `pthread_create` below for this thread alone.
    let (start, argument) = unsafe {
        let ThreadStart { start, argument, name } = starting.cast::<ThreadStart>().read();
        sys::free(starting);
        lane::with(|lane| lane.name = name);
        (start, argument)
    };
    // SAFETY: called as the program requested.
    unsafe { start(argument) }
}

#[cfg_attr(annals_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    start: ThreadMain,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: this is the function's type.
    let real =
        unsafe { real!(c"pthread_create", fn(*mut c_void, *const c_void, ThreadMain, *mut c_void) -> c_int) };
    let Some(real) = real else {
        // EAGAIN
        return 11;
    };
    let name = if process::is_on() {
        lane::with(|lane| {
            lane.threads = lane.threads.wrapping_add(1);
            lane.name.child(b't', lane.threads)
        })
    } else {
        None
    };
    // SAFETY: promised by the caller; the block is large enough, and is freed here if no thread takes it
    // over.
    unsafe {
        let block = match name {
            Some(_) => sys::malloc(size_of::<ThreadStart>()).cast::<ThreadStart>(),
            None => ptr::null_mut(),
        };
        let Some(name) = name.filter(|_| !block.is_null()) else {
            return real(thread, attributes, start, argument);
        };
        block.write(ThreadStart { start, argument, name });
        let done = real(thread, attributes, thread_begins, block.cast());
        if done != 0 {
            sys::free(block.cast());
        }
        done
    }
}

exec_hooks!(annals_preload, exec::with_lane_environment);
