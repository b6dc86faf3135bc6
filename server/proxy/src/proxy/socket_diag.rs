//! The client's end of a loopback connection, on Linux: what it has not read yet, and whether a process has it open.
//!
//! Asks the kernel for one socket by name (sock_diag(7)), which takes some microseconds however many sockets
//! exist. If that is unavailable, as in some sandboxes, `/proc/net/tcp` is read instead, which takes longer
//! with more sockets.

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fd::OwnedFd;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The client's end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientEnd {
    /// A process has it open; it may have ended its own direction.
    Open {
        /// Bytes that have arrived there and are unread.
        unread: u64,
    },
    /// It was closed: nobody reads what is sent.
    Closed,
}

impl ClientEnd {
    /// The end with these unread bytes and this inode, which is 0 once no process has the socket open.
    fn of(unread: u32, inode: u64) -> Self {
        match inode {
            0 => Self::Closed,
            _ => Self::Open { unread: u64::from(unread) },
        }
    }
}

/// Tells about the sockets of one network namespace. A replayed program has a namespace of its own, where this process
/// finds no socket of it.
#[derive(Debug)]
pub(super) struct SocketDiag {
    /// A socket of the namespace, and the number of its last question.
    kernel: Option<Mutex<(OwnedFd, u32)>>,
    /// `/proc/net/tcp` has the namespace's sockets.
    is_own: bool,
}

impl SocketDiag {
    /// For the namespace of this process.
    pub(super) fn of_this_process() -> Arc<Self> {
        static OWN: OnceLock<Arc<SocketDiag>> = OnceLock::new();
        let open = || {
            Arc::new(Self { kernel: diag_socket().ok().map(|kernel| Mutex::new((kernel, 0))), is_own: true })
        };
        OWN.get_or_init(open).clone()
    }

    /// For the namespace in which this socket was made.
    pub(super) fn of_namespace(socket: Option<OwnedFd>) -> Arc<Self> {
        Arc::new(Self { kernel: socket.map(|kernel| Mutex::new((kernel, 0))), is_own: false })
    }

    /// The client's end of a connection between two sockets of this machine. `None` if the system does not tell.
    pub(super) fn client_end(&self, client: SocketAddr, own: SocketAddr) -> Option<ClientEnd> {
        let (SocketAddr::V4(client), SocketAddr::V4(own)) = (client, own) else { return None };
        if !client.ip().is_loopback() {
            return None;
        }
        let asked = self
            .kernel
            .as_ref()
            .and_then(|kernel| seen_from(client, own, |a, b| ask_sock_diag(kernel, a, b)));
        asked.or_else(|| self.is_own.then(|| seen_from(client, own, read_proc_table)).flatten())
    }
}

/// The client's end by one way of asking. Some sandboxes show no sockets, or no inodes: a closed end counts only if this
/// process's own end, which is open, is seen to be.
fn seen_from(
    client: SocketAddrV4,
    own: SocketAddrV4,
    ask: impl Fn(SocketAddrV4, SocketAddrV4) -> Option<ClientEnd>,
) -> Option<ClientEnd> {
    match ask(client, own)? {
        ClientEnd::Closed => {
            ask(own, client).filter(|own| *own != ClientEnd::Closed).map(|_| ClientEnd::Closed)
        }
        open => Some(open),
    }
}

/// Size of nlmsghdr, in a request and in an answer.
const HEADER_BYTES: usize = 16;
/// The header and inet_diag_req_v2.
const QUESTION_BYTES: usize = HEADER_BYTES + 56;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const AF_INET: u8 = 2;
const IPPROTO_TCP: u8 = 6;
/// The kind of an answer that is an error: a negative number of errno(3) follows the header.
const NLMSG_ERROR: u16 = 2;
/// Offset of idiag_rqueue in an answer: after the header, the family fields, the socket's name, and a time.
const RQUEUE_AT: usize = HEADER_BYTES + 4 + 48 + 4;
/// Offset of idiag_inode: after both queues and the user.
const INODE_AT: usize = RQUEUE_AT + 12;

fn ask_sock_diag(
    kernel: &Mutex<(OwnedFd, u32)>,
    local: SocketAddrV4,
    remote: SocketAddrV4,
) -> Option<ClientEnd> {
    let mut kernel = kernel.lock().unwrap_or_else(PoisonError::into_inner);
    kernel.1 = kernel.1.wrapping_add(1);
    let (kernel, number) = (&kernel.0, kernel.1);
    rustix::net::send(kernel, &diag_request(number, local, remote), SendFlags::empty()).ok()?;
    // The kernel answers before `send` returns. A leftover answer belongs to another connection.
    let mut answer = [0; 512];
    loop {
        let (len, _) = rustix::net::recv(kernel, &mut answer, RecvFlags::DONTWAIT).ok()?;
        let answer = answer.get(..len)?;
        if answer.get(8..12) == Some(&number.to_ne_bytes()) {
            return parse_answer(answer);
        }
    }
}

fn diag_socket() -> rustix::io::Result<OwnedFd> {
    let kernel = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    )?;
    rustix::net::connect(&kernel, &SocketAddrNetlink::new(0, 0))?;
    Ok(kernel)
}

fn diag_request(number: u32, local: SocketAddrV4, remote: SocketAddrV4) -> Vec<u8> {
    let mut question = Vec::with_capacity(QUESTION_BYTES);
    question.extend_from_slice(&(QUESTION_BYTES as u32).to_ne_bytes());
    question.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    question.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    // Sequence number, then the kernel's port id.
    question.extend_from_slice(&number.to_ne_bytes());
    question.extend_from_slice(&[0; 4]);
    question.extend_from_slice(&[AF_INET, IPPROTO_TCP, 0, 0]);
    // In any state.
    question.extend_from_slice(&u32::MAX.to_ne_bytes());
    question.extend_from_slice(&local.port().to_be_bytes());
    question.extend_from_slice(&remote.port().to_be_bytes());
    for ip in [local.ip(), remote.ip()] {
        question.extend_from_slice(&ip.octets());
        question.extend_from_slice(&[0; 12]);
    }
    // Any device, any cookie.
    question.extend_from_slice(&[0; 4]);
    question.extend_from_slice(&[0xff; 8]);
    question
}

fn parse_answer(answer: &[u8]) -> Option<ClientEnd> {
    let number = |at: usize| Some(u32::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    if kind == NLMSG_ERROR {
        let is_absent =
            number(HEADER_BYTES)? == rustix::io::Errno::NOENT.raw_os_error().wrapping_neg() as u32;
        return is_absent.then_some(ClientEnd::Closed);
    }
    if kind != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    Some(ClientEnd::of(number(RQUEUE_AT)?, u64::from(number(INODE_AT)?)))
}

fn read_proc_table(client: SocketAddrV4, own: SocketAddrV4) -> Option<ClientEnd> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let end = |of: SocketAddrV4| format!("{:08X}:{:04X}", u32::from_ne_bytes(of.ip().octets()), of.port());
    end_in(&table, &end(client), &end(own))
}

/// Lines are `sl local remote state tx_queue:rx_queue timer:when retransmissions user timeout inode ...`; the queues are
/// hexadecimal (proc_pid_net(5)).
fn end_in(table: &str, client: &str, own: &str) -> Option<ClientEnd> {
    let is_named = |line: &&str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        fields.next() == Some(client) && fields.next() == Some(own)
    };
    let Some(line) = table.lines().find(is_named) else { return Some(ClientEnd::Closed) };
    let mut fields = line.split_ascii_whitespace().skip(4);
    let (_, unread) = fields.next()?.split_once(':')?;
    Some(ClientEnd::of(u32::from_str_radix(unread, 16).ok()?, fields.nth(4)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    const fn open(unread: u64) -> Option<ClientEnd> {
        Some(ClientEnd::Open { unread })
    }

    #[test]
    fn proc_table_gives_the_clients_end() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                     0: 0100007F:1F90 0100007F:A1B2 01 00000000:00000000 00:00000000 00000000  1000        0 77 1\n\
                     1: 0100007F:A1B2 0100007F:1F90 01 00000000:0000004D 00:00000000 00000000  1000        0 78 1\n\
                     2: 0100007F:A1B4 0100007F:1F90 06 00000000:00000000 03:00000E0F 00000000     0        0 0 3\n";
        assert_eq!(end_in(table, "0100007F:A1B2", "0100007F:1F90"), open(0x4d));
        assert_eq!(end_in(table, "0100007F:A1B3", "0100007F:1F90"), Some(ClientEnd::Closed));
        assert_eq!(end_in(table, "0100007F:A1B4", "0100007F:1F90"), Some(ClientEnd::Closed));
    }

    /// Uses a real connection. If one way is unavailable, the other must work, or neither.
    #[test]
    fn sock_diag_and_proc_table_agree() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut own, _) = listener.accept().unwrap();
        let ends = || match (client.local_addr().unwrap(), client.peer_addr().unwrap()) {
            (SocketAddr::V4(client), SocketAddr::V4(own)) => (client, own),
            other => panic!("{other:?}"),
        };
        let (a, b) = ends();
        let sockets = SocketDiag::of_this_process();
        let check = |wanted| {
            let asked = sockets
                .kernel
                .as_ref()
                .and_then(|kernel| seen_from(a, b, |a, b| ask_sock_diag(kernel, a, b)));
            for found in [asked, seen_from(a, b, read_proc_table)] {
                assert!(found.is_none() || found == wanted, "{found:?}");
            }
            #[cfg(target_os = "linux")]
            assert_eq!(sockets.client_end(SocketAddr::V4(a), SocketAddr::V4(b)), wanted);
        };
        own.write_all(b"seventy-seven").unwrap();
        check(open(13));
        client.read_exact(&mut [0; 6]).unwrap();
        check(open(7));
        client.read_exact(&mut [0; 7]).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        check(open(0));
        drop(client);
        check(Some(ClientEnd::Closed));
    }

    /// Where the system shows no sockets, or none with its inode, every client would seem to have hung up.
    #[test]
    fn client_is_not_taken_for_gone_where_nothing_is_seen() {
        let end = |port| SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, port);
        assert_eq!(seen_from(end(1), end(2), |_, _| Some(ClientEnd::Closed)), None);
        assert_eq!(seen_from(end(1), end(2), |_, _| None), None);
        let is_open = |port| if port == 2 { ClientEnd::Open { unread: 0 } } else { ClientEnd::Closed };
        assert_eq!(seen_from(end(1), end(2), |of, _| Some(is_open(of.port()))), Some(ClientEnd::Closed));
    }

    #[test]
    fn malformed_diag_answers_give_none() {
        assert_eq!(parse_answer(&[]), None);
        assert_eq!(parse_answer(&[0; 100]), None);
        for len in [RQUEUE_AT + 3, INODE_AT + 3] {
            let mut short = vec![0; len];
            short[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
            assert_eq!(parse_answer(&short), None);
        }
        let mut refused = [0; 100];
        refused[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        refused[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert_eq!(parse_answer(&refused), None, "not permitted");
    }
}
