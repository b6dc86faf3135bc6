//! The two files through which the network library communicates with the process that runs the program.
//!
//! ```text
//! DIR/policy   mode u8 | 0 | proxy port u16 little-endian | allowed hosts, one `HOST` or `HOST PORT` a line | zeros
//! DIR/notes    one line an event, fields separated by a tab, appended by one write:
//!              connect PROCESS tcp|udp ADDRESS PORT passed|refused
//!              lookup  PROCESS NAME SERVICE passed|refused ADDRESS,ADDRESS...
//!              exec    PROCESS PROGRAM
//!              PROCESS is the file name of its program and its number: `python3 [4711]`
//! ```
//!
//! The library maps `policy` and reads it at each event, so the mode may change while the program runs.

/// Environment variable: the private directory with both files and the library.
pub const DIRECTORY: &str = "ANNALS_NETWORK_DIR";
/// File name of the library in that directory.
pub const LIBRARY: &str = "network.so";
/// File name of the policy.
pub const POLICY: &str = "policy";
/// File name of the notes.
pub const NOTES: &str = "notes";
/// Length of the policy file, in bytes.
pub const POLICY_BYTES: usize = 4096;
/// Offset of the proxy's port in the policy.
pub const PORT_AT: usize = 2;
/// Offset of the allowed hosts in the policy.
pub const ALLOWED_AT: usize = 4;
/// Maximum length of a line of notes, in bytes.
pub const NOTE_BYTES_MAX: usize = 512;
/// Maximum length of the notes file, in bytes; nothing is noted beyond it.
pub const NOTES_BYTES_MAX: usize = 16 << 20;

/// How the library treats a connection that does not go to the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum GuardMode {
    /// Lets it pass and notes it.
    Note = b'n',
    /// Refuses it unless its host is allowed, and notes the refusal.
    Refuse = b'r',
    /// Refuses it unless it goes to the loopback or its host is allowed.
    Loopback = b'l',
}

impl GuardMode {
    /// The mode in a policy's first byte.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'n' => Some(Self::Note),
            b'r' => Some(Self::Refuse),
            b'l' => Some(Self::Loopback),
            _ => None,
        }
    }
}

/// Ports at which a datagram counts as traffic: DNS, DNS over TLS or QUIC, HTTP/3. Programs connect datagram
/// sockets to other ports only to learn their own address, and send nothing.
#[must_use]
pub const fn is_datagram_service(port: u16) -> bool {
    matches!(port, 53 | 443 | 853)
}
