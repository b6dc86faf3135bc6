//! Hostile clients, one kind at a time. Another client continues undisturbed, the daemon's memory is bounded
//! during an attack and freed after it, and the daemon ends cleanly.
//!
//! The system reports the memory: the resident peak since an attack began (`VmHWM`, which `clear_refs`
//! resets), and the current size. A limit on the address space would count the memory maps of the store.
#![expect(clippy::print_stdout, reason = "prints measurements")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{CliBench, ServeProcess, ask, line};

/// Memory of an idle connection: its state and its task.
const IDLE_KIB: u64 = 16;
/// Freed memory that the allocator may keep, and memory for the other client's work.
const SLACK_KIB: u64 = 64 << 10;
/// Number of requests within which freed memory must return to the system.
const GIVEN_BACK_WITHIN: usize = 20_000;

impl ServeProcess {
    /// A line of the process's status, in KiB.
    fn status_kib(&self, name: &str) -> u64 {
        #[expect(clippy::disallowed_methods, reason = "reads the memory of the process")]
        let status = std::fs::read(format!("/proc/{}/status", self.child.id())).unwrap();
        let status = String::from_utf8(status).unwrap();
        let told = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        told.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Resets the peak of resident memory.
    fn reset_peak_memory(&self) {
        #[expect(clippy::disallowed_methods, reason = "resets a counter of the system")]
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").unwrap();
    }

    fn connected_clients(&self, client: &mut (impl Read + Write)) -> u64 {
        client.write_all(b"info clients\r\n").unwrap();
        let mut found = 0;
        for _ in 0..4 {
            let told = line(client);
            found = told.strip_prefix("connected_clients:").map_or(found, |count| count.parse().unwrap());
        }
        found
    }
}

/// Raises the limit of open files for this process and its children. Returns whether the limit is high
/// enough.
pub(super) fn many_files(wanted: u64) -> bool {
    let now = getrlimit(Resource::Nofile);
    let current = now.maximum.map_or(wanted, |maximum| maximum.min(wanted.max(now.current.unwrap_or(0))));
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: now.maximum });
    let allowed = getrlimit(Resource::Nofile).current.is_none_or(|current| current >= wanted);
    if !allowed {
        println!("SKIPPED: this system does not let a process open {wanted} files");
    }
    allowed
}

/// Runs an attack against a daemon three times, or up to six while its memory grows or too much is kept. `attack` returns the connections that it keeps open. Another
/// client sets and reads keys during the attack and while these connections are open.
///
/// The daemon may grow by at most `most_kib`. After all connections are closed it may keep `kept_kib`, which
/// the allocator does not return for small blocks; `SLACK_KIB` is added to both limits. The last peak may
/// exceed the one before by at most half of the kept bytes and the slack. Each thread has its own blocks, and
/// once a thread first allocated them in the third attack. At the end the daemon has one connection and ends
/// with 0.
pub(super) fn attack_repeatedly<T>(
    options: &[&str],
    most_kib: u64,
    kept_kib: u64,
    attack: impl Fn(&CliBench, &ServeProcess) -> T,
) {
    let bench = CliBench::new();
    let daemon = bench.serve(options);
    let mut client = bench.connect();
    let mut one = |number: u64| {
        assert_eq!(ask(&mut client, &format!("set n:{} {number}", number % 100)), "+OK");
        assert_eq!(
            ask(&mut client, &format!("get n:{}", number % 100)),
            format!("${}", number.to_string().len())
        );
        assert_eq!(line(&mut client), number.to_string());
    };
    (0..200).for_each(&mut one);
    let before = daemon.status_kib("VmRSS");
    let mut peaks: Vec<u64> = Vec::new();
    // How many answers stand in memory at once varies. A round that is higher than the one before is growth only if the
    // next ones are higher, too.
    let grows = |peaks: &[u64]| match peaks {
        [.., before, last] => *last > before + (kept_kib + SLACK_KIB) / 2,
        _ => true,
    };
    // The same holds for what is kept: beside other programs more threads work at once, each with blocks of its own.
    let most_kept = before + kept_kib + SLACK_KIB;
    let mut kept = before;
    while peaks.len() < 3 || peaks.len() < 6 && (grows(&peaks) || kept > most_kept) {
        daemon.reset_peak_memory();
        let (rounds, over) = (AtomicU64::new(200), AtomicBool::new(false));
        let peak = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    one(rounds.fetch_add(1, Ordering::Relaxed));
                }
            });
            let stop = StopOnDrop(&over);
            let held = attack(&bench, &daemon);
            let seen = rounds.load(Ordering::Relaxed);
            while rounds.load(Ordering::Relaxed) < seen + 50 && !other.is_finished() {
                std::thread::yield_now();
            }
            let peak = daemon.status_kib("VmHWM");
            drop((held, stop));
            other.join().unwrap();
            peak
        });
        let mut asks = bench.connect();
        while daemon.connected_clients(&mut asks) > 2 {
            std::thread::yield_now();
        }
        // The daemon returns freed memory to the system while it serves other requests.
        let mut asked = 0;
        kept = loop {
            let kept = daemon.status_kib("VmRSS");
            if kept <= most_kept || asked == GIVEN_BACK_WITHIN {
                break kept;
            }
            assert_eq!(ask(&mut asks, "ping"), "+PONG");
            asked += 1;
        };
        println!(
            "{before} KiB before, {peak} at most, {kept} after {asked} requests; {} rounds of the other",
            rounds.into_inner()
        );
        assert!(peak <= before + most_kib + SLACK_KIB, "{before} KiB before, {peak} at most");
        peaks.push(peak);
    }
    assert!(kept <= most_kept, "{before} KiB before, {kept} after");
    assert!(!grows(&peaks), "memory grows: {peaks:?}");
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    assert_eq!(bench.run("verify").code, 0);
}

/// Stops the other client even if an attack panics.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn connections(bench: &CliBench, count: usize) -> Vec<UnixStream> {
    (0..count).map(|_| bench.connect()).collect()
}

/// Writes until the daemon accepts nothing for a while. Returns the number of bytes written.
fn write_until_blocked(stream: &UnixStream, piece: &[u8]) -> usize {
    stream.set_nonblocking(true).unwrap();
    let (mut sent, mut quiet) = (0, 0);
    while quiet < 20 {
        match (&*stream).write(&piece[sent % piece.len()..]) {
            Ok(written) => (sent, quiet) = (sent + written, 0),
            Err(_) => {
                quiet += 1;
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        assert!(sent < 64 << 20, "the daemon must stop reading");
    }
    stream.set_nonblocking(false).unwrap();
    sent
}

#[test]
fn five_thousand_idle_connections_take_little_memory() {
    if !many_files(5_500) {
        return;
    }
    attack_repeatedly(
        &["--tcp", "127.0.0.1:0", "--no-auth"],
        5_000 * IDLE_KIB,
        5_000 * IDLE_KIB / 2,
        |bench, daemon| {
            let mut held: Vec<TcpStream> = (0..2_500).map(|_| daemon.tcp()).collect();
            held.iter_mut().for_each(|stream| assert_eq!(ask(stream, "ping"), "+PONG"));
            let unix = connections(bench, 2_500);
            let mut client = bench.connect();
            while daemon.connected_clients(&mut client) < 5_002 {
                std::thread::yield_now();
            }
            assert!(daemon.status_kib("VmRSS") < 300 << 10, "{} KiB", daemon.status_kib("VmRSS"));
            (held, unix)
        },
    );
}

#[test]
fn announced_lengths_take_no_memory() {
    attack_repeatedly(&[], 400 * 200, 0, |bench, _| {
        let mut held = connections(bench, 400);
        for (number, stream) in held.iter_mut().enumerate() {
            let (words, bytes) = [(2, 512 << 20), (1 << 20, 512 << 20), (3, 1 << 30)][number % 3];
            stream.write_all(format!("*{words}\r\n$3\r\nGET\r\n${bytes}\r\n").as_bytes()).unwrap();
            if bytes > 512 << 20 {
                assert_eq!(line(stream), "-ERR Protocol error: invalid bulk length");
            } else {
                stream.write_all(&[b'x'; 1000]).unwrap();
            }
        }
        held
    });
}

#[test]
fn commands_of_a_client_that_never_reads_are_held_back() {
    // Each connection may hold a read, a turn's replies, and one reply of 4 MiB as a value, as a reply, and
    // as bytes. Once, on a busy machine, 160 MB stayed after the clients had disconnected. One thread had
    // freed another thread's blocks, which return to the system only when their own thread allocates, and
    // that thread slept.
    attack_repeatedly(&[], 20 * (16 << 10), 0, |bench, _| {
        let mut setup = bench.connect();
        let long = vec![b'x'; 4 << 20];
        setup.write_all(format!("*3\r\n$3\r\nset\r\n$4\r\nlong\r\n${}\r\n", long.len()).as_bytes()).unwrap();
        setup.write_all(&long).unwrap();
        assert_eq!(ask(&mut setup, ""), "+OK");
        let held = connections(bench, 20);
        let requests = b"get long\r\n".repeat(1000);
        held.iter().for_each(|stream| assert!(write_until_blocked(stream, &requests) > 0));
        held
    });
}

#[test]
fn long_pipeline_is_answered_once_read() {
    attack_repeatedly(&[], 64 << 10, 0, |bench, _| {
        let mut stream = bench.connect();
        let piece = b"echo 0123456789\r\n";
        let sent = write_until_blocked(&stream, &piece.repeat(1000));
        let answered = |stream: &mut UnixStream| {
            let mut reply = [0; 17];
            stream.read_exact(&mut reply).unwrap();
            assert_eq!(&reply, b"$10\r\n0123456789\r\n");
        };
        (0..sent / piece.len()).for_each(|_| answered(&mut stream));
        // The daemon accepted only a part of the last command.
        stream.write_all(&piece[sent % piece.len()..]).unwrap();
        answered(&mut stream);
        assert_eq!(ask(&mut stream, "ping"), "+PONG");
    });
}

#[test]
fn huge_transaction_reply_is_limited() {
    // The limit of all replies plus one reply, as values and as bytes that are being sent.
    attack_repeatedly(&[], 2 * ((512 + 32) << 10), 0, |bench, _| {
        let mut client = bench.connect();
        let long = vec![b'x'; 32 << 20];
        client.write_all(format!("*3\r\n$3\r\nset\r\n$4\r\nlong\r\n${}\r\n", long.len()).as_bytes()).unwrap();
        client.write_all(&long).unwrap();
        assert_eq!(ask(&mut client, ""), "+OK");
        let gets = 5_000;
        client
            .write_all(
                &[&b"multi\r\n"[..], &b"get long\r\n".repeat(gets), b"set after 1\r\nexec\r\n"].concat(),
            )
            .unwrap();
        (0..gets + 2).for_each(|_| assert!(line(&mut client).starts_with(['+'])));
        assert_eq!(line(&mut client), format!("*{}", gets + 1));
        let mut value = vec![0; long.len() + 2];
        for _ in 0..16 {
            assert_eq!(line(&mut client), format!("${}", long.len()));
            client.read_exact(&mut value).unwrap();
            assert!(value.starts_with(&long));
        }
        for _ in 16..gets {
            assert!(line(&mut client).ends_with("this value is left out"));
        }
        assert_eq!(line(&mut client), "+OK");
        assert_eq!(ask(&mut client, "get after"), "$1");
    });
}

#[test]
fn abandoned_connections_leave_nothing() {
    attack_repeatedly(&["--tcp", "127.0.0.1:0", "--no-auth"], 32 << 10, 0, |bench, daemon| {
        for number in 0..300 {
            // The client stops sending but still receives all its replies.
            let mut half = bench.connect();
            half.write_all(format!("set half {number}\r\nget half\r\n").as_bytes()).unwrap();
            half.shutdown(Shutdown::Write).unwrap();
            let mut all = String::new();
            half.read_to_string(&mut all).unwrap();
            assert_eq!(all, format!("+OK\r\n${}\r\n{number}\r\n", number.to_string().len()));
            // Clients disconnect within a word, within a transaction, before their replies arrive, and while
            // they wait.
            for said in ["*3\r\n$3\r\nSET\r\n$9\r\nabc", "multi\r\nset a b\r\n", "get half\r\nget half\r\n"] {
                daemon.tcp().write_all(said.as_bytes()).unwrap();
            }
            let mut deaf = daemon.tcp();
            deaf.shutdown(Shutdown::Read).unwrap();
            deaf.write_all(b"get half\r\n").unwrap();
            bench.connect().write_all(b"xread block 0 streams nothing $\r\n").unwrap();
        }
        let mut client = bench.connect();
        assert_eq!(ask(&mut client, "get a"), "$-1", "an unfinished transaction changed a key");
    });
}

#[test]
fn garbage_is_refused_at_its_first_byte() {
    attack_repeatedly(&[], 32 << 10, 0, |bench, _| {
        let nested = b"*1\r\n".repeat(250_000);
        let mut state = 7_u64;
        let mut noise = vec![0; 64 << 10];
        for byte in &mut noise {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 33) as u8;
        }
        let mut held = Vec::new();
        for number in 0..100 {
            let mut stream = bench.connect();
            // The daemon may close the connection while the client still sends.
            let _ = stream.write_all(if number % 2 == 0 { &nested } else { &noise[number * 100..] });
            if number % 2 == 0 {
                assert_eq!(line(&mut stream), "-ERR Protocol error: expected '$', got '*'");
            }
            held.push(stream);
        }
        // One byte at a time, over 50 connections in turn.
        let mut slow = connections(bench, 50);
        for byte in b"*3\r\n$3\r\nSET\r\n$4\r\ndrip\r\n$1\r\n1\r\n" {
            slow.iter_mut().for_each(|stream| stream.write_all(&[*byte]).unwrap());
        }
        slow.iter_mut().for_each(|stream| assert_eq!(line(stream), "+OK"));
        (held, slow)
    });
}

#[test]
fn unfinished_logins_take_little_and_block_nobody() {
    attack_repeatedly(&["--tcp", "127.0.0.1:0"], 500 * IDLE_KIB + 500 * 80, 0, |_, daemon| {
        let token = daemon.text_after("shown only once: ");
        let mut held: Vec<TcpStream> = (0..500).map(|_| daemon.tcp()).collect();
        for (number, stream) in held.iter_mut().enumerate() {
            let said =
                ["*2\r\n$4\r\nAUTH\r\n$64\r\nabc", "HELLO 3 AUTH default ", "*10\r\n$16384\r\n"][number % 3];
            stream.write_all(said.as_bytes()).unwrap();
            stream.write_all(&[b'x'; 16]).unwrap();
        }
        let mut late = daemon.tcp();
        assert_eq!(ask(&mut late, &format!("auth {token}")), "+OK");
        assert_eq!(ask(&mut late, "set late 1"), "+OK");
        held
    });
}

#[test]
fn ten_thousand_sequential_connections_leave_nothing() {
    attack_repeatedly(&["--tcp", "127.0.0.1:0", "--no-auth"], 16 << 10, 0, |bench, daemon| {
        for _ in 0..2_500 {
            assert_eq!(ask(&mut bench.connect(), "ping"), "+PONG");
            assert_eq!(ask(&mut daemon.tcp(), "ping"), "+PONG");
        }
    });
}

#[test]
fn daemon_ends_cleanly_with_hostile_clients_connected() {
    let bench = CliBench::new();
    let daemon = bench.serve(&["--tcp", "127.0.0.1:0"]);
    let mut client = bench.connect();
    assert_eq!(ask(&mut client, &format!("set big {}", "x".repeat(60_000))), "+OK");
    let (greedy, mut waits, mut half, mut strange) =
        (bench.connect(), bench.connect(), bench.connect(), daemon.tcp());
    write_until_blocked(&greedy, &b"get big\r\n".repeat(1000));
    waits.write_all(b"xread block 0 streams nothing $\r\n").unwrap();
    half.write_all(b"*3\r\n$3\r\nSET\r\n$536870912\r\nabc").unwrap();
    strange.write_all(b"*2\r\n$4\r\nAUTH\r\n").unwrap();
    assert_eq!(ask(&mut client, "set last 1"), "+OK");
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    assert_eq!(bench.value("last").as_deref(), Some("1"));
    assert_eq!(bench.run("verify").code, 0);
}

/// Regression: clients over TCP used all files that the process could open. The store could not create its
/// next segment and wrote nothing from then on.
#[test]
fn connections_do_not_exhaust_the_stores_files() {
    let bench = CliBench::new();
    let mut command = std::process::Command::new("sh");
    command.args([
        "-c",
        "ulimit -n 160 && exec \"$0\" serve --tcp 127.0.0.1:0",
        env!("CARGO_BIN_EXE_annals"),
    ]);
    command.current_dir(bench.path("")).env_remove("ANNALS_STORE");
    let daemon = bench.spawn_daemon(command);
    let mut client = bench.connect();
    assert_eq!(ask(&mut client, "ping"), "+PONG");
    let strangers: Vec<TcpStream> = (0..160).map(|_| daemon.tcp()).collect();
    // More than one segment of incompressible data.
    let mut state = 7_u64;
    let mut value = vec![0; 4 << 20];
    for number in 0..20 {
        for part in value.as_chunks_mut::<8>().0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *part = state.to_le_bytes();
        }
        client
            .write_all(format!("*3\r\n$3\r\nset\r\n$2\r\n{number:02}\r\n${}\r\n", value.len()).as_bytes())
            .unwrap();
        client.write_all(&value).unwrap();
        assert_eq!(ask(&mut client, ""), "+OK");
    }
    drop(strangers);
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    assert_eq!(bench.run("verify").code, 0);
}
