//! Notes: one line for each event, appended to a file that the process which runs the program reads.

use core::fmt::Write;
use core::net::IpAddr;

use super::policy::{PATH_BYTES_MAX, path, program};
use crate::{sys, traffic};

/// A line of notes in a fixed buffer. Bytes that do not fit are dropped.
pub(super) struct NoteLine {
    bytes: [u8; traffic::NOTE_BYTES_MAX],
    length: usize,
}

impl NoteLine {
    pub(super) const fn empty() -> Self {
        Self { bytes: [0; traffic::NOTE_BYTES_MAX], length: 0 }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    pub(super) fn new(event: &str) -> Self {
        let mut line = Self::empty();
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
    pub(super) fn field(&mut self, bytes: &[u8]) {
        self.push(b"\t");
        for byte in bytes {
            self.push(&[if byte.is_ascii_control() { b'?' } else { *byte }]);
        }
    }

    pub(super) fn write(mut self) {
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

pub(super) const fn outcome(passes: bool) -> &'static str {
    if passes { "passed" } else { "refused" }
}

pub(super) fn note_look_up(name: &[u8], service: &[u8], passes: bool, addresses: &[IpAddr]) {
    let mut line = NoteLine::new("lookup");
    line.field(name);
    line.field(service);
    let _ = write!(line, "\t{}\t", outcome(passes));
    for (index, address) in addresses.iter().enumerate() {
        let _ = write!(line, "{}{address}", if index == 0 { "" } else { "," });
    }
    line.write();
}
