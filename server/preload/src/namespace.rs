//! A user and network namespace for one program, entered between `fork` and `exec`, and the kernel's reports
//! of connection attempts in it.
//!
//! [`NamespaceEntry::enter`] runs in the forked child: it only makes system calls and allocates nothing. The
//! new namespace contains only a loopback. The child binds the proxy's address there and sends the listening
//! socket to its parent, which accepts connections from outside. It also installs a seccomp filter that
//! reports `connect` and addressed `sendto` to the parent (`SECCOMP_RET_USER_NOTIF`, Linux 5.5); each call
//! then continues unchanged. Without the filter the namespace still blocks the network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

#[cfg(target_arch = "aarch64")]
mod number {
    pub(super) const UNSHARE: usize = 97;
    pub(super) const SOCKET: usize = 198;
    pub(super) const BIND: usize = 200;
    pub(super) const LISTEN: usize = 201;
    pub(super) const IOCTL: usize = 29;
    pub(super) const PPOLL: usize = 73;
    pub(super) const RECVMSG: usize = 212;
    pub(super) const SECCOMP: usize = 277;
    pub(super) const MACHINE: u32 = 0xc000_00b7;
}

#[cfg(not(target_arch = "aarch64"))]
mod number {
    pub(super) const UNSHARE: usize = 272;
    pub(super) const SOCKET: usize = 41;
    pub(super) const BIND: usize = 49;
    pub(super) const LISTEN: usize = 50;
    pub(super) const IOCTL: usize = 16;
    pub(super) const PPOLL: usize = 271;
    pub(super) const RECVMSG: usize = 47;
    pub(super) const SECCOMP: usize = 317;
    pub(super) const MACHINE: u32 = 0xc000_003e;
}

const CLONE_NEWUSER: usize = 0x1000_0000;
const CLONE_NEWNET: usize = 0x4000_0000;
const AF_INET: u16 = 2;
const SOCK_STREAM_CLOEXEC: usize = 1 | 0o2_000_000;
const AF_NETLINK: usize = 16;
const SOCK_DGRAM_CLOEXEC: usize = 2 | 0o2_000_000;
const NETLINK_SOCK_DIAG: usize = 4;
const SIOCSIFFLAGS: usize = 0x8914;
const IFF_UP_RUNNING: i16 = 0x41;
const BACKLOG: usize = 4096;
const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;
const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
const SECCOMP_SET_MODE_FILTER: usize = 1;
const SECCOMP_FILTER_FLAG_NEW_LISTENER: usize = 8;
const NOTIF_RECV: usize = 0xc050_2100;
const NOTIF_SEND: usize = 0xc018_2101;
const NOTIF_ID_VALID: usize = 0x4008_2102;
const NOTIF_FLAG_CONTINUE: u32 = 1;
const POLLIN: i16 = 1;

fn checked(result: isize) -> io::Result<isize> {
    match result {
        -4095..0 => Err(io::Error::from_raw_os_error((-result) as i32)),
        result => Ok(result),
    }
}

/// A system call whose arguments are plain numbers or pointers that outlive it.
fn call(number: usize, arguments: [usize; 6]) -> io::Result<isize> {
    // SAFETY: the callers in this module pass pointers to their own memory of the required length.
    checked(unsafe { sys::call(number, arguments) })
}

/// The child's side: enters the namespace.
#[derive(Debug)]
pub struct NamespaceEntry {
    port: u16,
    channel: UnixStream,
}

/// The parent's side of [`NamespaceEntry`].
#[derive(Debug)]
pub struct NamespaceGate(UnixStream);

/// A namespace that a program has entered.
#[derive(Debug)]
pub struct EnteredNamespace {
    /// Listens on the proxy's address within the namespace.
    pub listener: TcpListener,
    /// A socket that asks the kernel about the sockets of the namespace (sock_diag(7)); `None` if there is none.
    pub socket_diag: Option<OwnedFd>,
    /// The kernel's reports; `None` if it gives none.
    pub reports: Option<AttemptReports>,
}

/// Both sides of a namespace entry; the proxy will listen on this port of the namespace's loopback.
///
/// # Errors
/// Those of the system.
pub fn entry(port: u16) -> io::Result<(NamespaceEntry, NamespaceGate)> {
    let (channel, gate) = UnixStream::pair()?;
    Ok((NamespaceEntry { port, channel }, NamespaceGate(gate)))
}

impl NamespaceEntry {
    /// Enters a new user and network namespace. Called in the forked child, before it executes its program.
    ///
    /// # Errors
    /// If the system does not permit it.
    pub fn enter(&self) -> io::Result<()> {
        call(number::UNSHARE, [CLONE_NEWUSER | CLONE_NEWNET, 0, 0, 0, 0, 0])?;
        let channel = self.channel.as_raw_fd();
        let process = (sys::process_id() as u32).to_ne_bytes();
        checked(sys::write(channel as isize, &process))?;
        // The parent maps the users of this namespace, then sends a byte.
        let mut mapped = [0_u8];
        let read = call(sys::number::READ, [channel as usize, mapped.as_mut_ptr().addr(), 1, 0, 0, 0])?;
        if read != 1 || mapped != [1] {
            return Err(io::Error::from_raw_os_error(1));
        }
        let socket = call(number::SOCKET, [usize::from(AF_INET), SOCK_STREAM_CLOEXEC, 0, 0, 0, 0])?;
        loopback_up(socket)?;
        let mut address = [0_u8; 16];
        address[..2].copy_from_slice(&AF_INET.to_ne_bytes());
        address[2..4].copy_from_slice(&self.port.to_be_bytes());
        address[4..8].copy_from_slice(&[127, 0, 0, 1]);
        call(number::BIND, [socket.cast_unsigned(), address.as_ptr().addr(), address.len(), 0, 0, 0])?;
        call(number::LISTEN, [socket.cast_unsigned(), BACKLOG, 0, 0, 0, 0])?;
        let diag = call(number::SOCKET, [AF_NETLINK, SOCK_DGRAM_CLOEXEC, NETLINK_SOCK_DIAG, 0, 0, 0]);
        let reports = install_filter();
        let (mut files, mut count, mut present) = ([socket as i32, -1, -1], 1, 0);
        for (bit, file) in [(HAS_DIAG, diag), (HAS_REPORTS, reports)] {
            if let Ok(file) = file {
                files[count] = file as i32;
                (count, present) = (count + 1, present | bit);
            }
        }
        let files = &files[..count];
        send_files(channel, files, present)?;
        for file in files {
            sys::close(*file as isize);
        }
        Ok(())
    }
}

fn loopback_up(socket: isize) -> io::Result<()> {
    // `struct ifreq`: a name of 16 bytes, then the flags.
    let mut request = [0_u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16..18].copy_from_slice(&IFF_UP_RUNNING.to_ne_bytes());
    call(number::IOCTL, [socket.cast_unsigned(), SIOCSIFFLAGS, request.as_ptr().addr(), 0, 0, 0]).map(drop)
}

/// `struct sock_filter`.
#[repr(C)]
struct FilterInstruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

const fn instruction(code: u16, if_true: u8, if_false: u8, value: u32) -> FilterInstruction {
    FilterInstruction { code, if_true, if_false, value }
}

/// Load a word of `struct seccomp_data`; jump if equal; return.
const LOAD: u16 = 0x20;
const EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// Reports `connect`, and `sendto` with an address (its fifth argument); all other calls pass.
static FILTER: [FilterInstruction; 11] = [
    instruction(LOAD, 0, 0, 4),
    instruction(EQUAL, 0, 7, number::MACHINE),
    instruction(LOAD, 0, 0, 0),
    instruction(EQUAL, 6, 0, sys::number::CONNECT as u32),
    instruction(EQUAL, 0, 4, sys::number::SENDTO as u32),
    instruction(LOAD, 0, 0, 48),
    instruction(EQUAL, 0, 3, 0),
    instruction(LOAD, 0, 0, 52),
    instruction(EQUAL, 0, 1, 0),
    instruction(RETURN, 0, 0, 0x7fff_0000),
    instruction(RETURN, 0, 0, 0x7fc0_0000),
];

/// `struct sock_fprog`.
#[repr(C)]
struct FilterProgram {
    length: u16,
    instructions: *const FilterInstruction,
}

fn install_filter() -> io::Result<isize> {
    let program = FilterProgram { length: FILTER.len() as u16, instructions: FILTER.as_ptr() };
    let at = (&raw const program).addr();
    call(number::SECCOMP, [SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, at, 0, 0, 0])
}

/// `struct iovec`.
#[repr(C)]
struct IoVector {
    base: *mut u8,
    length: usize,
}

/// `struct msghdr`.
#[repr(C)]
struct SocketMessage {
    name: *mut u8,
    name_length: u32,
    parts: *mut IoVector,
    part_count: usize,
    control: *mut u8,
    control_length: usize,
    flags: i32,
}

/// Which files follow the listening socket, in this order: bits of the byte that is sent with them.
const HAS_DIAG: u8 = 1;
const HAS_REPORTS: u8 = 2;
const FILES_MAX: usize = 3;

/// `struct cmsghdr` with space for the files.
#[repr(C, align(8))]
struct ControlMessage {
    length: usize,
    level: i32,
    kind: i32,
    files: [i32; FILES_MAX],
}

const CONTROL_HEAD_BYTES: usize = 16;

fn send_files(channel: RawFd, files: &[i32], present: u8) -> io::Result<()> {
    let mut control = ControlMessage {
        length: CONTROL_HEAD_BYTES + size_of_val(files),
        level: SOL_SOCKET,
        kind: SCM_RIGHTS,
        files: [0; FILES_MAX],
    };
    for (to, file) in control.files.iter_mut().zip(files) {
        *to = *file;
    }
    let mut byte = [present];
    let mut part = IoVector { base: byte.as_mut_ptr(), length: 1 };
    let message = message(&mut part, &mut control);
    call(sys::number::SENDMSG, [channel as usize, (&raw const message).addr(), 0, 0, 0, 0]).map(drop)
}

fn message(part: &mut IoVector, control: &mut ControlMessage) -> SocketMessage {
    SocketMessage {
        name: core::ptr::null_mut(),
        name_length: 0,
        parts: part,
        part_count: 1,
        control_length: size_of::<ControlMessage>(),
        control: (&raw mut *control).cast(),
        flags: 0,
    }
}

impl NamespaceGate {
    /// Waits until the child is in its namespace; `map` maps the users of the process with this id.
    ///
    /// # Errors
    /// If the child cannot enter, or its users cannot be mapped.
    pub fn admit(self, map: impl FnOnce(u32) -> io::Result<()>) -> io::Result<EnteredNamespace> {
        use std::io::{Read, Write};
        let mut channel = self.0;
        let mut process = [0; 4];
        channel.read_exact(&mut process)?;
        map(u32::from_ne_bytes(process))?;
        channel.write_all(&[1])?;
        let mut control = ControlMessage { length: 0, level: 0, kind: 0, files: [-1; FILES_MAX] };
        let mut byte = [0];
        let mut part = IoVector { base: byte.as_mut_ptr(), length: 1 };
        let mut message = message(&mut part, &mut control);
        let at = (&raw mut message).addr();
        let read = call(number::RECVMSG, [channel.as_raw_fd() as usize, at, MSG_CMSG_CLOEXEC, 0, 0, 0])?;
        let count = control.length.saturating_sub(CONTROL_HEAD_BYTES) / size_of::<i32>();
        let [present] = byte;
        let expected = 1 + (present & (HAS_DIAG | HAS_REPORTS)).count_ones() as usize;
        if read != 1 || control.kind != SCM_RIGHTS || control.level != SOL_SOCKET || count != expected {
            return Err(io::Error::other("the program's process ended before it was in its namespace"));
        }
        let mut files = control.files.into_iter();
        // SAFETY: the kernel has just created these files for this process, and nobody else owns them.
        let mut next = || files.next().map(|file| unsafe { OwnedFd::from_raw_fd(file) });
        let missing = || io::Error::other("the program's process sent no listening socket");
        let listener = TcpListener::from(next().ok_or_else(missing)?);
        let socket_diag = if present & HAS_DIAG != 0 { next() } else { None };
        let reports = if present & HAS_REPORTS != 0 { next().map(AttemptReports) } else { None };
        Ok(EnteredNamespace { listener, socket_diag, reports })
    }
}

/// The kernel's reports about the processes in a namespace.
#[derive(Debug)]
pub struct AttemptReports(OwnedFd);

/// An attempt to reach an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectAttempt {
    /// The process.
    pub process: u32,
    /// The process's file descriptor of the socket.
    pub socket: i32,
    /// The destination; `None` if the process's memory cannot be read.
    pub to: Option<SocketAddr>,
}

/// `struct seccomp_notif`.
#[repr(C)]
#[derive(Default)]
struct Notification {
    id: u64,
    process: u32,
    flags: u32,
    number: i32,
    machine: u32,
    instruction: u64,
    arguments: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct NotificationResponse {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// `struct pollfd`.
#[repr(C)]
struct PollFile {
    file: i32,
    events: i16,
    found: i16,
}

impl AttemptReports {
    /// Waits for an attempt, passes it to `note` and lets it continue. `false` once no process is left that
    /// could make one. Returns after at most a tenth of a second without an attempt.
    ///
    /// # Errors
    /// Those of the system.
    pub fn next(&self, note: impl FnOnce(ConnectAttempt)) -> io::Result<bool> {
        let file = self.0.as_raw_fd();
        let mut poll = PollFile { file, events: POLLIN, found: 0 };
        let wait = [0_i64, 100_000_000];
        let found = call(number::PPOLL, [(&raw mut poll).addr(), 1, wait.as_ptr().addr(), 0, 0, 0]);
        match found {
            Ok(0) => return Ok(true),
            // A signal to this process, for example when its child ends. Processes that outlive the child
            // still wait for answers.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            found => found?,
        };
        if poll.found & POLLIN == 0 {
            return Ok(false);
        }
        let mut notification = Notification::default();
        match call(number::IOCTL, [file as usize, NOTIF_RECV, (&raw mut notification).addr(), 0, 0, 0]) {
            // The process ended or was interrupted before it could be examined.
            Err(error) if matches!(error.raw_os_error(), Some(2 | 4)) => return Ok(true),
            other => other?,
        };
        let attempt = attempt(&notification);
        let id = notification.id;
        // The values that were read belong to this attempt only if it still waits.
        if call(number::IOCTL, [file as usize, NOTIF_ID_VALID, (&raw const id).addr(), 0, 0, 0]).is_ok() {
            note(attempt);
        }
        let response = NotificationResponse { id, value: 0, error: 0, flags: NOTIF_FLAG_CONTINUE };
        let _ = call(number::IOCTL, [file as usize, NOTIF_SEND, (&raw const response).addr(), 0, 0, 0]);
        Ok(true)
    }
}

fn attempt(notification: &Notification) -> ConnectAttempt {
    let is_connect = notification.number == sys::number::CONNECT as i32;
    let [socket, second, third, _, fifth, sixth] = notification.arguments;
    let (at, length) = if is_connect { (second, third) } else { (fifth, sixth) };
    ConnectAttempt {
        process: notification.process,
        socket: socket as i32,
        to: address(notification.process, at, length),
    }
}

/// Reads a socket address from another process's memory. Families other than IPv4 and IPv6 give `0.0.0.0:0`.
#[expect(clippy::disallowed_methods, reason = "another process's memory, not a file of a store")]
fn address(process: u32, at: u64, length: u64) -> Option<SocketAddr> {
    let mut bytes = [0_u8; 28];
    let length = usize::try_from(length).ok()?.min(bytes.len());
    let memory = std::fs::File::open(format!("/proc/{process}/mem")).ok()?;
    memory.read_exact_at(bytes.get_mut(..length)?, at).ok()?;
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let v4: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
    let v6: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
    Some(match (u16::from_ne_bytes([bytes[0], bytes[1]]), length) {
        (2, 8..) => SocketAddr::new(IpAddr::V4(Ipv4Addr::from(v4)), port),
        (10, 24..) => SocketAddr::new(IpAddr::V6(Ipv6Addr::from(v6)).to_canonical(), port),
        _ => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    })
}

/// The type of another process's socket: 1 a stream, 2 datagrams; `None` if unknown.
#[must_use]
pub fn socket_type(process: u32, socket: i32) -> Option<i32> {
    const PIDFD_OPEN: usize = 434;
    const PIDFD_GETFD: usize = 438;
    let handle = call(PIDFD_OPEN, [process as usize, 0, 0, 0, 0, 0]).ok()?;
    let copy = call(PIDFD_GETFD, [handle.cast_unsigned(), socket as usize, 0, 0, 0, 0]);
    sys::close(handle);
    let copy = copy.ok()?;
    let kind = sys::socket_type(copy as i32);
    sys::close(copy);
    (kind > 0).then_some(kind)
}

/// The namespace entry of a command's processes.
#[derive(Debug)]
pub struct Confinement {
    is_off: Arc<AtomicBool>,
    channel: UnixStream,
}

impl Confinement {
    /// The command's next process enters no namespace, and the gate stops waiting.
    pub fn give_up(&self) {
        self.is_off.store(true, Ordering::Release);
        let _ = self.channel.shutdown(std::net::Shutdown::Both);
    }
}

/// Runs `command` within a new namespace.
///
/// # Errors
/// Those of the system.
pub fn confine(command: &mut std::process::Command, entry: NamespaceEntry) -> io::Result<Confinement> {
    use std::os::unix::process::CommandExt;
    let is_off = Arc::new(AtomicBool::new(false));
    let confinement = Confinement { is_off: is_off.clone(), channel: entry.channel.try_clone()? };
    let enter = move || if is_off.load(Ordering::Acquire) { Ok(()) } else { entry.enter() };
    // SAFETY: the code between `fork` and `exec` only makes system calls; it takes no lock and allocates
    // nothing.
    unsafe { command.pre_exec(enter) };
    Ok(confinement)
}
