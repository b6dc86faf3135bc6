//! The private directory of the network library: the library, its policy and its notes.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use annals_preload::traffic::{self, ALLOWED_AT, GuardMode, POLICY_BYTES, PORT_AT};

use super::HostPattern;
use crate::private_directory::{PrivateDirectory, Purpose};

/// Built by `build.rs`; empty on systems where no library can be loaded.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/network.so"));

/// A line of the library's notes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TrafficNote {
    Connect { process: String, is_datagram: bool, address: IpAddr, port: u16, passed: bool },
    LookUp { process: String, name: String, port: u16, passed: bool, addresses: Vec<IpAddr> },
    Execute { program: String },
}

/// The directory.
#[derive(Debug)]
pub(super) struct NetworkLibrary {
    directory: PrivateDirectory,
    policy: File,
}

impl NetworkLibrary {
    /// Creates the directory with the library and its policy.
    ///
    /// # Errors
    /// Why no program can load the library.
    pub(super) fn new(mode: GuardMode, proxy: u16, allowed: &[HostPattern]) -> Result<Self, String> {
        if LIBRARY.is_empty() {
            return Err("the network library is for Linux on x86-64 and AArch64 only".to_owned());
        }
        let mut page = vec![0; POLICY_BYTES];
        page[0] = mode as u8;
        page[PORT_AT..ALLOWED_AT].copy_from_slice(&proxy.to_le_bytes());
        let lines = allowed.iter().map(HostPattern::line).collect::<Vec<_>>().join("\n");
        match page.get_mut(ALLOWED_AT..ALLOWED_AT + lines.len() + 1) {
            Some(to) => to[..lines.len()].copy_from_slice(lines.as_bytes()),
            None => {
                return Err(format!("the allowed hosts are longer than {} bytes", POLICY_BYTES - ALLOWED_AT));
            }
        }
        let directory = PrivateDirectory::create(Purpose::Network)?;
        let laid = (|| {
            let path = directory.path();
            create(&path.join(traffic::LIBRARY), 0o555)?.write_all(LIBRARY)?;
            create(&path.join(traffic::NOTES), 0o622)?;
            let mut policy = create(&path.join(traffic::POLICY), 0o644)?;
            policy.write_all(&page)?;
            // A process that changes its user (`su`) also loads the library, and knows the directory's name.
            std::fs::set_permissions(path, Permissions::from_mode(0o711))?;
            Ok::<_, std::io::Error>(policy)
        })();
        let policy =
            laid.map_err(|error| format!("the network library cannot be written for the program: {error}"))?;
        Ok(Self { directory, policy })
    }

    /// Changes the mode of all processes at once.
    pub(super) fn set_mode(&self, mode: GuardMode) -> std::io::Result<()> {
        self.policy.write_all_at(&[mode as u8], 0)
    }

    /// The program's variables; `preloaded` lists other preloaded libraries.
    pub(super) fn environment(&self, preloaded: Option<&str>) -> [(String, String); 2] {
        let library = self.directory.path().join(traffic::LIBRARY).to_string_lossy().into_owned();
        let preload = match preloaded.filter(|value| !value.is_empty()) {
            Some(others) => format!("{library}:{others}"),
            None => library,
        };
        let directory = self.directory.path().to_string_lossy().into_owned();
        [("LD_PRELOAD".to_owned(), preload), (traffic::DIRECTORY.to_owned(), directory)]
    }

    /// The private directory; it appears in the environment of every process that has the library.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Reads the notes while they are written.
    pub(super) fn follow(&self) -> std::io::Result<NotesReader> {
        #[expect(clippy::disallowed_methods, reason = "a file of our own outside any store")]
        let file = File::open(self.directory.path().join(traffic::NOTES))?;
        Ok(NotesReader { file, at: 0 })
    }

    /// All notes so far, in order, and why there may be more.
    pub(super) fn notes(&self) -> (Vec<TrafficNote>, Option<String>) {
        #[expect(clippy::disallowed_methods, reason = "a file of our own outside any store")]
        let bytes = match std::fs::read(self.directory.path().join(traffic::NOTES)) {
            Ok(bytes) => bytes,
            Err(error) => {
                return (Vec::new(), Some(format!("the notes of connections cannot be read: {error}")));
            }
        };
        let is_full = bytes.len() >= traffic::NOTES_BYTES_MAX;
        let more = is_full.then(|| "the program made more connections than are noted".to_owned());
        (String::from_utf8_lossy(&bytes).lines().filter_map(note).collect(), more)
    }
}

/// Reads notes from a position on.
#[derive(Debug)]
pub(super) struct NotesReader {
    file: File,
    at: u64,
}

impl NotesReader {
    /// The notes since the last call, up to the last complete line.
    pub(super) fn new_notes(&mut self) -> Vec<TrafficNote> {
        let length = self.file.metadata().map_or(self.at, |file| file.len());
        let new = usize::try_from(length.saturating_sub(self.at)).unwrap_or(0).min(traffic::NOTES_BYTES_MAX);
        let mut bytes = vec![0; new];
        if new == 0 || self.file.read_exact_at(&mut bytes, self.at).is_err() {
            return Vec::new();
        }
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.at += whole as u64;
        String::from_utf8_lossy(&bytes[..whole]).lines().filter_map(note).collect()
    }
}

#[expect(clippy::disallowed_methods, reason = "a file of our own outside any store")]
fn create(path: &Path, mode: u32) -> std::io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    // Independent of the umask of this process.
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(file)
}

/// Parses a line; `None` if the program itself wrote into the file.
fn note(line: &str) -> Option<TrafficNote> {
    let mut fields = line.split('\t');
    let (event, process) = (fields.next()?, fields.next()?.to_owned());
    let passed = |field: &str| match field {
        "passed" => Some(true),
        "refused" => Some(false),
        _ => None,
    };
    Some(match event {
        "connect" => TrafficNote::Connect {
            process,
            is_datagram: fields.next()? == "udp",
            address: fields.next()?.parse().ok()?,
            port: fields.next()?.parse().ok()?,
            passed: passed(fields.next()?)?,
        },
        "lookup" => TrafficNote::LookUp {
            process,
            name: fields.next()?.to_owned(),
            port: service(fields.next()?),
            passed: passed(fields.next()?)?,
            addresses: fields.next()?.split(',').filter_map(|address| address.parse().ok()).collect(),
        },
        "exec" => TrafficNote::Execute { program: fields.next()?.to_owned() },
        _ => return None,
    })
}

/// The port of a service, given as a number or one of two names; 0 if none is given.
fn service(text: &str) -> u16 {
    match text {
        "https" => 443,
        "http" => 80,
        text => text.parse().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_the_library_writes_them() {
        let connect = note("connect\tcurl [7]\ttcp\t10.0.0.1\t443\trefused").unwrap();
        let address = "10.0.0.1".parse().unwrap();
        assert_eq!(
            connect,
            TrafficNote::Connect {
                process: "curl [7]".to_owned(),
                is_datagram: false,
                address,
                port: 443,
                passed: false
            }
        );
        let look_up = note("lookup\t7\tapi.example.org\t443\tpassed\t10.0.0.1,::1").unwrap();
        assert!(
            matches!(look_up, TrafficNote::LookUp { port: 443, passed: true, addresses, .. } if addresses.len() == 2)
        );
        assert_eq!(
            note("exec\tsh [9]\t/bin/ls"),
            Some(TrafficNote::Execute { program: "/bin/ls".to_owned() })
        );
        for bad in ["", "connect", "connect\t7\ttcp\tnowhere\t443\tpassed", "exec\t7", "other\t7"] {
            assert_eq!(note(bad), None, "{bad:?}");
        }
    }
}
