//! The functions that connect, send datagrams and look up names.
#![expect(clippy::missing_safety_doc, reason = "that of the C library's function of the name")]

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ptr;
use core::slice;

use super::notes::note_look_up;
use super::policy::{endpoint, judge, look_up, parsed, remember};
use crate::c_function::real;
use crate::sys::{self, next as find, number, text};

/// Maximum number of addresses noted for a look-up.
const NOTED_ADDRESSES_MAX: usize = 8;
const EAGAIN: c_int = 11;
const EAI_AGAIN: c_int = -3;
const TRY_AGAIN: c_int = 2;

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
