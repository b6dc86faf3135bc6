#!/usr/bin/env python3
"""`annals serve` killed again and again under the load of many clients: what it acknowledged has to be there.

    serve.py [--kills 50] [--clients 50] [--seed N] [--binary target/release/annals] [--lie]

Clients, half of them by TCP and half by the Unix socket, write without a pause and note each acknowledged write before the next: keys of
their own (SET, DEL, values to 200 KB of any bytes), three keys at a time between MULTI and EXEC, counters of their own and one of all (INCR),
streams (XADD), frames of runs (FRAME.ADD, and FRAME.BEGIN with APPENDs), blobs (BLOB.PUT). At a random moment the process is killed
(SIGKILL), started again on the same store, and asked for everything:

- a key holds what was acknowledged last, or what was under way when the kill came; no key is there that nobody wrote;
- what MULTI and EXEC wrote is all there or not at all;
- counters are as high as acknowledged or read, and higher by no more than was under way;
- streams and runs have every acknowledged entry, bit-exact, in order, and at most one more; open frames keep what was appended;
- every acknowledged blob is there.

--lie feeds the checker something that nobody wrote: it must fail. A failure prints what it saw, the seed, and the command that repeats it
(the moments of the kills repeat, what clients came to by then does not), and ends with 1.
"""

import argparse
import collections
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Keys that a client has of each kind, so that a store of many kills can still be asked for all of them.
KEYS = 24
DURATION_MS = (80, 900)


class Wrong(Exception):
    """The store is not what it has to be."""


class Hung(Exception):
    """The daemon went away."""


class Refused(Exception):
    """An error for a reply."""


class Connection:
    """RESP2 by hand, so that no client library's habits stand between."""

    def __init__(self, address):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self.socket.connect(address)
        except OSError:
            raise Hung from None
        self.file = self.socket.makefile("rb")

    def send(self, *commands):
        parts = []
        for words in commands:
            words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
            parts.append(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
        try:
            self.socket.sendall(b"".join(parts))
        except OSError:
            raise Hung from None

    def reply(self):
        try:
            line = self.file.readline()
        except OSError:
            raise Hung from None
        if not line.endswith(b"\r\n"):
            raise Hung
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise Refused(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            if rest == b"-1":
                return None
            try:
                body = self.file.read(int(rest) + 2)
            except OSError:
                raise Hung from None
            if len(body) != int(rest) + 2:
                raise Hung
            return body[:-2]
        return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]

    def ask(self, *words):
        self.send(words)
        return self.reply()

    def close(self):
        self.socket.close()


class Daemon:
    def __init__(self, binary, store):
        command = [binary, "--store", store, "serve", "--tcp", "127.0.0.1:0", "--no-auth"]
        began = time.monotonic()
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        said = ""
        while "annals: ready" not in said:
            line = self.child.stderr.readline()
            if not line:
                raise Wrong(f"the daemon does not start again: {said}")
            said += line
        self.started_s = time.monotonic() - began
        self.tcp = ("127.0.0.1", int(re.search(r"127\.0\.0\.1:(\d+)", said)[1]))
        self.unix = re.search(r"listening at (/.*)", said)[1]

    def end(self, how):
        self.child.send_signal(how)
        code = self.child.wait()
        self.child.stderr.close()
        return code


class Client:
    """One connection's writes, and what it knows of them: `keys` are acknowledged, `doubt` is under way."""

    def __init__(self, number):
        self.number = number
        self.keys = {}
        self.threes = {}
        self.count = 0
        self.blobs = {}
        # {run: [entry]}, and of open frames {(run, seq): bytes}.
        self.streams = collections.defaultdict(list)
        self.frames = collections.defaultdict(list)
        self.open = {}
        self.acknowledged = collections.Counter()
        self.seen = 0
        self.shared = 0
        self.doubt = None

    def begin(self, address, seed, round_number):
        self.address, self.random, self.round = address, random.Random(f"{seed}/{round_number}/{self.number}"), round_number
        self.doubt = None
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        self.failed = None
        try:
            connection = Connection(self.address)
            while True:
                kind = self.random.choices(
                    [self.set, self.delete, self.multi, self.incr, self.both, self.xadd, self.frame, self.pieces, self.blob, self.look],
                    [30, 5, 10, 10, 10, 10, 10, 5, 3, 5],
                )[0]
                kind(connection)
                self.doubt = None
                self.acknowledged[kind.__name__] += 1
        except Hung:
            pass
        except Exception as error:  # An error for a reply, or of this script: either is told.
            self.failed = f"client {self.number}: {type(error).__name__}: {error}"

    def bytes(self):
        most = self.random.choices([100, 5_000, 200_000], [90, 9, 1])[0]
        return self.random.randbytes(self.random.randrange(most))

    def set(self, connection):
        key, value = b"k:%d:%d" % (self.number, self.random.randrange(KEYS)), self.bytes()
        self.doubt = ("key", key, value)
        connection.ask("SET", key, value)
        self.keys[key] = value

    def delete(self, connection):
        key = b"k:%d:%d" % (self.number, self.random.randrange(KEYS))
        self.doubt = ("key", key, None)
        connection.ask("DEL", key)
        self.keys.pop(key, None)

    def multi(self, connection):
        three, value = self.random.randrange(4), self.bytes()
        self.doubt = ("three", three, value)
        commands = [("MULTI",), *(("SET", b"m:%d:%d:%d" % (self.number, three, part), value) for part in range(3)), ("EXEC",)]
        if self.random.random() < 0.5:
            connection.send(*commands)
            replies = [connection.reply() for _ in commands]
        else:
            replies = [connection.ask(*words) for words in commands]
        if replies != [b"OK"] + 3 * [b"QUEUED"] + [3 * [b"OK"]]:
            raise Wrong(f"MULTI was answered with {replies}")
        self.threes[three] = value

    def incr(self, connection):
        self.doubt = ("count",)
        if connection.ask("INCR", f"c:{self.number}") != self.count + 1:
            raise Wrong("a counter that nobody else counts jumped")
        self.count += 1

    def both(self, connection):
        self.doubt = ("shared",)
        self.seen = max(self.seen, connection.ask("INCR", "shared"))
        self.shared += 1

    def look(self, connection):
        self.seen = max(self.seen, int(connection.ask("GET", "shared") or 0))

    def xadd(self, connection):
        run, value = f"x-{self.round}-{self.number}", self.bytes()
        self.doubt = ("stream", run, value)
        entry = connection.ask("XADD", run, "*", b"\0field", value)
        self.streams[run].append((entry, value))

    def frame(self, connection):
        run, value = f"f-{self.round}-{self.number}", self.bytes()
        if run not in self.frames:
            self.doubt = ("run", run)
            connection.ask("RUN.BEGIN", "NAME", run)
            self.frames[run] = []
        self.doubt = ("frame", run, value)
        seq = connection.ask("FRAME.ADD", run, "llm", value[::-1], value)
        self.frames[run].append(value)
        if seq != len(self.frames[run]):
            raise Wrong(f"frame {seq} of {run} was to be {len(self.frames[run])}")

    def pieces(self, connection):
        run, pieces = f"o-{self.round}-{self.number}", [self.bytes()[:3000] for _ in range(3)]
        if run not in self.frames:
            self.doubt = ("run", run)
            connection.ask("RUN.BEGIN", "NAME", run)
            self.frames[run] = []
        self.doubt = ("frame", run, b"")
        connection.ask("FRAME.BEGIN", run, "llm", b"?")
        self.frames[run].append(b"")
        seq = len(self.frames[run])
        for piece in pieces:
            self.doubt = ("piece", run, piece)
            length = connection.ask("FRAME.APPEND", run, seq, piece)
            self.frames[run][-1] += piece
            if length != len(self.frames[run][-1]):
                raise Wrong(f"frame {seq} of {run} is {length} long")
        self.doubt = ("end",)
        connection.ask("FRAME.END", run, seq)

    def blob(self, connection):
        value = self.bytes()
        self.doubt = ("blob",)
        self.blobs[connection.ask("BLOB.PUT", value)] = value


def one_of(what, found, allowed):
    if found not in allowed:
        show = lambda value: None if value is None else f"{len(value)} bytes {value[:24]!r}"
        raise Wrong(f"{what} holds {show(found)}, expected one of {[show(value) for value in allowed]}")
    return found


def check(connection, clients, rounds):
    """Compares everything with what clients know; what was in doubt is known afterwards. `rounds` are those whose runs are read."""
    there, cursor = set(), "0"
    while True:
        cursor, keys = connection.ask("SCAN", cursor, "COUNT", 5000)
        there.update(keys)
        if cursor == b"0":
            break
    expected = set()
    for client in clients:
        doubt = client.doubt or ("nothing",)
        names = [b"k:%d:%d" % (client.number, number) for number in range(KEYS)]
        for name in names:
            allowed = [client.keys.get(name)] + ([doubt[2]] if doubt[:2] == ("key", name) else [])
            found = one_of(name, connection.ask("GET", name), allowed)
            client.keys.pop(name, None)
            if found is not None:
                client.keys[name] = found
                expected.add(name)
        for three in range(4):
            parts = [b"m:%d:%d:%d" % (client.number, three, part) for part in range(3)]
            found = connection.ask("MGET", *parts)
            if found[0] != found[1] or found[0] != found[2]:
                raise Wrong(f"{parts[0]} and the two beside it were set together, and are not the same")
            allowed = [client.threes.get(three)] + ([doubt[2]] if doubt[:2] == ("three", three) else [])
            if one_of(parts[0], found[0], allowed) is not None:
                client.threes[three] = found[0]
                expected.update(parts)
        found = int(connection.ask("GET", f"c:{client.number}") or 0)
        if not client.count <= found <= client.count + (doubt == ("count",)):
            raise Wrong(f"counter {client.number} is {found}, and {client.count} was acknowledged")
        client.count = found
        if found:
            expected.add(b"c:%d" % client.number)
        for blob, value in client.blobs.items():
            one_of(blob, connection.ask("BLOB.GET", blob), [value])
        check_runs(connection, client, doubt, rounds)
    most = sum(client.shared for client in clients) + sum(client.doubt == ("shared",) for client in clients)
    least = max(sum(client.shared for client in clients), *(client.seen for client in clients))
    found = int(connection.ask("GET", "shared") or 0)
    if not least <= found <= most:
        raise Wrong(f"the counter of all is {found}, expected {least} to {most}")
    # Who counted what was under way is not known, and does not matter.
    clients[0].shared += found - sum(client.shared for client in clients)
    expected.update([b"shared"] if found else [])
    if there != expected:
        raise Wrong(f"nobody wrote {sorted(there - expected)[:5]}; not listed: {sorted(expected - there)[:5]}")
    for client in clients:
        client.doubt = None


def check_runs(connection, client, doubt, rounds):
    of_rounds = lambda runs: [run for run in runs if int(run.split("-")[1]) in rounds]
    if doubt[0] in ("stream", "run"):
        # The kill may have come before it was there, or after.
        runs = client.streams if doubt[0] == "stream" else client.frames
        runs[doubt[1]]
    for run in of_rounds(client.streams):
        entries = client.streams[run]
        try:
            found = [(entry, fields[1]) for entry, fields in connection.ask("XRANGE", run, "-", "+")]
        except Refused:
            found = []
        extra = [value for _, value in found[len(entries):]]
        allowed = [[]] + ([[doubt[2]]] if doubt[:2] == ("stream", run) else [])
        if found[: len(entries)] != entries or extra not in allowed:
            raise Wrong(f"{run} has {len(found)} entries, and {len(entries)} were acknowledged")
        entries.extend(found[len(entries):])
    for run in of_rounds(client.frames):
        values = client.frames[run]
        try:
            facts = connection.ask("RUN.GET", run)
        except Refused:
            if values or doubt != ("run", run):
                raise Wrong(f"run {run} is gone with {len(values)} frames") from None
            del client.frames[run]
            continue
        frames = dict(zip(facts[::2], facts[1::2], strict=True))[b"frames"]
        if doubt[:2] == ("frame", run) and frames == len(values) + 1:
            values.append(doubt[2])
        if frames != len(values):
            raise Wrong(f"run {run} has {frames} frames, and {len(values)} were acknowledged")
        for seq, value in enumerate(values, 1):
            allowed = [value]
            if doubt[:2] == ("piece", run) and seq == len(values):
                allowed.append(value + doubt[2])
            values[seq - 1] = one_of(f"frame {seq} of {run}", connection.ask("FRAME.GET", run, seq, "RESPONSE"), allowed)
            if run.startswith("f-"):
                one_of(f"the request of frame {seq} of {run}", connection.ask("FRAME.GET", run, seq, "REQUEST"), [value[::-1]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--binary", default=str(ROOT / "target" / "release" / "annals"))
    parser.add_argument("--lie", action="store_true")
    options = parser.parse_args()
    again = f"{sys.argv[0]} --kills {options.kills} --clients {options.clients} --seed {options.seed} --binary {options.binary}"
    print(f"seed {options.seed}: {again}", flush=True)
    moments = random.Random(options.seed)
    clients = [Client(number) for number in range(options.clients)]
    slowest, under_way, began = 0.0, collections.Counter(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        daemon = Daemon(options.binary, store)
        try:
            for kill in range(1, options.kills + 1):
                for client in clients:
                    client.begin(daemon.tcp if client.number % 2 else daemon.unix, options.seed, kill)
                time.sleep(moments.randint(*DURATION_MS) / 1000)
                daemon.end(signal.SIGKILL)
                for client in clients:
                    client.thread.join()
                    if client.failed:
                        raise Wrong(client.failed)
                    under_way[client.doubt[0] if client.doubt else "nothing"] += 1
                if options.lie:
                    clients[-1].keys[b"k:%d:0" % (options.clients - 1)] = b"what nobody wrote"
                daemon = Daemon(options.binary, store)
                slowest = max(slowest, daemon.started_s)
                connection = Connection(daemon.unix)
                check(connection, clients, range(kill, kill + 1))
                connection.close()
                total = sum(sum(client.acknowledged.values()) for client in clients)
                if kill % 10 == 0 or kill == options.kills:
                    print(f"{kill} kills: {total:,} writes acknowledged, all there", flush=True)
            connection = Connection(daemon.unix)
            check(connection, clients, range(1, options.kills + 1))
            connection.close()
            if daemon.end(signal.SIGTERM) != 0:
                raise Wrong("it does not end in order")
            verified = subprocess.run([options.binary, "--store", store, "verify"], capture_output=True, text=True)
            if verified.returncode:
                raise Wrong(f"verify: {verified.stdout}{verified.stderr}")
        except Wrong as wrong:
            daemon.child.kill()
            print(f"FAILED after kill {kill}: {wrong}\n{again}")
            sys.exit(1)
    total = collections.Counter()
    for client in clients:
        total.update(client.acknowledged)
    print("acknowledged: " + ", ".join(f"{name} {count:,}" for name, count in sorted(total.items())))
    print("under way at a kill: " + ", ".join(f"{name} {count}" for name, count in sorted(under_way.items())))
    print(f"{options.kills} kills, {options.clients} clients, {sum(total.values()):,} writes; slowest start {slowest:.2f} s; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
