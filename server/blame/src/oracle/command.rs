//! A program that grades an outcome.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::{RunOutcome, Verdict};

/// The longest time of one grading.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Interval between two looks at the program.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Most bytes of its error that a reason shows.
const WHY_BYTES: u64 = 300;

/// Runs a shell command with the final output on its standard input and the exit code in
/// `ANNALS_EXIT_CODE`. Exit code 0 is a pass and 1 a failure; any other end is undefined.
pub(super) fn grade(command: &str, outcome: &RunOutcome) -> Verdict {
    match run(command, &outcome.output, outcome.code, TIME_MAX) {
        Ok((Some(0), _)) => Verdict::Pass,
        Ok((Some(1), _)) => Verdict::Fail,
        Ok((Some(code), why)) => {
            Verdict::Undefined(with_reason(&format!("the oracle ended with {code}"), &why))
        }
        Ok((None, why)) => Verdict::Undefined(with_reason("the oracle crashed or ran too long", &why)),
        Err(error) => Verdict::Undefined(format!("the oracle cannot be run: {error}")),
    }
}

fn with_reason(what: &str, why: &str) -> String {
    if why.is_empty() { what.to_owned() } else { format!("{what}: {why}") }
}

/// Runs a command with an input; its exit code (`None`: a signal or the time limit ended it) and the beginning
/// of what it wrote to standard error.
fn run(
    command: &str,
    input: &[u8],
    exit_code: u8,
    time_max: Duration,
) -> std::io::Result<(Option<i32>, String)> {
    let mut child = Command::new("sh")
        .args(["-c", command])
        .env("ANNALS_EXIT_CODE", exit_code.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| stdin.map(|mut stdin| stdin.write_all(input)));
        let reading = scope.spawn(|| {
            let mut why = Vec::new();
            if let Some(mut stderr) = stderr {
                let _ = (&mut stderr).take(WHY_BYTES).read_to_end(&mut why);
                let _ = std::io::copy(&mut stderr, &mut std::io::sink());
            }
            String::from_utf8_lossy(&why).trim().to_owned()
        });
        let code = wait(&mut child, time_max)?;
        // A program that reads nothing breaks the pipe, which is no error.
        let _ = writing.join();
        Ok((code, reading.join().unwrap_or_default()))
    })
}

/// Waits for a program that leads a process group, at most for the limit, and then kills what is left of the
/// group: a process that it left behind may hold its output open.
pub(crate) fn wait(child: &mut Child, time_max: Duration) -> std::io::Result<Option<i32>> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let group = group.ok_or(std::io::ErrorKind::InvalidInput)?;
    // The ended program keeps its number until the group is killed, so that no other group has it.
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let mut waited = Duration::ZERO;
    let mut has_ended = false;
    while !has_ended && waited < time_max {
        has_ended = match waitid(WaitId::Pid(group), look) {
            Ok(status) => status.is_some(),
            Err(Errno::INTR) => false,
            Err(error) => return Err(error.into()),
        };
        if !has_ended {
            std::thread::sleep(LOOK_EVERY);
            waited += LOOK_EVERY;
        }
    }
    let _ = kill_process_group(group, Signal::KILL);
    let status = child.wait()?;
    Ok(if has_ended { status.code() } else { None })
}
