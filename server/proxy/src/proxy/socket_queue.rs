//! How many bytes of a loopback connection its reader has not read yet, on Linux.
//!
//! Asks the kernel for one socket by name (sock_diag(7)), which takes some microseconds however many sockets
//! exist. If that is unavailable, as in some sandboxes, `/proc/net/tcp` is read instead, which takes longer
//! with more sockets.

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fd::OwnedFd;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Bytes that have arrived at the client's end and are unread. `None` if the system does not tell.
pub(super) fn unread_bytes(client: SocketAddr, own: SocketAddr) -> Option<u64> {
    let (SocketAddr::V4(client), SocketAddr::V4(own)) = (client, own) else { return None };
    ask_sock_diag(client, own).or_else(|| read_proc_table(client, own))
}

/// Size of nlmsghdr, in a request and in an answer.
const HEADER_BYTES: usize = 16;
/// The header and inet_diag_req_v2.
const QUESTION_BYTES: usize = HEADER_BYTES + 56;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const AF_INET: u8 = 2;
const IPPROTO_TCP: u8 = 6;
/// Offset of idiag_rqueue in an answer: after the header, the family fields, the socket's name, and a time.
const RQUEUE_AT: usize = HEADER_BYTES + 4 + 48 + 4;

fn ask_sock_diag(local: SocketAddrV4, remote: SocketAddrV4) -> Option<u64> {
    static KERNEL: OnceLock<Option<Mutex<(OwnedFd, u32)>>> = OnceLock::new();
    let kernel = KERNEL.get_or_init(|| diag_socket().ok().map(|kernel| Mutex::new((kernel, 0)))).as_ref()?;
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
            return receive_queue(answer);
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

fn receive_queue(answer: &[u8]) -> Option<u64> {
    let kind = answer.get(4..6)?;
    if kind != SOCK_DIAG_BY_FAMILY.to_ne_bytes() {
        return None;
    }
    let (unread, _) = answer.get(RQUEUE_AT..)?.split_first_chunk()?;
    Some(u64::from(u32::from_ne_bytes(*unread)))
}

fn read_proc_table(client: SocketAddrV4, own: SocketAddrV4) -> Option<u64> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let end = |of: SocketAddrV4| format!("{:08X}:{:04X}", u32::from_ne_bytes(of.ip().octets()), of.port());
    unread_in(&table, &end(client), &end(own))
}

/// Lines are `sl local remote state tx_queue:rx_queue ...`, numbers in hexadecimal (proc_pid_net(5)).
fn unread_in(table: &str, client: &str, own: &str) -> Option<u64> {
    table.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, remote) = (fields.next()?, fields.next()?);
        if local != client || remote != own {
            return None;
        }
        let (_, unread) = fields.nth(1)?.split_once(':')?;
        u64::from_str_radix(unread, 16).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn proc_table_gives_unread_bytes() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr\n\
                     0: 0100007F:1F90 0100007F:A1B2 01 00000000:00000000 00:00000000\n\
                     1: 0100007F:A1B2 0100007F:1F90 01 00000000:0000004D 00:00000000\n";
        assert_eq!(unread_in(table, "0100007F:A1B2", "0100007F:1F90"), Some(0x4d));
        assert_eq!(unread_in(table, "0100007F:A1B3", "0100007F:1F90"), None);
        assert_eq!(unread_in("", "a", "b"), None);
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
        own.write_all(b"seventy-seven").unwrap();
        let (a, b) = ends();
        for ways in [ask_sock_diag(a, b), read_proc_table(a, b)] {
            assert!(matches!(ways, None | Some(13)), "{ways:?}");
        }
        client.read_exact(&mut [0; 6]).unwrap();
        for ways in [ask_sock_diag(a, b), read_proc_table(a, b)] {
            assert!(matches!(ways, None | Some(7)), "{ways:?}");
        }
        #[cfg(target_os = "linux")]
        assert_eq!(unread_bytes(SocketAddr::V4(a), SocketAddr::V4(b)), Some(7));
        drop((own, client));
        assert!(!matches!(ask_sock_diag(a, b), Some(1..=u64::MAX)));
    }

    #[test]
    fn malformed_diag_answers_give_none() {
        assert_eq!(receive_queue(&[]), None);
        assert_eq!(receive_queue(&[0; 100]), None);
        let mut short = [0; RQUEUE_AT + 3];
        short[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        assert_eq!(receive_queue(&short), None);
    }
}
