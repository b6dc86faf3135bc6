//! Replacements for the C library's network functions: they note each connection and each name look-up that
//! does not go to the proxy, and refuse it if the policy says so.
//!
//! This module and [`crate::traffic`] are also built as a library of their own, without Rust's standard
//! library and without dependencies, so that it loads under every C library. It allocates nothing, keeps no
//! file open and never panics. If a note cannot be written, the program continues normally.
#![expect(clippy::missing_safety_doc, reason = "that of the C library's function of the name")]
#![expect(missing_docs, reason = "documented by the C library")]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::fmt::Write;
use core::mem::transmute;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::sys::{self, number};
use crate::traffic::{self, GuardMode};

const DIRECTORY_BYTES_MAX: usize = 160;
const PATH_BYTES_MAX: usize = DIRECTORY_BYTES_MAX + 16;
const PROGRAM_BYTES_MAX: usize = 64;
const VARIABLE_BYTES_MAX: usize = 1024;
/// Maximum number of environment variables; a larger environment is passed on unchanged.
const VARIABLES_MAX: usize = 2048;
/// Maximum number of addresses of allowed names that one process remembers.
const RESOLVED_MAX: usize = 64;
/// Maximum number of addresses noted for a look-up.
const NOTED_ADDRESSES_MAX: usize = 8;

const ECONNREFUSED: c_int = 111;
const ENETUNREACH: c_int = 101;
const EAGAIN: c_int = 11;
const EAI_AGAIN: c_int = -3;
const TRY_AGAIN: c_int = 2;
const SOCK_DGRAM: c_int = 2;

/// The mapped policy; null where this process is not watched.
static POLICY: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static DIRECTORY: StaticText<DIRECTORY_BYTES_MAX> = StaticText(UnsafeCell::new([0; DIRECTORY_BYTES_MAX]));
/// The value of LD_PRELOAD at the start of this process: this library and any others.
static PRELOADED: StaticText<VARIABLE_BYTES_MAX> = StaticText(UnsafeCell::new([0; VARIABLE_BYTES_MAX]));
/// The file name of this process's program.
static PROGRAM: StaticText<PROGRAM_BYTES_MAX> = StaticText(UnsafeCell::new([0; PROGRAM_BYTES_MAX]));
static RESOLVED: [ResolvedAddress; RESOLVED_MAX] = [const { ResolvedAddress::empty() }; RESOLVED_MAX];

/// A text that ends with a zero; written by the constructor, before a second thread starts.
struct StaticText<const N: usize>(UnsafeCell<[u8; N]>);
// SAFETY: written once, before POLICY is set; read only after that.
unsafe impl<const N: usize> Sync for StaticText<N> {}

impl<const N: usize> StaticText<N> {
    fn get(&self) -> &[u8] {
        // SAFETY: nobody writes once POLICY is set, and nobody reads before.
        let bytes = unsafe { &*self.0.get() };
        bytes.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// An address of an allowed name: its IPv6 form in four words, and whether it is set.
struct ResolvedAddress {
    words: [AtomicU32; 4],
    is_set: AtomicU32,
}

impl ResolvedAddress {
    const fn empty() -> Self {
        Self { words: [const { AtomicU32::new(0) }; 4], is_set: AtomicU32::new(0) }
    }
}

#[derive(Clone, Copy)]
struct Endpoint {
    address: IpAddr,
    port: u16,
}

/// A line of notes in a fixed buffer. Bytes that do not fit are dropped.
struct NoteLine {
    bytes: [u8; traffic::NOTE_BYTES_MAX],
    length: usize,
}

impl NoteLine {
    fn new(event: &str) -> Self {
        let mut line = Self { bytes: [0; traffic::NOTE_BYTES_MAX], length: 0 };
        line.push(event.as_bytes());
        line.field(program());
        let _ = write!(line, " [{}]", sys::process_id());
        line
    }

    /// Reserves one byte for the end of the line.
    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if let Some(to) =
                self.bytes.get_mut(self.length).filter(|_| self.length + 1 < traffic::NOTE_BYTES_MAX)
            {
                *to = *byte;
                self.length = self.length.wrapping_add(1);
            }
        }
    }

    /// Adds a field from the program: none of its bytes can end the line or the field.
    fn field(&mut self, bytes: &[u8]) {
        self.push(b"\t");
        for byte in bytes {
            self.push(&[if byte.is_ascii_control() { b'?' } else { *byte }]);
        }
    }

    fn write(mut self) {
        let Some(to) = self.bytes.get_mut(self.length) else { return };
        *to = b'\n';
        let Some(bytes) = self.bytes.get(..=self.length) else { return };
        let mut buffer = [0; PATH_BYTES_MAX];
        let Some(path) = path(&mut buffer, traffic::NOTES) else { return };
        let fd = sys::append(path);
        if fd >= 0 {
            if sys::size(fd) < traffic::NOTES_BYTES_MAX {
                sys::write(fd, bytes);
            }
            sys::close(fd);
        }
    }
}

impl Write for NoteLine {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

fn directory() -> &'static [u8] {
    DIRECTORY.get()
}

fn program() -> &'static [u8] {
    PROGRAM.get()
}

/// Writes the path `DIRECTORY/NAME` into this buffer.
fn path<'a>(to: &'a mut [u8; PATH_BYTES_MAX], name: &str) -> Option<&'a CStr> {
    let mut at = 0_usize;
    for part in [directory(), b"/", name.as_bytes(), b"\0"] {
        let end = at.wrapping_add(part.len());
        to.get_mut(at..end)?.copy_from_slice(part);
        at = end;
    }
    CStr::from_bytes_until_nul(to).ok()
}

/// The current policy; `None` if this process is not watched.
fn policy() -> Option<(GuardMode, u16, &'static [u8])> {
    let mapped = POLICY.load(Ordering::Acquire);
    if mapped.is_null() {
        return None;
    }
    // SAFETY: mapped for reading with this length, and never unmapped. Only the first byte is ever changed.
    let (mode, page) =
        unsafe { (mapped.read_volatile(), slice::from_raw_parts(mapped.add(1), traffic::POLICY_BYTES - 1)) };
    let port = page.get(traffic::PORT_AT - 1..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))?;
    let allowed = page.get(traffic::ALLOWED_AT - 1..)?;
    let end = allowed.iter().position(|byte| *byte == 0).unwrap_or(allowed.len());
    Some((GuardMode::from_byte(mode)?, port, allowed.get(..end)?))
}

/// Whether the allowed hosts contain this host and port; `None` stands for any port.
fn allows(allowed: &[u8], host: &[u8], port: Option<u16>) -> bool {
    allowed.split(|byte| *byte == b'\n').any(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        let named = words.next().unwrap_or_default();
        let of_port = words.next().and_then(parsed);
        let same_port = of_port.is_none() || port.is_none() || of_port == port;
        !named.is_empty() && same_port && named.eq_ignore_ascii_case(host)
    })
}

fn parsed(text: &[u8]) -> Option<u16> {
    text.iter().try_fold(0_u16, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(u16::from(digit))
    })
}

/// The endpoint of a socket address; `None` for other address families.
unsafe fn endpoint(address: *const c_void, length: usize) -> Option<Endpoint> {
    if address.is_null() || length < 8 {
        return None;
    }
    // SAFETY: the caller provides this many bytes.
    let bytes = unsafe { slice::from_raw_parts(address.cast::<u8>(), length.min(28)) };
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    let address = match family {
        2 => IpAddr::V4(Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?)),
        10 => IpAddr::V6(Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?)).to_canonical(),
        _ => return None,
    };
    Some(Endpoint { address, port })
}

/// Whether an address is local; an unspecified address connects to this machine.
fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || address.is_unspecified()
}

fn words(address: IpAddr) -> [u32; 4] {
    let bytes = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.octets().chunks_exact(4)) {
        *word = bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    }
    words
}

/// Remembers an address of an allowed name.
fn remember(address: IpAddr) {
    if is_resolved(address) {
        return;
    }
    for entry in &RESOLVED {
        if entry.is_set.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            for (to, word) in entry.words.iter().zip(words(address)) {
                to.store(word, Ordering::Release);
            }
            entry.is_set.store(2, Ordering::Release);
            return;
        }
    }
}

fn is_resolved(address: IpAddr) -> bool {
    let words = words(address);
    RESOLVED.iter().any(|entry| {
        entry.is_set.load(Ordering::Acquire) == 2
            && entry.words.iter().zip(words).all(|(of, word)| of.load(Ordering::Acquire) == word)
    })
}

/// Decides about traffic to an address: `Some` is the error that the program gets.
fn judge(fd: c_int, to: Endpoint) -> Option<c_int> {
    let (mode, proxy, allowed) = policy()?;
    let local = is_local(to.address);
    if local && to.port == proxy {
        return None;
    }
    let is_datagram = sys::socket_type(fd) == SOCK_DGRAM;
    let mut text = NoteLine { bytes: [0; traffic::NOTE_BYTES_MAX], length: 0 };
    let _ = write!(text, "{}", to.address);
    let name = text.bytes.get(..text.length).unwrap_or_default();
    let passes = match mode {
        GuardMode::Note => true,
        GuardMode::Loopback if local => true,
        GuardMode::Refuse | GuardMode::Loopback => {
            (local && allows(allowed, b"localhost", Some(to.port)))
                || allows(allowed, name, Some(to.port))
                || is_resolved(to.address)
        }
    };
    if !is_datagram || traffic::is_datagram_service(to.port) {
        let mut line = NoteLine::new("connect");
        line.field(if is_datagram { b"udp" } else { b"tcp" });
        let _ = write!(line, "\t{}\t{}\t{}", to.address, to.port, outcome(passes));
        line.write();
    }
    match (passes, is_datagram) {
        (true, _) => None,
        (false, true) => Some(ENETUNREACH),
        (false, false) => Some(ECONNREFUSED),
    }
}

const fn outcome(passes: bool) -> &'static str {
    if passes { "passed" } else { "refused" }
}

/// Whether a name may be looked up. `None`: nothing is noted.
fn look_up(name: &[u8], port: Option<u16>) -> Option<bool> {
    let (mode, _, allowed) = policy()?;
    let numeric = core::str::from_utf8(name).is_ok_and(|name| {
        let name = name.split('%').next().unwrap_or_default();
        name.parse::<IpAddr>().is_ok() || name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    });
    if numeric || name.is_empty() || name.eq_ignore_ascii_case(b"localhost") || sys::is_own_name(name) {
        return None;
    }
    Some(mode == GuardMode::Note || allows(allowed, name, port))
}

fn note_look_up(name: &[u8], service: &[u8], passes: bool, addresses: &[IpAddr]) {
    let mut line = NoteLine::new("lookup");
    line.field(name);
    line.field(service);
    let _ = write!(line, "\t{}\t", outcome(passes));
    for (index, address) in addresses.iter().enumerate() {
        let _ = write!(line, "{}{address}", if index == 0 { "" } else { "," });
    }
    line.write();
}

unsafe fn text<'a>(text: *const c_char) -> &'a [u8] {
    // SAFETY: null or a text that ends with a zero, as the caller promises.
    if text.is_null() { &[] } else { unsafe { CStr::from_ptr(text) }.to_bytes() }
}

/// The C library's own function of a name, looked up once.
struct RealNetworkFunction {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl RealNetworkFunction {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Null if there is none.
    fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Acquire);
        if !found.is_null() {
            return found;
        }
        let found = sys::next(self.name);
        self.found.store(found, Ordering::Release);
        found
    }
}

/// The C library's own function, cast to this type, if it exists. Unsafe like any such cast.
macro_rules! real {
    ($name:literal, fn($($argument:ty),*) -> $result:ty) => {{
        static REAL: RealNetworkFunction = RealNetworkFunction::new($name);
        // The C library's function of this name has this type, or the pointer is null.
        transmute::<*mut c_void, Option<unsafe extern "C" fn($($argument),*) -> $result>>(REAL.get())
    }};
}

#[cfg_attr(annals_network, unsafe(no_mangle))]
pub unsafe extern "C" fn connect(fd: c_int, address: *const c_void, length: c_uint) -> c_int {
    // SAFETY: promised by the caller.
    unsafe {
        if let Some(to) = endpoint(address, length as usize)
            && let Some(error) = judge(fd, to)
        {
            return sys::fail(error) as c_int;
        }
        match real!(c"connect", fn(c_int, *const c_void, c_uint) -> c_int) {
            Some(real) => real(fd, address, length),
            None => {
                let done =
                    sys::call(number::CONNECT, [fd as usize, address.addr(), length as usize, 0, 0, 0]);
                sys::with_errno(done) as c_int
            }
        }
    }
}

#[cfg_attr(annals_network, unsafe(no_mangle))]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    size: usize,
    flags: c_int,
    address: *const c_void,
    length: c_uint,
) -> isize {
    // SAFETY: promised by the caller.
    unsafe {
        if let Some(to) = endpoint(address, length as usize)
            && let Some(error) = judge(fd, to)
        {
            return sys::fail(error);
        }
        match real!(c"sendto", fn(c_int, *const c_void, usize, c_int, *const c_void, c_uint) -> isize) {
            Some(real) => real(fd, bytes, size, flags, address, length),
            None => sys::with_errno(sys::call(
                number::SENDTO,
                [fd as usize, bytes.addr(), size, flags as usize, address.addr(), length as usize],
            )),
        }
    }
}

/// The beginning of `struct msghdr`.
#[repr(C)]
struct MessageHead {
    name: *const c_void,
    name_length: c_uint,
}

unsafe fn judge_message(fd: c_int, message: *const c_void) -> Option<c_int> {
    // SAFETY: null or a message, as the caller promises.
    unsafe {
        let head = message.cast::<MessageHead>().as_ref()?;
        endpoint(head.name, head.name_length as usize).and_then(|to| judge(fd, to))
    }
}

#[cfg_attr(annals_network, unsafe(no_mangle))]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const c_void, flags: c_int) -> isize {
    // SAFETY: promised by the caller.
    unsafe {
        if let Some(error) = judge_message(fd, message) {
            return sys::fail(error);
        }
        match real!(c"sendmsg", fn(c_int, *const c_void, c_int) -> isize) {
            Some(real) => real(fd, message, flags),
            None => sys::with_errno(sys::call(
                number::SENDMSG,
                [fd as usize, message.addr(), flags as usize, 0, 0, 0],
            )),
        }
    }
}

#[cfg_attr(annals_network, unsafe(no_mangle))]
pub unsafe extern "C" fn sendmmsg(fd: c_int, messages: *mut c_void, count: c_uint, flags: c_int) -> c_int {
    // SAFETY: promised by the caller; the first message is at the beginning.
    unsafe {
        if count > 0
            && let Some(error) = judge_message(fd, messages)
        {
            return sys::fail(error) as c_int;
        }
        match real!(c"sendmmsg", fn(c_int, *mut c_void, c_uint, c_int) -> c_int) {
            Some(real) => real(fd, messages, count, flags),
            None => sys::with_errno(sys::call(
                number::SENDMMSG,
                [fd as usize, messages.addr(), count as usize, flags as usize, 0, 0],
            )) as c_int,
        }
    }
}

/// `struct addrinfo`.
#[repr(C)]
struct AddressInfo {
    numbers: [c_int; 4],
    length: c_uint,
    address: *const c_void,
    canonical: *const c_char,
    next: *const AddressInfo,
}

#[cfg_attr(annals_network, unsafe(no_mangle))]
pub unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const c_void,
    to: *mut *const c_void,
) -> c_int {
    // SAFETY: promised by the caller.
    unsafe {
        let (name, service_text) = (text(node), text(service));
        let verdict = look_up(name, parsed(service_text).filter(|port| *port > 0));
        if verdict == Some(false) {
            note_look_up(name, service_text, false, &[]);
            return EAI_AGAIN;
        }
        let real = real!(
            c"getaddrinfo",
            fn(*const c_char, *const c_char, *const c_void, *mut *const c_void) -> c_int
        );
        let Some(real) = real else { return EAI_AGAIN };
        let done = real(node, service, hints, to);
        if verdict.is_none() {
            return done;
        }
        let mut found = [IpAddr::V4(Ipv4Addr::UNSPECIFIED); NOTED_ADDRESSES_MAX];
        let mut count = 0_usize;
        let mut next = if done == 0 { (*to).cast::<AddressInfo>() } else { ptr::null() };
        while let Some(info) = next.as_ref() {
            if let Some(at) = endpoint(info.address, info.length as usize) {
                remember(at.address);
                let known = found.get(..count).unwrap_or_default().contains(&at.address);
                if let Some(to) = found.get_mut(count).filter(|_| !known) {
                    *to = at.address;
                    count = count.wrapping_add(1);
                }
            }
            next = info.next;
        }
        let errno = sys::errno();
        note_look_up(name, service_text, true, found.get(..count).unwrap_or_default());
        sys::set_errno(errno);
        done
    }
}

/// `struct hostent`.
#[repr(C)]
struct HostEntry {
    name: *const c_char,
    aliases: *const *const c_char,
    family: c_int,
    length: c_int,
    addresses: *const *const c_void,
}

/// Notes the result of a look-up by one of the older functions.
unsafe fn note_host_entry(name: &[u8], entry: *const HostEntry) {
    let mut noted = [IpAddr::V4(Ipv4Addr::UNSPECIFIED); NOTED_ADDRESSES_MAX];
    let mut count = 0_usize;
    // SAFETY: null or an entry of the C library: its list ends with a null, each address has its length.
    unsafe {
        if let Some(entry) = entry.as_ref() {
            let mut next = entry.addresses;
            while !next.is_null() && !(*next).is_null() && count < NOTED_ADDRESSES_MAX {
                let bytes = slice::from_raw_parts((*next).cast::<u8>(), entry.length.clamp(0, 16) as usize);
                let address = match (bytes.first_chunk::<4>(), bytes.first_chunk::<16>()) {
                    (_, Some(bytes)) => IpAddr::V6(Ipv6Addr::from(*bytes)),
                    (Some(bytes), _) => IpAddr::V4(Ipv4Addr::from(*bytes)),
                    _ => break,
                };
                remember(address);
                if let Some(to) = noted.get_mut(count) {
                    *to = address;
                }
                count = count.wrapping_add(1);
                next = next.add(1);
            }
        }
    }
    let errno = sys::errno();
    note_look_up(name, b"", true, noted.get(..count).unwrap_or_default());
    sys::set_errno(errno);
}

unsafe fn refuse_entry(name: &[u8]) -> *const c_void {
    note_look_up(name, b"", false, &[]);
    sys::set_host_error(TRY_AGAIN);
    ptr::null()
}

#[cfg_attr(annals_network, unsafe(no_mangle))]
pub unsafe extern "C" fn gethostbyname(name: *const c_char) -> *const c_void {
    // SAFETY: promised by the caller.
    unsafe {
        let verdict = look_up(text(name), None);
        if verdict == Some(false) {
            return refuse_entry(text(name));
        }
        let Some(real) = real!(c"gethostbyname", fn(*const c_char) -> *const c_void) else {
            return ptr::null();
        };
        let done = real(name);
        if verdict.is_some() {
            note_host_entry(text(name), done.cast());
        }
        done
    }
}

#[cfg_attr(annals_network, unsafe(no_mangle))]
pub unsafe extern "C" fn gethostbyname2(name: *const c_char, family: c_int) -> *const c_void {
    // SAFETY: promised by the caller.
    unsafe {
        let verdict = look_up(text(name), None);
        if verdict == Some(false) {
            return refuse_entry(text(name));
        }
        let Some(real) = real!(c"gethostbyname2", fn(*const c_char, c_int) -> *const c_void) else {
            return ptr::null();
        };
        let done = real(name, family);
        if verdict.is_some() {
            note_host_entry(text(name), done.cast());
        }
        done
    }
}

#[cfg_attr(annals_network, unsafe(no_mangle))]
pub unsafe extern "C" fn gethostbyname_r(
    name: *const c_char,
    entry: *mut c_void,
    buffer: *mut c_char,
    size: usize,
    to: *mut *const c_void,
    error: *mut c_int,
) -> c_int {
    // SAFETY: promised by the caller.
    unsafe {
        let verdict = look_up(text(name), None);
        if verdict == Some(false) {
            note_look_up(text(name), b"", false, &[]);
            if let Some(to) = to.as_mut() {
                *to = ptr::null();
            }
            if let Some(error) = error.as_mut() {
                *error = TRY_AGAIN;
            }
            return EAGAIN;
        }
        let real = real!(
            c"gethostbyname_r",
            fn(*const c_char, *mut c_void, *mut c_char, usize, *mut *const c_void, *mut c_int) -> c_int
        );
        let Some(real) = real else { return EAGAIN };
        let done = real(name, entry, buffer, size, to, error);
        if verdict.is_some() && done == 0 {
            note_host_entry(text(name), to.as_ref().map_or(ptr::null(), |to| to.cast()));
        }
        done
    }
}

type CStringArray = *const *const c_char;

/// Calls `start` with an environment that keeps the library loaded, and notes the program.
///
/// # Safety
/// `program` is null or ends with a zero; `environment` is null or a list as `execve` takes it.
unsafe fn with_library_environment<R>(
    program: *const c_char,
    environment: CStringArray,
    start: impl FnOnce(CStringArray) -> R,
) -> R {
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
    environment: CStringArray,
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

#[cfg_attr(annals_network, unsafe(no_mangle))]
pub unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: CStringArray,
    environment: CStringArray,
) -> c_int {
    // SAFETY: promised by the caller.
    unsafe {
        let real = real!(c"execve", fn(*const c_char, CStringArray, CStringArray) -> c_int);
        with_library_environment(path, environment, |list| {
            real.map_or(-1, |real| real(path, arguments, list))
        })
    }
}

#[cfg_attr(annals_network, unsafe(no_mangle))]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: CStringArray) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { execve(path, arguments, sys::environ) }
}

#[cfg_attr(annals_network, unsafe(no_mangle))]
pub unsafe extern "C" fn execvpe(
    file: *const c_char,
    arguments: CStringArray,
    environment: CStringArray,
) -> c_int {
    // SAFETY: promised by the caller.
    unsafe {
        let real = real!(c"execvpe", fn(*const c_char, CStringArray, CStringArray) -> c_int);
        with_library_environment(file, environment, |list| {
            real.map_or(-1, |real| real(file, arguments, list))
        })
    }
}

#[cfg_attr(annals_network, unsafe(no_mangle))]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: CStringArray) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { execvpe(file, arguments, sys::environ) }
}

/// Defines both forms of `posix_spawn`.
macro_rules! spawns {
    ($($name:ident $text:literal;)*) => {$(
        #[cfg_attr(annals_network, unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            process: *mut c_int,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            arguments: CStringArray,
            environment: CStringArray,
        ) -> c_int {
            // SAFETY: promised by the caller. ENOSYS is 38.
            unsafe {
                let real =
                    real!($text, fn(*mut c_int, *const c_char, *const c_void, *const c_void, CStringArray, CStringArray) -> c_int);
                with_library_environment(path, environment, |list| {
                    real.map_or(38, |real| real(process, path, actions, attributes, arguments, list))
                })
            }
        }
    )*};
}

spawns! {
    posix_spawn c"posix_spawn";
    posix_spawnp c"posix_spawnp";
}

/// Maps the policy if the environment names a directory.
fn set_up() -> Option<()> {
    // SAFETY: a text that ends with a zero; nobody changes the environment before a program begins.
    let value = unsafe { text(sys::getenv(c"ANNALS_NETWORK_DIR".as_ptr())) };
    if value.is_empty() || value.len() >= DIRECTORY_BYTES_MAX {
        return None;
    }
    // SAFETY: as above.
    let preloaded = unsafe { text(sys::getenv(c"LD_PRELOAD".as_ptr())) };
    let preloaded = if preloaded.len() < VARIABLE_BYTES_MAX { preloaded } else { &[] };
    let mut link = [0; 4096];
    let length = sys::read_link(c"/proc/self/exe", &mut link);
    let own =
        link.get(..length).and_then(|path| path.rsplit(|byte| *byte == b'/').next()).unwrap_or_default();
    let own = own.get(..own.len().min(PROGRAM_BYTES_MAX - 1)).unwrap_or_default();
    // SAFETY: this is the library's constructor: one thread, and POLICY is still null.
    unsafe {
        (*DIRECTORY.0.get()).get_mut(..value.len())?.copy_from_slice(value);
        (*PROGRAM.0.get()).get_mut(..own.len())?.copy_from_slice(own);
        (*PRELOADED.0.get()).get_mut(..preloaded.len())?.copy_from_slice(preloaded);
    }
    let mut buffer = [0; PATH_BYTES_MAX];
    let fd = sys::open_to_read(path(&mut buffer, traffic::POLICY)?);
    if fd < 0 {
        return None;
    }
    let mapped = if sys::size(fd) >= traffic::POLICY_BYTES {
        sys::map_shared(fd, traffic::POLICY_BYTES)
    } else {
        None
    };
    sys::close(fd);
    POLICY.store(mapped?, Ordering::Release);
    Some(())
}

extern "C" fn library_begins() {
    let _ = set_up();
}

#[cfg(annals_network)]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = library_begins;
#[cfg(not(annals_network))]
const _: extern "C" fn() = library_begins;
