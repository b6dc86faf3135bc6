"""What the attack programs share: they drive the built `annals` as a user does, and judge what it says.

ANNALS names the binary (default target/debug/annals). Nothing here uses code of the engine or of its tests.
"""

import argparse
import base64
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("ANNALS") or ROOT / "target/debug/annals").resolve()
# How long a stranger waits for an answer before the program counts as hung. No command here has work for a second.
PATIENCE_S = 20
# A writer notes what is synced within a second of its last commit. A busy machine gets some more.
IDLE_S = 3
ENVIRONMENT = {name: value for name, value in os.environ.items() if not re.match("ANNALS|OPENAI|ANTHROPIC", name)}
ENVIRONMENT["NO_COLOR"] = "1"


class Outcome:
    """What one command did. `code` is None if it hung and was killed."""

    def __init__(self, command, code, out, err):
        self.command, self.code, self.out = shlex.join(map(str, command)), code, out
        self.err = err.decode(errors="replace")
        self.text = out.decode(errors="replace") + self.err

    def broken(self):
        """How the program itself broke: a panic, a signal, a hang; None if it ended in an orderly way."""
        if self.code is None:
            return f"hung for {PATIENCE_S} s"
        if self.code < 0 or self.code in (101, 134, 139) or "panicked at" in self.err:
            return f"panic or signal (exit {self.code})"
        return None

    def brief(self):
        return f"exit {self.code}: {' / '.join(self.text.split(chr(10)))[:300]}\n    {self.command}"


def run(command, stdin=b"", cwd=None, before=None):
    """Runs a command in a process group of its own, and kills the group if it takes too long."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd,
                             env=ENVIRONMENT, start_new_session=True, preexec_fn=before)
    try:
        out, err = child.communicate(stdin, timeout=PATIENCE_S)
        return Outcome(command, child.returncode, out, err)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        return Outcome(command, None, out, err)


def annals(store, *words, **options):
    return run([BINARY, "--store", store, *words], **options)


def must(store, *words, **options):
    """A step that has to work for the attack to mean anything."""
    done = annals(store, *words, **options)
    if done.code != 0:
        raise SystemExit(f"the attack cannot be prepared: {done.brief()}")
    return done


class NotStarted(Exception):
    """A daemon that refused to start, or hung: with what it said."""


class Daemon:
    """`annals serve` on a store, spoken to by hand over its socket."""

    def __init__(self, store, *words, before=None):
        self.store = pathlib.Path(store)
        command = [BINARY, "--store", store, "serve", "--no-auth", *words]
        self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE, env=ENVIRONMENT, start_new_session=True, preexec_fn=before)
        said, patience = b"", threading.Timer(PATIENCE_S, self.child.kill)
        patience.start()
        while b"annals: ready" not in said:
            line = self.child.stderr.readline()
            if not line:
                raise NotStarted(f"the daemon does not start (exit {self.child.wait()}): {said.decode()}")
            said += line
        patience.cancel()
        self.connect()

    def connect(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(self.store / "SOCKET"))
        self.file = self.socket.makefile("rb")

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))

    def reply(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the daemon went away")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$" and rest != b"-1":
            return self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        return {b"$": None, b"_": None}.get(kind, line[:-2])

    def ask(self, *words):
        """The reply. An error is the bytes that begin with `-`."""
        self.send(*words)
        return self.reply()

    def end(self, how=signal.SIGKILL):
        self.child.send_signal(how)
        try:
            code = self.child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)
            code = self.child.wait() and None
        self.child.stderr.close()
        self.socket.close()
        return code


def wait_until_idle():
    time.sleep(IDLE_S)


class Recorded:
    """What was acknowledged. `keys` holds the versions of each key in order; None is a deletion. `gone` are forgotten runs."""

    def __init__(self):
        self.runs, self.keys, self.doubt, self.gone = {}, collections.defaultdict(list), {}, set()

    def put(self, keyspace, key, value):
        self.keys[keyspace, key].append(value)


def text(rng, words):
    return " ".join(f"word{rng.randrange(100_000)}" for _ in range(words))


def frames(rng, recorded, names, count=3, words=60):
    """Lines for `import`, of runs whose requests grow; the runs are noted as recorded."""
    lines = []
    for name in names:
        request, recorded.runs[name] = "", []
        for seq in range(1, count + 1):
            request += text(rng, words) + "\n"
            answer = text(rng, words // 2)
            recorded.runs[name].append((request.encode(), answer.encode()))
            lines.append(json.dumps({"run": name, "seq": seq, "component": "llm", "input": request, "output": answer}))
            request += answer + "\n"
    return ("\n".join(lines) + "\n").encode()


def import_runs(store, rng, recorded, names, **options):
    return must(store, "import", "--format", "frames", "-", stdin=frames(rng, recorded, names, **options))


def value(line, key):
    """A value of `--json` output: text, or base64 where the bytes are no text."""
    return base64.b64decode(line[f"{key}_base64"]) if f"{key}_base64" in line else line[key].encode()


def lines(outcome):
    found = []
    for line in outcome.out.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    return found


class Look:
    """A store read whole: all frames, all keys, `verify --all` and `doctor`."""

    def __init__(self, store, recorded):
        self.replay = annals(store, "replay", "--all", "--json")
        self.frames = {(line["run"], line["seq"]): (value(line, "input"), value(line, "output"))
                       for line in lines(self.replay) if "seq" in line}
        self.scans, self.keys = [], {}
        for keyspace in sorted({keyspace for keyspace, _ in recorded.keys}):
            scan = annals(store, "scan", "--keyspace", keyspace, "--json")
            self.scans.append(scan)
            self.keys.update({(keyspace, value(line, "key")): value(line, "value") for line in lines(scan) if "key" in line or "key_base64" in line})
        self.verify, self.doctor = annals(store, "verify", "--all"), annals(store, "doctor")
        self.all = [self.replay, *self.scans, self.verify, self.doctor]
        self.recorded = recorded

    def wrong(self):
        """Bytes that nobody wrote, or that were forgotten: a sentence each."""
        known = self.recorded
        for (run_name, seq), bodies in self.frames.items():
            if run_name in known.gone:
                yield f"the forgotten run {run_name} is back"
            elif seq > len(known.runs.get(run_name, [])) or known.runs[run_name][seq - 1] != bodies:
                if known.doubt.get((run_name, seq)) != bodies:
                    yield f"frame {seq} of {run_name} has bytes that nobody recorded"
        for key, found in self.keys.items():
            if found not in known.keys.get(key, []) and known.doubt.get(key) != found:
                yield f"key {key} has bytes that nobody recorded"

    def lost(self):
        """Acknowledged frames and keys that are not there, or are older than acknowledged."""
        known = self.recorded
        for name, recorded_frames in known.runs.items():
            if name not in known.gone:
                yield from (f"frame {seq} of {name}" for seq in range(1, len(recorded_frames) + 1) if (name, seq) not in self.frames)
        for key, versions in known.keys.items():
            if self.keys.get(key) != versions[-1] and (key not in known.doubt or self.keys.get(key) != known.doubt[key]):
                yield f"key {key}"

    def says_cut(self):
        """Whether verify and doctor say that bytes were cut which may have been acknowledged."""
        return all(re.search(r"[1-9][\d,]* bytes", one.text) and "acknowledged" in one.text and "may have been" in one.text
                   and "none of them was acknowledged" not in one.text for one in (self.verify, self.doctor))


class Tally:
    """Counts of attacks by kind and outcome; defects with what shows them."""

    SHOWN = 3

    def __init__(self, program):
        self.program, self.counts, self.defects = program, collections.defaultdict(collections.Counter), 0
        self.lock = threading.Lock()

    def count(self, kind, outcome, many=1):
        with self.lock:
            self.counts[kind][outcome] += many

    def defect(self, kind, what, repeat=""):
        self.count(kind, "DEFECT")
        self.defects += 1
        if self.counts[kind]["DEFECT"] <= self.SHOWN:
            print(f"DEFECT {self.program}: {kind}: {what}" + (f"\n  repeat with: {repeat}" if repeat else ""), file=sys.stderr, flush=True)

    def finish(self):
        """Prints the rows of the table and ends the program: 1 if there was a defect."""
        for kind, outcomes in self.counts.items():
            print(f"| {self.program} | {kind} | {outcomes.total():,} | " + "; ".join(f"{name}: {many:,}" for name, many in sorted(outcomes.items())) + " |")
        sys.exit(1 if self.defects else 0)


def arguments(doc, rounds, **more):
    """The options of an attack program; `more` are whole numbers of its own, with their defaults."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help="how many attacks (default %(default)s)")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("ANNALS_SEED") or random.SystemRandom().randrange(2**32)))
    parser.add_argument("--dir", help="where temporary folders are made")
    parser.add_argument("--jobs", type=int, default=4, help="how many attacks at a time")
    for name, default in more.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if not BINARY.exists():
        raise SystemExit(f"there is no {BINARY}: build it, or name it in ANNALS")
    options.again = f"ANNALS={BINARY} {sys.argv[0]} --rounds {options.rounds} --seed {options.seed}"
    print(f"seed {options.seed}: {options.again}", file=sys.stderr, flush=True)
    return options


def each(function, items, jobs):
    """Calls the function for each item on some threads. The first exception ends the program."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(function, item) for item in items]:
            done.result()


def folder(options):
    return tempfile.TemporaryDirectory(prefix="annals-attack-", dir=options.dir, ignore_cleanup_errors=True)


def copy(source, target):
    """Copies a store without its LOCK and its sockets, which are no data."""
    shutil.copytree(source, target, ignore=lambda _, names: {"LOCK", "SOCKET", "SOCKET.next"} & set(names))
    return target
