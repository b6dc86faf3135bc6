#!/usr/bin/env python3
"""Full disks: a small tmpfs (as root), and files that may not grow (RLIMIT_FSIZE).

Records, puts, imports, drops, compacts and serves until there is no room, makes room again, and goes on. Nothing acknowledged is lost,
every loss is said, `retain`, `compact` and `forget` work on a full disk, and a daemon takes writes again when there is room.
The last case makes every sync of a daemon fail (strace): then nothing is acknowledged that depends on what was lost.
"""

import contextlib
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import time

import agent
import lib

KB = 1024


class Tmpfs:
    """A file system of its own. `fill` leaves no byte of it free."""

    kind = "full tmpfs"

    def __init__(self, home, rng):
        self.at, self.before = home / "disk", None
        self.at.mkdir()
        self.store, self.ballast = self.at / "store", self.at / "ballast"
        done = lib.run(["mount", "-t", "tmpfs", "-o", f"size={rng.randrange(2_200, 4_000)}k", "tmpfs", self.at])
        if done.code:
            raise PermissionError(done.err.strip())

    def narrow(self, rng):
        """Something else takes a share of the disk, so that little is left."""
        room = os.statvfs(self.at)
        self.ballast.write_bytes(bytes(max(1, room.f_bavail * room.f_bsize - rng.randrange(30, 400) * KB)))

    def fill(self):
        with open(self.ballast, "ab", buffering=0) as file:
            for size in (64 * KB, 4 * KB, 512, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def make_room(self, _=None):
        self.ballast.unlink(missing_ok=True)


class SizeLimit:
    """No file may grow past a size. The file system itself has room."""

    kind = "file size limit"

    def __init__(self, home, rng):
        self.store, self.most, self.limited = home / "store", rng.randrange(40, 1_500) * KB, False

    def before(self):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.most if self.limited else resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def narrow(self, _):
        self.limited = True

    def make_room(self, pid=None):
        self.limited = False
        if pid:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


class Case:
    def __init__(self, disk, rng, home, upstream):
        self.disk, self.rng, self.home, self.upstream = disk, rng, home, upstream
        self.recorded, self.store = lib.Recorded(), disk.store

    def annals(self, *words, **options):
        return lib.annals(self.store, *words, before=self.disk.before, **options)

    def begin(self):
        lib.import_runs(self.store, self.rng, self.recorded, ["r1", "r2", "r3", "r4"], count=5, words=400)

    def put_until_full(self):
        """Gives the refusal, or None if everything fitted."""
        for number in range(150):
            value = self.rng.randbytes(self.rng.choice((200, 9_000, 60_000))).hex()
            done = self.annals("put", f"k{number}", "-", stdin=value.encode())
            if done.code:
                self.recorded.doubt["default", f"k{number}".encode()] = value.encode()
                return done
            self.recorded.put("default", f"k{number}".encode(), value.encode())
        return None

    def check(self, what, *outcomes):
        """Raises unless everything acknowledged is there. The store is read where there is room: its bytes are those of the full disk."""
        for done in outcomes:
            if done.broken() or (done.code and "error" not in done.err):
                raise AssertionError(f"{what}: {done.broken() or 'a refusal without a reason'}: {done.brief()}")
        copied = lib.copy(self.store, self.home / "copied") if self.store.exists() else None
        look = lib.Look(copied or self.store, self.recorded)
        lost, wrong = list(look.lost()), list(look.wrong())
        if lost or wrong or (look.verify.code and (self.recorded.runs or self.recorded.keys)):
            raise AssertionError(f"{what}: lost {lost[:3]}, wrong {wrong[:3]}; {look.verify.brief()}")
        shutil.rmtree(self.home / "copied", ignore_errors=True)

    def works_again(self):
        self.disk.make_room()
        done = self.annals("put", "again", "there is room")
        if done.code:
            raise AssertionError(f"no write when there is room again: {done.brief()}")
        self.recorded.put("default", b"again", b"there is room")
        self.check("when there is room again")


def puts(case):
    case.begin()
    case.disk.narrow(case.rng)
    refused = case.put_until_full()
    case.check("after a refused put", *[refused] * bool(refused))
    case.works_again()
    return "refused, all acknowledged there" if refused else "all fitted"


def imports(case):
    case.disk.narrow(case.rng)
    handed_in = lib.Recorded()
    lines = lib.frames(case.rng, handed_in, [f"i{number:03}" for number in range(80)], count=6, words=300)
    done = case.annals("--json", "import", "--format", "frames", "-", stdin=lines)
    named = [line["run"] for line in lib.lines(done) if isinstance(line.get("run"), str)]
    case.recorded.runs = {name: handed_in.runs[name] for name in named}
    if done.code == 0 and len(named) != 80:
        raise AssertionError(f"exit 0, and {len(named)} of 80 runs: {done.err[-300:]}")
    case.recorded.doubt = {(name, seq): bodies for name, frames in handed_in.runs.items() for seq, bodies in enumerate(frames, 1)}
    case.check("after an import", done)
    case.works_again()
    return "refused, all acknowledged there" if done.code else "all fitted"


def upkeep(gone, *verbs):
    """Verbs that make room have to work where there is none. The first runs of the store are dropped before, or by the verbs."""
    def act(case):
        case.begin()
        policy = case.home / "policy.toml"
        policy.write_text('[[rule]]\nname = "all"\nkeep_newest = 2\n')
        if verbs[0] == "compact":
            lib.must(case.store, "retain", "--policy", policy)
        case.disk.fill()
        for verb in verbs:
            done = case.annals(*verb.replace("POLICY", str(policy)).split())
            if done.code or done.broken():
                raise AssertionError(f"`{verb}` on a full disk: {done.brief()}")
        case.recorded.gone = set(gone)
        case.check(f"after `{verbs[0]}`")
        case.works_again()
        return "done on the full disk"
    return act


def serve(case):
    case.begin()
    case.disk.narrow(case.rng)
    daemon = lib.Daemon(case.store, before=case.disk.before)
    refused = None
    try:
        for number in range(150):
            key, value = f"k{number}", case.rng.randbytes(case.rng.choice((200, 9_000, 60_000)))
            said = daemon.ask("SET", key, value)
            if said != b"+OK":
                refused = key
                case.recorded.keys["db0", key.encode()] = [None]
                case.recorded.doubt["db0", key.encode()] = value
                break
            case.recorded.put("db0", key.encode(), value)
        if refused:
            # What is said about the refused key has to be true after a kill, too.
            deleted = daemon.ask("DEL", refused)
            if not deleted.startswith(b"-"):
                del case.recorded.doubt["db0", refused.encode()]
            for (keyspace, key), versions in list(case.recorded.keys.items())[:5]:
                if keyspace == "db0" and versions[-1] is not None and daemon.ask("GET", key) != versions[-1]:
                    raise AssertionError(f"GET {key.decode()} gives another value on the full disk")
            case.disk.make_room(daemon.child.pid)
            until = time.monotonic() + lib.PATIENCE_S
            while (said := daemon.ask("SET", "again", "there is room")) != b"+OK":
                if time.monotonic() > until:
                    raise AssertionError(f"the daemon takes no write {lib.PATIENCE_S} s after there is room: {said.decode()}")
                time.sleep(0.2)
            case.recorded.put("db0", b"again", b"there is room")
    finally:
        daemon.end(signal.SIGKILL)
    case.disk.make_room()
    case.check("after a kill of the daemon")
    return "refused, and took writes again" if refused else "all fitted"


def record(case, beside=None):
    """A recording that fills the disk, alone or through another process that holds the store: its last line has to be true."""
    case.begin()
    case.disk.narrow(case.rng)
    gate, ended = case.home / "gate", {}
    if beside == "daemon":
        holder = lib.Daemon(case.store, before=case.disk.before)
    elif beside == "recorder":
        holder, command = case.upstream.start(case.store, "first", 3, gate, before=case.disk.before)
    ended["agent"] = lib.run(case.upstream.command(case.store, "agent", 40, seed=case.rng.random()), before=case.disk.before)
    if beside == "daemon":
        holder.end(signal.SIGKILL)
    elif beside == "recorder":
        gate.touch()
        out, err = holder.communicate(timeout=lib.PATIENCE_S)
        ended["first"] = lib.Outcome(command, holder.returncode, out, err)
    case.disk.make_room()
    look = lib.Look(case.store, case.recorded)
    case.recorded.doubt = {(name, seq): bodies for (name, seq), bodies in look.frames.items() if name in ended}
    case.check("after a recording")
    for run, done in ended.items():
        if done.broken():
            raise AssertionError(f"record {done.broken()}: {done.brief()}")
        answered, said, stored = done.out.count(b"answered"), agent.said_frames(done), agent.stored_frames(case.store, run)
        if (said is not None and said != stored) or (stored < answered and (done.code == 0 or "error" not in done.err)):
            raise AssertionError(f"{answered} answered, {stored} stored, said {said}: exit {done.code}: {done.err.strip()[-300:]}")
    return "the loss is said" if any(done.code for done in ended.values()) else "all recorded"


def failed_sync(case):
    if not shutil.which("strace"):
        return "SKIPPED: strace is not installed"
    case.begin()
    daemon = lib.Daemon(case.store)
    assert daemon.ask("SET", "before", "1") == b"+OK"
    case.recorded.put("db0", b"before", b"1")
    tracer = subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO", "-p", str(daemon.child.pid)],
                              stderr=subprocess.PIPE, start_new_session=True)
    try:
        until = time.monotonic() + lib.PATIENCE_S
        for number in range(10_000):
            said = daemon.ask("SET", f"k{number}", "value")
            if said != b"+OK":
                break
            case.recorded.put("db0", f"k{number}".encode(), b"value")
            if tracer.poll() is not None or time.monotonic() > until:
                return f"SKIPPED: strace cannot attach: {tracer.stderr.read().decode()[:80]}"
        key = f"k{number}"
        case.recorded.keys["db0", key.encode()], case.recorded.doubt["db0", key.encode()] = [None], b"value"
        for words in (("DEL", key), ("SET", "other", "value"), ("EXISTS", key), ("SETNX", key, "x"), ("INCR", "counter"), ("DEL", "before", key)):
            said = daemon.ask(*words)
            if words[0] != "EXISTS" and not said.startswith(b"-"):
                raise AssertionError(f"{' '.join(words)} after a failed sync is answered with {said.decode()}")
        if daemon.ask("GET", "before") != b"1":
            raise AssertionError("a value that was on disk is not read after a failed sync")
    finally:
        daemon.end(signal.SIGKILL)
        tracer.wait()
    case.recorded.keys["db0", b"other"], case.recorded.doubt["db0", b"other"] = [None], b"value"
    case.check("after a kill of the poisoned daemon")
    return "nothing acknowledged after the failure"


CASES = {"put": puts, "import": imports, "serve": serve, "record": record, "record beside a daemon": lambda case: record(case, "daemon"),
         "record beside a recorder": lambda case: record(case, "recorder")}
UPKEEP = {"retain": upkeep(["r1", "r2"], "retain --policy POLICY"), "compact": upkeep(["r1", "r2"], "compact", "compact --recompress"),
          "forget": upkeep(["r1"], "forget r1 --why asked")}


def main():
    options = lib.arguments(__doc__, 2)
    tally = lib.Tally("fulldisk")
    with lib.folder(options) as folder, agent.Upstream() as upstream:
        def attempt(kind, act, make, number):
            rng, home = random.Random(f"{options.seed}/{kind}/{number}"), pathlib.Path(folder) / f"{kind}-{number}".replace(" ", "-")
            home.mkdir()
            try:
                disk = make(home, rng)
            except PermissionError as why:
                return tally.count(kind, f"SKIPPED: {why}")
            try:
                tally.count(kind, act(Case(disk, rng, home, upstream)))
            except lib.NotStarted as why:
                said = "error" in str(why)
                tally.count(kind, "the daemon refuses to start, and says why") if said else tally.defect(kind, str(why), options.again)
            except (AssertionError, ConnectionError, TimeoutError) as why:
                tally.defect(kind, str(why), options.again)
            finally:
                if make is Tmpfs:
                    lib.run(["umount", "-l", disk.at])
                shutil.rmtree(home, ignore_errors=True)

        kinds = [(Tmpfs, CASES | UPKEEP), (SizeLimit, CASES)]
        jobs = [(f"{make.kind}: {name}", act, make, number) for make, cases in kinds for name, act in cases.items() for number in range(options.rounds)]
        lib.each(lambda job: attempt(*job), jobs + [("failed sync: serve", failed_sync, SizeLimit, 0)], options.jobs)
    tally.finish()


if __name__ == "__main__":
    main()
