//! System calls without the C library: they enter no hook, leave `errno` unchanged and work before any setup.

use core::ffi::{CStr, c_char, c_int, c_void};

/// The result of a system call that this machine does not have.
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
const NO_SUCH_CALL: isize = -38;
pub(crate) const EXISTS: isize = -17;

const AT_FDCWD: usize = -100_isize as usize;
const O_WRONLY: usize = 1;
const O_RDWR: usize = 2;
const O_CREAT: usize = 0o100;
const O_EXCL: usize = 0o200;
const O_TRUNC: usize = 0o1000;
const O_APPEND: usize = 0o2000;
const O_CLOEXEC: usize = 0o2_000_000;
const MADV_WIPEONFORK: usize = 18;

#[cfg(target_arch = "aarch64")]
pub(crate) mod number {
    pub(crate) const OPENAT: usize = 56;
    pub(crate) const CLOSE: usize = 57;
    pub(crate) const READ: usize = 63;
    pub(crate) const WRITE: usize = 64;
    pub(crate) const PWRITE: usize = 68;
    pub(crate) const FSTAT: usize = 80;
    pub(crate) const UNLINKAT: usize = 35;
    pub(crate) const MMAP: usize = 222;
    pub(crate) const MUNMAP: usize = 215;
    pub(crate) const MADVISE: usize = 233;
    pub(crate) const CLOCK_GETTIME: usize = 113;
    pub(crate) const GETRANDOM: usize = 278;
    pub(crate) const GETPID: usize = 172;
    pub(crate) const READLINKAT: usize = 78;
    pub(crate) const UNAME: usize = 160;
    pub(crate) const GETSOCKOPT: usize = 209;
    pub(crate) const CONNECT: usize = 203;
    pub(crate) const SENDTO: usize = 206;
    pub(crate) const SENDMSG: usize = 211;
    pub(crate) const SENDMMSG: usize = 269;
}

/// For x86-64; on other machines nothing is called.
#[cfg(not(target_arch = "aarch64"))]
pub(crate) mod number {
    pub(crate) const OPENAT: usize = 257;
    pub(crate) const CLOSE: usize = 3;
    pub(crate) const READ: usize = 0;
    pub(crate) const WRITE: usize = 1;
    pub(crate) const PWRITE: usize = 18;
    pub(crate) const FSTAT: usize = 5;
    pub(crate) const UNLINKAT: usize = 263;
    pub(crate) const MMAP: usize = 9;
    pub(crate) const MUNMAP: usize = 11;
    pub(crate) const MADVISE: usize = 28;
    pub(crate) const CLOCK_GETTIME: usize = 228;
    pub(crate) const GETRANDOM: usize = 318;
    pub(crate) const GETPID: usize = 39;
    pub(crate) const READLINKAT: usize = 267;
    pub(crate) const UNAME: usize = 63;
    pub(crate) const GETSOCKOPT: usize = 55;
    pub(crate) const CONNECT: usize = 42;
    pub(crate) const SENDTO: usize = 44;
    pub(crate) const SENDMSG: usize = 46;
    pub(crate) const SENDMMSG: usize = 307;
}

/// Offsets of the mode and the device in `struct stat`; the size is at 48 on both.
const STAT_MODE: usize = if cfg!(target_arch = "aarch64") { 16 } else { 24 };
const STAT_DEVICE: usize = if cfg!(target_arch = "aarch64") { 32 } else { 40 };
const STAT_SIZE: usize = 48;

/// Makes a system call. Returns its result, or a negative error.
///
/// # Safety
/// The arguments must be valid for the call.
pub(crate) unsafe fn call(number: usize, a: [usize; 6]) -> isize {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    {
        let result;
        // SAFETY: the registers follow the system call interface; the caller answers for the arguments.
        unsafe {
            core::arch::asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a[0], in("rsi") a[1],
                in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _,
                options(nostack));
        }
        result
    }
    #[cfg(all(target_os = "linux", target_arch = "aarch64"))]
    {
        let result;
        // SAFETY: as above.
        unsafe {
            core::arch::asm!("svc 0", in("x8") number, inlateout("x0") a[0] as isize => result, in("x1") a[1],
                in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack));
        }
        result
    }
    #[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        let _ = (number, a);
        NO_SUCH_CALL
    }
}

/// Creates a file; [`EXISTS`] if it exists.
pub(crate) fn create(path: &CStr) -> isize {
    open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC)
}

/// Opens an existing file.
pub(crate) fn open_again(path: &CStr) -> isize {
    open(path, O_RDWR | O_CLOEXEC)
}

/// Opens a file and truncates it, or creates it.
pub(crate) fn replace(path: &CStr) -> isize {
    open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC)
}

/// Opens a file for appending, or creates it.
pub(crate) fn append(path: &CStr) -> isize {
    open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC)
}

/// Opens a file for reading.
pub(crate) fn open_to_read(path: &CStr) -> isize {
    open(path, O_CLOEXEC)
}

fn open(path: &CStr, flags: usize) -> isize {
    // SAFETY: the path ends with a zero.
    unsafe { call(number::OPENAT, [AT_FDCWD, path.as_ptr().addr(), flags, 0o600, 0, 0]) }
}

pub(crate) fn unlink(path: &CStr) {
    // SAFETY: as above.
    unsafe { call(number::UNLINKAT, [AT_FDCWD, path.as_ptr().addr(), 0, 0, 0, 0]) };
}

pub(crate) fn close(fd: isize) {
    // SAFETY: plain numbers; the file is ours.
    unsafe { call(number::CLOSE, [fd.cast_unsigned(), 0, 0, 0, 0, 0]) };
}

pub(crate) fn write(fd: isize, bytes: &[u8]) -> isize {
    // SAFETY: the bytes are readable.
    unsafe { call(number::WRITE, [fd.cast_unsigned(), bytes.as_ptr().addr(), bytes.len(), 0, 0, 0]) }
}

pub(crate) fn write_at(fd: isize, bytes: &[u8], at: usize) -> isize {
    // SAFETY: as above.
    unsafe { call(number::PWRITE, [fd.cast_unsigned(), bytes.as_ptr().addr(), bytes.len(), at, 0, 0]) }
}

/// Maps the beginning of a file: shared for writing, or private for reading.
pub(crate) fn map(fd: isize, bytes: usize, shared: bool) -> Option<*mut u8> {
    let (protection, flags) = if shared { (3, 1) } else { (1, 2) };
    // SAFETY: a mapping at an address chosen by the system replaces no other.
    checked(unsafe { call(number::MMAP, [0, bytes, protection, flags, fd.cast_unsigned(), 0]) })
}

/// Maps the beginning of a file for reading; later changes of the file are visible.
pub(crate) fn map_shared(fd: isize, bytes: usize) -> Option<*mut u8> {
    // SAFETY: as above.
    checked(unsafe { call(number::MMAP, [0, bytes, 1, 1, fd.cast_unsigned(), 0]) })
}

/// A page that is zero in every forked process.
pub(crate) fn page_wiped_by_fork() -> Option<*mut u8> {
    // SAFETY: as above; 0x22 is private and anonymous.
    let page = checked(unsafe { call(number::MMAP, [0, 4096, 3, 0x22, usize::MAX, 0]) })?;
    // SAFETY: concerns only the page just mapped.
    let wiped = unsafe { call(number::MADVISE, [page.addr(), 4096, MADV_WIPEONFORK, 0, 0, 0]) };
    (wiped == 0).then_some(page)
}

fn checked(address: isize) -> Option<*mut u8> {
    (!(-4095..=0).contains(&address)).then(|| core::ptr::with_exposed_provenance_mut(address.cast_unsigned()))
}

pub(crate) fn unmap(at: *const u8, bytes: usize) {
    // SAFETY: the mapping is ours, and no pointer into it is left.
    unsafe { call(number::MUNMAP, [at.addr(), bytes, 0, 0, 0, 0]) };
}

#[repr(C, align(8))]
struct StatBuffer([u8; 256]);

fn stat(fd: isize) -> Option<StatBuffer> {
    let mut stat = StatBuffer([0; 256]);
    // SAFETY: the buffer is larger than the structure on every machine.
    let done = unsafe { call(number::FSTAT, [fd.cast_unsigned(), (&raw mut stat).addr(), 0, 0, 0, 0]) };
    (done == 0).then_some(stat)
}

impl StatBuffer {
    fn u64_at(&self, at: usize) -> u64 {
        self.0.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }
}

pub(crate) fn size(fd: isize) -> usize {
    stat(fd).map_or(0, |stat| stat.u64_at(STAT_SIZE) as usize)
}

/// Whether the file is `/dev/random` or `/dev/urandom`: character device 1:8 or 1:9.
pub(crate) fn is_random_device(fd: c_int) -> bool {
    stat(fd as isize).is_some_and(|stat| {
        stat.u64_at(STAT_MODE) as u32 & 0o170_000 == 0o020_000
            && matches!(stat.u64_at(STAT_DEVICE), 0x108 | 0x109)
    })
}

pub(crate) fn process_id() -> isize {
    // SAFETY: it takes no arguments.
    unsafe { call(number::GETPID, [0; 6]) }
}

/// Reads a link's target, and returns its length; 0 if it cannot be read.
pub(crate) fn read_link(path: &CStr, to: &mut [u8]) -> usize {
    let at = [AT_FDCWD, path.as_ptr().addr(), to.as_mut_ptr().addr(), to.len(), 0, 0];
    // SAFETY: the path ends with a zero; the buffer has this length.
    usize::try_from(unsafe { call(number::READLINKAT, at) }).unwrap_or(0)
}

/// The type of a socket; -1 if the file is not one.
pub(crate) fn socket_type(fd: c_int) -> c_int {
    const SOL_SOCKET: usize = 1;
    const SO_TYPE: usize = 3;
    let (mut kind, mut length) = (-1 as c_int, size_of::<c_int>() as u32);
    let at = [fd as usize, SOL_SOCKET, SO_TYPE, (&raw mut kind).addr(), (&raw mut length).addr(), 0];
    // SAFETY: both buffers are writable.
    if unsafe { call(number::GETSOCKOPT, at) } == 0 { kind } else { -1 }
}

/// Length of a field of `struct utsname`, in bytes; the machine's name is the second field.
const NAME_FIELD_BYTES: usize = 65;

/// Whether this is the name of this machine.
pub(crate) fn is_own_name(name: &[u8]) -> bool {
    let mut names = [0_u8; 6 * NAME_FIELD_BYTES];
    // SAFETY: the buffer has the structure's length.
    let done = unsafe { call(number::UNAME, [(&raw mut names).addr(), 0, 0, 0, 0, 0]) };
    let own = names.get(NAME_FIELD_BYTES..).and_then(|rest| rest.split(|byte| *byte == 0).next());
    done == 0 && own.is_some_and(|own| own.eq_ignore_ascii_case(name))
}

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn __errno_location() -> *mut c_int;
    fn __h_errno_location() -> *mut c_int;
    pub(crate) fn getenv(name: *const c_char) -> *const c_char;
    pub(crate) fn malloc(bytes: usize) -> *mut c_void;
    pub(crate) fn free(block: *mut c_void);
    pub(crate) fn pthread_key_create(key: *mut u32, end: Option<unsafe extern "C" fn(*mut c_void)>) -> c_int;
    pub(crate) fn pthread_setspecific(key: u32, value: *const c_void) -> c_int;
    pub(crate) fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> c_int;
    pub(crate) static environ: CStringList;
}

/// A list as `execve` takes it: texts that end with a zero, then a null.
pub(crate) type CStringList = *const *const c_char;

/// A text of the C library; empty if the pointer is null.
///
/// # Safety
/// The pointer must be null or refer to a text that ends with a zero.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> &'a [u8] {
    // SAFETY: promised by the caller.
    if text.is_null() { &[] } else { unsafe { CStr::from_ptr(text) }.to_bytes() }
}

/// The function that the program would call without this library; null if there is none.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    // SAFETY: -1 is RTLD_NEXT, the name ends with a zero.
    unsafe { dlsym(core::ptr::without_provenance_mut(usize::MAX), name.as_ptr()) }
}

/// Converts a system call's result to that of the C library.
pub(crate) fn with_errno(result: isize) -> isize {
    if !(-4095..0).contains(&result) {
        return result;
    }
    fail((-result) as c_int)
}

/// Sets `errno`, and returns the C library's error result.
pub(crate) fn fail(error: c_int) -> isize {
    set_errno(error);
    -1
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the pointer refers to this thread's own variable.
    unsafe { *__errno_location() }
}

pub(crate) fn set_errno(error: c_int) {
    // SAFETY: as above.
    unsafe { *__errno_location() = error };
}

/// Sets `h_errno`.
pub(crate) fn set_host_error(error: c_int) {
    // SAFETY: as above.
    unsafe { *__h_errno_location() = error };
}
