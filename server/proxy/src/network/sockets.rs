//! Samples the kernel's socket tables to see what a program's processes are connected to. Static programs are
//! included; connections shorter than the sampling interval are missed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::time::Instant;

/// Interval between two samples: the minimum, and the maximum if a sample takes long.
const SAMPLE_INTERVAL: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(40)..=Duration::from_millis(120);
/// Divisor of the time that sampling may take, within these limits.
const SAMPLE_TIME_SHARE: u32 = 25;
/// Maximum number of ancestors followed for a process.
const ANCESTORS_MAX: usize = 64;
const STATE_LISTEN: &str = "0A";

/// A sampled connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SampledConnection {
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) is_datagram: bool,
    pub(super) process: u32,
}

/// Sampled connections, each with its process's name and the number of sockets.
pub(super) type Samples = BTreeMap<SampledConnection, (String, u64)>;

/// Samples until it is stopped.
#[derive(Debug)]
pub(super) struct Sampler {
    stop: Arc<AtomicBool>,
    found: Arc<Mutex<Samples>>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Samples processes below `root`, and those whose environment contains the table's mark.
    pub(super) fn start(mut table: SocketTable, root: u32) -> Option<Self> {
        table.root = root;
        let (stop, found) = (Arc::new(AtomicBool::new(false)), table.found.clone());
        let stopped = stop.clone();
        let work = move || {
            loop {
                let is_last = stopped.load(Ordering::Acquire);
                let began = Instant::now();
                table.sample();
                if is_last {
                    return;
                }
                std::thread::park_timeout(
                    (began.elapsed() * SAMPLE_TIME_SHARE)
                        .clamp(*SAMPLE_INTERVAL.start(), *SAMPLE_INTERVAL.end()),
                );
            }
        };
        let thread = std::thread::Builder::new().name("annals-sockets".to_owned()).spawn(work).ok()?;
        Some(Self { stop, found, thread: Some(thread) })
    }

    /// Takes a last sample, and returns all connections.
    pub(super) fn finish(mut self) -> Samples {
        self.stop_and_join();
        std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn stop_and_join(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop_and_join();
    }
}

/// The socket tables as they were before a program started.
pub(super) struct SocketTable {
    root: u32,
    mark: Vec<u8>,
    proxy: u16,
    /// Inodes of known sockets.
    looked_at: HashSet<u64>,
    found: Arc<Mutex<Samples>>,
}

/// A line of a socket table.
#[derive(Debug, PartialEq, Eq)]
struct SocketLine {
    local_port: u16,
    address: IpAddr,
    port: u16,
    is_listening: bool,
    inode: u64,
}

impl SocketTable {
    /// Existing sockets are not the program's. Traffic to `proxy` is left out.
    pub(super) fn before_start(mark: &Path, proxy: u16) -> Self {
        let mark = mark.as_os_str().as_encoded_bytes().to_vec();
        let mut table =
            Self { root: u32::MAX, mark, proxy, looked_at: HashSet::new(), found: Arc::default() };
        table.new_sockets();
        table
    }

    fn sample(&mut self) {
        let new = self.new_sockets();
        if !new.is_empty() {
            self.attribute(&new);
        }
    }

    /// Connected sockets that no sample had before, and whether they are for datagrams.
    fn new_sockets(&mut self) -> HashMap<u64, (SocketLine, bool)> {
        let mut new: HashMap<u64, (SocketLine, bool)> = HashMap::new();
        let mut listening = HashSet::new();
        for (name, is_datagram) in [("tcp", false), ("tcp6", false), ("udp", true), ("udp6", true)] {
            let Some(table) = read(&format!("/proc/net/{name}")) else { continue };
            for socket in table.lines().skip(1).filter_map(socket) {
                if socket.is_listening {
                    listening.insert(socket.local_port);
                    continue;
                }
                let is_proxy = socket.address.is_loopback() && socket.port == self.proxy;
                if socket.inode > 0 && socket.port > 0 && !is_proxy && self.looked_at.insert(socket.inode) {
                    new.insert(socket.inode, (socket, is_datagram));
                }
            }
        }
        // An accepted connection belongs to the process that opened it.
        new.retain(|_, (socket, is_datagram)| *is_datagram || !listening.contains(&socket.local_port));
        new
    }

    /// Finds the owners of new sockets among the program's processes.
    fn attribute(&mut self, new: &HashMap<u64, (SocketLine, bool)>) {
        #[expect(clippy::disallowed_methods, reason = "the kernel's list of processes")]
        let Ok(listed) = std::fs::read_dir("/proc") else { return };
        let processes = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        for process in processes.filter(|process| self.is_ours(*process)) {
            #[expect(clippy::disallowed_methods, reason = "the kernel's list of a process's files")]
            let Ok(files) = std::fs::read_dir(format!("/proc/{process}/fd")) else { continue };
            for file in files.flatten() {
                let Ok(target) = std::fs::read_link(file.path()) else { continue };
                let inode = target.to_str().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']'));
                let inode = inode.and_then(|inode| inode.parse::<u64>().ok());
                let Some((socket, is_datagram)) = inode.and_then(|inode| new.get(&inode)) else { continue };
                let connection = SampledConnection {
                    address: socket.address,
                    port: socket.port,
                    is_datagram: *is_datagram,
                    process,
                };
                found.entry(connection).or_insert_with(|| (name_of(process), 0)).1 += 1;
            }
        }
    }

    fn is_ours(&self, process: u32) -> bool {
        let mut next = process;
        for _ in 0..ANCESTORS_MAX {
            if next == self.root {
                return true;
            }
            match parent(next) {
                Some(parent) if parent > 1 => next = parent,
                _ => break,
            }
        }
        #[expect(clippy::disallowed_methods, reason = "a process's environment, not a file of a store")]
        let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        process != std::process::id() && memchr::memmem::find(&environment, &self.mark).is_some()
    }
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The name of a process's program.
pub(super) fn name_of(process: u32) -> String {
    read(&format!("/proc/{process}/comm"))
        .map_or_else(|| "a process that has ended".to_owned(), |name| name.trim().to_owned())
}

fn parent(process: u32) -> Option<u32> {
    let stat = read(&format!("/proc/{process}/stat"))?;
    // The second field is the name in parentheses, which may hold any characters.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// `sl local remote state queues timer retransmits uid timeout inode ...`.
fn socket(line: &str) -> Option<SocketLine> {
    let fields = line.split_whitespace().collect::<Vec<_>>();
    let (_, local_port) = endpoint(fields.get(1)?)?;
    let (address, port) = endpoint(fields.get(2)?)?;
    let inode = fields.get(9)?.parse().ok()?;
    Some(SocketLine { local_port, address, port, is_listening: *fields.get(3)? == STATE_LISTEN, inode })
}

/// `0100007F:1F90`: words of four bytes in native byte order, hexadecimal.
fn endpoint(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (index, to) in bytes.chunks_exact_mut(4).enumerate() {
                to.copy_from_slice(&word(index * 8)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some((address, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_table_lines_are_parsed() {
        let line = "   1: 0100007F:9C42 0200000A:01BB 01 00000000:00000000 00:00000000 00000000  1000        0 424242 1 0 20 4 30 10 -1";
        let expected = SocketLine {
            local_port: 0x9c42,
            address: "10.0.0.2".parse().unwrap(),
            port: 443,
            is_listening: false,
            inode: 424_242,
        };
        assert_eq!(socket(line), Some(expected));
        let v6 = "00000000000000000000000001000000:1F90";
        assert_eq!(endpoint(v6), Some(("::1".parse().unwrap(), 8080)));
        for bad in ["", "x", "1: 2 3", "0100007F", "0100007F:", "zz00007F:0001"] {
            assert_eq!(endpoint(bad), None, "{bad:?}");
            assert_eq!(socket(bad), None, "{bad:?}");
        }
    }
}
