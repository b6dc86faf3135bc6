#!/usr/bin/env python3
"""Index tables that somebody who has docs/format.md changed or exchanged. Their checksums are right, so that only the log shows it.

Tables are a cache of the log. A changed one hides data or shows older data, and nothing is lost: `verify`, `verify --against` a checkpoint
from before, and `doctor` have to end with 3, `restore` has to refuse a backup of it or leave the table out, and without its tables the store
has to be whole again, with every byte.
"""

import pathlib
import random
import shutil
import struct
import zlib

import lib

FOOTER_BYTES = 76


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
        if byte < 128:
            return value, at


def column(data, at, count):
    """A column of numbers (docs/format.md, tables): its values, where its bits begin, their width, and its end."""
    base, at = varint(data, at)
    slope, at = varint(data, at)
    width, at = data[at], at + 1
    end = at + (count * width + 7) // 8
    bits = int.from_bytes(data[at:end], "little")
    signed = lambda number: (number >> 1) ^ -(number & 1)
    values = [(signed(base) + signed(slope) * i + (bits >> (i * width) & ((1 << width) - 1))) % 2**64 for i in range(count)]
    return values, at, width, end


class Block:
    """A block of a table: where its bytes are, and what its checksum covers besides them."""

    def __init__(self, data, at, end, store, table):
        words, here = varint(data, at)
        here += 4 + 32 * words if words else 0
        self.sum_at, self.body, self.end = here, here + 4, end
        self.salt = store + struct.pack("<QQI", table, at, words)

    def check(self, data):
        if struct.unpack_from("<I", data, self.sum_at)[0] != self.sum(data):
            raise SystemExit("the attack cannot be prepared: docs/format.md does not describe the tables of this program")

    def sum(self, data):
        return zlib.crc32(self.salt + bytes(data[self.body:self.end]))

    def seal(self, data):
        struct.pack_into("<I", data, self.sum_at, self.sum(data))

    def kinds(self, data):
        """How many entries there are, and the column of their kinds."""
        entries, at = varint(data, self.body)
        keys, at = varint(data, at)
        coding, at = data[at], at + 1
        length, at = varint(data, at)
        at += length
        if coding == 0:
            ends, _, _, at = column(data, at, keys)
            at += ends[-1] if ends else 0
        else:
            at += coding
            for _ in range(coding):
                at = column(data, at, keys)[3]
        for _ in range(2):
            at = column(data, at, entries)[3]
        return entries, column(data, at, entries)


def blocks(data):
    index_at, count, _ = struct.unpack_from("<QIQ", data, len(data) - FOOTER_BYTES)
    store, (table,) = bytes(data[-56:-40]), struct.unpack_from("<Q", data, len(data) - 40)
    begins = [struct.unpack_from("<Q", data, index_at + 12 * number)[0] for number in range(count)] + [index_at]
    for begin, end in zip(begins, begins[1:]):
        block = Block(data, begin, end, store, table)
        block.check(data)
        yield block


def renamed(store, twin, rng):
    """A byte of a key or a name."""
    for path in sorted((store / "tables").iterdir()):
        data = bytearray(path.read_bytes())
        for block in blocks(data):
            places = [at for word in (b"key-", b"run-") for at in find_all(data, word, block.body, block.end)]
            if places:
                data[rng.choice(places) + 2] ^= 1
                block.seal(data)
                path.write_bytes(data)
                return True
    return False


def find_all(data, word, begin, end):
    at = data.find(word, begin, end)
    while at >= 0:
        yield at
        at = data.find(word, at + 1, end)


def ended(store, twin, rng):
    """An entry of a living key is called a deletion."""
    for path in sorted((store / "tables").iterdir()):
        data = bytearray(path.read_bytes())
        for block in blocks(data):
            _, (kinds, bits, width, _) = block.kinds(data)
            living = [number for number, kind in enumerate(kinds) if kind == 1]
            if not width or not living:
                continue
            chosen = rng.choice(living)
            forged = bytearray(data)
            forged[bits + chosen * width // 8] ^= 1 << chosen * width % 8
            now = block.kinds(forged)[1][0]
            if now[chosen] == 2 and now[:chosen] + now[chosen + 1:] == kinds[:chosen] + kinds[chosen + 1:]:
                block.seal(forged)
                path.write_bytes(forged)
                return True
    return False


def of_a_twin(store, twin, rng):
    """The tables of a copy that went another way since."""
    theirs = sorted((twin / "tables").iterdir())
    ours = sorted((store / "tables").iterdir())
    same = [path for path in ours if any(path.name == other.name and path.read_bytes() != other.read_bytes() for other in theirs)]
    if not same:
        return False
    chosen = rng.choice(same)
    shutil.copy(twin / "tables" / chosen.name, chosen)
    return True


WAYS = {"a key renamed": renamed, "a living key called deleted": ended, "a table of a copy that went another way": of_a_twin}


def make(home, rng):
    """A closed store with tables, a copy of it that went another way, and a checkpoint."""
    store, recorded = home / "store", lib.Recorded()
    lib.import_runs(store, rng, recorded, ["run-0", "run-1"])
    early = lib.copy(store, home / "twin")
    # Both put the same keys, each in its order: their tables may have the same length.
    keys = [f"key-{number}" for number in range(rng.randrange(3, 9))]
    for of, path, word in ((recorded, store, "ours"), (lib.Recorded(), early, "them")):
        for number, key in enumerate(keys):
            lib.must(path, "put", key, f"{word} {number}")
            of.put("default", key.encode(), f"{word} {number}".encode())
        lib.must(path, "del", keys[0])
        of.put("default", keys[0].encode(), None)
        lib.must(path, "compact", "--recompress")
        keys.reverse()
    checkpoint = home / "checkpoint.json"
    checkpoint.write_bytes(lib.must(store, "ledger", "checkpoint").out)
    return store, early, recorded, checkpoint


def main():
    options = lib.arguments(__doc__, 10)
    tally = lib.Tally("tables")

    def attack(number):
        rng = random.Random(f"{options.seed}/{number}")
        home = pathlib.Path(folder) / str(number)
        home.mkdir()
        store, twin, recorded, checkpoint = make(home, rng)
        for way, change in WAYS.items():
            attacked = lib.copy(store, home / "attacked")
            if not change(attacked, twin, rng):
                tally.count(way, "not possible here")
            else:
                judge(way, attacked, recorded, checkpoint, home)
            shutil.rmtree(attacked)
        shutil.rmtree(home)

    def judge(way, store, recorded, checkpoint, home):
        said = {"verify": lib.annals(store, "verify"), "verify --against": lib.annals(store, "verify", "--against", checkpoint),
                "doctor": lib.annals(store, "doctor")}
        shutil.rmtree(home / "backup", ignore_errors=True)
        lib.annals(store, "backup", home / "backup")
        said["restore"] = lib.run([lib.BINARY, "restore", home / "backup", home / "restored"])
        # A table that breaks a rule of its own is damage: the others end with 3, and a restored store has none of its tables.
        is_left_out = said["restore"].code == 0 and "an index table is damaged" in said["verify"].text
        restored = lib.Look(home / "restored", recorded) if is_left_out else None
        if is_left_out:
            del said["restore"]
        broken = next((one.broken() for one in said.values() if one.broken()), None)
        missed = [name for name, one in said.items() if one.code != 3]
        if missed == ["doctor"] and "the index differs" not in said["verify"].text:
            # What leads to bodies shows only where they are read (docs/guarantees.md).
            missed = []
        # A table whose index or length is wrong is never used: it is made again, and that is said.
        is_rebuilt = len(missed) == len(said) and "rebuilt: " in said["verify"].text
        rebuilt = lib.Look(store, recorded) if is_rebuilt else None
        for table in (store / "tables").iterdir():
            table.unlink()
        look = lib.Look(store, recorded)
        looks = [one for one in (look, rebuilt, restored) if one]
        wrong = [what for one in looks for what in (*one.lost(), *one.wrong())]
        if restored and restored.verify.code:
            wrong.append(f"restored: {restored.verify.brief()}")
        if (home / "restored").exists():
            shutil.rmtree(home / "restored")
        if broken or wrong or look.verify.code:
            tally.defect(way, f"{broken or wrong[:2]}; without tables: {look.verify.brief()}", options.again)
        elif is_rebuilt:
            tally.count(way, "rebuilt from the log")
        elif missed:
            tally.defect(way, f"not found by {', '.join(missed)}: {said[missed[0]].brief()}", options.again)
        else:
            tally.count(way, "found, and whole without the tables")

    with lib.folder(options) as folder:
        lib.each(attack, range(options.rounds), options.jobs)
    tally.finish()


if __name__ == "__main__":
    main()
