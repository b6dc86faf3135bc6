//! The program that is recorded or replayed: its environment, output and end.
//!
//! Its output is passed on unchanged and kept. A terminal delivers its signals to the program directly;
//! signals sent to annals alone are passed on.
//!
//! Layout: `input` (its standard input), `survivors` (processes that it leaves behind).

mod input;
mod survivors;

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub(crate) use input::InputKind;
use input::InputRelay;
pub use input::StandardInput;
pub use survivors::Survivor;
use survivors::survivors;

/// How long output is read after the program has ended, while other processes hold its pipe open.
const LINGER: Duration = Duration::from_millis(500);
/// Interval between two searches for processes that outlive the program.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of output parts in transit.
const PARTS_MAX: usize = 64;
const PART_BYTES: usize = 64 << 10;

/// The command to run.
#[derive(Debug, Clone)]
pub struct Program {
    /// The command and its arguments, at least one.
    pub argv: Vec<OsString>,
    /// The working directory; `None`: the directory of this process.
    pub directory: Option<PathBuf>,
    /// Variables added to those of this process.
    pub environment: Vec<(String, String)>,
}

/// A program's input, and the treatment of processes that outlive it.
#[derive(Debug, Clone)]
pub struct Supervision {
    /// Its standard input.
    pub stdin: StandardInput,
    /// How long processes that outlive the program keep their proxy.
    pub linger: Duration,
    /// Called with the processes that are about to be waited for.
    pub waiting: fn(&[Survivor]),
    /// The longest time that a program may run which nobody watches. Its output is kept and not passed on. It
    /// has a process group of its own, which ends with it. `None`: a person watches the program.
    pub unattended: Option<Duration>,
}

impl Default for Supervision {
    fn default() -> Self {
        Self {
            stdin: StandardInput::Inherited,
            linger: Duration::from_secs(30),
            waiting: |_| (),
            unattended: None,
        }
    }
}

/// Why a program could not be started.
#[derive(Debug)]
pub struct ProgramError {
    /// 127 if there is no such command, 126 if it cannot be executed.
    pub code: u8,
    /// The error message.
    pub message: String,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct ProgramExit<T> {
    /// Its exit code; 128 and the signal's number if a signal ended it.
    pub code: u8,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why annals ended it, if it did.
    pub stopped: Option<StopReason>,
    /// How long it ran.
    pub ran: Duration,
    /// Processes that outlived it and still run.
    pub survivors: Vec<Survivor>,
    /// What `keep` made of its standard input, if that was passed on.
    pub stdin: Option<T>,
    /// What `keep` made of its standard output.
    pub stdout: T,
    /// What `keep` made of its standard error.
    pub stderr: T,
}

/// Why annals ended an unattended program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// It ran longer than its time limit.
    TimeLimit,
    /// This process was asked to end.
    Interrupted,
}

impl Program {
    /// Whether its command exists and can be executed.
    ///
    /// # Errors
    /// If not: 127 or 126, as a shell would exit.
    pub fn check(&self) -> Result<(), ProgramError> {
        use rustix::io::Errno;
        let Some(name) = self.argv.first() else { return Ok(()) };
        let relative = self.directory.clone().unwrap_or_default();
        let own = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
        let set = self.environment.iter().rev().find(|(name, _)| name == "PATH");
        let path = set.map_or(own, |(_, value)| value.into());
        let places: Vec<PathBuf> = match name.as_encoded_bytes().contains(&b'/') {
            true => vec![relative.join(name)],
            false => std::env::split_paths(&path).map(|place| relative.join(place).join(name)).collect(),
        };
        let mut why = Errno::NOENT;
        for place in places {
            match rustix::fs::access(&place, rustix::fs::Access::EXEC_OK) {
                Ok(()) if !place.is_dir() => return Ok(()),
                Ok(()) | Err(Errno::ACCESS) => why = Errno::ACCESS,
                Err(_) => {}
            }
        }
        Err(ProgramError::from_io(name, &why.into()))
    }

    /// Runs the program to its end. `spawn` starts its process. `keep` gets each output, and the input if it
    /// is passed on, as a stream on a thread of its own. It may stop reading; the stream is passed on all the
    /// same. Processes that outlive the program and have `marker` in their environment are waited for.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        spawn: impl FnOnce(&mut Command) -> std::io::Result<Child>,
        supervision: &Supervision,
        marker: &str,
        keep: impl Fn(&mut dyn Read) -> T + Clone + Send + 'static,
    ) -> Result<ProgramExit<T>, ProgramError> {
        let (program, arguments) = self
            .argv
            .split_first()
            .ok_or_else(|| ProgramError { code: 125, message: "no command is given".to_owned() })?;
        let mut signals = EndSignals::new();
        let mut command = Command::new(program);
        command.args(arguments).envs(self.environment.iter().cloned());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        let passes = supervision.unattended.is_none();
        if !passes {
            command.process_group(0);
        }
        let began = Instant::now();
        let input = InputRelay::new(&supervision.stdin, &mut command);
        let spawned = input.and_then(|input| Ok((input, spawn(&mut command)?)));
        let (input, mut child) = spawned.map_err(|error| ProgramError::from_io(program, &error))?;
        // The command holds the program's end of its input.
        drop(command);
        let input = input.map(|input| input.start(keep.clone())).transpose();
        let input = input.map_err(|error| ProgramError::from_io(program, &error))?;
        let (over, ended) = tokio::sync::watch::channel(false);
        let pipes = [child.stdout.as_ref().map(inode), child.stderr.as_ref().map(inode)];
        let pipes: Vec<u64> = pipes.into_iter().flatten().flatten().collect();
        let to =
            |output: fn() -> Box<dyn Write + Send>| if passes { output() } else { Box::new(std::io::sink()) };
        let (out, err) = (to(|| Box::new(std::io::stdout())), to(|| Box::new(std::io::stderr())));
        let stdout = child.stdout.take().map(|from| relay(from, out, ended.clone(), keep.clone()));
        let stderr = child.stderr.take().map(|from| relay(from, err, ended, keep));
        let group = child.id();
        let (status, stopped) = match supervision.unattended {
            None => (signals.pass_on(&mut child).await, None),
            Some(limit) => signals.end_within(&mut child, limit).await,
        };
        let ran = began.elapsed();
        let stdin = match input {
            Some(input) => input.stop().await,
            None => None,
        };
        let open = || [&stdout, &stderr].into_iter().flatten().any(|output| !output.0.is_finished());
        let left = match passes {
            true => wait_for_survivors(supervision, marker, &pipes, &mut signals, open).await,
            // Processes that outlive an unattended program would act on after its outcome is judged.
            false => {
                end_group(group);
                Vec::new()
            }
        };
        let _ = over.send(true);
        let failed = |what: &str| ProgramError { code: 125, message: format!("its {what} was lost") };
        let status = status
            .map_err(|e| ProgramError { code: 125, message: format!("it cannot be waited for: {e}") })?;
        let stdout = join(stdout).await.ok_or_else(|| failed("standard output"))?;
        let stderr = join(stderr).await.ok_or_else(|| failed("standard error"))?;
        let (code, signal) = code_of(status);
        Ok(ProgramExit { code, signal, stopped, ran, survivors: left, stdin, stdout, stderr })
    }
}

/// Kills a process group.
fn end_group(leader: Option<u32>) {
    if let Some(group) = leader.and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw)
    {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

impl ProgramError {
    fn from_io(program: &OsStr, error: &std::io::Error) -> Self {
        let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
        Self { code, message: format!("{} cannot be started: {error}", program.to_string_lossy()) }
    }
}

/// Waits for processes that outlive their program: those with the marker, and those that hold its output
/// open. Returns those still running after the linger time, or once this process is told to end.
async fn wait_for_survivors(
    supervision: &Supervision,
    marker: &str,
    pipes: &[u64],
    signals: &mut EndSignals,
    open: impl Fn() -> bool,
) -> Vec<Survivor> {
    let (ended, mut known) = (Instant::now(), Vec::new());
    // Output in transit holds a pipe open for a moment.
    while open() && ended.elapsed() < LINGER {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    loop {
        let found = survivors(marker, if open() { pipes } else { &[] });
        if found.is_empty() || ended.elapsed() >= supervision.linger {
            return found;
        }
        if found.iter().any(|survivor| !known.contains(survivor)) {
            (supervision.waiting)(&found);
            known.clone_from(&found);
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            _ = signals.wait_for_any() => return survivors(marker, pipes),
        }
    }
}

/// The inode of a pipe.
fn inode(pipe: &impl AsFd) -> Option<u64> {
    rustix::fs::fstat(pipe).ok().map(|known| known.st_ino)
}

/// The tasks that read an output and process it.
type RelayTasks<T> = (JoinHandle<()>, JoinHandle<T>);

async fn join<T>(output: Option<RelayTasks<T>>) -> Option<T> {
    output?.1.await.ok()
}

fn code_of(status: ExitStatus) -> (u8, Option<i32>) {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => (u8::try_from(code & 0xff).unwrap_or(1), None),
        (None, signal) => (128 + u8::try_from(signal.unwrap_or(0) & 0x7f).unwrap_or(0), signal),
    }
}

/// Copies a pipe to `to` and to `keep`.
fn relay<T: Send + 'static>(
    mut from: impl AsyncRead + Unpin + Send + 'static,
    to: Box<dyn Write + Send>,
    mut ended: tokio::sync::watch::Receiver<bool>,
    keep: impl Fn(&mut dyn Read) -> T + Send + 'static,
) -> RelayTasks<T> {
    let (parts, arriving) = mpsc::channel(PARTS_MAX);
    let reading = tokio::spawn(async move {
        let lingering = async {
            let _ = ended.wait_for(|ended| *ended).await;
            tokio::time::sleep(LINGER).await;
        };
        tokio::pin!(lingering);
        let mut buffer = vec![0; PART_BYTES];
        loop {
            tokio::select! {
                biased;
                read = from.read(&mut buffer) => match read {
                    Ok(0) | Err(_) => return,
                    // If nobody reads any more, the program gets the broken pipe that it would have had.
                    Ok(read) => if parts.send(Bytes::copy_from_slice(&buffer[..read])).await.is_err() { return },
                },
                () = &mut lingering => return,
            }
        }
    });
    let kept = tokio::task::spawn_blocking(move || {
        let mut passing = RelayReader { arriving, to, rest: Bytes::new() };
        let kept = keep(&mut passing);
        let _ = std::io::copy(&mut passing, &mut std::io::sink());
        kept
    });
    (reading, kept)
}

struct RelayReader<W> {
    arriving: mpsc::Receiver<Bytes>,
    to: W,
    rest: Bytes,
}

impl<W: Write> Read for RelayReader<W> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.rest.is_empty() {
            let Some(part) = self.arriving.blocking_recv() else { return Ok(0) };
            if self.to.write_all(&part).and_then(|()| self.to.flush()).is_err() {
                self.arriving.close();
            }
            self.rest = part;
        }
        let len = self.rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&self.rest.split_to(len));
        Ok(len)
    }
}

/// Completes when this process is sent a signal that asks it to end. From now on these signals do not end the
/// process.
pub fn interrupted() -> impl Future<Output = ()> {
    let mut signals = EndSignals::new();
    async move {
        let _sent = signals.wait_for_any().await;
    }
}

/// As [`interrupted`], for a process in which SIGHUP has another meaning: that signal is ignored here.
pub fn terminated() -> impl Future<Output = ()> {
    let mut signals = EndSignals::new();
    async move {
        let Some([interrupt, terminate, _]) = &mut signals.0 else { return std::future::pending().await };
        tokio::select! {
            _ = interrupt.0.recv() => {}
            _ = terminate.0.recv() => {}
        }
    }
}

/// Runs `then` with the number of the signal once this process is asked to end; the signal itself no longer ends it. If
/// signals cannot be handled, they end the process as usual.
pub fn when_interrupted(then: impl FnOnce(i32) + Send + 'static) {
    let (listens, listening) = std::sync::mpsc::channel();
    let wait = move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
        let sent = runtime.block_on(async {
            let mut signals = EndSignals::new();
            drop(listens);
            signals.wait_for_any().await
        });
        then(sent.as_raw());
    };
    let _ = std::thread::Builder::new().name("annals-signals".to_owned()).spawn(wait);
    // Returns once the thread listens, or never will.
    let _: Result<(), _> = listening.recv();
}

/// The signals that ask a program to end.
struct EndSignals(Option<[(Signal, rustix::process::Signal); 3]>);

impl EndSignals {
    fn new() -> Self {
        use rustix::process::Signal as Sent;
        let of = |kind, sent| signal(kind).ok().map(|signal| (signal, sent));
        let all = || {
            Some([
                of(SignalKind::interrupt(), Sent::INT)?,
                of(SignalKind::terminate(), Sent::TERM)?,
                of(SignalKind::hangup(), Sent::HUP)?,
            ])
        };
        Self(all())
    }

    /// Waits until this process is told to end, and returns by which signal.
    async fn wait_for_any(&mut self) -> rustix::process::Signal {
        let Some([interrupt, terminate, hangup]) = &mut self.0 else { return std::future::pending().await };
        tokio::select! {
            _ = interrupt.0.recv() => interrupt.1,
            _ = terminate.0.recv() => terminate.1,
            _ = hangup.0.recv() => hangup.1,
        }
    }

    /// Waits for an unattended program. Ends its process group after the limit, or once this process is asked
    /// to end.
    async fn end_within(
        &mut self,
        child: &mut Child,
        limit: Duration,
    ) -> (std::io::Result<ExitStatus>, Option<StopReason>) {
        let group = child.id();
        let stopped = tokio::select! {
            biased;
            ended = child.wait() => return (ended, None),
            () = tokio::time::sleep(limit) => StopReason::TimeLimit,
            _ = self.wait_for_any() => StopReason::Interrupted,
        };
        end_group(group);
        (child.wait().await, Some(stopped))
    }

    /// Waits for the program, and passes on the signals that this process gets meanwhile.
    async fn pass_on(&mut self, child: &mut Child) -> std::io::Result<ExitStatus> {
        let Some([interrupt, terminate, hangup]) = &mut self.0 else { return child.wait().await };
        loop {
            let sent = tokio::select! {
                ended = child.wait() => return ended,
                _ = interrupt.0.recv() => interrupt.1,
                _ = terminate.0.recv() => terminate.1,
                _ = hangup.0.recv() => hangup.1,
            };
            // Ctrl-C at a terminal reaches the program as well as annals.
            let by_terminal = sent == rustix::process::Signal::INT && std::io::stdin().is_terminal();
            if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok())
                && let Some(pid) = rustix::process::Pid::from_raw(pid)
                && !by_terminal
            {
                let _ = rustix::process::kill_process(pid, sent);
            }
        }
    }
}
