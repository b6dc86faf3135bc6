#!/usr/bin/env python3
"""Older states and rewritten histories, by somebody who has docs/format.md and may change every file of a store.

Each way is judged three times: `verify --all` with nothing else at hand, `verify --against` a checkpoint that was taken last, and
`verify --against` a witness folder (`ledger checkpoint --to`). EXPECTED says for each what docs/guarantees.md promises:

    caught    exit 3
    unseen    nothing can show it: any answer, but no wrong byte beside what was forged, no panic, no hang
    right     every recorded byte is there and no forgotten one, with exit 0; or it is caught
    said      caught; or, with exit 0, the lost bytes are named
"""

import pathlib
import random
import shutil
import signal

import forge
import lib

POLICY = '[[rule]]\nname = "all"\nkeep = "0d"\n'


class Owner:
    """A store, what was recorded, older copies of it, and what its owner noted elsewhere."""

    def __init__(self, home, rng):
        self.home, self.rng, self.recorded, self.path = home, rng, lib.Recorded(), home / "store"
        self.witness, self.latest, self.noted = home / "witness", None, 0
        home.mkdir()
        self.witness.mkdir()

    def import_runs(self, *names):
        lib.import_runs(self.path, self.rng, self.recorded, names, count=3)

    def put(self, key, value):
        lib.must(self.path, "put", key, value)
        self.recorded.put("default", key.encode(), value.encode())

    def drop(self, name):
        """A policy drops one run. Its bytes stay until a compaction."""
        others = [other for other in self.recorded.runs if other != name and other not in self.recorded.gone]
        for other in others:
            lib.must(self.path, "pin", other, "--why", "needed")
        (self.home / "policy.toml").write_text(POLICY)
        lib.must(self.path, "retain", "--policy", self.home / "policy.toml", "--at", "+1d")
        for other in others:
            lib.must(self.path, "unpin", other)
        self.recorded.gone.add(name)

    def note(self):
        """A checkpoint of now, and one more in the witness folder."""
        self.noted += 1
        self.latest = self.home / f"checkpoint-{self.noted}.json"
        self.latest.write_bytes(lib.must(self.path, "ledger", "checkpoint").out)
        lib.annals(self.path, "ledger", "checkpoint", "--to", self.witness)

    def older(self, name):
        return lib.copy(self.path, self.home / name)


def settle(store):
    """The engine closes the forged store in order, and so makes its state good."""
    lib.annals(store, "del", "no such key")


def simple(owner):
    """One segment, closed cleanly."""
    owner.import_runs("r1", "r2", "r3")
    owner.put("balance", "100")
    owner.note()
    owner.first = owner.older("first")
    owner.import_runs("r4", "r5", "r6")
    owner.note()


def unclosed(owner):
    """One segment as the writer left it: a closing would rewrite it. The writer was idle, and was killed."""
    daemon = lib.Daemon(owner.path)
    for name in ("r1", "r2", "r3", "r4", "r5", "r6"):
        daemon.ask("RUN.BEGIN", "NAME", name)
        lib.frames(owner.rng, owner.recorded, [name])
        for seq, (request, answer) in enumerate(owner.recorded.runs[name], 1):
            assert daemon.ask("FRAME.ADD", name, "llm", request, answer) == b":%d" % seq
        daemon.ask("RUN.END", name)
        if name == "r3":
            assert daemon.ask("SET", "balance", "100") == b"+OK"
            owner.recorded.put("db0", b"balance", b"100")
            owner.note()
    lib.wait_until_idle()
    owner.note()
    daemon.end(signal.SIGKILL)


def several(owner):
    """Segments of writers and rewritten ones, with a forgotten run and one that a policy dropped."""
    simple(owner)
    owner.drop("r2")
    owner.dropped = owner.older("dropped")
    lib.must(owner.path, "compact", "--recompress")
    owner.import_runs("r7")
    lib.must(owner.path, "forget", "r3", "--why", "asked")
    owner.recorded.gone.add("r3")
    owner.import_runs("r8")
    owner.note()


def dropped_last(owner):
    simple(owner)
    owner.before = forge.Manifest(owner.path).clean[1]
    owner.drop("r5")
    owner.note()


def compacted_last(owner):
    simple(owner)
    owner.drop("r5")
    owner.dropped = owner.older("dropped")
    lib.must(owner.path, "compact", "--recompress")
    owner.note()


def killed(owner):
    """The writer was idle for a while, noted what was synced, wrote again, was idle, and was killed."""
    simple(owner)
    daemon = lib.Daemon(owner.path)
    for number in range(8):
        if number == 4:
            lib.wait_until_idle()
            owner.early = owner.older("early")
        assert daemon.ask("SET", f"k{number}", f"value {number}") == b"+OK"
        owner.recorded.put("db0", f"k{number}".encode(), f"value {number}".encode())
    lib.wait_until_idle()
    owner.note()
    daemon.end(signal.SIGKILL)


def forged(change):
    """A way that changes the segments of a store: every checksum, chain and number is made anew, and the ledger follows."""
    def way(store, owner):
        manifest = forge.Manifest(store)
        segments = forge.all_segments(manifest)
        change(manifest, segments)
        segments[-1].renumber(segments[-1].first)
        forge.rebuild(manifest, segments)
        settle(store)
    return way


def rewritten(change, ledger=True):
    """The same for the last segment that a closing or a compaction wrote, and for the ledger in all footers behind it."""
    def way(store, owner):
        manifest = forge.Manifest(store)
        segments = forge.all_segments(manifest)
        change([segment for segment in segments if segment.number >= forge.REWRITTEN][-1])
        if ledger:
            forge.relink(segments)
        forge.rebuild(manifest, segments)
        settle(store)
    return way


def rewritten_value_changed(segment):
    value_changed(None, [segment])


def joined_batches_made_one(segment):
    """Two batches that share a header lose the border between them, and so are one leaf."""
    logical = [any(record.kind < forge.GROUP_PART for record in batch[3]) for batch in segment.batches]
    first = next(at for at in range(len(logical) - 1) if logical[at] and logical[at + 1] and segment.batches[at + 1][4])
    for record in segment.batches[first][3] + segment.batches[first + 1][3]:
        record.store_salt()
    segment.batches[first][3] += segment.batches.pop(first + 1)[3]


def without(picked):
    def change(_, segments):
        before = sum(len(batch[3]) for batch in segments[-1].batches)
        for batch in segments[-1].batches:
            batch[3] = [record for record in batch[3] if not picked(record)]
        assert sum(len(batch[3]) for batch in segments[-1].batches) < before, "nothing was erased"
    return forged(change)


def value_changed(_, segments):
    puts = [record for batch in segments[-1].batches for record in batch[3] if record.kind == forge.PUT and b"100" in record.body]
    assert puts, "nothing was changed"
    for record in puts:
        record.body = record.body.replace(b"100", b"999")


def last_segment_unlisted(store, owner):
    manifest = forge.Manifest(store)
    manifest.path(manifest.segments.pop()[0]).unlink()
    segments = forge.all_segments(manifest)
    manifest.segments[-1][2] = None  # The one before becomes the active one again, without its footer.
    if segments[-1].number >= forge.REWRITTEN:
        manifest.path(segments[-1].number).unlink()
        segments[-1].number, segments[-1].form = 900, b"\1\0"
        manifest.segments[-1][0] = 900
    forge.rebuild(manifest, segments)
    settle(store)


def source_back(store, owner):
    """The segments before the compaction, with the bytes that it removed; what was written since then follows them."""
    manifest, source = forge.Manifest(store), forge.Manifest(owner.dropped)
    state = source.clean[1]
    old, new = forge.all_segments(source), [one for one in forge.all_segments(manifest) if one.first >= state["seqno"]]
    for number, *_ in manifest.segments[:len(manifest.segments) - len(new)]:
        manifest.path(number).unlink()
    for segment in old:
        segment.manifest = manifest
        manifest.path(segment.number).write_bytes(segment.build(segment.footer_state() if segment.footer else state))
    manifest.segments = [[one.number, one.first, manifest.path(one.number).stat().st_size] for one in old] + manifest.segments[-len(new):]
    manifest.forget_tables()
    manifest.write()


def older_manifest(store, owner):
    (store / forge.Manifest(store).name).unlink()
    shutil.copy(owner.first / forge.Manifest(owner.first).name, store)
    shutil.copy(owner.first / "CURRENT", store)


def older_generation(store, owner):
    name = forge.Manifest(owner.first).name
    shutil.copy(owner.first / name, store)
    forge.point(store, name)


def older_put_over(store, owner):
    """The files of an older copy are put over those of the store, as `cp -r` does. Then somebody writes."""
    shutil.copytree(owner.first, store, dirs_exist_ok=True)
    before = {path.name for path in (store / "segments").iterdir()}
    lib.annals(store, "del", "no such key")
    gone = before - {path.name for path in (store / "segments").iterdir()}
    if gone:
        raise SystemExit(f"a writer removed log files that an older manifest does not list: {sorted(gone)}")


def grown_and_witnessed(store, owner):
    """The whole store as it was earlier, grown past the newest checkpoint. annals refuses to add one of it, so somebody else does."""
    shutil.rmtree(store)
    lib.copy(owner.first, store)
    for number in range(40):
        lib.must(store, "put", f"other-{number}", "value")
    refused = lib.annals(store, "ledger", "checkpoint", "--to", owner.witness)
    if refused.code != 3:
        raise SystemExit(f"a checkpoint that covers a rollback up was added: {refused.brief()}")
    made = owner.home / "made"
    made.mkdir()
    lib.must(store, "ledger", "checkpoint", "--to", made)
    for path in made.iterdir():
        shutil.copy(path, owner.witness)


def tail_cut(note):
    """The last two batches of a killed store are cut from the file. What the writer noted apart from the log is as `note` has it."""
    def way(store, owner):
        manifest = forge.Manifest(store)
        segment = forge.all_segments(manifest)[-1]
        at = len(segment.build())
        segment.batches = segment.batches[:-2]
        data = bytearray(segment.data)
        data[len(segment.build()):at] = bytes(at - len(segment.build()))
        manifest.path(segment.number).write_bytes(data)
        note(store, owner)
    return way


def synced_older(store, owner):
    if (owner.early / "SYNCED").exists():
        shutil.copy(owner.early / "SYNCED", store)


def called_older(store, _):
    manifest = forge.Manifest(store)
    manifest.call_older()
    manifest.write()


def of_run(uid):
    return lambda record: record.kind in (forge.RUN, forge.FRAME, forge.PART, forge.SNAPSHOT) and record.run() == uid


# way: (the store, the change, expected: with nothing, with a checkpoint, with a witness folder)
EXPECTED = {
    "the whole store as it was earlier": (several, lambda store, owner: shutil.rmtree(store) or lib.copy(owner.first, store), "unseen caught caught"),
    "the same, grown past the newest checkpoint, and a new checkpoint added": (several, grown_and_witnessed, "unseen caught caught"),
    "an older copy put over the store": (several, older_put_over, "caught caught caught"),
    "another store of the same content": (simple, None, "unseen caught caught"),
    "an older manifest": (several, older_manifest, "right right right"),
    "CURRENT names an older generation": (several, older_generation, "right right right"),
    "the last segment removed": (several, lambda store, _: max((store / "segments").iterdir(), key=lambda path: path.stat().st_mtime_ns).unlink(), "caught caught caught"),
    "the last segment removed, and a manifest without it": (several, last_segment_unlisted, "unseen caught caught"),
    "cut to a batch border, with a fresh manifest": (simple, forged(lambda _, segments: segments[-1].batches.pop()), "unseen caught caught"),
    "index tables removed": (several, lambda store, _: shutil.rmtree(store / "tables"), "right right right"),
    "the tombstone's batch cut before a compaction": (dropped_last, lambda store, owner: forge.cut(forge.Manifest(store), owner.before), "unseen caught caught"),
    "a rewritten segment replaced by its source": (compacted_last, source_back, "right caught caught"),
    "the tail of a killed store cut": (killed, tail_cut(lambda *_: None), "caught caught caught"),
    "the same, and SYNCED removed": (killed, tail_cut(lambda store, _: (store / "SYNCED").unlink(missing_ok=True)), "said caught caught"),
    "the same, and an older SYNCED": (killed, tail_cut(synced_older), "unseen caught caught"),
    "the same, and called format 3": (killed, tail_cut(called_older), "unseen caught caught"),
    "a run erased by hand": (unclosed, without(of_run(2)), "said caught caught"),
    "the last run erased by hand": (unclosed, without(of_run(6)), "unseen caught caught"),
    "a frame erased by hand": (unclosed, without(lambda record: of_run(3)(record) and record.kind == forge.FRAME), "caught caught caught"),
    "a value changed by hand in a rewritten segment": (simple, rewritten(rewritten_value_changed), "unseen caught caught"),
    "the same, and the ledger kept": (simple, rewritten(rewritten_value_changed, ledger=False), "caught caught caught"),
    "two joined batches made one": (simple, rewritten(joined_batches_made_one), "unseen caught caught"),
    "a value changed by hand": (unclosed, forged(value_changed), "unseen caught caught"),
}


def observe(store, owner, way, expected, tally, again):
    look = lib.Look(store, owner.recorded)
    against = [("nothing kept", look.verify), ("a checkpoint", lib.annals(store, "verify", "--against", owner.latest))]
    if any(owner.witness.iterdir()):
        against.append(("a witness", lib.annals(store, "verify", "--against", owner.witness)))
    for (kept, verify), promise in zip(against, expected.split()):
        kind = f"{way}; {kept}"
        broken = next((one.broken() for one in [*look.all, verify] if one.broken()), None)
        lost, wrong = list(look.lost()), list(look.wrong())
        if broken:
            tally.defect(kind, f"{broken}: {verify.brief()}", again)
        elif verify.code == 3:
            tally.count(kind, "caught")
        elif promise == "unseen" and verify.code == 0:
            tally.count(kind, "not seen, as promised")
        elif promise == "right" and verify.code == 0 and not lost and not wrong:
            tally.count(kind, "right bytes")
        elif promise == "said" and verify.code == 0 and (look.says_cut() or "SYNCED" in verify.text or "never used" in verify.text):
            tally.count(kind, "said")
        else:
            tally.defect(kind, f"promised: {promise}; lost {lost[:2]}, wrong {wrong[:2]}; {verify.brief()}", again)


def main():
    options = lib.arguments(__doc__, 1)
    tally = lib.Tally("rollback")

    def attack(job):
        number, way = job
        make, change, expected = EXPECTED[way]
        home = pathlib.Path(folder) / f"{number}-{way}".replace(" ", "-").replace(",", "")
        owner = Owner(home, random.Random(f"{options.seed}/{number}"))
        make(owner)
        forge.check(owner.path)
        untouched = lib.copy(owner.path, home / "untouched")
        observe(untouched, owner, "untouched", "right right right", tally, options.again)
        for kept in [owner.latest] + [owner.witness] * any(owner.witness.iterdir()):
            alarm = lib.annals(untouched, "verify", "--against", kept)
            if alarm.code:
                tally.defect("untouched; compared", f"a false alarm: {alarm.brief()}", options.again)
        store = lib.copy(owner.path, home / "attacked")
        if change:
            change(store, owner)
        else:
            twin = Owner(home / "twin", random.Random(f"{options.seed}/{number}"))
            make(twin)
            shutil.rmtree(store)
            lib.copy(twin.path, store)
        observe(store, owner, way, expected, tally, options.again)
        shutil.rmtree(home)

    with lib.folder(options) as folder:
        trial = Owner(pathlib.Path(folder) / "trial", random.Random(0))
        simple(trial)
        if len(list(trial.witness.iterdir())) != 2:
            said = lib.annals(trial.path, "ledger", "checkpoint", "--to", trial.witness)
            tally.defect("a witness", f"`ledger checkpoint --to DIR` added no file, so no way was judged with a witness: {said.brief()}")
        lib.each(attack, [(number, way) for number in range(options.rounds) for way in EXPECTED], options.jobs)
    tally.finish()


if __name__ == "__main__":
    main()
