//! TLS on the ports for Redis and HTTP clients.
//!
//! The handshake runs in the connection's task, because it costs more processor time than a turn. Afterwards
//! the client loop reads and writes records without waiting ([`TlsStream`]), and so do tasks
//! ([`TlsTaskStream`]).
//!
//! Invariant: a port with TLS never continues without it. A client that sends something else gets an error in
//! its own protocol, and the connection ends.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

use super::config::ServeError;
use super::connection::LOGIN_TIMEOUT;

/// Maximum size of a certificate chain's or key's file, in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;
/// The type of a TLS record that begins a handshake (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;
/// How much a client without TLS is read from, and for how long, so that it receives the error.
const DRAINED_BYTES_MAX: usize = 64 << 10;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// What a client without TLS is told, by the port's protocol.
const PLAIN_RESP: &[u8] = b"-ERR this port requires TLS: connect with TLS\r\n";
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\nconnection: close\r\ncontent-length: 98\r\n\r\n\
{\"title\":\"Bad Request\",\"status\":400,\"code\":\"ERR\",\"detail\":\"this port requires TLS: use https://\"}\n";

/// The files of the certificate chain and of its key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TlsFiles {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
}

/// The TLS settings of the ports.
#[derive(Debug, Clone)]
pub(super) struct TlsPorts {
    resp: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
}

/// The protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortProtocol {
    Resp,
    Http,
}

impl TlsFiles {
    /// Reads the certificate and the key.
    ///
    /// # Errors
    /// `System` for a file that cannot be read; `Refused` for one that does not hold what it should, and for
    /// a key of another certificate.
    pub(super) fn load(&self) -> Result<TlsPorts, ServeError> {
        let refused = |file: &Path, what: &str| ServeError::Refused(format!("{}: {what}", file.display()));
        let pem = read_pem(&self.cert)?;
        let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
        let chain =
            chain.map_err(|error| refused(&self.cert, &format!("not a certificate in PEM: {error}")))?;
        if chain.is_empty() {
            return Err(refused(&self.cert, "holds no certificate in PEM"));
        }
        let pem = read_pem(&self.key)?;
        let key = PrivateKeyDer::from_pem_slice(&pem)
            .map_err(|error| refused(&self.key, &format!("holds no private key in PEM: {error}")))?;
        let config = |protocols: &[&[u8]]| {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let mut config = ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .and_then(|builder| {
                    builder.with_no_client_auth().with_single_cert(chain.clone(), key.clone_key())
                })
                .map_err(|error| {
                    refused(&self.key, &format!("does not fit {}: {error}", self.cert.display()))
                })?;
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            Ok::<_, ServeError>(Arc::new(config))
        };
        Ok(TlsPorts { resp: config(&[])?, http: config(&[b"http/1.1"])? })
    }
}

/// Reads a file in PEM.
fn read_pem(file: &Path) -> Result<Vec<u8>, ServeError> {
    #[expect(clippy::disallowed_methods, reason = "a file of the user's, not of a store")]
    let opened = std::fs::File::open(file);
    let mut bytes = Vec::new();
    opened
        .and_then(|opened| opened.take(PEM_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|cause| ServeError::System { what: format!("cannot read {}", file.display()), cause })?;
    Ok(bytes)
}

impl TlsPorts {
    /// The handshake with a client that was just accepted. A failure is logged with the client's address.
    ///
    /// # Errors
    /// Those of the socket and of TLS; `TimedOut`.
    pub(super) async fn accept(
        &self,
        mut stream: tokio::net::TcpStream,
        protocol: PortProtocol,
        peer: &str,
    ) -> io::Result<TlsTaskStream> {
        let mut first = [0];
        let accepted = timeout(LOGIN_TIMEOUT, async {
            if stream.peek(&mut first).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if first != [HANDSHAKE] {
                return Err(ErrorKind::Unsupported.into());
            }
            let config = match protocol {
                PortProtocol::Resp => self.resp.clone(),
                PortProtocol::Http => self.http.clone(),
            };
            shake_hands(&stream, config).await
        });
        match accepted.await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())) {
            Ok(tls) => Ok(TlsTaskStream { stream, tls }),
            Err(error) => {
                match error.kind() {
                    ErrorKind::Unsupported => {
                        tracing::warn!(peer, "a client without TLS was refused: this port requires TLS");
                        refuse_plain(&mut stream, protocol).await;
                    }
                    // A port scan, or a client that hung up.
                    ErrorKind::UnexpectedEof => tracing::debug!(peer, "a client hung up before TLS"),
                    _ => tracing::warn!(peer, %error, "a TLS handshake failed"),
                }
                Err(error)
            }
        }
    }
}

/// Runs the handshake to its end.
async fn shake_hands(
    stream: &tokio::net::TcpStream,
    config: Arc<ServerConfig>,
) -> io::Result<Box<ServerConnection>> {
    let mut tls = Box::new(ServerConnection::new(config).map_err(io::Error::other)?);
    while tls.is_handshaking() || tls.wants_write() {
        if tls.wants_write() {
            match flush_records(&mut tls, &mut TryIo(stream)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => stream.writable().await?,
                done => done?,
            }
            continue;
        }
        match tls.read_tls(&mut TryIo(stream)) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => process_records(&mut tls, &mut TryIo(stream))?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(tls)
}

/// Tells a client without TLS why its connection ends.
async fn refuse_plain(stream: &mut tokio::net::TcpStream, protocol: PortProtocol) {
    let told = match protocol {
        PortProtocol::Resp => PLAIN_RESP,
        PortProtocol::Http => PLAIN_HTTP,
    };
    let refused = async {
        stream.write_all(told).await?;
        stream.shutdown().await?;
        // Unread bytes would make the system discard the error that was just sent.
        let mut left = DRAINED_BYTES_MAX;
        let mut bytes = [0; 1024];
        while left > 0 {
            match stream.read(&mut bytes).await? {
                0 => break,
                read => left = left.saturating_sub(read),
            }
        }
        Ok::<_, io::Error>(())
    };
    // A client that is gone needs no reason.
    let _ = timeout(DRAIN_TIMEOUT, refused).await;
}

/// Handles the records that have arrived; on an error, tells the client.
fn process_records(tls: &mut ServerConnection, io: &mut impl Write) -> io::Result<()> {
    match tls.process_new_packets() {
        Ok(_) => Ok(()),
        Err(error) => {
            let _ = tls.write_tls(io);
            Err(io::Error::new(ErrorKind::InvalidData, error))
        }
    }
}

/// Reads decrypted bytes; `WouldBlock` if no whole record has arrived.
fn read_plain(
    tls: &mut ServerConnection,
    io: &mut (impl Read + Write),
    bytes: &mut [u8],
) -> io::Result<usize> {
    loop {
        match tls.reader().read(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            done => return done,
        }
        // After the end of the stream, the next turn of the loop returns it.
        tls.read_tls(io)?;
        process_records(tls, io)?;
        // For example the answer to a change of keys. It may also leave with the next reply.
        let _ = flush_records(tls, io);
    }
}

/// Encrypts some bytes, and sends as much as the socket takes; [`flush_records`] sends the rest.
fn write_plain(tls: &mut ServerConnection, io: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    let mut taken = tls.writer().write(bytes)?;
    if taken == 0 {
        // Too many records wait for the socket.
        flush_records(tls, io)?;
        taken = tls.writer().write(bytes)?;
    }
    match flush_records(tls, io) {
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        _ => Ok(taken),
    }
}

/// Sends all records; `WouldBlock` if some are left.
fn flush_records(tls: &mut ServerConnection, io: &mut impl Write) -> io::Result<()> {
    while tls.wants_write() {
        if tls.write_tls(io)? == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}

/// A TLS connection on a socket that does not block, for the client loop.
#[derive(Debug)]
pub(super) struct TlsStream {
    pub(super) stream: std::net::TcpStream,
    tls: Box<ServerConnection>,
}

impl TlsStream {
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        read_plain(&mut self.tls, &mut self.stream, bytes)
    }

    /// Takes some bytes. They are sent once [`TlsStream::flush`] succeeds.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_plain(&mut self.tls, &mut self.stream, bytes)
    }

    /// Sends what was taken; `WouldBlock` if the socket does not take all of it now.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        flush_records(&mut self.tls, &mut self.stream)
    }

    pub(super) fn shut_down_writing(&mut self) -> io::Result<()> {
        self.tls.send_close_notify();
        let _ = self.flush();
        self.stream.shutdown(Shutdown::Write)
    }

    /// For the connection's task.
    pub(super) fn into_task_stream(self) -> io::Result<TlsTaskStream> {
        Ok(TlsTaskStream { stream: tokio::net::TcpStream::from_std(self.stream)?, tls: self.tls })
    }
}

/// A socket of a task, read and written without waiting.
struct TryIo<'a>(&'a tokio::net::TcpStream);

impl Read for TryIo<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(bytes)
    }
}

impl Write for TryIo<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A TLS connection in a task.
#[derive(Debug)]
pub(super) struct TlsTaskStream {
    stream: tokio::net::TcpStream,
    tls: Box<ServerConnection>,
}

impl TlsTaskStream {
    /// For the client loop.
    pub(super) fn into_loop_stream(self) -> io::Result<TlsStream> {
        Ok(TlsStream { stream: self.stream.into_std()?, tls: self.tls })
    }

    /// Runs an operation that may need the socket to become writable.
    fn poll_writing<T>(
        &mut self,
        context: &mut Context<'_>,
        mut operation: impl FnMut(&mut ServerConnection, &mut TryIo<'_>) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let Self { stream, tls } = self;
        loop {
            match operation(tls, &mut TryIo(stream)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready!(stream.poll_write_ready(context))?;
                }
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncRead for TlsTaskStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, tls } = &mut *self;
        loop {
            match read_plain(tls, &mut TryIo(stream), buffer.initialize_unfilled()) {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready!(stream.poll_read_ready(context))?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for TlsTaskStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_writing(context, |tls, io| write_plain(tls, io, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_writing(context, |tls, io| flush_records(tls, io))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tls.send_close_notify();
        ready!(self.as_mut().poll_flush(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
