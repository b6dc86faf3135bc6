//! Opens input files and standard input, compressed or not.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::failure::{CliResult, Failure, FailureCode};
use annals_formats::tracefork::{self, TraceforkTape};

const XZ_MAGIC: &[u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// Memory limit for decompressing xz: the dictionary of `xz -9` takes 65 MiB.
const XZ_MEMORY_MAX: u64 = 256 << 20;

/// Bytes of each read buffer.
const BUFFER_BYTES: usize = 64 << 10;

/// An open input.
pub(crate) struct OpenInput {
    /// Its bytes, decompressed.
    pub(crate) reader: Box<dyn BufRead>,
    /// Length of the file, if the input is a file.
    pub(crate) file_bytes: Option<u64>,
    /// How many of the file's bytes have been read.
    pub(crate) bytes_read: Arc<AtomicU64>,
}

/// Opens `path`, or standard input for `-`. The first bytes, not the name, tell whether the input is
/// compressed.
pub(crate) fn open(path: &Path) -> CliResult<OpenInput> {
    let failed = |error: io::Error| read_failure(path, &error);
    let (source, file_bytes): (Box<dyn Read>, _) = if path.as_os_str() == "-" {
        (Box::new(io::stdin()), None)
    } else {
        let (file, len) = open_file(path).map_err(failed)?;
        (Box::new(file), len)
    };
    let bytes_read = Arc::new(AtomicU64::new(0));
    let counted = CountingInput { source, bytes_read: bytes_read.clone() };
    let reader = decompressed(counted).map_err(failed)?;
    Ok(OpenInput { reader, file_bytes, bytes_read })
}

fn read_failure(path: &Path, error: &io::Error) -> Failure {
    let code =
        if error.kind() == io::ErrorKind::NotFound { FailureCode::NoSuchThing } else { FailureCode::Failed };
    let message = format!("cannot read {}: {error}", path.display());
    Failure::new(code, message, "name a file that can be read, or - for standard input")
}

/// Reads a whole small file, or standard input for `-`.
pub(crate) fn read_small(path: &Path, bytes_max: usize) -> CliResult<Vec<u8>> {
    read_at_most(path, bytes_max, "this file is too large for this purpose; name the right file")
}

/// Reads at most `bytes_max` bytes, as [`read_small`] does; `hint` says what to do about a larger file.
pub(crate) fn read_at_most(path: &Path, bytes_max: usize, hint: &str) -> CliResult<Vec<u8>> {
    let mut input = open(path)?;
    let mut bytes = Vec::new();
    let limit = bytes_max as u64 + 1;
    input.reader.by_ref().take(limit).read_to_end(&mut bytes).map_err(|error| read_failure(path, &error))?;
    if bytes.len() > bytes_max {
        let message = format!("{} is larger than {bytes_max} bytes", path.display());
        return Err(Failure::failed(message, hint));
    }
    Ok(bytes)
}

/// A fully checked tape of annals, or a tape of tracefork.
pub(crate) enum AnyTape {
    Native(Box<annals::tape::Tape>),
    Tracefork(TraceforkTape),
}

/// Returns whether a file has the name of a tape: `x.tape`, or tracefork's `x.tape.sqlite`.
pub(crate) fn has_tape_name(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".tape") || name.ends_with(".tape.sqlite")
}

/// Reads a tape. The first bytes tell its kind.
pub(crate) fn read_tape(path: &Path) -> CliResult<AnyTape> {
    let limit = usize::try_from(annals::tape::TAPE_BYTES_MAX).unwrap_or(usize::MAX);
    let bytes = read_small(path, limit)?;
    if !tracefork::looks_like_tape(&bytes) {
        let tape =
            crate::store_access::parse_tape(bytes).map_err(|failure| failure.with_place(path.display()))?;
        return Ok(AnyTape::Native(Box::new(tape)));
    }
    if has_pending_wal(path) {
        let message =
            format!("{} has a write-ahead log that SQLite has not yet merged into it", path.display());
        return Err(Failure::failed(message, "open and close it with tracefork or sqlite3 first"));
    }
    let refused = |why| {
        let message = format!("{}: no valid tape of annals or of tracefork: {why}", path.display());
        // Any JSON text begins with a brace, so such a file need not be a damaged tape.
        let code = if bytes.first() == Some(&b'{') { FailureCode::Failed } else { FailureCode::Damage };
        Failure::new(code, message, "name an unchanged tape; a replaced blob is refused")
    };
    TraceforkTape::read(&bytes).map(AnyTape::Tracefork).map_err(refused)
}

/// Returns whether SQLite's latest writes are in a write-ahead log beside the file.
#[expect(clippy::disallowed_methods, reason = "the user's own file, which is no part of a store")]
fn has_pending_wal(path: &Path) -> bool {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    std::fs::metadata(Path::new(&log)).is_ok_and(|facts| facts.len() > 0)
}

#[expect(clippy::disallowed_methods, reason = "the user's own file, which is no part of a store")]
fn open_file(path: &Path) -> io::Result<(std::fs::File, Option<u64>)> {
    let file = std::fs::File::open(path)?;
    let facts = file.metadata()?;
    if facts.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    Ok((file, facts.is_file().then_some(facts.len())))
}

fn decompressed(mut source: CountingInput) -> io::Result<Box<dyn BufRead>> {
    let mut head = Vec::new();
    source.by_ref().take(XZ_MAGIC.len() as u64).read_to_end(&mut head)?;
    let (xz, zstd) = (head.starts_with(XZ_MAGIC), head.starts_with(ZSTD_MAGIC));
    let whole = BufReader::with_capacity(BUFFER_BYTES, io::Cursor::new(head).chain(source));
    Ok(if xz {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, xz_reader(whole)?))
    } else if zstd {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, zstd::Decoder::with_buffer(whole)?))
    } else {
        Box::new(whole)
    })
}

/// Decompresses xz, including files of several streams.
pub(crate) fn xz_reader<R: BufRead>(source: R) -> io::Result<impl Read> {
    const CONCATENATED: u32 = 0x08;
    let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY_MAX, CONCATENATED)?;
    Ok(liblzma::bufread::XzDecoder::new_stream(source, stream))
}

/// Counts the bytes that are read.
struct CountingInput {
    source: Box<dyn Read>,
    bytes_read: Arc<AtomicU64>,
}

impl Read for CountingInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.bytes_read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
