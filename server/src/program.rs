//! The program that is recorded or replayed: its environment, its output, its end.
//!
//! What it writes goes on to where it would have gone, and is kept. A signal that ends a program at a terminal reaches it
//! by itself; one that is sent to annals alone is handed on.

use std::ffi::OsString;
use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How long output is waited for once the program has ended and others hold its pipe open.
const LINGER: Duration = Duration::from_millis(500);
/// Parts of output on their way.
const PARTS_MAX: usize = 64;
const PART_BYTES: usize = 64 << 10;

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Program {
    /// The command and its arguments, at least one.
    pub argv: Vec<OsString>,
    /// Where; this process's own directory if not said.
    pub directory: Option<PathBuf>,
    /// Variables besides those of this process.
    pub environment: Vec<(String, String)>,
}

/// Why a program could not be started.
#[derive(Debug)]
pub struct ProgramError {
    /// 127 where there is no such command, 126 where it cannot be executed.
    pub code: u8,
    /// In words.
    pub message: String,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended<T> {
    /// Its exit code; 128 and the signal's number where a signal ended it.
    pub code: u8,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What became of its standard output.
    pub stdout: T,
    /// What became of its standard error.
    pub stderr: T,
}

impl Program {
    /// Runs it to its end. `spawn` starts its process; `keep` is given each of both outputs as a stream, on a thread of its own, and may stop reading;
    /// the output goes on to this process's own all the same.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        spawn: impl FnOnce(&mut Command) -> std::io::Result<Child>,
        keep: impl Fn(&mut dyn Read) -> T + Clone + Send + 'static,
    ) -> Result<Ended<T>, ProgramError> {
        let (program, arguments) = self
            .argv
            .split_first()
            .ok_or_else(|| ProgramError { code: 125, message: "no command is given".to_owned() })?;
        let mut signals = Signals::new();
        let mut command = Command::new(program);
        command.args(arguments).envs(self.environment.iter().cloned());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        let mut child = spawn(&mut command).map_err(|error| {
            let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
            ProgramError {
                code,
                message: format!("{} cannot be started: {error}", program.to_string_lossy()),
            }
        })?;
        let (over, ended) = tokio::sync::watch::channel(false);
        let stdout =
            child.stdout.take().map(|from| relay(from, std::io::stdout(), ended.clone(), keep.clone()));
        let stderr = child.stderr.take().map(|from| relay(from, std::io::stderr(), ended, keep));
        let status = signals.pass_on(&mut child).await;
        let _ = over.send(true);
        let failed = |what: &str| ProgramError { code: 125, message: format!("its {what} was lost") };
        let status = status
            .map_err(|e| ProgramError { code: 125, message: format!("it cannot be waited for: {e}") })?;
        let stdout = join(stdout).await.ok_or_else(|| failed("standard output"))?;
        let stderr = join(stderr).await.ok_or_else(|| failed("standard error"))?;
        let (code, signal) = code_of(status);
        Ok(Ended { code, signal, stdout, stderr })
    }
}

async fn join<T>(task: Option<JoinHandle<T>>) -> Option<T> {
    task?.await.ok()
}

fn code_of(status: ExitStatus) -> (u8, Option<i32>) {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => (u8::try_from(code & 0xff).unwrap_or(1), None),
        (None, signal) => (128 + u8::try_from(signal.unwrap_or(0) & 0x7f).unwrap_or(0), signal),
    }
}

/// Passes a pipe on to `to`, and to `keep` on the way.
fn relay<T: Send + 'static>(
    mut from: impl AsyncRead + Unpin + Send + 'static,
    to: impl Write + Send + 'static,
    mut ended: tokio::sync::watch::Receiver<bool>,
    keep: impl Fn(&mut dyn Read) -> T + Send + 'static,
) -> JoinHandle<T> {
    let (parts, arriving) = mpsc::channel(PARTS_MAX);
    tokio::spawn(async move {
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
                    // Nobody takes it any more: the program gets the broken pipe that it would have had.
                    Ok(read) => if parts.send(Bytes::copy_from_slice(&buffer[..read])).await.is_err() { return },
                },
                () = &mut lingering => return,
            }
        }
    });
    tokio::task::spawn_blocking(move || {
        let mut passing = Passing { arriving, to, rest: Bytes::new() };
        let kept = keep(&mut passing);
        let _ = std::io::copy(&mut passing, &mut std::io::sink());
        kept
    })
}

struct Passing<W> {
    arriving: mpsc::Receiver<Bytes>,
    to: W,
    rest: Bytes,
}

impl<W: Write> Read for Passing<W> {
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

/// What this process is sent from now on ends nothing by itself; the future is over once anything was.
pub fn interrupted() -> impl Future<Output = ()> {
    let mut signals = Signals::new();
    async move { signals.any().await }
}

/// Has `then` done once this process is asked to end; by itself that ends nothing any more. Where signals cannot be waited for, they end it
/// as ever.
pub fn when_interrupted(then: impl FnOnce() + Send + 'static) {
    let (listens, listening) = std::sync::mpsc::channel();
    let wait = move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
        runtime.block_on(async {
            let interrupted = interrupted();
            drop(listens);
            interrupted.await;
        });
        then();
    };
    let _ = std::thread::Builder::new().name("annals-signals".to_owned()).spawn(wait);
    // Over once it listens, and where it never will.
    let _: Result<(), _> = listening.recv();
}

/// The signals that ask a program to end.
struct Signals(Option<[(Signal, rustix::process::Signal); 3]>);

impl Signals {
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

    /// Waits until this process is told to end.
    async fn any(&mut self) {
        let Some([interrupt, terminate, hangup]) = &mut self.0 else { return std::future::pending().await };
        tokio::select! {
            _ = interrupt.0.recv() => {}
            _ = terminate.0.recv() => {}
            _ = hangup.0.recv() => {}
        }
    }

    /// Waits for the program, and hands on what this process is sent meanwhile.
    async fn pass_on(&mut self, child: &mut Child) -> std::io::Result<ExitStatus> {
        let Some([interrupt, terminate, hangup]) = &mut self.0 else { return child.wait().await };
        loop {
            let sent = tokio::select! {
                ended = child.wait() => return ended,
                _ = interrupt.0.recv() => interrupt.1,
                _ = terminate.0.recv() => terminate.1,
                _ = hangup.0.recv() => hangup.1,
            };
            // Ctrl-C at a terminal goes to the program as well as to us.
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
