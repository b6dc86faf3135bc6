#!/usr/bin/env python3
"""LOCK removed, replaced or moved under a living writer: a second writer is never admitted.

A daemon, or `annals record` with a program in the middle of its work, holds a store. LOCK changes under it, and a verb that writes runs beside it.
Each opening for writing begins a new generation of the manifest (docs/format.md 3), so CURRENT shows whether the second one was
admitted. A compaction of the holder begins one, too: then the pid in LOCK tells them apart. Then the first one goes on and ends, and
everything that either acknowledged has to be there.
"""

import copy
import itertools
import os
import pathlib
import random
import shutil
import signal
import subprocess

import agent
import lib

VERBS = ["put second value", "del balance", "import --format frames HELP/frames.jsonl", "compact", "compact --recompress", "retain", "forget r2 --why asked",
         "pin r1 --why kept", "fork r1@2 branch --no-run", "record --allow-empty --no-memory -- true", "serve", "remember HELP/memory.json", "backup OUT/backup"]
MEMORY = '{"id":"m1","value":{"query":"what?","finalContent":"that"},"query":"what?"}'


def removed(store, _):
    (store / "LOCK").unlink()


def both_removed(store, _):
    (store / "LOCK").unlink()
    (store / "SOCKET").unlink(missing_ok=True)


def replaced(store, _):
    (store / "LOCK.new").write_text("1\n")
    (store / "LOCK.new").rename(store / "LOCK")


def linked(store, home):
    (home / "elsewhere").write_text("1\n")
    (store / "LOCK").unlink()
    (store / "LOCK").symlink_to(home / "elsewhere")


def moved(store, _):
    (store / "LOCK").rename(store / "LOCK.old")


def copied_over(store, _):
    """As an editor or `cp` does it: the same file with other bytes. The lock stays, and nothing is wrong."""
    (store / "LOCK").write_text("1\n")


CHANGES = {"LOCK removed": removed, "LOCK and SOCKET removed": both_removed, "LOCK replaced": replaced, "LOCK a link": linked, "LOCK moved away": moved,
           "LOCK overwritten": copied_over, "nothing": lambda *_: None}


def is_holder(store, pid):
    """Whether LOCK names no process but the holder, or none."""
    path = store / "LOCK"
    return path.is_symlink() or not path.exists() or path.read_text().strip() in (str(pid), "1", "")


def second(store, verb, home):
    words = [word.replace("HELP", str(home)).replace("OUT", str(home / "out")) for word in verb.split()]
    if verb != "serve":
        return lib.annals(store, *words)
    command = [lib.BINARY, "--store", store, "serve", "--no-auth"]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=lib.ENVIRONMENT, start_new_session=True)
    try:
        out, err = child.communicate(timeout=lib.IDLE_S)
        return lib.Outcome(command, child.returncode, out, err)
    except subprocess.TimeoutExpired:
        # Refused in its first moment, or it serves: then CURRENT shows it.
        child.terminate()
        out, err = child.communicate()
        return lib.Outcome(command, child.returncode, out, err)


def expect(recorded, verb, done, lines_of_import):
    """What the second verb acknowledged, and so has to be there in the end. It may have gone through the holder."""
    if done.code == 0 and verb.startswith("put"):
        recorded.put("default", b"second", b"value")
    if verb.startswith("del"):
        (recorded.put("default", b"balance", None) if done.code == 0 else recorded.doubt.update({("default", b"balance"): None}))
    if done.code == 0 and verb.startswith("import"):
        recorded.runs.update(lines_of_import.runs)
    if verb.startswith("forget") and done.code == 0:
        recorded.gone.add("r2")
    # What the second one did not acknowledge may be there all the same, whole.
    recorded.doubt["default", b"second"] = b"value"


def attack(job, base, home, upstream, tally, again):
    number, (holder, change, verb) = job
    home, kind = home / f"round-{number}", f"{holder}: {change}"
    store, recorded, imported = home / "store", copy.deepcopy(base.recorded), lib.Recorded()
    (home / "out").mkdir(parents=True)
    lib.copy(base.path, store)
    (home / "frames.jsonl").write_bytes(lib.frames(random.Random(number), imported, ["imported"]))
    (home / "memory.json").write_text(MEMORY)
    if holder == "daemon":
        first = lib.Daemon(store)
        assert first.ask("SET", "one", "1") == b"+OK"
        recorded.put("db0", b"one", b"1")
    else:
        first, command = upstream.start(store, "held", 4, home / "gate")
    pid = first.child.pid if holder == "daemon" else first.pid
    generation = (store / "CURRENT").read_bytes()
    CHANGES[change](store, home)
    beside = second(store, verb, home)
    admitted = (store / "CURRENT").read_bytes() != generation and not (verb.startswith(("compact", "forget")) and is_holder(store, pid))
    expect(recorded, verb, beside, imported)
    if holder == "daemon":
        try:
            if first.ask("SET", "two", "2") == b"+OK":
                recorded.put("db0", b"two", b"2")
            else:
                recorded.doubt["db0", b"two"] = b"2"
        except (ConnectionError, TimeoutError):
            pass
        ended = lib.Outcome(["the daemon"], first.end(signal.SIGTERM), b"", b"")
    else:
        (home / "gate").touch()
        try:
            out, err = first.communicate(timeout=lib.PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(first.pid, signal.SIGKILL)
            out, err = first.communicate()
        ended = lib.Outcome(command, first.returncode, out, err)
    look = lib.Look(store, recorded)
    look.frames = {key: frame for key, frame in look.frames.items() if key[0] in recorded.runs or key[0] == "imported"}
    look.recorded.runs.update(imported.runs if ("imported", 1) in look.frames else {})
    problem = None
    if admitted:
        problem = "a second writer was admitted"
    elif beside.broken():
        problem = f"the second one {beside.broken()}"
    elif ended.broken() and ended.code != -signal.SIGTERM:
        problem = f"the holder: {ended.broken()}: {ended.text[:200]}"
    elif look.verify.code or any(one.broken() for one in look.all):
        problem = f"the store is damaged: {look.verify.brief()}"
    elif list(look.lost()) or list(look.wrong()):
        problem = f"lost {list(look.lost())[:3]}, wrong {list(look.wrong())[:3]}"
    elif holder == "recorder" and ended.code == 0 and agent.said_frames(ended) != agent.stored_frames(store, "held"):
        problem = f"said {agent.said_frames(ended)} requests, {agent.stored_frames(store, 'held')} are there: {ended.err.strip()[-200:]}"
    if problem:
        tally.defect(kind, f"`{verb}`: {problem}; the second one: {beside.brief()}", f"{again} --only {number}")
    else:
        tally.count(kind, f"{'done through the holder' if beside.code == 0 else f'refused, exit {beside.code}'}; the holder ended with {ended.code}")
    shutil.rmtree(home)


class Base:
    def __init__(self, path, seed):
        self.path, self.recorded = path, lib.Recorded()
        lib.import_runs(path, random.Random(seed), self.recorded, ["r1", "r2", "r3"])
        lib.must(path, "put", "balance", "100")
        self.recorded.put("default", b"balance", b"100")


def main():
    options = lib.arguments(__doc__, 0, only=-1)
    tally = lib.Tally("lock")
    with lib.folder(options) as folder, agent.Upstream() as upstream:
        base = Base(pathlib.Path(folder) / "base", options.seed)
        cases = list(itertools.product(("daemon", "recorder"), CHANGES, VERBS))
        chosen = list(enumerate(random.Random(options.seed).sample(cases, options.rounds) if options.rounds else cases))
        if options.only >= 0:
            chosen = [chosen[options.only]]
        lib.each(lambda job: attack(job, base, pathlib.Path(folder), upstream, tally, options.again), chosen, options.jobs)
    tally.finish()


if __name__ == "__main__":
    main()
