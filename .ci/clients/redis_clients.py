#!/usr/bin/env python3
"""Redis clients, unchanged, against `annals serve`: prints a table of what each did, and ends with 1 if anything was not as it should be.

Usage: .ci/clients/redis_clients.py [CLIENT...]     (default: redis-cli redis-benchmark redis-py ioredis node-redis)
Each connects, sets and gets (bytes of any value, 8 MiB), pipelines, MULTI, waits with XREAD BLOCK for what another connection adds, is told what
is not offered, and goes on by itself after the daemon was started again. Needs redis-cli and redis-benchmark (redis-tools), pip, npm and their
registries: what is missing is said in a line that begins with SKIPPED. ANNALS names the binary (default: target/debug/annals).
"""
import fcntl
import os
import pathlib
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ANNALS", str(ROOT / "target" / "debug" / "annals"))
VERSIONS = {"redis-py": "8.1.0", "ioredis": "6.0.0", "node-redis": "6.3.1"}
KEYS = 5
# What a terminal is told beside the text.
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Skipped(Exception):
    """Something cannot be had here."""


class Daemon:
    def __init__(self, folder):
        self.store, self.port = folder / "store", 0
        self.start()

    def start(self):
        command = [BINARY, "--store", self.store, "serve", "--tcp", f"127.0.0.1:{self.port}", *self.options()]
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        said = ""
        while "annals: ready" not in said:
            line = self.child.stderr.readline()
            if not line:
                sys.exit(f"the daemon does not start: {said}")
            said += line
        self.port = int(re.search(r"at 127\.0\.0\.1:(\d+)", said)[1])
        http = re.search(r"https?://127\.0\.0\.1:(\d+)", said)
        self.http = int(http[1]) if http else None
        self.socket = re.search(r"listening at (/.*)", said)[1]

    def options(self):
        return ["--no-auth"]

    def stop(self):
        self.child.terminate()
        self.child.wait()


def run(command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, **options)
    return done.returncode, done.stdout, done.stderr


def installed(command, folder):
    if shutil.which(str(command[0])) is None:
        raise Skipped(f"{command[0]} is not installed")
    code, out, err = run(command, cwd=folder)
    if code:
        raise Skipped((err + out).strip()[-200:])


# Each client gives its version and then (doing, whether it went well, what was seen).


def redis_cli(daemon, folder):
    if shutil.which("redis-cli") is None:
        raise Skipped("redis-cli is not installed")
    yield run(["redis-cli", "--version"])[1].split()[1]
    by_port = ["redis-cli", "-p", daemon.port]

    def says(doing, words, *expected, options=(), **more):
        code, out, err = run([*by_port, *options, *words], **more)
        return doing, code == 0 and all(re.search(each, out, re.DOTALL) for each in expected), out + err

    yield says("PING over TCP", ["ping"], "^PONG$")
    code, out, err = run(["redis-cli", "-s", daemon.socket, "ping"])
    yield "PING over the Unix socket", (code, out) == (0, "PONG\n"), out + err
    yield says("HELLO 3 (-3)", ["hello", "3"], "server annals", options=["-3"])
    lines = "".join(f"SET key:{number} value-{number}\r\n" for number in range(KEYS))
    yield says("--pipe", ["--pipe"], f"errors: 0, replies: {KEYS}", input=lines)
    yield says("-x: a value from standard input", ["set", "long"], "^OK$", options=["-x"], input="x" * (8 << 20))
    yield says("--scan", ["--scan", "--pattern", "key:*"], *(f"key:{number}\n" for number in range(KEYS)))
    yield says("--bigkeys", ["--bigkeys"], f"Sampled {KEYS + 1} keys", r"'\"long\"' has 8388608 bytes")
    yield says("--csv", ["--csv", "mget", "key:0", "none"], '^"value-0",(NIL|NULL)$')
    yield says("--json", ["--json", "run.list"], r'^\["0",\[\]\]$')
    code, out, _ = run(["timeout", "-s", "INT", "2", *by_port, "--latency"])
    yield "--latency", re.search(r"\d+ \d+ [\d.]+ \d+", out) is not None, out
    yield says("SUBSCRIBE is refused", ["subscribe", "x"], "SUBSCRIBE is not offered: nothing is published here")
    yield typed("hints while typing, from COMMAND DOCS", by_port, ["run.begin ", "\x15"], [r"\[NAME name\] \[AGENT agent\]"])
    typing = ["subscribe x\r", "set by-hand 1\r", "get by-hand\r"]
    yield typed("goes on after a refused SUBSCRIBE", by_port, typing, ["SUBSCRIBE is not offered", "OK", '"1"'])
    yield typed("help", by_port, ["help run.begin\r"], ["summary: Begins a run", "since: annals"])
    yield typed("--stat", [*by_port, "--stat", "-i", "0.2"], [""], [r"keys.*mem.*clients", r"\d+ \(\+\d+\)"])


def typed(doing, command, typing, expected):
    """Types into a program on a terminal, each line once all before was answered, until everything expected was shown in that order."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        # A terminal without a width is asked for it.
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        os.execvp(command[0], [str(word) for word in command])
    seen, wanted, until = "", re.compile(".*".join(expected), re.DOTALL), time.monotonic() + 20
    typing = list(typing)
    while time.monotonic() < until and not wanted.search(seen):
        if select.select([terminal], [], [], 0.4)[0]:
            try:
                seen += COLOURS.sub("", os.read(terminal, 65536).decode(errors="replace"))
            except OSError:
                break
        elif typing:
            for key in typing.pop(0):
                os.write(terminal, key.encode())
    os.close(terminal)
    os.waitpid(child, 0)
    return doing, wanted.search(seen) is not None, seen


def redis_benchmark(daemon, folder):
    if shutil.which("redis-benchmark") is None:
        raise Skipped("redis-benchmark is not installed")
    yield run(["redis-benchmark", "--version"])[1].split()[1]
    tests = "ping,set,get,mset,incr"
    for doing, options in [("TCP", ["-p", daemon.port]), ("TCP, RESP3", ["-p", daemon.port, "-3"]), ("Unix, -P 16", ["-s", daemon.socket, "-P", "16"])]:
        code, out, err = run(["redis-benchmark", *options, "-t", tests, "-n", "2000", "-r", "1000", "--csv"])
        done = [line.split(",")[0].strip('"') for line in out.splitlines()[1:]]
        yield f"-t {tests}: {doing}", code == 0 and len(done) == 6 and "rror" not in out + err, out + err


PYTHON = r"""
import sys, threading, redis
print(redis.__version__)
address = dict(port=int(sys.argv[1]))
every = bytes(range(256))
big = every * 32768
for protocol in (2, 3):
    r = redis.Redis(**address, protocol=protocol)
    tell = lambda what, right: print(f"{what} (RESP{protocol})", bool(right), sep="\t")
    tell("set and get bytes of any value", r.set(b"k\0\r\n", every) and r.get(b"k\0\r\n") == every)
    tell("a value of 8 MiB", r.set("big", big) and r.get("big") == big)
    pipe = r.pipeline(transaction=False)
    for number in range(1000):
        pipe.set(f"p:{number}", number)
        pipe.get(f"p:{number}")
    tell("a pipeline of 2,000", pipe.execute()[1::2] == [str(number).encode() for number in range(1000)])
    pipe = r.pipeline()
    pipe.set("n", 1).incr("n").get("n").get("none")
    tell("MULTI", pipe.execute() == [True, 2, b"2", None])
    name = f"run-{protocol}"
    first = r.xadd(name, {"a": every})
    threading.Timer(0.3, lambda: redis.Redis(**address).xadd(name, {"b": "2"})).start()
    found = r.xread({name: first}, block=20000)
    found = found[name.encode()][0] if isinstance(found, dict) else found[0][1]
    tell("XREAD BLOCK is woken", [fields for _, fields in found] == [{b"b": b"2"}])
    tell("XREAD BLOCK runs out", not r.xread({name: "$"}, block=50))
    tell("SCAN", set(r.scan_iter("p:*")) == {f"p:{number}".encode() for number in range(1000)})
    r.expire("n", 100)
    tell("EXPIRE and TTL", 0 < r.ttl("n") <= 100)
    lock = r.lock(f"lock-{protocol}", timeout=100)
    tell("a lock is taken", lock.acquire(blocking=False) and not r.lock(f"lock-{protocol}", timeout=100).acquire(blocking=False))
    tell("a lock is extended", lock.extend(100) and r.ttl(f"lock-{protocol}") > 150)
    tell("a lock is reacquired", lock.reacquire() and r.ttl(f"lock-{protocol}") <= 100)
    lock.release()
    tell("a lock is released", not r.exists(f"lock-{protocol}"))
    tell("GETRANGE, SETRANGE, INCRBYFLOAT", r.setrange("part", 2, "xy") == 4 and r.getrange("part", 2, 3) == b"xy" and r.incrbyfloat("f", "10.6") == 10.6)
    r.delete("f")
    tell("RENAME, COPY, RANDOMKEY", r.rename("part", "moved") and r.copy("moved", f"copied-{protocol}") and r.randomkey() is not None)
    try:
        r.publish("x", "y")
        tell("PUBLISH is refused", False)
    except redis.ResponseError as error:
        tell("PUBLISH is refused", "nothing is published here" in str(error))
    with redis.Redis(unix_socket_path=sys.argv[2], protocol=protocol) as unix:
        tell("over the Unix socket", unix.get("n") == b"2")
r.set("kept", "before")
stream = r.xadd("goes-on", {"k": "1"})
print("RESTART", flush=True)
input()
added = r.xadd("goes-on", {"k": "2"})
print("XADD goes on after the daemon was started again", r.xlen("goes-on") == 2 and added > stream, sep="\t")
print("goes on after the daemon was started again", r.get("kept") == b"before", sep="\t")
"""

IOREDIS = r"""
import Redis from "ioredis";
import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";
console.log(JSON.parse(readFileSync("node_modules/ioredis/package.json")).version);
const tell = (what, right) => console.log(`${what}\t${right ? "True" : "False"}`);
const [port, socket] = process.argv.slice(2);
const r = new Redis(Number(port));
r.on("error", () => {});
const every = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
await r.set(Buffer.from("i\0\r\n"), every);
tell("set and get bytes of any value", every.equals(await r.getBuffer(Buffer.from("i\0\r\n"))));
const big = Buffer.concat(Array(32768).fill(every));
await r.set("big", big);
tell("a value of 8 MiB", big.equals(await r.getBuffer("big")));
const pipe = r.pipeline();
for (let number = 0; number < 1000; number++) pipe.set(`p:${number}`, number).get(`p:${number}`);
const replies = await pipe.exec();
tell("a pipeline of 2,000", replies.every(([error, value], at) => !error && (at % 2 ? value === String((at - 1) / 2) : value === "OK")));
tell("MULTI", JSON.stringify(await r.multi().set("n", 1).incr("n").get("n").exec()) === '[[null,"OK"],[null,2],[null,"2"]]');
const first = await r.xadd("ioredis", "*", "a", "1");
const other = new Redis(socket);
setTimeout(() => other.xadd("ioredis", "*", "b", "2"), 300);
const [[, [[, fields]]]] = await r.xread("BLOCK", 20000, "STREAMS", "ioredis", first);
tell("XREAD BLOCK is woken", fields.join() === "b,2");
tell("XREAD BLOCK runs out", (await r.xread("BLOCK", 50, "STREAMS", "ioredis", "$")) === null);
const found = new Set();
for await (const keys of r.scanStream({ match: "p:*" })) keys.forEach((key) => found.add(key));
tell("SCAN", found.size === 1000);
tell("SUBSCRIBE is refused", await new Redis(Number(port)).subscribe("x").then(() => false, (error) => /nothing is published/.test(error.message)));
tell("over the Unix socket", (await other.get("n")) === "2");
await r.set("kept", "before");
console.log("RESTART");
await new Promise((done) => createInterface({ input: process.stdin }).once("line", done));
tell("goes on after the daemon was started again", (await r.get("kept")) === "before");
process.exit(0);
"""

NODE_REDIS = r"""
import { createClient, RESP_TYPES } from "redis";
import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";
console.log(JSON.parse(readFileSync("node_modules/redis/package.json")).version);
const [port, socket] = process.argv.slice(2);
for (const RESP of [2, 3]) {
  const tell = (what, right) => console.log(`${what} (RESP${RESP})\t${right ? "True" : "False"}`);
  const r = createClient({ url: `redis://127.0.0.1:${port}`, RESP });
  r.on("error", () => {});
  await r.connect();
  const bytes = r.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
  const every = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
  await r.set(Buffer.from("n\0\r\n"), every);
  tell("set and get bytes of any value", every.equals(await bytes.get(Buffer.from("n\0\r\n"))));
  const big = Buffer.concat(Array(32768).fill(every));
  await r.set("big", big);
  tell("a value of 8 MiB", big.equals(await bytes.get("big")));
  const asked = Array.from({ length: 1000 }, (_, number) => [r.set(`p:${number}`, `${number}`), r.get(`p:${number}`)]);
  const replies = await Promise.all(asked.flat());
  tell("a pipeline of 2,000", replies.every((value, at) => (at % 2 ? value === String((at - 1) / 2) : value === "OK")));
  tell("MULTI", JSON.stringify(await r.multi().set("n", "1").incr("n").get("n").exec()) === '["OK",2,"2"]');
  const name = `node-redis-${RESP}`;
  const first = await r.xAdd(name, "*", { a: "1" });
  const other = await r.duplicate({ socket: { path: socket }, url: undefined }).on("error", () => {}).connect();
  setTimeout(() => other.xAdd(name, "*", { b: "2" }), 300);
  const woken = await r.xRead({ key: name, id: first }, { BLOCK: 20000 });
  tell("XREAD BLOCK is woken", JSON.stringify(woken).includes('"message":{"b":"2"}'));
  tell("XREAD BLOCK runs out", (await r.xRead({ key: name, id: "$" }, { BLOCK: 50 })) === null);
  const found = new Set();
  for await (const keys of r.scanIterator({ MATCH: "p:*" })) [keys].flat().forEach((key) => found.add(key));
  tell("SCAN", found.size === 1000);
  tell("PUBLISH is refused", await r.publish("x", "y").then(() => false, (error) => /nothing is published/.test(error.message)));
  tell("over the Unix socket", (await other.get("n")) === "2");
  if (RESP === 3) {
    await r.set("kept", "before");
    console.log("RESTART");
    await new Promise((done) => createInterface({ input: process.stdin }).once("line", done));
    let kept;
    while (kept === undefined) kept = await r.get("kept").catch(() => undefined);
    tell("goes on after the daemon was started again", kept === "before");
    process.exit(0);
  }
}
"""


def told(daemon, folder, command):
    """What a program tells: its version, then a doing and True or False a line; at RESTART the daemon is started again."""
    command = [str(word) for word in [*command, daemon.port, daemon.socket]]
    child = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    yield child.stdout.readline().strip()
    for line in child.stdout:
        if line.strip() == "RESTART":
            daemon.stop()
            daemon.start()
            child.stdin.write("\n")
            child.stdin.flush()
        else:
            doing, _, right = line.rstrip("\n").partition("\t")
            yield doing, right == "True", line
    code = child.wait()
    yield "ends in order", code == 0, child.stderr.read()


def redis_py(daemon, folder):
    installed([sys.executable, "-m", "venv", "venv"], folder)
    installed([folder / "venv/bin/python", "-m", "pip", "install", "-q", "--retries", "1", f"redis=={VERSIONS['redis-py']}"], folder)
    (folder / "doings.py").write_text(PYTHON)
    yield from told(daemon, folder, [folder / "venv/bin/python", "doings.py"])


def node(daemon, folder, package, program):
    installed(["npm", "install", "--loglevel=error", "--fetch-retries=1", "--no-audit", "--no-fund", package], folder)
    (folder / "doings.mjs").write_text(program)
    yield from told(daemon, folder, ["node", "doings.mjs"])


def ioredis(daemon, folder):
    yield from node(daemon, folder, f"ioredis@{VERSIONS['ioredis']}", IOREDIS)


def node_redis(daemon, folder):
    yield from node(daemon, folder, f"redis@{VERSIONS['node-redis']}", NODE_REDIS)


CLIENTS = {"redis-cli": redis_cli, "redis-benchmark": redis_benchmark, "redis-py": redis_py, "ioredis": ioredis, "node-redis": node_redis}


def main():
    chosen = sys.argv[1:] or list(CLIENTS)
    if not set(chosen) <= set(CLIENTS):
        sys.exit(__doc__)
    failed = 0
    print("| client | does | |\n|---|---|---|")
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            daemon = Daemon(pathlib.Path(folder))
            try:
                doings = CLIENTS[name](daemon, pathlib.Path(folder))
                client = f"{name} {next(doings)}"
                for doing, right, seen in doings:
                    print(f"| {client} | {doing} | {'ok' if right else 'FAILED'} |", flush=True)
                    if not right:
                        failed += 1
                        print(seen[-2000:])
            except Skipped as why:
                print(f"SKIPPED: {name}: {why}")
            finally:
                daemon.stop()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
