"""Reads and writes the files of a store from docs/format.md alone, as somebody does who wants to forge one.

Sections named here are of docs/format.md.
"""

import pathlib
import struct
import zlib

from hashing import blake3

LOGICAL_MOST, PUT, SPACE, RUN, FRAME, PART, SNAPSHOT, TOMBSTONE, GROUP_PART, ERASED, ERASED_BATCHES = 15, 1, 3, 4, 5, 6, 7, 8, 16, 17, 18
REWRITTEN = 1 << 31
SHORT, JOINED, HEADER = 1 << 31, 1 << 30, 35  # marks of the short form and of joined batches in a length, and the bytes of the header


def varint(data, at):
    number = shift = 0
    while True:
        byte = data[at]
        number, shift, at = number | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return number, at


def to_varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values if len(values) > 1 else values[0]

    def optional(self, read):
        return read() if self.take("B") else None

    def list(self, read):
        return [read() for _ in range(self.take("Q"))]

    def bytes(self):
        length = self.take("Q")
        self.at += length
        return self.data[self.at - length:self.at]

    def log_state(self):
        return {"seqno": self.take("Q"), "chain": self.take("16s"), "leaves": self.take("Q"), "peaks": self.list(lambda: self.take("32s")),
                "totals": self.take("9Q"), "rest": self.take("QQQI")}


EMPTY_LOG = {"seqno": 1, "chain": bytes(16), "leaves": 0, "peaks": [], "totals": (0,) * 9, "rest": (0, 1, 1, 16)}


def root_of(peaks):
    """Section 11: peaks are folded from the right."""
    folded = peaks[-1] if peaks else blake3(b"")
    for peak in reversed(peaks[:-1]):
        folded = blake3(b"\1" + peak + folded)
    return folded


def to_log_state(s):
    return (struct.pack("<Q16sQQ", s["seqno"], s["chain"], s["leaves"], len(s["peaks"])) + b"".join(s["peaks"])
            + struct.pack("<9QQQQI", *s["totals"], *s["rest"]))


class Manifest:
    """Section 3. Fields after `next_vector` are of newer formats and are kept as they are."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.name = (self.root / "CURRENT").read_text().split(" ")[0]
        data = (self.root / self.name).read_bytes()
        self.store, at, body = data[8:24], 28, b""
        while at + 8 <= len(data):
            crc, size = struct.unpack_from("<II", data, at)
            if zlib.crc32(self.store + struct.pack("<Q", at) + data[at + 4:at + 8 + size]) != crc:
                break
            body, at = data[at + 8:at + 8 + size], at + 8 + size
        self.read, r = body, Reader(body)
        self.format, _, self.created = r.take("H"), r.take("16s"), r.take("Q")
        self.segments = r.list(lambda: [*r.take("IQ"), r.optional(lambda: r.take("Q"))])
        self.tables = r.list(lambda: r.take("QQ"))
        self.covers, self.covers_state, self.synced = r.take("IQ"), r.log_state(), r.take("Q")
        self.clean = r.optional(lambda: (r.take("Q"), r.log_state()))
        self.next_table, self.next_rewritten, self.erased = r.take("Q"), r.take("I"), r.take("9Q")
        self.vectors = r.list(lambda: (*r.take("QQI"), r.bytes(), *r.take("IQQ")))
        self.vectors_upto, self.next_vector = r.take("QQ")
        self.newer = body[r.at:]

    def body(self):
        p = struct.pack
        body = p("<H16sQQ", self.format, self.store, self.created, len(self.segments))
        for number, first, sealed in self.segments:
            body += p("<IQ", number, first) + (b"\0" if sealed is None else p("<BQ", 1, sealed))
        body += p("<Q", len(self.tables)) + b"".join(p("<QQ", *table) for table in self.tables)
        body += p("<IQ", *self.covers) + to_log_state(self.covers_state) + p("<Q", self.synced)
        body += b"\0" if self.clean is None else p("<BQ", 1, self.clean[0]) + to_log_state(self.clean[1])
        body += p("<QI9QQ", self.next_table, self.next_rewritten, *self.erased, len(self.vectors))
        for number, size, space, embedder, dimensions, count, upto in self.vectors:
            body += p("<QQIQ", number, size, space, len(embedder)) + embedder + p("<IQQ", dimensions, count, upto)
        return body + p("<QQ", self.vectors_upto, self.next_vector) + self.newer

    def write(self):
        """Writes the state as a fresh manifest of the next generation, and points CURRENT to it."""
        p, body = struct.pack, self.body()
        header = b"annalman" + self.store
        header += p("<I", zlib.crc32(header))
        edit = p("<I", len(body)) + body
        (self.root / self.name).unlink()
        self.name = f"MANIFEST-{int(self.name[9:]) + 1:04}"
        (self.root / self.name).write_bytes(header + p("<I", zlib.crc32(self.store + p("<Q", len(header)) + edit)) + edit)
        point(self.root, self.name)

    def forget_tables(self):
        """No table covers anything: whoever opens the store reads the whole log."""
        for number, _ in self.tables:
            (self.root / "tables" / f"{number:08}.tbl").unlink(missing_ok=True)
        self.tables, self.covers, self.covers_state = [], (self.segments[0][0], 96), EMPTY_LOG

    def call_older(self):
        """The store says that it is of format 3, from before every erasure had a statement and every store a note of what is synced.
        Gives whether it was newer."""
        newer, self.format, self.newer = self.format > 3, min(self.format, 3), b""
        (self.root / "SYNCED").unlink(missing_ok=True)
        return newer

    def path(self, number):
        return self.root / "segments" / f"{number:08}.seg"


def point(root, manifest):
    """Section 2: CURRENT names a manifest."""
    (pathlib.Path(root) / "CURRENT").write_text(f"{manifest} {zlib.crc32(manifest.encode()):08x}\n")


class Record:
    def __init__(self, kind, layout, body, at=0, size=0):
        self.kind, self.layout, self.body, self.at, self.size = kind, layout, body, at, size

    def seqnos(self):
        return varint(self.body, 0)[0] if self.kind in (ERASED, ERASED_BATCHES) else 1

    def head(self):
        length, at = varint(self.body, 0 if self.layout == 3 else 16)
        return self.body[at:at + length]

    def store_salt(self):
        """Section 6: stores the salt itself, in place of what it follows from."""
        if self.kind < GROUP_PART and self.layout != 1:
            self.body, self.layout = self.salt + self.body[0 if self.layout == 3 else 16:], 1

    def run(self):
        """The uid of the run that the record belongs to, or None."""
        if self.kind == RUN:
            _, at = varint(self.head(), 0)
            return struct.unpack_from("<Q", self.head(), at)[0]
        if self.kind in (FRAME, PART, SNAPSHOT):
            return varint(self.head(), 0)[0]
        return varint(self.head(), varint(self.head(), 0)[1])[0] if self.kind == TOMBSTONE else None

    def hash(self, seqno):
        """Section 11: the leaf of the record in its batch's small tree."""
        return blake3(b"\0" + self.salt + bytes([self.kind, 1]) + struct.pack("<Q", seqno) + self.head())


def salt_of(key, seqno):
    """Section 6: the salt that follows from a key."""
    return blake3(key + struct.pack("<Q", seqno), "annals record salt 1")[:16]


class Segment:
    """Sections 4 to 6: the batches of one file, each as [first seqno, time, synced, records, whether it is joined with the one
    before]."""

    def __init__(self, manifest, number):
        self.manifest, self.number = manifest, number
        self.data = data = manifest.path(number).read_bytes()
        self.form, self.first, self.chain, self.created = data[8:10], *struct.unpack_from("<Q16sQ", data, 35)
        self.batches, at = [], 96
        while at + HEADER <= len(data):
            # The short form: the program under attack writes no other.
            crc, size, synced, first, time_ns = struct.unpack("<IIIQQ", data[at:at + 19] + b"\0" + data[at + 19:at + 27])
            short, joined, size = size >> 31, size >> 30 == 3, size & JOINED - 1
            if not short or size < HEADER or at + size > len(data) or self.crc(at, data[at + 4:at + size]) != crc:
                break
            records, inside, seqno, key = [], at + HEADER, first, b""
            end, table, synced = (at + synced, at + synced, 0) if joined else (at + size, at + size, synced)
            starts = {}  # where a batch joined with the one before begins: its time
            begins, after = inside, time_ns
            while table < at + size:
                length, table = varint(data, table)
                step, table = varint(data, table)
                begins, after = begins + length, after + (step >> 1 ^ -(step & 1))
                starts[begins] = after
            is_joined = False
            while inside < end:
                if inside in starts:
                    self.batches.append([first, time_ns, synced, records, is_joined])
                    first, time_ns, records, is_joined = seqno, starts[inside], [], True
                code, (length, front) = data[inside + 4], varint(data, inside + 5)
                kind, layout = (code & 31, 1 + (code >> 5)) if code < 128 else (code, 1)
                record = Record(kind, layout, data[front:inside + length], inside, length)
                if kind < GROUP_PART:
                    key = record.body[:16] if layout == 2 else key
                    record.salt = record.body[:16] if layout == 1 else salt_of(key, seqno)
                records.append(record)
                inside, seqno = inside + length, seqno + record.seqnos()
            self.batches.append([first, time_ns, synced, records, is_joined])
            at += size
        self.tail, self.footer = at, data[at:] if data.endswith(b"annalend") else None

    def crc(self, at, part):
        salt = zlib.crc32(self.manifest.store + struct.pack("<I", self.number))
        return zlib.crc32(part, zlib.crc32(struct.pack("<Q", at), salt))

    def build(self, sealed_state=None):
        """The bytes of the file, with every checksum, offset and chain digest made anew. Gives the own chain, too."""
        p, out, chain, moved = struct.pack, b"", self.chain, {0: (0, 0)}
        header = b"annalseg" + self.form + p("<BI16sIQ16sQ25x", 0, 0, self.manifest.store, self.number, self.first, self.chain, self.created)
        out = header + p("<I", self.crc(0, header))
        for joined in groups_of(self.batches):
            begins, body, table, (first, time_ns, synced, *_) = len(out), b"", b"", joined[0]
            ends = []
            for record, is_last in ((record, record is batch[3][-1]) for batch in joined for record in batch[3]):
                at, data = begins + HEADER + len(body), record.body
                if record.kind == GROUP_PART:
                    data = moved_part(data, moved)
                digits = next(n for n in range(1, 6) if 5 + n + len(data) < 1 << 7 * n)
                length = 5 + digits + len(data)
                code = record.kind | (record.layout - 1 << 5 if record.kind < 128 else 0)
                packed = bytes([code]) + to_varint(length) + data
                moved[record.at] = (at, length)
                body += p("<I", self.crc(at, packed)) + packed
                ends += [len(body)] if is_last else []
            for begin, end, one, two in zip([0] + ends, ends, joined, joined[1:]):
                step = two[1] - one[1]
                table += to_varint(end - begin) + to_varint(step << 1 ^ step >> 63)
            mark, place = (SHORT | JOINED, HEADER + len(body)) if table else (SHORT, min(synced, begins))
            body += table
            packed = p("<II", mark | HEADER + len(body), place) + p("<Q", first)[:7] + p("<Q8s", time_ns, chain[:8]) + body
            packed = p("<I", self.crc(begins, packed)) + packed
            chain, out = blake3(packed)[:16], out + packed
        if sealed_state is not None:
            footer = p("<Q", len(out)) + to_log_state(sealed_state) + root_of(sealed_state["peaks"])
            footer += chain if self.number >= REWRITTEN else b""
            footer += p("<I", len(footer))
            out += footer + p("<I", self.crc(len(out), footer)) + b"annalend"
        return out

    def footer_state(self):
        r = Reader(self.footer)
        r.take("Q")
        return r.log_state()

    def renumber(self, seqno):
        """Seqnos without a gap from `seqno` on. Batches without a record go."""
        self.batches = [batch for batch in self.batches if batch[3]]
        for batch in self.batches:
            for record in batch[3]:
                record.store_salt()
            batch[0], seqno = seqno, seqno + sum(record.seqnos() for record in batch[3])


def groups_of(batches):
    """Batches that share a header."""
    groups = []
    for batch in batches:
        if batch[4] and groups:
            groups[-1].append(batch)
        else:
            groups.append([batch])
    return groups


def moved_part(body, moved):
    """Section 9: a part of a group names the offset of the part before, which may have moved."""
    at = 0
    for _ in range(4):
        _, at = varint(body, at)
    codec, (before, rest) = body[at:at + 1], varint(body, at + 1)
    _, rest = varint(body, rest)
    return body[:at] + codec + b"".join(map(to_varint, moved.get(before, (before, 0)))) + body[rest:]


def all_segments(manifest):
    return [Segment(manifest, number) for number, _, _ in manifest.segments]


def rebuild(manifest, segments, state=None, sealed_state=None):
    """Writes the segments, and a fresh manifest in which the log was closed cleanly with `state`; without one it was not closed, and
    whoever opens it computes the state. `sealed_state` is the new end of the last sealed segment."""
    for entry, segment in zip(manifest.segments, segments, strict=True):
        sealed = None if entry[2] is None else segment.footer_state()
        if sealed_state and len(segments) > 1 and segment is segments[-2]:
            sealed = sealed_state
        data = segment.build(sealed)
        manifest.path(segment.number).write_bytes(data)
        entry[1:] = segment.first, None if entry[2] is None else len(data)
    manifest.forget_tables()
    manifest.clean, manifest.synced = state and (len(data), state), len(data)
    manifest.vectors_upto = min(manifest.vectors_upto, state["seqno"] - 1 if state else 0)
    # A note of what was synced could contradict the forgery.
    (manifest.root / "SYNCED").unlink(missing_ok=True)
    manifest.write()


class Tree:
    """Section 11: a ledger, or the small tree of a batch."""

    def __init__(self, leaves=0, peaks=()):
        heights = [height for height in range(63, -1, -1) if leaves >> height & 1]
        self.leaves, self.nodes = leaves, list(zip(heights, peaks, strict=True))

    def push(self, height, node):
        self.leaves += 1 << height
        while self.nodes and self.nodes[-1][0] == height:
            height, node = height + 1, blake3(b"\1" + self.nodes.pop()[1] + node)
        self.nodes.append((height, node))

    def add(self, batch):
        own, seqno = Tree(), batch[0]
        for record in batch[3]:
            if record.kind in (ERASED, ERASED_BATCHES):
                _, at = varint(record.body, varint(record.body, 0)[1])
                for node in range(at, len(record.body), 33):
                    (own if record.kind == ERASED else self).push(record.body[node], record.body[node + 1:node + 33])
            elif record.kind < GROUP_PART:
                own.push(0, record.hash(seqno))
            seqno += record.seqnos()
        if own.leaves:
            self.push(0, blake3(b"\0" + root_of([node for _, node in own.nodes])))


def relink(segments):
    """The sealed segments get footers whose ledger and numbers are what their batches now add up to."""
    ledger = Tree()
    for segment in segments:
        for batch in segment.batches:
            ledger.add(batch)
        if segment.footer:
            last = segment.batches[-1]
            state = segment.footer_state()
            state.update(seqno=last[0] + sum(record.seqnos() for record in last[3]), leaves=ledger.leaves, peaks=[node for _, node in ledger.nodes])
            segment.footer = struct.pack("<Q", 0) + to_log_state(state)


def cut(manifest, state):
    """The log ends with `state`: every batch after it goes, and the segment that held the border gets a new footer."""
    segments = all_segments(manifest)
    for segment in segments:
        segment.batches = [batch for batch in segment.batches if batch[0] < state["seqno"]]
    while len(segments) > 2 and segments[-2].first >= state["seqno"]:
        manifest.path(segments.pop(-2).number).unlink()
        manifest.segments.pop(-2)
    if segments[-1].first >= state["seqno"]:
        segments[-1].first, segments[-1].chain = state["seqno"], state["chain"]
    rebuild(manifest, segments, state, sealed_state=state)


def check(root):
    """This program reads the format as the engine does: what is built again without a change has the same bytes."""
    manifest = Manifest(root)
    if manifest.body() != manifest.read:
        raise SystemExit(f"{manifest.name} is not what docs/format.md says")
    for segment in all_segments(manifest):
        built = segment.build(segment.footer and segment.footer_state())
        if not segment.data.startswith(built) or segment.data[len(built):].strip(b"\0"):
            raise SystemExit(f"{manifest.path(segment.number)} is not what docs/format.md says")
