#!/usr/bin/env python3
"""A run is forgotten, and then the record that says so is removed: every erased record needs a tombstone.

Each way begins with the same store of ten runs. A checkpoint is taken, run 8 is forgotten, and somebody with docs/format.md removes
the evidence, with every checksum, chain and footer made anew. `verify --all`, `verify --against`, `ledger gaps` and `doctor`
must name it and end with 3. A store from which nobody removed evidence must not be named.
"""

import copy
import pathlib
import random
import shutil
import struct

import forge
import lib

VICTIM, FORKED = "run-8", "run-5"
CALLED_OLDER = "cut back, and called format 3"


class Scene:
    """The store after the run was forgotten, and what its owner noted before and after."""

    def __init__(self, folder, seed, drop):
        rng, recorded = random.Random(seed), lib.Recorded()
        self.path, self.checkpoint, self.later = folder / "store", folder / "checkpoint.json", folder / "later.json"
        names = [f"run-{number}" for number in range(10)]
        lib.import_runs(self.path, rng, recorded, names, count=4)
        self.uid = 1 + names.index(VICTIM)
        self.older_values()
        lib.must(self.path, "fork", f"{FORKED}@2", "branch", "--no-run")
        lib.must(self.path, "forget", FORKED, "--why", "a fork keeps its first frames")
        self.checkpoint.write_bytes(lib.must(self.path, "ledger", "checkpoint").out)
        _, self.state = forge.Manifest(self.path).clean
        drop(self.path, folder)
        self.later.write_bytes(lib.must(self.path, "ledger", "checkpoint").out)

    def older_values(self):
        """Values that compaction erases in an ordinary way: replaced ones of a keyspace that keeps the latest."""
        daemon = lib.Daemon(self.path)
        for number in range(6):
            assert daemon.ask("SET", f"key-{number % 2}", f"value {number}") == b"+OK"
        assert daemon.ask("DEL", "key-1") == b":1"
        daemon.end(15)


def forget(store, _):
    lib.must(store, "forget", VICTIM, "--why", "asked")


def retain(store, folder):
    """A policy that drops three runs more, and a compaction that rewrites what they leave. One run alone would not be worth it."""
    for name in [f"run-{number}" for number in range(7) if f"run-{number}" not in (VICTIM, FORKED)] + ["branch"]:
        lib.must(store, "pin", name, "--why", "needed")
    policy = folder / "policy.toml"
    policy.write_text('[[rule]]\nname = "all"\nkeep = "0d"\n')
    lib.must(store, "retain", "--policy", policy, "--at", "+1d")
    assert "none worth rewriting" not in lib.must(store, "compact", "--recompress").text


def cut_back(manifest, scene):
    """Everything after the checkpoint goes, the tombstone with it. The rewritten segment ends where the checkpoint does."""
    forge.cut(manifest, scene.state)
    return True


def erase_in_place(manifest, segments, belongs):
    """Section 19: puts Erased records in the place of those that `belongs` picks, in all sealed segments. The ledger's root stays the
    same. A segment of the writer becomes a rewritten one. Gives how many records went."""
    total = 0
    for entry, segment in zip(manifest.segments[:-1], segments[:-1], strict=True):
        many = erase_from(segment, belongs)
        if many and segment.number < forge.REWRITTEN:
            manifest.path(segment.number).unlink()
            entry[0] = segment.number = manifest.next_rewritten
            segment.form, manifest.next_rewritten = struct.pack("<H", 2), manifest.next_rewritten + 1
        total += many
    manifest.erased = (manifest.erased[0], manifest.erased[1] + total, *manifest.erased[2:])
    return total


def erase_from(segment, belongs):
    many = 0
    for batch in segment.batches:
        kept, seqno = [], batch[0]
        for record in batch[3]:
            takes = record.seqnos()
            if belongs(record):
                node = b"\0" + record.hash(seqno)
                if kept and kept[-1].kind == forge.ERASED:
                    count, at = forge.varint(kept[-1].body, 0)
                    nodes, at = forge.varint(kept[-1].body, at)
                    kept[-1] = forge.Record(forge.ERASED, 1, forge.to_varint(count + 1) + forge.to_varint(nodes + 1) + kept[-1].body[at:] + node, at=-1)
                else:
                    kept.append(forge.Record(forge.ERASED, 1, b"\1\1" + node, at=-1))
                many += 1
            else:
                kept.append(copy.copy(record))
            seqno += takes
        if any(map(belongs, batch[3])):
            for record in kept:
                record.store_salt()
        batch[3] = kept
    return many


def in_place(belongs):
    """Erased records in the place of others. The ledger keeps its root, so a newer checkpoint still fits."""
    def change(manifest, scene):
        segments = forge.all_segments(manifest)
        erased = erase_in_place(manifest, segments, lambda record: belongs(record, scene))
        forge.rebuild(manifest, segments, manifest.clean[1])
        return erased
    return change


def statement_cut(manifest, scene):
    """The tombstone stays. The last batches that the rewriting itself wrote into the active segment go."""
    segments = forge.all_segments(manifest)
    if not any(record.kind <= forge.LOGICAL_MOST for batch in segments[-1].batches for record in batch[3]):
        return False
    forge.cut(manifest, segments[-2].footer_state())
    return True


def called_older(opened):
    """The evidence is cut, and the store says that it is older than the rule. Opening it for writing must not make the erasure good."""
    def change(manifest, scene):
        newer = manifest.call_older()
        forge.cut(manifest, scene.state)
        if newer and opened:
            lib.annals(manifest.root, "put", "opened", "for writing")
        return newer
    return change


WAYS = {
    "cut back to the checkpoint": cut_back,
    "the active segment emptied": statement_cut,
    "tombstone erased in place": in_place(lambda record, scene: record.kind == forge.TOMBSTONE and record.run() == scene.uid),
    "another run erased in place": in_place(lambda record, _: record.kind in (forge.RUN, forge.FRAME) and record.run() == 2),
    "one more frame erased in place": in_place(lambda record, _: record.kind == forge.FRAME and record.run() == 3),
    CALLED_OLDER: called_older(False),
    CALLED_OLDER + " and opened": called_older(True),
    "all but runs, frames and names erased in place": in_place(
        lambda record, _: record.kind <= forge.LOGICAL_MOST and record.kind not in (forge.SPACE, forge.RUN, forge.FRAME)),
}


def judge(store, scene, kind, expected, tally, again):
    """`expected` is 3 where something is missing, 0 where nothing is. A store that says it is older cannot be checked by itself: then
    saying that is enough, except for a comparison with a checkpoint."""
    for words in (["verify", "--all"], ["verify", "--against", scene.checkpoint], ["verify", "--against", scene.later], ["ledger", "gaps"], ["doctor"]):
        done = lib.annals(store, *words)
        if CALLED_OLDER in kind and "--against" not in words and done.code == 0 and "before format 4" in done.text:
            tally.count(kind, "said")
        elif done.broken() or done.code != expected:
            tally.defect(kind, f"{done.broken() or ('not named' if expected else 'a false alarm')}: {done.brief()}", again)
        else:
            tally.count(kind, f"exit {done.code}")


def main():
    options = lib.arguments(__doc__, 1)
    tally = lib.Tally("erase_without_tombstone")
    tally.SHOWN = 5
    with lib.folder(options) as folder:
        for number in range(options.rounds):
            for way, drop in (("forget", forget), ("retain", retain)):
                home = pathlib.Path(folder) / f"{way}-{number}"
                home.mkdir()
                scene = Scene(home, f"{options.seed}/{number}", drop)
                forge.check(scene.path)
                judge(scene.path, scene, f"{way}, nothing removed", 0, tally, options.again)
                for name, change in WAYS.items():
                    store = lib.copy(scene.path, home / "attacked")
                    if change(forge.Manifest(store), scene):
                        judge(store, scene, f"{way}, {name}", 3, tally, options.again)
                    else:
                        tally.count(f"{way}, {name}", "nothing there to remove")
                    shutil.rmtree(store)
    tally.finish()


if __name__ == "__main__":
    main()
