//! A program's standard input: passed on and kept in a recording, served again in a replay.
//!
//! A thread writes to the program's pipe. It ends with the input, when the program stops reading, or when the
//! program ends. Nothing waits for a program that never reads.

use std::fs::File;
use std::io::{IsTerminal, PipeReader, PipeWriter, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use tokio::process::Command;
use tokio::task::JoinHandle;

/// Bytes that are read at a time.
const PART_BYTES: usize = 64 << 10;
/// Maximum number of parts in transit to the store.
const PARTS_MAX: usize = 16;

/// Where a program's standard input comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum StandardInput {
    /// The input of this process, untouched.
    #[default]
    Inherited,
    /// The input of this process, kept while it passes; a terminal is inherited, because a program can tell a
    /// pipe from it.
    Kept,
    /// These bytes.
    Given(Bytes),
}

/// The kind of this process's own standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputKind {
    /// A terminal: a program may ask a person.
    Terminal,
    /// A device other than a terminal, such as /dev/null, with nothing to keep.
    Device,
    /// A pipe, a file or a socket.
    Stream,
}

impl InputKind {
    /// The kind of this process's input.
    pub(crate) fn own() -> Self {
        let stdin = std::io::stdin();
        if stdin.is_terminal() {
            return Self::Terminal;
        }
        let file = stdin.as_fd().try_clone_to_owned().map(File::from);
        match file.and_then(|file| file.metadata()) {
            Ok(known) if known.file_type().is_char_device() => Self::Device,
            Ok(_) => Self::Stream,
            // A closed input has no data.
            Err(_) => Self::Device,
        }
    }
}

/// A program's input before the program has started.
pub(super) struct InputRelay {
    from: InputSource,
    to: PipeWriter,
    /// The program's end, never read from: it tells how much input the program has not read.
    program: PipeReader,
}

enum InputSource {
    Own(File),
    Given(Bytes),
}

/// An input that is being passed on. Stopping it ends the reading.
pub(super) struct RunningInput<T> {
    /// Dropped to end the thread.
    stop: UnixStream,
    kept: JoinHandle<T>,
}

impl InputRelay {
    /// Sets a command's standard input; `None` if nothing is passed on.
    pub(super) fn new(input: &StandardInput, command: &mut Command) -> std::io::Result<Option<Self>> {
        let from = match input {
            StandardInput::Inherited => return Ok(None),
            StandardInput::Kept if InputKind::own() != InputKind::Stream => return Ok(None),
            StandardInput::Kept => {
                InputSource::Own(File::from(std::io::stdin().as_fd().try_clone_to_owned()?))
            }
            StandardInput::Given(bytes) if bytes.is_empty() => {
                command.stdin(Stdio::null());
                return Ok(None);
            }
            StandardInput::Given(bytes) => InputSource::Given(bytes.clone()),
        };
        let (program, to) = std::io::pipe()?;
        rustix::fs::fcntl_setfl(&to, OFlags::NONBLOCK)?;
        command.stdin(Stdio::from(program.try_clone()?));
        Ok(Some(Self { from, to, program }))
    }

    /// Starts passing on. `keep` gets the bytes that the program was given.
    pub(super) fn start<T: Send + 'static>(
        self,
        keep: impl FnOnce(&mut dyn Read) -> T + Send + 'static,
    ) -> std::io::Result<RunningInput<T>> {
        let (stop, stopped) = UnixStream::pair()?;
        let (parts, arriving) = sync_channel(PARTS_MAX);
        let thread = std::thread::Builder::new().name("annals-stdin".to_owned());
        thread.spawn(move || self.pass_on(&stopped, &parts))?;
        let kept =
            tokio::task::spawn_blocking(move || keep(&mut InputPartsReader { arriving, rest: Bytes::new() }));
        Ok(RunningInput { stop, kept })
    }

    fn pass_on(mut self, stopped: &UnixStream, parts: &SyncSender<Bytes>) {
        let in_hand = self.relay(stopped, parts);
        // The program sees the end of its input.
        drop(self.to);
        let InputSource::Own(mut file) = self.from else { return };
        wait(stopped);
        // A file's position is set to the first byte that the program did not read, so that a shell loop
        // continues there.
        let unread = in_hand as u64 + rustix::io::ioctl_fionread(&self.program).unwrap_or(0);
        if let Ok(unread @ 1..) = i64::try_from(unread) {
            let _ = file.seek(SeekFrom::Current(-unread));
        }
    }

    /// Writes until the input or the program ends. Returns how many bytes were read but not written.
    fn relay(&mut self, stopped: &UnixStream, parts: &SyncSender<Bytes>) -> usize {
        let mut buffer = vec![0; PART_BYTES];
        loop {
            // Nothing is read before the program's pipe has room.
            if !is_ready(self.to.as_fd(), PollFlags::OUT, stopped) {
                return 0;
            }
            let part = match &mut self.from {
                InputSource::Given(rest) => rest.split_to(rest.len().min(PART_BYTES)),
                InputSource::Own(file) if !is_ready(file.as_fd(), PollFlags::IN, stopped) => return 0,
                InputSource::Own(file) => match file.read(&mut buffer) {
                    Ok(read) => Bytes::copy_from_slice(&buffer[..read]),
                    Err(error) if is_transient(&error) => continue,
                    Err(_) => return 0,
                },
            };
            if part.is_empty() {
                return 0;
            }
            let written = self.write(&part, stopped);
            // If it cannot be stored, the program still gets its input.
            let _ = parts.send(part.slice(..written));
            if written < part.len() {
                return part.len() - written;
            }
        }
    }

    /// How many bytes of a part were written.
    fn write(&mut self, part: &[u8], stopped: &UnixStream) -> usize {
        let mut written = 0;
        while written < part.len() && is_ready(self.to.as_fd(), PollFlags::OUT, stopped) {
            match self.to.write(&part[written..]) {
                Ok(more) => written += more,
                Err(error) if is_transient(&error) => {}
                Err(_) => break,
            }
        }
        written
    }
}

impl<T> RunningInput<T> {
    /// Ends the thread, and returns the result of `keep`.
    pub(super) async fn stop(self) -> Option<T> {
        drop(self.stop);
        self.kept.await.ok()
    }
}

fn is_transient(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock)
}

/// Waits until a file is readable or writable; `false` if the program ends first.
fn is_ready(file: BorrowedFd<'_>, wanted: PollFlags, stopped: &UnixStream) -> bool {
    loop {
        let mut both = [PollFd::from_borrowed_fd(file, wanted), PollFd::new(stopped, PollFlags::IN)];
        match poll(&mut both, None) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
            Ok(_) if !both[1].revents().is_empty() => return false,
            Ok(_) if !both[0].revents().is_empty() => return true,
            Ok(_) => {}
        }
    }
}

/// Waits until the program has ended.
fn wait(stopped: &UnixStream) {
    while poll(&mut [PollFd::new(stopped, PollFlags::IN)], None) == Err(rustix::io::Errno::INTR) {}
}

/// Reads the parts that were passed on.
struct InputPartsReader {
    arriving: Receiver<Bytes>,
    rest: Bytes,
}

impl Read for InputPartsReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.rest.is_empty() {
            let Ok(part) = self.arriving.recv() else { return Ok(0) };
            self.rest = part;
        }
        let len = self.rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&self.rest.split_to(len));
        Ok(len)
    }
}
