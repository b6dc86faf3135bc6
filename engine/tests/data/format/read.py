"""Reads a store's log from docs/format.md alone, sharing no code with the engine: every checksum, length and seqno.

    python3 read.py v1
    python3 read.py v2
    python3 read.py v3
    python3 read.py v4

It needs only Python 3's standard library, so it checks no BLAKE3 hash (chain, ledger, ids) and decodes no
zstd group."""
import struct
import sys
import zlib
from pathlib import Path


class Fixed:
    """Reads fixed-width values from the start of a byte string."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from('<' + form, self.data, self.at)
        self.at += struct.calcsize('<' + form)
        return values if len(values) > 1 else values[0]

    def optional(self, read):
        present = self.take('B')
        assert present in (0, 1)
        return read() if present else None

    def list(self, read):
        return [read() for _ in range(self.take('Q'))]

    def log_state(self):
        state = {'next_seqno': self.take('Q'), 'chain': self.take('16s'), 'leaves': self.take('Q')}
        state['peaks'] = self.list(lambda: self.take('32s'))
        assert len(state['peaks']) == bin(state['leaves']).count('1')
        state['totals'] = self.take('9Q')
        state['rest'] = self.take('QQQI')
        return state


def text(f):
    return f.take(f'{f.take("Q")}s')


def synced(root, store, active):
    """Checks the notes of how far the log is synced."""
    data = (root / 'SYNCED').read_bytes()
    assert len(data) == 1024
    counters = []
    for number in (0, 1):
        slot = data[512 * number:512 * (number + 1)]
        if not any(slot):
            continue
        magic, version, of, counter, segment, _, _, _, _ = struct.unpack_from('<8sH16sQIQQ16sQ', slot)
        assert (magic, version, of, counter % 2) == (b'annalsyn', 1, store, number) and segment <= active
        assert not any(slot[78:508]) and zlib.crc32(slot[:508]) == struct.unpack_from('<I', slot, 508)[0]
        counters.append(counter)
    assert counters


def manifest(root):
    name, crc = (root / 'CURRENT').read_text().removesuffix('\n').split(' ')
    assert f'{zlib.crc32(name.encode()):08x}' == crc
    data = (root / name).read_bytes()
    assert data[:8] == b'annalman' and zlib.crc32(data[:24]) == struct.unpack_from('<I', data, 24)[0]
    store, at, body = data[8:24], 28, b''
    while at < len(data):
        crc, size = struct.unpack_from('<II', data, at)
        assert zlib.crc32(store + struct.pack('<Q', at) + data[at + 4:at + 8 + size]) == crc
        body, at = data[at + 8:at + 8 + size], at + 8 + size
    f = Fixed(body)
    version = f.take('H')
    assert version in (1, 2, 3, 4) and f.take('16s') == store
    f.take('Q')
    segments = f.list(lambda: (*f.take('IQ'), f.optional(lambda: f.take('Q'))))
    f.list(lambda: f.take('QQ'))
    f.take('IQ')
    f.log_state()
    f.take('Q')
    clean = f.optional(lambda: (f.take('Q'), f.log_state()))
    f.take('Q')
    erased = (0,) * 9
    if version >= 2:
        rewritten, erased = f.take('I'), f.take('9Q')
        assert rewritten >= 1 << 31 and all(number < rewritten for number, *_ in segments)
    if version >= 3:
        f.list(lambda: (f.take('QQI'), text(f), f.take('IQQ')))
        f.take('QQ')
    if version >= 4:
        assert len(f.list(lambda: f.take('IQQQQ'))) <= 32
        f.take('Q')
        synced(root, store, segments[-1][0])
    assert f.at == len(body)
    return store, segments, clean, erased


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def nodes(data, at, end, count, leaf):
    """Checks the nodes in [at, end) and returns the leaf number after them. Each begins at a multiple of its leaves."""
    assert end - at == 33 * count
    for begins in range(at, end, 33):
        leaves = 1 << data[begins]
        assert data[begins] < 56 and leaf % leaves == 0
        leaf += leaves
    return leaf


def ranges(data, at):
    """Checks the remaining ranges of a group."""
    count, at = varint(data, at)
    end, assertion = 0, count > 0
    for number in range(count):
        gap, at = varint(data, at)
        length, at = varint(data, at)
        assertion = assertion and length > 0 and (gap > 0 or number == 0)
        end += gap + length
    assert assertion and end <= 262144


def frame(head):
    """Checks a frame's head and returns how many of its bodies are blobs."""
    at, blobs = 0, 0
    for _ in 'run', 'seq':
        _, at = varint(head, at)
    flags, = struct.unpack_from('<H', head, at)
    assert flags < 1 << 10 and flags >> 8 & 3 != 2
    at += 2
    if flags & 15 == 15:
        length, at = varint(head, at)
        at += length
    for _ in 'back', 'start', 'duration':
        _, at = varint(head, at)
    if flags >> 9 & 1:
        _, at = varint(head, at)
    at += 32 * (flags >> 8 & 1)
    for body in 'input', 'output', 'metadata':
        form, at = varint(head, at)
        # The front of an id is enough only where the frame's own link proves the rest.
        assert form & 3 != 3 or flags >> 8 & 3 == 1 and body != 'metadata'
        at += (form >> 2, 32, 0, 8)[form & 3]
        blobs += form & 3 in (1, 3)
    assert at == len(head)
    return blobs


def recipes(data, at, end, count):
    """Checks that `count` recipes fill a tail."""
    for _ in range(count):
        _, at = varint(data, at)
        length, at = varint(data, at)
        at += length
    assert at == end


def joined_batches(data, at, end, after):
    """Where the records of each of joined batches end; the table stands in [end, after)."""
    ends, entry = [], end
    while entry < after:
        size, entry = varint(data, entry)
        _, entry = varint(data, entry)
        at += size
        ends.append(at)
        assert size and at < end
    assert entry == after and ends
    return ends + [end]


def batches(data, crc, at, end, seqno, ledger, rewritten):
    """Yields the seqno and kind of every record of the batches in [at, end). Adds the number of their leaves to
    `ledger[0]`."""
    while at < end:
        found, size, records, synced, first = struct.unpack_from('<IIIIQ', data, at)
        short, joined, size = size >> 31, size >> 30 == 3, size & (1 << 30) - 1
        # Where the records of each batch end.
        ends = [at + size]
        if short:
            records, (synced, low, high) = None, struct.unpack_from('<IIQ', data, at + 8)
            first = low | (high & (1 << 24) - 1) << 32
        if joined:
            assert rewritten
            ends, synced = joined_batches(data, at + 35, at + synced, at + size), 0
        assert crc(at, data[at + 4:at + size]) == found and first == seqno and synced <= at
        inside, leaf, keyed, seen = at + (35 if short else 48), 0, False, 0
        while True:
            if inside == ends[0]:
                ledger[0] += leaf > 0
                del ends[0]
                assert seen and records in (None, seen)
                if not ends:
                    break
                leaf, keyed, seen = 0, False, 0
            seen += 1
            found, length, kind, layout = struct.unpack_from('<IIBB', data, inside)
            front = inside + 10
            if short:
                length, front = varint(data, inside + 5)
                kind, layout = data[inside + 4] & 31, 1 + (data[inside + 4] >> 5)
            assert crc(inside, data[inside + 4:inside + length]) == found and layout in (1, 2, 3)
            if kind < 16:
                keyed = layout == 2 or layout == 3 and keyed
                assert layout != 3 or keyed
                head, begins = varint(data, front + (0 if layout == 3 else 16))
                assert begins + head <= inside + length <= ends[0]
                if kind == 5:
                    recipes(data, begins + head, inside + length, frame(data[begins:begins + head]))
                leaf += 1
            else:
                assert layout == 1
            takes, body, after = 1, front, inside + length
            assert kind not in (17, 18, 19) or rewritten
            if kind == 17:
                takes, body = varint(data, body)
                count, body = varint(data, body)
                before, leaf = leaf, nodes(data, body, after, count, leaf)
                assert leaf - before <= takes
            if kind == 18:
                takes, body = varint(data, body)
                many, body = varint(data, body)
                before = ledger[0]
                ledger[0] = nodes(data, body, after, int(body < after), before)
                assert seen == 1 and after == ends[0] and ledger[0] - before <= many <= takes
            if kind == 19:
                _, body = varint(data, body)
                _, body = varint(data, body)
                ranges(data, body + 1)
            yield seqno, kind
            inside, seqno = after, seqno + takes
        at += size
    assert at == end


def main(root):
    store, segments, clean, erased = manifest(root)
    seqno, kinds, ledger = 1, {}, [0]
    for number, first, sealed in segments:
        data = (root / 'segments' / f'{number:08}.seg').read_bytes()
        salt = zlib.crc32(store + struct.pack('<I', number))
        crc = lambda at, part: zlib.crc32(part, zlib.crc32(struct.pack('<Q', at), salt))
        magic, version, cipher, _, of, own, begins = struct.unpack_from('<8sHBI16sIQ', data)
        rewritten = number >= 1 << 31
        assert version in ((2, 4) if rewritten else (1,))
        assert (magic, cipher, of, own, begins) == (b'annalseg', 0, store, number, first)
        assert first == seqno and crc(0, data[:92]) == struct.unpack_from('<I', data, 92)[0]
        if sealed is None:
            end = clean[0]
            assert len(data) == end
        else:
            size, found = struct.unpack_from('<II', data, len(data) - 16)
            end = len(data) - 16 - size
            assert len(data) == sealed and data.endswith(b'annalend') and crc(end, data[end:-12]) == found
            f = Fixed(data[end:-16])
            assert f.take('Q') == end
            state = f.log_state()
            f.take('32s16s' if rewritten else '32s')
            assert f.at == size
        for _, kind in batches(data, crc, 96, end, seqno, ledger, rewritten):
            kinds[kind] = kinds.get(kind, 0) + 1
        if sealed is None:
            state = clean[1]
        seqno = state['next_seqno']
        assert ledger[0] == state['leaves']
    there = sum(count for kind, count in kinds.items() if kind not in (17, 18))
    assert there == state['totals'][1] - erased[1]
    print(f'{seqno - 1} records, by kind:', dict(sorted(kinds.items())))


main(Path(sys.argv[1]))
