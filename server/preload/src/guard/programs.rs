//! The functions that start programs: each program gets an environment that keeps the library loaded.
#![expect(clippy::missing_safety_doc, reason = "that of the C library's function of the name")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;

use super::notes::NoteLine;
use super::policy::{PATH_BYTES_MAX, PRELOADED, VARIABLE_BYTES_MAX, directory, path, policy};
use crate::c_function::{exec_hooks, real};
use crate::sys::{self, CStringList, next as find, text};
use crate::traffic;

/// Maximum number of environment variables; a larger environment is passed on unchanged.
const VARIABLES_MAX: usize = 2048;

/// Calls `start` with an environment that keeps the library loaded, and notes the program.
///
/// # Safety
/// `program` is null or ends with a zero; `environment` is null or a list as `execve` takes it.
unsafe fn with_library_environment(
    program: *const c_char,
    environment: CStringList,
    start: impl FnOnce(CStringList) -> c_int,
) -> c_int {
    if policy().is_none() {
        return start(environment);
    }
    let mut line = NoteLine::new("exec");
    // SAFETY: promised by the caller.
    line.field(unsafe { text(program) });
    line.write();
    let mut preload = [0; VARIABLE_BYTES_MAX];
    let mut directory = [0; VARIABLE_BYTES_MAX];
    let mut list = [ptr::null(); VARIABLES_MAX];
    // SAFETY: promised by the caller.
    let whole = unsafe { list_for(environment, &mut preload, &mut directory, &mut list) };
    start(if whole { list.as_ptr() } else { environment })
}

/// Builds the environment and restores the library's variables if the program removed them. `false` if it
/// does not fit.
unsafe fn list_for(
    environment: CStringList,
    preload: &mut [u8; VARIABLE_BYTES_MAX],
    directory_variable: &mut [u8; VARIABLE_BYTES_MAX],
    list: &mut [*const c_char; VARIABLES_MAX],
) -> bool {
    let (mut count, mut has_preload, mut has_directory) = (0_usize, false, false);
    let mut library = [0; PATH_BYTES_MAX];
    let Some(library) = path(&mut library, traffic::LIBRARY).map(CStr::to_bytes) else { return false };
    let mut next = environment;
    // Two places are reserved for our variables, one for the null at the end.
    while !next.is_null() {
        // SAFETY: the list ends with a null, each entry with a zero.
        let (entry, behind) = unsafe { (*next, next.add(1)) };
        if entry.is_null() {
            break;
        }
        // SAFETY: as above.
        let set = unsafe { CStr::from_ptr(entry) }.to_bytes();
        let mut kept = entry;
        if let Some(value) = set.strip_prefix(b"LD_PRELOAD=") {
            has_preload = true;
            if !value.windows(library.len()).any(|window| window == library) {
                if !join(preload, &[b"LD_PRELOAD=", library, b":", value]) {
                    return false;
                }
                kept = preload.as_ptr().cast();
            }
        }
        has_directory |=
            set.strip_prefix(traffic::DIRECTORY.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
        let Some(to) = list.get_mut(..VARIABLES_MAX - 3).and_then(|list| list.get_mut(count)) else {
            return false;
        };
        *to = kept;
        count = count.wrapping_add(1);
        next = behind;
    }
    let mut push = |entry: *const u8| {
        if let Some(to) = list.get_mut(count) {
            *to = entry.cast();
        }
        count = count.wrapping_add(1);
    };
    if !has_preload {
        // A second library of annals would take the existing variable for its own.
        let own = PRELOADED.get();
        if !join(preload, &[b"LD_PRELOAD=", if own.is_empty() { library } else { own }]) {
            return false;
        }
        push(preload.as_ptr());
    }
    if !has_directory {
        if !join(directory_variable, &[traffic::DIRECTORY.as_bytes(), b"=", directory()]) {
            return false;
        }
        push(directory_variable.as_ptr());
    }
    true
}

/// Joins the parts, with a zero at the end.
fn join(to: &mut [u8; VARIABLE_BYTES_MAX], parts: &[&[u8]]) -> bool {
    let mut at = 0_usize;
    for part in parts.iter().chain([&b"\0".as_slice()]) {
        let end = at.wrapping_add(part.len());
        let Some(to) = to.get_mut(at..end) else { return false };
        to.copy_from_slice(part);
        at = end;
    }
    true
}

exec_hooks!(annals_network, with_library_environment);
