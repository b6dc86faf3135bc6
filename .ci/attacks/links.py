#!/usr/bin/env python3
"""Links, FIFOs, sockets, devices and directories in the place of a store's files, for every verb that opens a store.

Each round copies a store, plants one thing in the place of one file (also of files that the next writer will make), and runs one verb.
Nothing outside of the store may be written, changed or deleted; nothing may hang or panic; a value that is printed is the recorded one.
`--rounds 0` tries every pair of plant and verb once.
"""

import contextlib
import itertools
import os
import pathlib
import random
import shutil
import signal
import socket
import stat
import subprocess

import forge
import lib

VALUE, PRECIOUS = "one hundred", b"a file of somebody else\n"

# OUT is a folder of its own for what a verb is to write; HELP holds files that it reads.
VERBS = [
    "runs", "show r1", "show r1@2", "replay --all --json", "replay r1", "verify", "verify --all", "verify --against HELP/checkpoint.json",
    "doctor", "stats", "get balance", "get balance --history", "scan", "open r1", "diff r1 r1", "check", "ledger checkpoint", "ledger gaps",
    "ledger prove r1@2 -o OUT/proof", "tape export r1 -o OUT/tape", "tail r1", "recall what?", "export-training --format sft", "token list",
    "backup OUT/backup", "backup OUT/copy --copy", "restore STORE OUT/restored", "repair --to OUT/repaired", "compact --dry-run", "retain --dry-run",
    "put new value", "del balance", "import --format frames HELP/frames.jsonl", "remember HELP/memory.json", "define-memory HELP/definition.json",
    "pin r1 --why kept", "unpin kept", "forget r2 --why asked", "retain --at +8d", "compact", "compact --recompress", "fork r1@2 branch --no-run",
    "tape import HELP/tape --run again", "record --allow-empty -- true", "token add somebody", "serve",
]
OF_FILES = ["link to another file", "link to the file, moved outside", "link to nothing", "link to a folder", "FIFO", "socket", "device", "folder", "hard link"]
OF_FOLDERS = ["link to a folder", "link to the folder, moved outside", "link to nothing", "FIFO", "file"]
OF_NOTHING = ["link to another file", "link to nothing", "link to a folder", "FIFO", "socket", "device", "folder", "hard link"]


def prepare(home, seed):
    """A store with sealed, rewritten and active segments, tables and vectors, and the files that verbs read."""
    rng, recorded, store, helpers = random.Random(seed), lib.Recorded(), home / "base", home / "help"
    helpers.mkdir()
    lib.import_runs(store, rng, recorded, ["r1", "r2", "kept", "gone"])
    lib.must(store, "put", "balance", VALUE)
    daemon = lib.Daemon(store)
    assert daemon.ask("SET", "key", "value") == b"+OK"
    daemon.end(signal.SIGKILL)
    lib.must(store, "pin", "kept", "--why", "needed")
    lib.must(store, "forget", "gone", "--why", "asked")
    (helpers / "memory.json").write_text('{"id":"m1","value":{"query":"what?","finalContent":"that"},"query":"what?"}')
    (helpers / "definition.json").write_text('{"id":"d1"}')
    (helpers / "frames.jsonl").write_bytes(lib.frames(rng, recorded, ["imported"]))
    (helpers / "checkpoint.json").write_bytes(lib.must(store, "ledger", "checkpoint").out)
    lib.must(store, "remember", helpers / "memory.json")
    lib.must(store, "tape", "export", "r1", "-o", helpers / "tape")
    return store, helpers


def targets(store):
    """Names of a store's files, and of those that its next writer makes, with what can be planted there."""
    manifest = forge.Manifest(store)
    active, sealed = manifest.segments[-1][0], manifest.segments[0][0]
    tables = [number for number, _ in manifest.tables]
    found = {"CURRENT": OF_FILES, manifest.name: OF_FILES, f"segments/{active:08}.seg": OF_FILES, f"segments/{sealed:08}.seg": OF_FILES,
             **{f"tables/{number:08}.tbl": OF_FILES for number in tables[:1]}, "segments": OF_FOLDERS, "tables": OF_FOLDERS,
             "LOCK": OF_NOTHING, "SOCKET": OF_NOTHING, "SOCKET.next": OF_NOTHING, "CURRENT.next": OF_NOTHING,
             f"MANIFEST-{int(manifest.name[9:]) + 1:04}": OF_NOTHING, f"segments/{active + 1:08}.seg": OF_NOTHING,
             f"segments/{manifest.next_rewritten:08}.seg": OF_NOTHING, f"tables/{manifest.next_table:08}.tbl": OF_NOTHING}
    found["vectors"] = OF_FOLDERS if (store / "vectors").exists() else OF_NOTHING
    for path in sorted(store.iterdir()):
        if path.is_file():  # also of formats that are newer than this program
            found.setdefault(path.name, OF_FILES)
    for vectors in sorted((store / "vectors").glob("*.vec"))[:1]:
        found[f"vectors/{vectors.name}"] = OF_FILES
    return found


def outside_of(home):
    """What belongs to somebody else: a file, and a folder whose files have names like those of a store."""
    outside = home / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "victim").write_bytes(PRECIOUS)
    for name in ("00000001.seg", "00000002.seg", "2147483648.seg", "00000001.tbl", "00000099.tbl", "00000001.vec", "MANIFEST-0001", "diary.txt"):
        (outside / "folder" / name).write_bytes(PRECIOUS + name.encode())
    return outside


def plant(path, what, outside):
    """Puts something in the place of a file. Gives whether that can be done here."""
    original = outside / "moved"
    if what.endswith("moved outside"):
        shutil.move(path, original)
    elif what == "hard link":
        if not path.exists():
            path.write_bytes(PRECIOUS)
        os.link(path, original)
        return True
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if what.startswith("link"):
        targets_of = {"link to another file": outside / "victim", "link to nothing": outside / "made", "link to a folder": outside / "folder"}
        path.symlink_to(targets_of.get(what, original))
    elif what == "FIFO":
        os.mkfifo(path)
    elif what == "socket":
        parent = os.open(path.parent, os.O_RDONLY)
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as bound:
            bound.bind(f"/proc/self/fd/{parent}/{path.name}")  # The whole path may be too long for a socket's address.
        os.close(parent)
    elif what == "device":
        if os.geteuid() != 0:
            return False
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    elif what == "folder":
        path.mkdir()
        (path / "diary.txt").write_bytes(PRECIOUS)
    else:
        path.write_bytes(PRECIOUS)
    return True


def picture(outside):
    """Every file of a folder with its bytes, mode and links."""
    return {path.relative_to(outside).as_posix(): (path.lstat().st_mode, path.read_bytes() if path.is_file() else None) for path in sorted(outside.rglob("*"))}


def perform(store, verb, helpers, out):
    words = [word.replace("HELP", str(helpers)).replace("OUT", str(out)).replace("STORE", str(store)) for word in verb.split()]
    return serve(store) if verb == "serve" else lib.annals(store, *words, cwd=out)


def serve(store):
    """A daemon from its start to its orderly end. It hangs if it is neither ready nor over in time."""
    command = [lib.BINARY, "--store", store, "serve", "--no-auth"]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=lib.ENVIRONMENT, start_new_session=True)
    said = b""
    with contextlib.suppress(subprocess.TimeoutExpired):
        for _ in range(lib.PATIENCE_S * 10):
            os.set_blocking(child.stderr.fileno(), False)
            said += child.stderr.read() or b""
            if b"annals: ready" in said or child.poll() is not None:
                child.terminate()
                out, err = child.communicate(timeout=lib.PATIENCE_S)
                return lib.Outcome(command, child.returncode, out, said + err)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.1)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    return lib.Outcome(command, None, b"", said)


def attack(job, home, base, helpers, tally, again):
    number, (name, what, verb) = job
    home = home / f"round-{number}"
    store, outside, out = home / "store", outside_of(home), home / "out"
    out.mkdir()
    lib.copy(base, store)
    if not plant(store / name, what, outside):
        return tally.count(what, "SKIPPED: needs root")
    before, mine = picture(outside), (store / name).is_dir() and not (store / name).is_symlink() and what == "folder"
    done = perform(store, verb, helpers, out)
    after = picture(outside)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    wrong = verb == "get balance" and done.code == 0 and done.out.strip() != VALUE.encode()
    if done.broken() or changed or wrong or (mine and not (store / name / "diary.txt").exists()):
        why = done.broken() or (f"outside of the store changed: {', '.join(changed)}" if changed else "wrong bytes" if wrong else "a foreign folder in the store was deleted")
        tally.defect(what, f"{name} is a {what}, `{verb}`: {why}: {done.brief()}", f"{again} --only {number}")
    else:
        tally.count(what, "done, exit 0" if done.code == 0 else f"refused, exit {done.code}")
    shutil.rmtree(home)


def main():
    options = lib.arguments(__doc__, 400, only=-1)
    lib.PATIENCE_S = 10
    tally = lib.Tally("links")
    with lib.folder(options) as folder:
        home = pathlib.Path(folder)
        base, helpers = prepare(home, options.seed)
        for verb in VERBS:
            (home / "trial" / "out").mkdir(parents=True)
            # The root of a store may be a link: that is its user's choice.
            store = home / "trial" / "store"
            store.symlink_to(lib.copy(base, home / "trial" / "real"))
            done = perform(store, verb, helpers, home / "trial" / "out")
            if done.code != 0:
                raise SystemExit(f"`{verb}` does not work before any attack: {done.brief()}")
            tally.count("the root is a link, nothing planted", "done, exit 0")
            shutil.rmtree(home / "trial")
        pairs = [(name, what, verb) for (name, plants), verb in itertools.product(targets(base).items(), VERBS) for what in plants]
        rng = random.Random(options.seed)
        chosen = list(enumerate(rng.sample(pairs, min(options.rounds, len(pairs))) if options.rounds else pairs))
        if options.only >= 0:
            chosen = [chosen[options.only]]
        lib.each(lambda job: attack(job, home, base, helpers, tally, options.again), chosen, 4 * options.jobs)
    tally.finish()


if __name__ == "__main__":
    main()
