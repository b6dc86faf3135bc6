//! TLS as clients see it, over sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tokio::sync::watch;

use super::{PortProtocol, TlsFiles, TlsTaskStream};
use crate::client_connection::{ClientConnection as Connection, ClientStream};
use crate::connection;
use crate::session::{ClientInfo, Session};
use crate::tests::DaemonBench;

/// A self-signed certificate for localhost, its key, and another key. They protect nothing.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tls").join(name)
}

fn files() -> TlsFiles {
    TlsFiles { cert: file("test-cert.pem"), key: file("test-key.pem") }
}

/// A port of the daemon that requires TLS, for Redis clients.
fn listen(bench: &DaemonBench, protocol: PortProtocol) -> (SocketAddr, watch::Sender<bool>) {
    let ports = files().load().unwrap();
    let listener = bench.runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let (daemon, owner) = (bench.daemon.clone(), bench.daemon.owner().unwrap());
    bench.runtime.spawn(async move {
        while let Ok((stream, from)) = listener.accept().await {
            let (daemon, owner, ports) = (daemon.clone(), owner.clone(), ports.clone());
            let stopped = stopped.clone();
            tokio::spawn(async move {
                let accepted = ports.accept(stream, protocol, &from.to_string()).await;
                let Ok(stream) = accepted.and_then(TlsTaskStream::into_loop_stream) else { return };
                let session = Session::new(ClientInfo::default(), Some(owner), false);
                let connection = Connection::new(&daemon, session, ClientStream::Tls(stream));
                let _ = connection::serve(connection, stopped).await;
            });
        }
    });
    (address, stop)
}

/// A stream that sends a few bytes at a time, so that records arrive in parts.
struct Dribble(TcpStream);

impl Read for Dribble {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(bytes)
    }
}

impl Write for Dribble {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let sent = self.0.write(&bytes[..bytes.len().min(7)])?;
        std::thread::yield_now();
        Ok(sent)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

fn client<S: Read + Write>(stream: S) -> StreamOwned<ClientConnection, S> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("test-cert.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn read(stream: &mut impl Read, bytes: usize) -> String {
    let mut reply = vec![0; bytes];
    stream.read_exact(&mut reply).unwrap();
    String::from_utf8(reply).unwrap()
}

#[test]
fn commands_run_over_tls_in_records_and_parts() {
    let bench = DaemonBench::new();
    let (address, _stop) = listen(&bench, PortProtocol::Resp);
    let mut whole = client(connect(address));
    whole.write_all(b"set k 1\r\nincr k\r\nget k\r\n").unwrap();
    assert_eq!(read(&mut whole, 5 + 4 + 7), "+OK\r\n:2\r\n$1\r\n2\r\n");
    let mut parts = client(Dribble(connect(address)));
    // Records that arrive together, and a request in two of them.
    for part in ["ge", "t k\r\nping\r\n", "ping\r\n"] {
        parts.write_all(part.as_bytes()).unwrap();
    }
    assert_eq!(read(&mut parts, 7 + 7 + 7), "$1\r\n2\r\n+PONG\r\n+PONG\r\n");
    // A blocked command leaves the loop and returns to it, with the state of TLS.
    whole.write_all(b"xread block 5 streams none $\r\nping\r\n").unwrap();
    assert_eq!(read(&mut whole, 5 + 7), "*-1\r\n+PONG\r\n");
    whole.write_all(b"quit\r\n").unwrap();
    let mut rest = Vec::new();
    // An orderly end, not a cut one: rustls tells them apart.
    whole.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"+OK\r\n");
}

/// Replies and requests longer than every buffer between the two sides.
#[test]
fn long_values_pass_tls_while_the_client_does_not_read() {
    let bench = DaemonBench::new();
    let (address, _stop) = listen(&bench, PortProtocol::Resp);
    let mut stream = client(connect(address));
    let value: Vec<u8> = (0..8u32 << 20).map(|at| b'a' + (at / 997 % 23) as u8).collect();
    stream.write_all(format!("*3\r\n$3\r\nset\r\n$1\r\nv\r\n${}\r\n", value.len()).as_bytes()).unwrap();
    stream.write_all(&value).unwrap();
    stream.write_all(b"\r\n").unwrap();
    assert_eq!(read(&mut stream, 5), "+OK\r\n");
    // Nothing is read until all is asked for: the socket's buffers fill.
    stream.write_all(b"get v\r\nget v\r\nget v\r\nping\r\n").unwrap();
    for _ in 0..3 {
        assert_eq!(read(&mut stream, 10), format!("${}\r\n", value.len()));
        assert_eq!(read(&mut stream, value.len() + 2).as_bytes()[..value.len()], value);
    }
    assert_eq!(read(&mut stream, 7), "+PONG\r\n");
}

#[test]
fn client_without_tls_is_told_and_runs_nothing() {
    let bench = DaemonBench::new();
    for (protocol, sent, told) in [
        (PortProtocol::Resp, &b"set k 1\r\n"[..], "-ERR this port requires TLS"),
        (PortProtocol::Http, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n"),
    ] {
        let (address, _stop) = listen(&bench, protocol);
        let mut stream = connect(address);
        stream.write_all(sent).unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        assert!(all.starts_with(told) && all.contains("TLS"), "{all}");
        if let Some((head, body)) = all.split_once("\r\n\r\n") {
            assert!(head.contains(&format!("content-length: {}", body.len())), "{all}");
            serde_json::from_str::<serde_json::Value>(body).unwrap();
        }
    }
    assert_eq!(bench.client().bytes(b"get k\r\n").0, "$-1|");
    // Bytes that begin like TLS and are not: the connection ends.
    let (address, _stop) = listen(&bench, PortProtocol::Resp);
    let mut stream = connect(address);
    stream.write_all(&[22, 3, 1, 0, 4, 99, 0, 0, 0]).unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(rest.first(), Some(&21), "a TLS alert: {rest:?}");
}

#[test]
fn unfit_certificate_files_are_refused_by_name() {
    let of = |cert: &str, key: &str| {
        TlsFiles { cert: file(cert), key: file(key) }.load().map(drop).unwrap_err().to_string()
    };
    for (cert, key, told) in [
        ("none.pem", "test-key.pem", "none.pem"),
        ("test-key.pem", "test-key.pem", "test-key.pem: holds no certificate"),
        ("test-cert.pem", "test-cert.pem", "test-cert.pem: holds no private key"),
        ("test-cert.pem", "other-key.pem", "other-key.pem: does not fit"),
    ] {
        let error = of(cert, key);
        assert!(error.contains(told), "{cert} {key}: {error}");
    }
}
