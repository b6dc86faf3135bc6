//! The state of a process: whether and where draws are noted, and its lane's name.
//!
//! A process claims its name by creating its first lane's file, which must not exist. Processes given the
//! same name (the C library's `system` bypasses the hooks) become `NAME~1`, `NAME~2` in order of their start.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use crate::lane::{self, LaneName, ThreadLane};
use crate::{format, sys};

/// Maximum number of processes with one name.
const CLAIMS_MAX: u32 = 10_000;
const DIRECTORY_BYTES_MAX: usize = 160;
pub(crate) const PATH_BYTES_MAX: usize = DIRECTORY_BYTES_MAX + 8 + format::NAME_BYTES_MAX;
pub(crate) const VARIABLE_BYTES_MAX: usize = 512;

const UNKNOWN: u8 = 0;
const BEGINNING: u8 = 1;
const OFF: u8 = 2;
const ON: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static STAMP: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
static UNNAMED_THREADS: AtomicU32 = AtomicU32::new(0);
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
static FIXED: ProcessTextsCell = ProcessTextsCell(UnsafeCell::new(ProcessTexts {
    directory: [0; DIRECTORY_BYTES_MAX],
    variables: [[0; VARIABLE_BYTES_MAX]; 2],
    name: LaneName::NONE,
}));

struct ProcessTexts {
    directory: [u8; DIRECTORY_BYTES_MAX],
    /// `LD_PRELOAD=...` and `ANNALS_NONDET_DIR=...` as this process was started.
    variables: [[u8; VARIABLE_BYTES_MAX]; 2],
    name: LaneName,
}

/// Written while there is one thread: at the beginning and right after a fork.
struct ProcessTextsCell(UnsafeCell<ProcessTexts>);
// SAFETY: see above; read only once STATE says ON.
unsafe impl Sync for ProcessTextsCell {}

fn texts() -> &'static ProcessTexts {
    // SAFETY: only `texts_mut` writes, while there is no other thread.
    unsafe { &*FIXED.0.get() }
}

/// The texts, for writing.
///
/// # Safety
/// Only while this process has one thread, and no reference to them is in use.
unsafe fn texts_mut() -> &'static mut ProcessTexts {
    // SAFETY: promised by the caller.
    unsafe { &mut *FIXED.0.get() }
}

/// Whether draws are noted. The first call in a process finds out.
pub(crate) fn is_on() -> bool {
    match STATE.load(Ordering::Acquire) {
        ON => true,
        UNKNOWN => begin(),
        _ => false,
    }
}

#[cold]
fn begin() -> bool {
    if STATE.compare_exchange(UNKNOWN, BEGINNING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return false;
    }
    // SAFETY: called by the library's constructor, or by a draw of another library's constructor: one thread.
    let on = lane::with(|lane| unsafe { set_up(lane) }).is_some_and(|done| done.is_some());
    STATE.store(if on { ON } else { OFF }, Ordering::Release);
    on
}

/// # Safety
/// As [`texts_mut`].
unsafe fn set_up(lane: &mut ThreadLane) -> Option<()> {
    // SAFETY: promised by the caller.
    let texts = unsafe { texts_mut() };
    let [preload, directory] = &mut texts.variables;
    keep_variable(preload, c"LD_PRELOAD")?;
    let length = keep_variable(directory, c"ANNALS_NONDET_DIR")?;
    let value = directory.get(format::DIRECTORY.len() + 1..length)?;
    texts
        .directory
        .get_mut(..value.len())
        .filter(|to| to.len() < DIRECTORY_BYTES_MAX)?
        .copy_from_slice(value);
    let named = LaneName::new(variable(c"ANNALS_NONDET_LANE")?);
    if named.is_none() {
        return None;
    }
    let stamp = sys::page_wiped_by_fork()?.cast::<AtomicU32>();
    STAMP.store(stamp, Ordering::Release);
    stamp_here();
    let mut key = 0;
    // SAFETY: these functions of ours match the types that the C library calls; the key has a place.
    unsafe {
        if sys::pthread_key_create(&raw mut key, Some(thread_ends)) == 0 {
            KEY.store(key, Ordering::Release);
        }
        sys::pthread_atfork(Some(before_fork), None, Some(after_fork));
    }
    claim(lane, named)
}

fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: a text that ends with a zero; nobody changes the environment before a program begins.
    unsafe {
        let value = sys::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}

/// Writes `NAME=VALUE` and a zero; returns the length without the zero.
fn keep_variable(to: &mut [u8; VARIABLE_BYTES_MAX], name: &CStr) -> Option<usize> {
    let (name, value) = (name.to_bytes(), variable(name)?);
    let length = name.len() + 1 + value.len();
    to.get_mut(..name.len())?.copy_from_slice(name);
    *to.get_mut(name.len())? = b'=';
    let rest = to.get_mut(name.len() + 1..length)?;
    rest.copy_from_slice(value);
    (length < VARIABLE_BYTES_MAX).then_some(length)
}

/// The variables of the library, without the lane's.
pub(crate) fn variables() -> [*const c_char; 2] {
    let [preload, directory] = &texts().variables;
    [preload.as_ptr().cast(), directory.as_ptr().cast()]
}

/// Writes the path `DIRECTORY FOLDER NAME` into this buffer.
pub(crate) fn path<'a>(to: &'a mut [u8; PATH_BYTES_MAX], folder: &[u8], name: &LaneName) -> Option<&'a CStr> {
    let directory = texts().directory.split(|byte| *byte == 0).next()?;
    let mut at = 0_usize;
    for part in [directory, folder, name.bytes()] {
        let end = at.wrapping_add(part.len());
        to.get_mut(at..end)?.copy_from_slice(part);
        at = end;
    }
    *to.get_mut(at)? = 0;
    (!name.is_none()).then(|| CStr::from_bytes_until_nul(to).ok())?
}

/// Makes this the first lane of its process, under this name or a numbered variant.
fn claim(lane: &mut ThreadLane, wanted: LaneName) -> Option<()> {
    for number in 0..CLAIMS_MAX {
        let name = if number == 0 { wanted } else { wanted.child(b'~', number) };
        let mut buffer = [0; PATH_BYTES_MAX];
        let path = path(&mut buffer, b"/out/", &name)?;
        let fd = sys::create(path);
        if fd == sys::EXISTS {
            continue;
        }
        lane.begin(name);
        // SAFETY: the claiming thread is its process's only one.
        unsafe { texts_mut() }.name = name;
        lane.open(fd, path);
        return (fd >= 0).then_some(());
    }
    None
}

fn stamp_here() {
    // SAFETY: null, or a page that stays mapped.
    if let Some(stamp) = unsafe { STAMP.load(Ordering::Acquire).as_ref() } {
        stamp.store(1, Ordering::Release);
    }
}

/// Whether this process was forked without calling the hooked `fork`.
pub(crate) fn was_forked_past_fork() -> bool {
    // SAFETY: as above.
    unsafe { STAMP.load(Ordering::Acquire).as_ref() }.is_some_and(|stamp| stamp.load(Ordering::Acquire) == 0)
}

/// Gives such a process a lane.
pub(crate) fn adopt(lane: &mut ThreadLane) {
    stamp_here();
    let _ = claim(lane, texts().name);
}

/// The lane's name of a thread that was started without `pthread_create`; given at its first draw.
pub(crate) fn unnamed_thread_lane() -> LaneName {
    texts().name.child(b'u', UNNAMED_THREADS.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
}

/// Registers this thread's maps to be unmapped at its end.
pub(crate) fn unmap_at_thread_end() {
    let key = KEY.load(Ordering::Acquire);
    if key != u32::MAX {
        // SAFETY: the key is ours; any value except null works.
        unsafe { sys::pthread_setspecific(key, (&raw const KEY).cast()) };
    }
}

unsafe extern "C" fn thread_ends(_: *mut c_void) {
    lane::with(ThreadLane::unmap);
}

unsafe extern "C" fn before_fork() {
    lane::with(|lane| lane.processes = lane.processes.wrapping_add(1));
}

unsafe extern "C" fn after_fork() {
    stamp_here();
    lane::with(|lane| claim(lane, lane.name.child(b'p', lane.processes)));
}

extern "C" fn library_begins() {
    is_on();
}

#[cfg(annals_preload)]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = library_begins;
#[cfg(not(annals_preload))]
const _: extern "C" fn() = library_begins;
