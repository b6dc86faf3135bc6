#!/usr/bin/env python3
"""History is exchanged or erased by cunning, and statements of erasures are forged for it, with every checksum and chain made anew.

Each way begins with an ordinary store. Its owner kept a checkpoint, as a file and in a witness folder. `verify --against` of both must
name what was done and end with 3, and `ledger checkpoint --to` must add nothing to the folder. What only an older checkpoint can show
must be a note.
"""

import os
import pathlib
import random
import shutil
import struct
import time

import erase_without_tombstone as erasing
import forge
import lib
from hashing import blake3

COMPACTION, EARLIER, UNUSED = 1, 2, 3
NAMES = ["run-1", "run-2", "run-3", "run-4"]


def span_of(segment):
    """Section 22: what a rewritten segment has erased: first, length, records, leaves, digest."""
    ranges, records, leaves, end = [], 0, 0, segment.first
    for batch in segment.batches:
        seqno, living, nodes = batch[0], 0, 0
        for record in batch[3]:
            count = record.seqnos()
            if record.kind in (forge.ERASED, forge.ERASED_BATCHES):
                records += count
                if ranges and ranges[-1][1] == seqno:
                    ranges[-1][1] += count
                else:
                    ranges.append([seqno, seqno + count])
                more, at = forge.varint(record.body, forge.varint(record.body, 0)[1])
                if record.kind == forge.ERASED:
                    nodes = max(nodes, min(more, 1))
                elif at < len(record.body):
                    nodes = 1 << record.body[at]
            elif record.kind <= forge.LOGICAL_MOST:
                living += 1
            seqno += count
        leaves += nodes if living == 0 else 0
        end = seqno
    digest = blake3(b"".join(struct.pack("<QQ", *one) for one in ranges), "annals erased records 1")
    return segment.first, end - segment.first, records, leaves, digest


def statement(rule, spans, runs):
    head = bytes([rule]) + struct.pack("<Q", time.time_ns()) + forge.to_varint(len(spans))
    for first, length, records, leaves, digest in spans:
        head += b"".join(map(forge.to_varint, (first, length, records, leaves))) + digest
    head, end = head + forge.to_varint(len(runs)), 0
    for first, after in runs:
        head, end = head + forge.to_varint(first - end) + forge.to_varint(after - first), after
    return fresh(10, head)


def fresh(kind, head):
    """A new record without a tail."""
    record = forge.Record(kind, 1, os.urandom(16) + forge.to_varint(len(head)) + head)
    record.salt = record.body[:16]
    return record


def with_length(data):
    return forge.to_varint(len(data)) + data


def inline(data):
    """A body in the head itself."""
    return forge.to_varint(len(data) << 2) + data


def append(segment, records):
    """A batch after the last one of the active segment."""
    seqno = segment.first
    if segment.batches:
        last = segment.batches[-1]
        seqno = last[0] + sum(record.seqnos() for record in last[3])
    segment.batches.append([seqno, time.time_ns(), 0, records, False])


def erase(store, belongs, *statements, records=()):
    """Erases records in place, adds others, and then statements of (rule, whether it names the spans, run numbers)."""
    manifest = forge.Manifest(store)
    segments = forge.all_segments(manifest)
    assert erasing.erase_in_place(manifest, segments, belongs) or records, "nothing was erased"
    gone = (forge.ERASED, forge.ERASED_BATCHES)
    rewritten = [one for one in segments[:-1] if any(record.kind in gone for batch in one.batches for record in batch[3])]
    spans = [span_of(segment) for segment in rewritten]
    if records:
        append(segments[-1], list(records))
    for rule, named, runs in statements:
        append(segments[-1], [statement(rule, spans if named else [], runs)])
    if records or statements:
        forge.rebuild(manifest, segments)
        # The store is not closed now: the next opening for writing closes it.
        lib.annals(store, "del", "no-key")
    else:
        forge.rebuild(manifest, segments, manifest.clean[1])


def of_run(number):
    kinds = (forge.RUN, forge.FRAME, forge.PART, forge.SNAPSHOT, forge.TOMBSTONE)
    return lambda record: record.kind in kinds and record.run() == number


class Scene:
    """The owner's store, and the checkpoints that were kept elsewhere."""

    def __init__(self, home, rng, before=lambda store: None, names=NAMES):
        self.store, self.kept, self.witness = home / "store", home / "kept.json", home / "witness"
        self.rng = rng
        lib.import_runs(self.store, rng, lib.Recorded(), names)
        before(self.store)
        self.witness.mkdir()
        lib.must(self.store, "ledger", "checkpoint", "--to", self.witness)
        self.kept.write_bytes(lib.must(self.store, "ledger", "checkpoint").out)

    def checks(self):
        return [["verify", "--against", self.kept], ["verify", "--against", self.witness], ["ledger", "checkpoint", "--to", self.witness]]


def whole_store(home, rng):
    """Another store is put in the place of the owner's."""
    scene = Scene(home, rng)
    shutil.rmtree(scene.store)
    lib.import_runs(scene.store, rng, lib.Recorded(), NAMES)
    return scene


def whole_store_twice(home, rng):
    """The same, and somebody looks again after the store was used."""
    scene = whole_store(home, rng)
    lib.annals(scene.store, "ledger", "checkpoint", "--to", scene.witness)
    lib.must(scene.store, "put", "key", "value")
    return scene


def tall_node(home, rng):
    """One node of erased batches stands for the whole history. Other runs are recorded under the old numbers."""
    def many(store):
        for number in range(80):
            lib.must(store, "put", f"key-{number % 3}", f"value {number}")
        lib.must(store, "compact", "--now")
    scene = Scene(home, rng, many)
    manifest = forge.Manifest(scene.store)
    segments, state = forge.all_segments(manifest), dict(manifest.clean[1])
    height = max(7, state["leaves"].bit_length())
    seqnos, node = max(state["seqno"] - 1, 1 << height), os.urandom(32)
    first, last = segments[0], segments[-1]
    gone = forge.Record(forge.ERASED_BATCHES, 1, forge.to_varint(seqnos) + forge.to_varint(1 << height) + bytes([height]) + node, at=-1)
    first.batches = [[1, time.time_ns(), 0, [gone], False]]
    state["rest"] = (state["rest"][0], 1, 1, 16)
    state.update(seqno=seqnos + 1, leaves=1 << height, peaks=[node], chain=os.urandom(16))
    first.footer = struct.pack("<Q", 0) + forge.to_log_state(state)
    for entry in manifest.segments[1:-1]:
        manifest.path(entry[0]).unlink()
    manifest.segments = [manifest.segments[0], manifest.segments[-1]]
    last.batches, last.first, last.chain = [], seqnos + 1, state["chain"]
    append(last, [statement(COMPACTION, [span_of(first)], [])])
    forge.rebuild(manifest, [first, last])
    lib.import_runs(scene.store, rng, lib.Recorded(), NAMES)
    return scene


def excused_by_compaction(home, rng):
    """A value is erased without a statement. Then the owner forgets another key of the same log file, and compacts."""
    def keys(store):
        for key in ("balance", "other", "third"):
            lib.must(store, "put", key, f"value of {key}: " + lib.text(rng, 60))
        lib.must(store, "compact", "--now")
    scene = Scene(home, rng, keys)
    erase(scene.store, lambda record: record.kind == 1 and b"value of balance" in record.body)
    lib.annals(scene.store, "forget", "--key", "other", "--why", "asked")
    lib.annals(scene.store, "compact", "--now")
    return scene


def spare_number(home, rng):
    """A number is called unused before the owner's checkpoint, and then named as erased in the place of a run."""
    def spare(store):
        erase(store, of_run(5), (COMPACTION, True, []), (UNUSED, False, [(5, 6)]))
        lib.must(store, "put", "key", "value")
    scene = Scene(home, rng, spare, NAMES + ["spare"])
    erase(scene.store, of_run(3), (COMPACTION, True, [(5, 6)]), (EARLIER, False, [(3, 4)]))
    return scene


def called_earlier(home, rng):
    """A run is erased, and a statement says that it was missing before format 4."""
    scene = Scene(home, rng)
    erase(scene.store, of_run(3), (COMPACTION, True, []), (EARLIER, False, [(3, 4)]))
    return scene


def recorded_anew(home, rng):
    """Two runs are erased under a forged statement, and others are recorded under their names and numbers."""
    scene = Scene(home, rng, lambda store: lib.must(store, "put", "balance", "100"))
    manifest = forge.Manifest(scene.store)
    segments = forge.all_segments(manifest)
    of_either = (of_run(3), of_run(4))
    assert erasing.erase_in_place(manifest, segments, lambda record: any(of(record) for of in of_either)), "nothing was erased"
    gone = (forge.ERASED, forge.ERASED_BATCHES)
    rewritten = [one for one in segments[:-1] if any(record.kind in gone for batch in one.batches for record in batch[3])]
    for segment in segments:
        if segment.footer:
            # The next run has number 3 again.
            state = segment.footer_state()
            state["rest"] = state["rest"][:2] + (3,) + state["rest"][3:]
            segment.footer = struct.pack("<Q", 0) + forge.to_log_state(state)
    append(segments[-1], [statement(COMPACTION, [span_of(segment) for segment in rewritten], [])])
    forge.rebuild(manifest, segments)
    lib.import_runs(scene.store, rng, lib.Recorded(), NAMES[2:])
    for name in NAMES:
        lib.must(scene.store, "show", name)
    return scene


def put_back(home, rng):
    """A dropped run is put back. Its owner forgets a key of the same log files before, so no more records exist than before."""
    kept = {}

    def drop(store):
        manifest = forge.Manifest(store)
        kept["number"], kept["first"], kept["bytes"] = manifest.segments[0]
        kept["content"] = manifest.path(kept["number"]).read_bytes()
        lib.must(store, "forget", "run-3", "--why", "asked")
        for number in range(60):
            lib.must(store, "put", "k", f"value {number}: " + lib.text(rng, 20))

    scene = Scene(home, rng, drop)
    lib.must(scene.store, "forget", "--key", "k", "--why", "asked")
    manifest = forge.Manifest(scene.store)
    entry = next(entry for entry in manifest.segments if entry[1] == kept["first"])
    manifest.path(entry[0]).unlink()
    entry[0], entry[2] = kept["number"], kept["bytes"]
    manifest.path(entry[0]).write_bytes(kept["content"])
    manifest.forget_tables()
    manifest.write()
    return scene


def logical(record, head):
    """A new record of the same kind and tail with this head."""
    was = len(record.head())
    length, at = forge.varint(record.body, 0 if record.layout == 3 else 16)
    assert length == was
    made = forge.Record(record.kind, 1, os.urandom(16) + forge.to_varint(len(head)) + head + record.body[at + was :])
    made.salt = made.body[:16]
    return made


def records_of(store, number):
    belongs = of_run(number)
    segments = forge.all_segments(forge.Manifest(store))
    return [record for segment in segments for batch in segment.batches for record in batch[3] if belongs(record)]


def called_failed(record):
    """The record of a run's end with another status and fingerprint."""
    head = bytearray(record.head())
    at = forge.varint(head, 0)[1] + 8 + 4
    for _ in range(3):
        at += 8 + struct.unpack_from("<Q", head, at)[0]
    assert struct.unpack_from("<Q", head, at)[0] == 0, "a run with tags"
    head[at + 8] = 2
    return logical(record, bytes(head))


def written_over(home, rng):
    """Newer records of a run that has ended: its end says something else. Nothing is erased."""
    scene = Scene(home, rng)
    erase(scene.store, lambda record: False, records=[called_failed(records_of(scene.store, 3)[-1])])
    assert "failed" in lib.must(scene.store, "show", "run-3").text
    return scene


def stated_afterwards(home, rng):
    """A run is erased and recorded anew, and a later statement says that the run was missing before format 4."""
    scene = Scene(home, rng)
    kept = records_of(scene.store, 3)
    anew = kept[:-1] + [called_failed(kept[-1])]
    erase(scene.store, of_run(3), (COMPACTION, True, []), (EARLIER, False, [(3, 4)]), records=anew)
    assert "failed" in lib.must(scene.store, "show", "run-3").text
    return scene


def tombstone_exchanged(home, rng):
    """The tombstone of a dropped run and the statement of its erasure are erased, and say something else now."""
    scene = Scene(home, rng, lambda store: lib.must(store, "forget", "run-2", "--why", "asked"))
    stones = [record for record in records_of(scene.store, 2) if record.kind == forge.TOMBSTONE]
    anew = [logical(stone, stone.head().replace(b"asked", b"bored")) for stone in stones]
    erase(scene.store, lambda record: record.kind in (forge.TOMBSTONE, 10), (COMPACTION, True, []), records=anew)
    assert "bored" in lib.annals(scene.store, "ledger", "gaps").text
    return scene


def put_back_alive(home, rng):
    """A dropped run is put back, its tombstone is erased, and so are more values than records came back."""
    scene = put_back(home, rng)
    put = lambda record: record.kind == 1 and b"value" in record.body
    erase(scene.store, lambda record: record.kind == forge.TOMBSTONE or put(record), (COMPACTION, True, []))
    lib.must(scene.store, "show", "run-3")
    return scene


def hidden_by_manifest(home, rng):
    """The manifest says that the log has no record before its end, and lists no index table: readers find nothing."""
    scene = Scene(home, rng)
    manifest = forge.Manifest(scene.store)
    tail, state = manifest.clean
    manifest.forget_tables()
    manifest.covers = (manifest.segments[-1][0], tail)
    manifest.covers_state = dict(forge.EMPTY_LOG, chain=state["chain"], seqno=1)
    manifest.write()
    assert lib.annals(scene.store, "show", "run-3").code == 4
    return scene


def another_name(home, rng):
    """An abandoned run gets another name."""
    def abandon(store):
        daemon = lib.Daemon(store)
        daemon.ask("RUN.BEGIN", "NAME", "cut-off")
        daemon.end(15)

    scene = Scene(home, rng, abandon)
    last = records_of(scene.store, 5)[-1]
    erase(scene.store, lambda record: False, records=[logical(last, last.head().replace(b"cut-off", b"renamed"))])
    lib.must(scene.store, "show", "renamed")
    return scene


def engine_keys(home, rng):
    """A key of the engine's own keyspaces is deleted: the index then has no name and no number of the run."""
    scene = Scene(home, rng)
    head = records_of(scene.store, 3)[-1].head()
    (space,) = struct.unpack_from("<I", head, forge.varint(head, 0)[1] + 8)
    keys = [(3, struct.pack(">I", space) + b"run-3"), (2, struct.pack(">IQ", space, 3))]
    deletes = [fresh(2, forge.to_varint(own) + struct.pack("<Q", time.time_ns()) + with_length(key)) for own, key in keys]
    erase(scene.store, lambda record: False, records=deletes)
    assert lib.annals(scene.store, "show", "run-3").code == 4
    return scene


def hidden_behind_the_end(home, rng):
    """The manifest says that its tables lead to records up to a place behind the log's end: readers begin there."""
    scene = Scene(home, rng)
    manifest = forge.Manifest(scene.store)
    active = manifest.path(manifest.segments[-1][0])
    active.write_bytes(active.read_bytes() + bytes(4096))
    end, state = active.stat().st_size, manifest.clean[1]
    manifest.forget_tables()
    manifest.covers, manifest.clean = (manifest.segments[-1][0], end), (end, state)
    manifest.covers_state = dict(forge.EMPTY_LOG, chain=state["chain"])
    manifest.write()
    assert lib.annals(scene.store, "show", "run-3").code == 4
    return scene


def taken_numbers(home, rng):
    """The manifest says that the next run has a number that is taken: the owner's next run then stands over an old one."""
    scene = Scene(home, rng)
    manifest = forge.Manifest(scene.store)
    manifest.clean, state = None, dict(manifest.covers_state)
    state["rest"] = state["rest"][:2] + (3,) + state["rest"][3:]
    manifest.covers_state = state
    manifest.write()
    return scene


def cut_off(*words):
    """What leaves an abandoned run 5, `cut-off`, with two frames, and these commands after it."""
    def record(store):
        daemon = lib.Daemon(store)
        daemon.ask("RUN.BEGIN", "NAME", "cut-off")
        daemon.ask("FRAME.ADD", "cut-off", "llm", "first question", "first answer")
        daemon.ask("SNAP.PUT", "cut-off", "state after one")
        daemon.ask("FRAME.ADD", "cut-off", "llm", "second question", "second answer")
        for one in words:
            daemon.ask(*one)
        daemon.end(15)
    return record


def another_beginning(home, rng):
    """An abandoned run has a frame without an answer. Its question is exchanged, and it gets an answer."""
    scene = Scene(home, rng, cut_off(("FRAME.BEGIN", "cut-off", "llm", "the question that was asked")))
    question, answer = b"another question", b"a forged answer"
    second = [record for record in records_of(scene.store, 5) if record.kind == forge.FRAME][1].head()
    # Of two varints and flags; then parent, start and duration.
    at = forge.varint(second, forge.varint(second, 0)[1])[1] + 2
    for _ in range(3):
        at = forge.varint(second, at)[1]
    hashed = bytes([1]) + struct.pack("<IBB", 0, 0, 0) + blake3(question) + blake3(answer) + blake3(b"")
    link = blake3(second[at : at + 32] + blake3(hashed, "annals run frame 1"), "annals run link 1")
    frame = forge.to_varint(5) + forge.to_varint(3) + struct.pack("<H", 1 | 16 | 256) + b"\0" + forge.to_varint(0) + forge.to_varint(9)
    frame += link + inline(question) + inline(answer) + inline(b"")
    last = records_of(scene.store, 5)[-1]
    head = last.head()
    size, at = forge.varint(head, 0)
    run = head[: at + size - 33] + link + head[at + size - 1 :]
    erase(scene.store, lambda record: False, records=[fresh(forge.FRAME, frame), logical(last, run)])
    assert "another question" in lib.must(scene.store, "show", "cut-off@3").text
    return scene


def past_state(home, rng):
    """A snapshot of an earlier frame is added to an abandoned run."""
    scene = Scene(home, rng, cut_off(("FRAME.ADD", "cut-off", "llm", "third question", "third answer")))
    snapshot = forge.to_varint(5) + forge.to_varint(2) + inline(b"forged state") + b"\0"
    erase(scene.store, lambda record: False, records=[fresh(forge.SNAPSHOT, snapshot)])
    assert "forged" in lib.must(scene.store, "state", "cut-off@3").text
    return scene


def another_start(home, rng):
    """The tombstone of a fork's parent says that it began at another time: the fork's first frames have another one, too."""
    scene = Scene(home, rng, cut_off(("RUN.END", "cut-off", "ok"), ("RUN.FORK", "cut-off@2", "NAME", "fork"), ("RUN.END", "fork", "ok")))
    before = lib.must(scene.store, "show", "fork@1", "--json").text
    space = records_of(scene.store, 5)[-1].head()
    (space,) = struct.unpack_from("<I", space, forge.varint(space, 0)[1] + 8)
    stone = b"".join(map(forge.to_varint, (space, 5, 2))) + struct.pack("<Q", 10**18) + b"\0" + struct.pack("<Q", time.time_ns())
    erase(scene.store, lambda record: False, records=[fresh(forge.TOMBSTONE, stone + with_length(b"forget") + with_length(b""))])
    assert lib.must(scene.store, "show", "fork@1", "--json").text != before
    return scene


WAYS = [
    whole_store, whole_store_twice, tall_node, excused_by_compaction, spare_number, called_earlier, recorded_anew, put_back,
    written_over, stated_afterwards, tombstone_exchanged, put_back_alive,
    hidden_by_manifest, another_name, engine_keys, hidden_behind_the_end, taken_numbers, another_beginning, past_state, another_start,
]
# What nothing but a note shows without a checkpoint.
NOTED = {spare_number: "without a record since before format 4", called_earlier: "without a record since before format 4"}


def main():
    options = lib.arguments(__doc__, 1)
    tally = lib.Tally("exchange")
    with lib.folder(options) as folder:
        for number in range(options.rounds):
            for way in WAYS:
                home = pathlib.Path(folder) / f"{way.__name__}-{number}"
                home.mkdir()
                scene = way(home, random.Random(f"{options.seed}/{number}"))
                kind = way.__name__.replace("_", " ")
                for words in scene.checks():
                    done = lib.annals(scene.store, *words)
                    if done.broken() or done.code != 3:
                        tally.defect(kind, f"{done.broken() or 'not named'}: {done.brief()}", options.again)
                    else:
                        tally.count(kind, "exit 3")
                if way in NOTED:
                    done = lib.annals(scene.store, "verify", "--all")
                    if NOTED[way] in done.text:
                        tally.count(kind, "noted")
                    else:
                        tally.defect(kind, f"not noted: {done.brief()}", options.again)
                shutil.rmtree(home)
    tally.finish()


if __name__ == "__main__":
    main()
