//! Hostile clients over HTTP. [`super::hostile`] has those of the sockets.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use super::hostile::{attack_repeatedly, many_files};
use super::{CliBench, ServeProcess, ask};

const OPEN: [&str; 3] = ["--http", "127.0.0.1:0", "--no-auth"];
/// Memory of a connection: its read buffer, hyper's buffers, and its task.
const CONNECTION_KIB: u64 = 64;

/// A connection after it sent these bytes, or as many as the daemon accepted.
fn sent(daemon: &ServeProcess, head: &str, body: &[u8]) -> TcpStream {
    let mut stream = daemon.tcp();
    let address = stream.peer_addr().unwrap();
    stream.write_all(head.replace("HOST", &address.to_string()).as_bytes()).unwrap();
    // The daemon closes a connection that it refuses before the body ends.
    let _ = stream.write_all(body);
    stream
}

/// Reads the status of an answer and ignores its body.
fn status(stream: &mut TcpStream) -> u16 {
    let mut told = Vec::new();
    while !told.ends_with(b"\r\n") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&told));
        told.extend(byte);
    }
    String::from_utf8(told).unwrap().split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn thousands_of_idle_http_clients_take_little_memory() {
    if !many_files(2_200) {
        return;
    }
    attack_repeatedly(&OPEN, 2_000 * CONNECTION_KIB, 2_000 * CONNECTION_KIB / 2, |_, daemon| {
        let ask = "GET /healthz HTTP/1.1\r\nhost: HOST\r\n\r\n";
        let mut held: Vec<TcpStream> = (0..2_000).map(|_| sent(daemon, ask, b"")).collect();
        assert!(held.iter_mut().all(|stream| status(stream) == 200));
        held
    });
}

#[test]
fn endless_heads_take_little_memory() {
    attack_repeatedly(&OPEN, 500 * CONNECTION_KIB, 0, |_, daemon| {
        let mut held: Vec<TcpStream> =
            (0..500).map(|_| sent(daemon, "GET /v1/runs HTTP/1.1\r\nhost: HOST\r\nx-slow: ", b"")).collect();
        for _ in 0..50 {
            held.iter_mut().for_each(|stream| {
                let _ = stream.write_all(b"x");
            });
        }
        held
    });
}

#[test]
fn endless_bodies_share_one_memory_limit() {
    // Twenty bodies of 40 MiB exceed the limit of all bodies together, so some are refused. The buffer of a
    // body doubles as it grows.
    let body = vec![b'x'; 40 << 20];
    attack_repeatedly(&OPEN, 2 * (512 << 10), 0, |_, daemon| {
        let head = "PUT /v1/databases/1/keys/k HTTP/1.1\r\nhost: HOST\r\ncontent-length: 50000000\r\n\r\n";
        (0..20).map(|_| sent(daemon, head, &body)).collect::<Vec<_>>()
    });
}

#[test]
fn announced_length_takes_no_memory_and_too_large_is_refused() {
    attack_repeatedly(&OPEN, 200 * CONNECTION_KIB, 0, |_, daemon| {
        let put = |bytes: u64| {
            let head = "PUT /v1/databases/1/keys/k HTTP/1.1\r\nhost: HOST\r\ncontent-length: ";
            sent(daemon, &format!("{head}{bytes}\r\n\r\n"), b"abc")
        };
        assert_eq!(status(&mut put(1 << 40)), 413);
        (0..100).map(|_| put(60 << 20)).collect::<Vec<_>>()
    });
}

#[test]
fn unread_answers_take_no_more_than_their_content() {
    attack_repeatedly(&OPEN, 20 * (8 << 10), 0, |bench, daemon| {
        let mut setup = bench.connect();
        let long = vec![b'x'; 4 << 20];
        setup.write_all(format!("*3\r\n$3\r\nset\r\n$4\r\nlong\r\n${}\r\n", long.len()).as_bytes()).unwrap();
        setup.write_all(&long).unwrap();
        assert_eq!(ask(&mut setup, ""), "+OK");
        let get = "GET /v1/databases/0/keys/long HTTP/1.1\r\nhost: HOST\r\n\r\n".repeat(20);
        (0..20).map(|_| sent(daemon, &get, b"")).collect::<Vec<_>>()
    });
}

#[test]
fn daemon_ends_cleanly_with_hostile_http_clients() {
    let bench = CliBench::new();
    let daemon = bench.serve(&OPEN);
    let mut client = bench.connect();
    assert_eq!(ask(&mut client, "set last 1"), "+OK");
    let mut asked = sent(&daemon, "GET /healthz HTTP/1.1\r\nhost: HOST\r\n\r\n", b"");
    assert_eq!(status(&mut asked), 200);
    let head = sent(&daemon, "GET /healthz HTTP/1.1\r\nhost: HO", b"");
    let put = "PUT /v1/databases/1/keys/k HTTP/1.1\r\nhost: HOST\r\ncontent-length: 1000\r\n\r\n";
    let (body, gone) = (sent(&daemon, put, b"abc"), sent(&daemon, put, b"abc"));
    gone.shutdown(Shutdown::Both).unwrap();
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    drop((asked, head, body));
    assert_eq!(bench.value("last").as_deref(), Some("1"));
    assert_eq!(bench.run("verify").code, 0);
}
