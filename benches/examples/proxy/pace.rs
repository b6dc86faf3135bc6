//! Sends each chunk when it is due. With a timer of a millisecond, streams would go out in bursts that no
//! network makes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::ProxyBenchResult;

/// A stream to send: its connection, its first time, its interval and its chunks.
pub(crate) struct PacedStream {
    pub(crate) to: TcpStream,
    pub(crate) first: Instant,
    pub(crate) every: Duration,
    pub(crate) chunks: u64,
    pub(crate) chunk: fn(u64) -> Vec<u8>,
    pub(crate) last: &'static [u8],
}

/// Starts the sending thread.
pub(crate) fn start() -> ProxyBenchResult<Sender<PacedStream>> {
    let (give, given) = channel();
    std::thread::Builder::new().name("pace".to_owned()).spawn(move || send_when_due(&given))?;
    Ok(give)
}

fn send_when_due(given: &Receiver<PacedStream>) {
    let mut streams: Vec<(PacedStream, u64)> = Vec::new();
    let mut due = BinaryHeap::new();
    loop {
        let next = match due.is_empty() {
            true => given.recv().ok(),
            false => given.try_recv().ok(),
        };
        if let Some(paced) = next {
            due.push(Reverse((paced.first, streams.len())));
            streams.push((paced, 0));
            continue;
        }
        let Some(Reverse((at, number))) = due.pop() else { return };
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let (paced, sent) = &mut streams[number];
        let bytes = if *sent < paced.chunks { (paced.chunk)(*sent) } else { paced.last.to_vec() };
        *sent += 1;
        if paced.to.write_all(&bytes).is_ok() && *sent <= paced.chunks {
            due.push(Reverse((at + paced.every, number)));
        } else {
            let _ = paced.to.shutdown(std::net::Shutdown::Write);
        }
    }
}
