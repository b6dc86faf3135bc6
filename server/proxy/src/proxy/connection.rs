//! Whether a client has read the bytes written to it, and whether it has hung up.
//!
//! Overlapping answers are sent in their recorded order, which a client that finds two at once cannot see. So
//! each waits until the client has read the one before ([`super::socket_diag`]); on systems that do not
//! tell, a short pause is used instead.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::socket_diag::{ClientEnd, SocketDiag};

/// How long a client may leave an answer unread before the next one is sent anyway.
const UNREAD_MAX: Duration = Duration::from_millis(500);
/// A client that is about to read does so within this time, which is shorter than any timer can measure.
const READ_SOON: Duration = Duration::from_micros(300);
/// Time between two checks after that.
const READ_POLL: Duration = Duration::from_millis(1);
/// Time between two looks whether a client that waits for its answer has hung up.
const HANG_UP_POLL: Duration = Duration::from_millis(20);
/// The pause on systems that do not tell.
const UNSEEN_PAUSE: Duration = Duration::from_millis(5);

/// A connection's two ends, and the number of bytes written to it.
#[derive(Debug)]
pub(crate) struct ConnectionProgress {
    client: SocketAddr,
    own: SocketAddr,
    /// Tells about the sockets of the client's network namespace.
    sockets: Arc<SocketDiag>,
    written: AtomicU64,
}

impl ConnectionProgress {
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Waits until this many bytes were written in total.
    pub(crate) async fn wait_until_written(&self, bytes: u64) {
        self.wait_until(|| self.written() >= bytes).await;
    }

    /// Waits until this many bytes were written in total, and all but `spare` of them read.
    pub(crate) async fn wait_until_read(&self, bytes: u64, spare: u64) {
        let mut is_seen = true;
        self.wait_until(|| {
            self.written() >= bytes
                && match self.client_end() {
                    Some(ClientEnd::Open { unread }) => unread <= spare,
                    Some(ClientEnd::Closed) => true,
                    None => {
                        is_seen = false;
                        true
                    }
                }
        })
        .await;
        if !is_seen {
            sleep(UNSEEN_PAUSE).await;
        }
    }

    /// Waits until this holds, but not longer than [`UNREAD_MAX`].
    async fn wait_until(&self, mut holds: impl FnMut() -> bool) {
        let began = Instant::now();
        while began.elapsed() < UNREAD_MAX && !holds() {
            if began.elapsed() < READ_SOON {
                yield_now().await;
            } else {
                sleep(READ_POLL).await;
            }
        }
    }

    /// Whether the client has closed its end. A client that has only ended its own direction still waits. False on
    /// systems that do not tell.
    pub(crate) fn has_hung_up(&self) -> bool {
        self.client_end() == Some(ClientEnd::Closed)
    }

    fn client_end(&self) -> Option<ClientEnd> {
        self.sockets.client_end(self.client, self.own)
    }

    /// Waits until the client has closed its end.
    pub(crate) async fn hung_up(&self) {
        loop {
            sleep(HANG_UP_POLL).await;
            if self.has_hung_up() {
                return;
            }
        }
    }
}

/// A connection that counts the bytes written to it.
#[derive(Debug)]
pub(crate) struct CountedStream {
    stream: TcpStream,
    wire: Arc<ConnectionProgress>,
}

impl CountedStream {
    /// `None` if the connection is already gone.
    pub(crate) fn new(stream: TcpStream, sockets: Arc<SocketDiag>) -> Option<Self> {
        let (client, own) = (stream.peer_addr().ok()?, stream.local_addr().ok()?);
        let wire = ConnectionProgress { client, own, sockets, written: AtomicU64::new(0) };
        Some(Self { stream, wire: Arc::new(wire) })
    }

    pub(crate) fn wire(&self) -> Arc<ConnectionProgress> {
        self.wire.clone()
    }

    fn count(&self, written: Poll<std::io::Result<usize>>) -> Poll<std::io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.wire.written.fetch_add(*bytes as u64, Ordering::Relaxed);
        }
        written
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.count(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// With a real connection: not read before the client reads, then soon after.
    #[test]
    fn wait_until_read_ends_after_the_client_reads() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let mut counted = CountedStream::new(stream, SocketDiag::of_this_process()).unwrap();
            let wire = counted.wire();
            tokio::io::AsyncWriteExt::write_all(&mut counted, b"four").await.unwrap();
            assert_eq!(wire.written(), 4);
            let unread = || match wire.client_end() {
                Some(ClientEnd::Open { unread }) => Some(unread),
                _ => None,
            };
            assert!(matches!(unread(), Some(4) | None));
            client.read_exact(&mut [0; 4]).unwrap();
            wire.wait_until_read(4, 0).await;
            assert!(matches!(unread(), Some(0) | None));
            assert!(!wire.has_hung_up());
            drop(client);
            if unread().is_some() || cfg!(target_os = "linux") {
                wire.hung_up().await;
            }
        });
    }
}
