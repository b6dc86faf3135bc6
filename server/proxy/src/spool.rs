//! A body on its way to the process that holds the store. It stays at hand until that process has acknowledged
//! it, so that it can be sent again.

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::{Mutex, PoisonError};

use annals::{Error, ErrorKind, Result};
use tempfile::SpooledTempFile;

/// A longer body goes into a temporary file without a name, in bytes.
const MEMORY_BYTES_MAX: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;

/// A body that was read to its end and can be read any number of times. In memory up to
/// `MEMORY_BYTES_MAX`, else in a file that vanishes with this process.
#[derive(Debug)]
pub struct SpooledBody {
    len: u64,
    bytes: Mutex<SpooledTempFile>,
}

impl SpooledBody {
    /// Reads a body to its end.
    ///
    /// # Errors
    /// `Unavailable` if the source cannot be read, or the directory for temporary files is full.
    pub fn read_from(from: &mut dyn Read) -> Result<Self> {
        let mut bytes = SpooledTempFile::new(MEMORY_BYTES_MAX);
        let (mut buffer, mut len) = (vec![0; READ_BYTES], 0);
        loop {
            let read = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::new(ErrorKind::Unavailable, error.to_string())),
            };
            bytes.write_all(&buffer[..read]).map_err(|error| spool_error(&error))?;
            len += read as u64;
        }
        Ok(Self { len, bytes: Mutex::new(bytes) })
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Calls `each` with its bytes in order, at most `bytes_max` at a time.
    ///
    /// # Errors
    /// Those of `each`; `Unavailable` if the temporary file cannot be read.
    pub fn for_each_part(&self, bytes_max: usize, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.seek(SeekFrom::Start(0)).map_err(|error| spool_error(&error))?;
        let mut buffer = vec![0; bytes_max];
        loop {
            match bytes.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(read) => each(&buffer[..read])?,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(spool_error(&error)),
            }
        }
    }
}

fn spool_error(error: &std::io::Error) -> Error {
    let place = std::env::temp_dir();
    let message = format!("an output cannot be held in a temporary file in {}: {error}", place.display());
    Error::new(ErrorKind::Unavailable, message)
}

#[cfg(test)]
mod tests {
    use super::{MEMORY_BYTES_MAX, SpooledBody};

    #[test]
    fn spooled_body_can_be_read_again() {
        for len in [0, 1, MEMORY_BYTES_MAX, MEMORY_BYTES_MAX + 1, 3 * MEMORY_BYTES_MAX] {
            let body: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let spooled = SpooledBody::read_from(&mut body.as_slice()).unwrap();
            assert_eq!((spooled.len(), spooled.is_empty()), (len as u64, len == 0));
            for bytes_max in [1000, 1 << 20] {
                let mut read = Vec::new();
                spooled
                    .for_each_part(bytes_max, &mut |part| {
                        assert!(part.len() <= bytes_max);
                        read.extend_from_slice(part);
                        Ok(())
                    })
                    .unwrap();
                assert_eq!(read, body);
            }
        }
    }
}
