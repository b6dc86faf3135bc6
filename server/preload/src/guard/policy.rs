//! The policy that the process which runs the program sets: which hosts are allowed, and what happens to
//! other traffic.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::fmt::Write;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::notes::{NoteLine, outcome};
use crate::sys::{self, text};
use crate::traffic::{self, GuardMode};

const DIRECTORY_BYTES_MAX: usize = 160;
pub(super) const PATH_BYTES_MAX: usize = DIRECTORY_BYTES_MAX + 16;
const PROGRAM_BYTES_MAX: usize = 64;
pub(super) const VARIABLE_BYTES_MAX: usize = 1024;
/// Maximum number of addresses of allowed names that one process remembers.
const RESOLVED_MAX: usize = 64;
const ECONNREFUSED: c_int = 111;
const ENETUNREACH: c_int = 101;
const SOCK_DGRAM: c_int = 2;

/// The mapped policy; null where this process is not watched.
static POLICY: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static DIRECTORY: StaticText<DIRECTORY_BYTES_MAX> = StaticText(UnsafeCell::new([0; DIRECTORY_BYTES_MAX]));
/// The value of LD_PRELOAD at the start of this process: this library and any others.
pub(super) static PRELOADED: StaticText<VARIABLE_BYTES_MAX> =
    StaticText(UnsafeCell::new([0; VARIABLE_BYTES_MAX]));
/// The file name of this process's program.
static PROGRAM: StaticText<PROGRAM_BYTES_MAX> = StaticText(UnsafeCell::new([0; PROGRAM_BYTES_MAX]));
static RESOLVED: [ResolvedAddress; RESOLVED_MAX] = [const { ResolvedAddress::empty() }; RESOLVED_MAX];

/// A text that ends with a zero; written by the constructor, before a second thread starts.
pub(super) struct StaticText<const N: usize>(UnsafeCell<[u8; N]>);
// SAFETY: written once, before POLICY is set; read only after that.
unsafe impl<const N: usize> Sync for StaticText<N> {}

impl<const N: usize> StaticText<N> {
    pub(super) fn get(&self) -> &[u8] {
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
pub(super) struct Endpoint {
    pub(super) address: IpAddr,
    port: u16,
}

/// Maps the policy if the environment names a directory.
pub(super) fn set_up() -> Option<()> {
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

pub(super) fn directory() -> &'static [u8] {
    DIRECTORY.get()
}

pub(super) fn program() -> &'static [u8] {
    PROGRAM.get()
}

/// Writes the path `DIRECTORY/NAME` into this buffer.
pub(super) fn path<'a>(to: &'a mut [u8; PATH_BYTES_MAX], name: &str) -> Option<&'a CStr> {
    let mut at = 0_usize;
    for part in [directory(), b"/", name.as_bytes(), b"\0"] {
        let end = at.wrapping_add(part.len());
        to.get_mut(at..end)?.copy_from_slice(part);
        at = end;
    }
    CStr::from_bytes_until_nul(to).ok()
}

/// The current policy; `None` if this process is not watched.
pub(super) fn policy() -> Option<(GuardMode, u16, &'static [u8])> {
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

pub(super) fn parsed(text: &[u8]) -> Option<u16> {
    text.iter().try_fold(0_u16, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(u16::from(digit))
    })
}

/// The endpoint of a socket address; `None` for other address families.
pub(super) unsafe fn endpoint(address: *const c_void, length: usize) -> Option<Endpoint> {
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
pub(super) fn remember(address: IpAddr) {
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
pub(super) fn judge(fd: c_int, to: Endpoint) -> Option<c_int> {
    let (mode, proxy, allowed) = policy()?;
    let local = is_local(to.address);
    if local && to.port == proxy {
        return None;
    }
    let is_datagram = sys::socket_type(fd) == SOCK_DGRAM;
    let mut address = NoteLine::empty();
    let _ = write!(address, "{}", to.address);
    let passes = match mode {
        GuardMode::Note => true,
        GuardMode::Loopback if local => true,
        GuardMode::Refuse | GuardMode::Loopback => {
            (local && allows(allowed, b"localhost", Some(to.port)))
                || allows(allowed, address.bytes(), Some(to.port))
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

/// Whether a name may be looked up. `None`: nothing is noted.
pub(super) fn look_up(name: &[u8], port: Option<u16>) -> Option<bool> {
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
