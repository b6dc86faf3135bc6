//! Passes a lane's name through the environment to each program that a program starts.
//!
//! This may run in a child that shares its parent's memory (`vfork`), so it allocates nothing, and the count
//! of started processes is the parent's. Each start leaves a note with the program's path in `DIR/exec/LANE`:
//! a process that never creates its lane's file (a static binary) can be named afterwards.

use core::ffi::{CStr, c_char, c_int};
use core::ptr;

use crate::lane::{self, LaneName};
use crate::sys::{self, CStringList};
use crate::{format, process};

/// Maximum number of environment variables; a larger environment is passed on unchanged.
const VARIABLES_MAX: usize = 2048;

/// Calls `start` with the new program's environment. A result other than 0 is a failure: `execve` returns only
/// then.
///
/// # Safety
/// `program` is null or ends with a zero; `environment` is null or a list as `execve` takes it.
pub(crate) unsafe fn with_lane_environment(
    program: *const c_char,
    environment: CStringList,
    start: impl FnOnce(CStringList) -> c_int,
) -> c_int {
    if !process::is_on() {
        return start(environment);
    }
    let child = lane::with(|lane| {
        lane.processes = lane.processes.wrapping_add(1);
        lane.name.child(b'p', lane.processes)
    });
    let Some(child) = child.filter(|child| !child.is_none()) else { return start(environment) };
    let mut lane_variable = [0; 128];
    let mut list = [ptr::null(); VARIABLES_MAX];
    // SAFETY: promised by the caller.
    let whole = unsafe { list_for(&child, environment, &mut lane_variable, &mut list) };
    let mut path = [0; process::PATH_BYTES_MAX];
    let note = process::path(&mut path, b"/exec/", &child);
    if let Some(note) = note
        && !program.is_null()
    {
        // SAFETY: promised by the caller.
        let program = unsafe { CStr::from_ptr(program) };
        let fd = sys::replace(note);
        if fd >= 0 {
            sys::write(fd, program.to_bytes());
            sys::close(fd);
        }
    }
    let result = start(if whole { list.as_ptr() } else { environment });
    if result != 0 {
        lane::with(|lane| lane.processes = lane.processes.wrapping_sub(1));
        if let Some(note) = note {
            sys::unlink(note);
        }
    }
    result
}

/// Builds the environment with the lane's name, and restores the library's variables if the program removed
/// them.
///
/// # Safety
/// As [`with_lane_environment`].
unsafe fn list_for(
    child: &LaneName,
    environment: CStringList,
    lane_variable: &mut [u8; 128],
    list: &mut [*const c_char; VARIABLES_MAX],
) -> bool {
    let mut at = 0_usize;
    for part in [format::LANE.as_bytes(), b"=", child.bytes()] {
        let end = at.wrapping_add(part.len());
        let Some(to) = lane_variable.get_mut(at..end) else { return false };
        to.copy_from_slice(part);
        at = end;
    }
    let is = |entry: &CStr, name: &str| {
        entry.to_bytes().strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
    };
    let (mut count, mut has) = (0_usize, [false; 2]);
    let mut push = |entry: *const c_char| {
        // One place is reserved for the null at the end.
        let Some(to) = list.get_mut(..VARIABLES_MAX - 1).and_then(|list| list.get_mut(count)) else {
            return false;
        };
        *to = entry;
        count = count.wrapping_add(1);
        true
    };
    let mut whole = push(lane_variable.as_ptr().cast());
    let mut next = environment;
    while !next.is_null() && whole {
        // SAFETY: the list ends with a null, each entry with a zero.
        let entry = unsafe { *next };
        if entry.is_null() {
            break;
        }
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(entry) };
        if !is(text, format::LANE) {
            has[0] |= is(text, "LD_PRELOAD");
            has[1] |= is(text, format::DIRECTORY);
            whole = push(entry);
        }
        // SAFETY: not past the null.
        next = unsafe { next.add(1) };
    }
    for (entry, has) in process::variables().into_iter().zip(has) {
        whole = whole && (has || push(entry));
    }
    whole
}
