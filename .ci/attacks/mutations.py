#!/usr/bin/env python3
"""Damaged files of stores that were closed cleanly and of stores whose writer was killed.

Each round copies one of five stores, changes one file (flipped bits, zeroed pages and sectors, cuts, swapped sectors, swapped,
doubled, older, lost files), reads everything, opens the store for writing, and reads everything again. Right bytes, or a named
error: a wrong byte, a panic, a hang, and acknowledged data that is gone in silence are defects.

A writer notes what is synced within a second of its last commit. So a store that was idle before the kill loses nothing without
exit code 3. One that was killed at once may lose its last batches to one flipped bit: then verify and doctor say that bytes were cut and
may have been acknowledged. If no byte of those batches is left, nothing can show it.
"""

import collections
import pathlib
import random
import shutil

import forge
import lib

PAGE, SECTOR = 4096, 512

Base = collections.namedtuple("Base", "kind path older recorded busy")


def live(store, rng, recorded, name, idle=True):
    """A daemon's writes, each acknowledged, and its SIGKILL: keys old and new, a deletion, frames of any bytes, one write in doubt."""
    daemon = lib.Daemon(store)
    daemon.ask("RUN.BEGIN", "NAME", name)
    recorded.runs[name] = []
    for number in range(8):
        key, value = f"k{number % 6}", rng.randbytes(rng.choice((5, 90, 6_000)))
        assert daemon.ask("SET", key, value) == b"+OK"
        recorded.put("db0", key.encode(), value)
        request, answer = rng.randbytes(300), lib.text(rng, 50).encode()
        assert daemon.ask("FRAME.ADD", name, "llm", request, answer) == b":%d" % (number + 1)
        recorded.runs[name].append((request, answer))
    assert daemon.ask("DEL", "k5") == b":1"
    recorded.put("db0", b"k5", None)
    if idle:
        lib.wait_until_idle()
    else:
        value = rng.randbytes(200)
        daemon.send("SET", "doubt", value)
        recorded.keys["db0", b"doubt"] = [None]
        recorded.doubt["db0", b"doubt"] = value
    daemon.end()


def begin(store, rng, recorded, names):
    lib.import_runs(store, rng, recorded, names)
    for number in range(4):
        value = lib.text(rng, 30)
        lib.must(store, "put", f"key-{number}", value)
        recorded.put("default", f"key-{number}".encode(), value.encode())


def bases(folder, seed):
    """The stores that are attacked, each with an older copy of itself."""
    for kind, segments, end in (("closed, one segment", 1, "closed"), ("closed, several segments", 4, "closed"), ("killed at once", 1, "busy"),
                                ("killed when idle", 1, "idle"), ("killed when idle, several segments", 4, "idle")):
        rng, recorded, path = random.Random(f"{seed}/{kind}"), lib.Recorded(), folder / kind.replace(" ", "-").replace(",", "")
        begin(path, rng, recorded, ["a1", "a2", "a3"])
        if segments > 1:
            live(path, rng, recorded, "live-1")
            begin(path, rng, recorded, ["b1", "b2"])
        older = lib.copy(path, path.with_suffix(".older"))
        if segments > 1:
            lib.must(path, "forget", "a2", "--why", "asked")
            recorded.gone.add("a2")
        begin(path, rng, recorded, ["c1"])
        if end != "closed":
            live(path, rng, recorded, "live-2", end == "idle")
        yield Base(kind, path, older, recorded, end == "busy")


def place(rng, data):
    """Somewhere in a file, more often near the end of its data, where the last batches are."""
    end = len(data.rstrip(b"\0")) or 1
    near = rng.choice((150, 1_500, end, end))
    return rng.randrange(max(0, end - near), end) if rng.random() < 0.95 else rng.randrange(len(data))


def change(rng, root, older):
    """Changes one file. Gives the kind of change and what was done; None if nothing changed."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    path = rng.choices(files, [3 if path.parent.name == "segments" else 1 for path in files])[0]
    siblings = [other for other in files if other != path and other.parent == path.parent]
    data = bytearray(path.read_bytes())
    before, name = bytes(data), path.relative_to(root)
    kinds = ["bit flipped", "byte changed", "page zeroed", "sector zeroed", "cut", "bytes added", "sectors swapped", "bytes doubled", "file lost", "older file"]
    kind = rng.choice(kinds + 2 * ["files swapped", "file doubled"] * bool(siblings))
    at = place(rng, data) if data else 0
    if kind == "file lost":
        path.unlink()
        return kind, f"{name} removed"
    if kind == "older file":
        old = older / name
        if not old.exists() or old.read_bytes() == before:
            return None
        shutil.copy(old, path)
        return kind, f"{name} as it was earlier"
    if kind in ("files swapped", "file doubled"):
        other = rng.choice(siblings)
        path.write_bytes(other.read_bytes())
        if kind == "files swapped":
            other.write_bytes(before)
        return (kind, f"{name} and {other.name}") if path.read_bytes() != before else None
    if not data:
        return None
    if kind == "bit flipped":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "byte changed":
        data[at] = rng.randrange(256)
    elif kind in ("page zeroed", "sector zeroed"):
        size = PAGE if kind == "page zeroed" else SECTOR
        at -= at % size
        data[at:at + size] = bytes(len(data[at:at + size]))
    elif kind == "cut":
        del data[at:]
    elif kind == "bytes added":
        data += rng.randbytes(rng.choice((1, 48, 700)))
    elif kind == "bytes doubled":
        data[at:at] = data[at:at + rng.choice((1, 48, SECTOR))]
    else:
        first, second = (rng.randrange(len(data.rstrip(b"\0")) // SECTOR + 1) * SECTOR for _ in range(2))
        if max(first, second) + SECTOR <= len(data):
            data[first:first + SECTOR], data[second:second + SECTOR] = data[second:second + SECTOR], data[first:first + SECTOR]
        at = first
    path.write_bytes(data)
    return (kind, f"{name} at {at}") if data != before else None


def nothing_left(store):
    """Whether the log ends in order: after its last whole batch are only zeros, or nothing."""
    try:
        manifest = forge.Manifest(store)
        last = forge.Segment(manifest, manifest.segments[-1][0])
        return not last.data[last.tail:].strip(b"\0")
    except Exception:  # Somebody damaged these files: then they are no orderly end.
        return False


def judge(look, base, when, ends_in_order=False):
    """What one look at a damaged store shows: an outcome, or a defect."""
    for outcome in look.all:
        if outcome.broken():
            return "DEFECT", f"{when}: {outcome.broken()}: {outcome.brief()}"
        if outcome.code and not any(word in outcome.text.lower() for word in ("error", "damage", "no ", "not ")):
            return "DEFECT", f"{when}: a failure without a reason: {outcome.brief()}"
    if look.verify.code == 4 and "CURRENT" not in look.verify.text:
        return "DEFECT", f"{when}: a damaged store is called no store: {look.verify.brief()}"
    wrong, lost = next(look.wrong(), None), list(look.lost())
    if wrong:
        return "DEFECT", f"{when}: {wrong} (replay ended with {look.replay.code}, verify with {look.verify.code})"
    failed = [one for one in (look.replay, *look.scans) if one.code]
    if look.verify.code == 0 and failed and (lost or failed[0].code != 4):
        return "DEFECT", f"{when}: verify says whole, but: {failed[0].brief()}"
    if lost and look.verify.code == 0:
        if base.busy and look.says_cut():
            return "cut, and said", None
        if base.busy and ends_in_order:
            return "cut, and no byte is left that could show it", None
        return "DEFECT", f"{when}: lost in silence: {', '.join(lost[:3])} ({len(lost)} in all); verify: {look.verify.text.strip()[:200]!r}"
    if look.verify.code or failed:
        code = look.verify.code or failed[0].code
        return f"named, exit {code}", None
    return "right bytes, exit 0", None


def attack(base, number, folder, tally, options):
    rng = random.Random(f"{options.seed}/{number}")
    store, done = folder / f"round-{number}", None
    while done is None:
        shutil.rmtree(store, ignore_errors=True)
        lib.copy(base.path, store)
        done = change(rng, store, base.older)
    kind, where = done
    ends_in_order = nothing_left(store)
    outcome, why = judge(lib.Look(store, base.recorded), base, "first", ends_in_order)
    if outcome != "DEFECT":
        # Opening for writing recovers, cuts and goes on: nothing may be wrong or silent afterwards, either.
        wrote = lib.annals(store, "put", "after", "the attack")
        if wrote.broken() or wrote.code not in (0, 1, 3, 4):
            outcome, why = "DEFECT", f"put: {wrote.broken()}: {wrote.brief()}"
        elif wrote.code == 0:
            after = lib.Look(store, base.recorded)
            after.keys.pop(("default", b"after"), None)
            later, why = judge(after, base, "after a put", ends_in_order)
            outcome = "DEFECT" if later == "DEFECT" else outcome
    shutil.rmtree(store, ignore_errors=True)
    tally.count(f"in a store: {base.kind}", outcome)
    if outcome == "DEFECT":
        again = options.again.replace(f"--rounds {options.rounds}", f"--rounds {number + 1}")
        tally.defect(kind, f"{base.kind}: {where}: {why}", f"{again} --only {number}")
    else:
        tally.count(kind, outcome)


def main():
    options = lib.arguments(__doc__, 300, only=-1)
    tally = lib.Tally("mutations")
    with lib.folder(options) as folder:
        folder = pathlib.Path(folder)
        stores = list(bases(folder, options.seed))
        for base in stores:
            whole = lib.copy(base.path, folder / "untouched")
            look = lib.Look(whole, base.recorded)
            if judge(look, base, "untouched") != ("right bytes, exit 0", None) or list(look.lost()):
                raise SystemExit(f"the store '{base.kind}' is not what was recorded before any attack: {judge(look, base, 'untouched')}, {list(look.lost())}")
            shutil.rmtree(whole)
        numbers = [options.only] if options.only >= 0 else range(options.rounds)
        lib.each(lambda number: attack(stores[number % len(stores)], number, folder, tally, options), numbers, options.jobs)
    tally.finish()


if __name__ == "__main__":
    main()
