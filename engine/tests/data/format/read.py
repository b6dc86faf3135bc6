"""Reads a store's log from docs/format.md alone, sharing no code with the engine: every checksum, length and seqno.

    python3 read.py v1

Needs Python 3 only, so it leaves out what is BLAKE3 (chain, ledger, ids) and zstd (groups)."""
import struct
import sys
import zlib
from pathlib import Path


class Fixed:
    """Takes fixed-coded values from the front of bytes."""

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
    assert f.take('H') == 1 and f.take('16s') == store
    f.take('Q')
    segments = f.list(lambda: (*f.take('IQ'), f.optional(lambda: f.take('Q'))))
    f.list(lambda: f.take('QQ'))
    f.take('IQ')
    f.log_state()
    f.take('Q')
    clean = f.optional(lambda: (f.take('Q'), f.log_state()))
    f.take('Q')
    assert f.at == len(body)
    return store, segments, clean


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def batches(data, crc, at, end, seqno):
    """Yields the seqno and kind of every record of the batches that fill [at, end)."""
    while at < end:
        found, size, records, synced, first = struct.unpack_from('<IIIIQ', data, at)
        assert crc(at, data[at + 4:at + size]) == found and first == seqno and synced <= at
        inside = at + 48
        for _ in range(records):
            found, length, kind, layout = struct.unpack_from('<IIBB', data, inside)
            assert crc(inside, data[inside + 4:inside + length]) == found and layout == 1
            if kind < 16:
                head, begins = varint(data, inside + 26)
                assert begins + head <= inside + length
            yield seqno, kind
            inside, seqno = inside + length, seqno + 1
        at += size
        assert inside == at
    assert at == end


def main(root):
    store, segments, clean = manifest(root)
    seqno, kinds = 1, {}
    for number, first, sealed in segments:
        data = (root / 'segments' / f'{number:08}.seg').read_bytes()
        salt = zlib.crc32(store + struct.pack('<I', number))
        crc = lambda at, part: zlib.crc32(part, zlib.crc32(struct.pack('<Q', at), salt))
        magic, version, cipher, _, of, own, begins = struct.unpack_from('<8sHBI16sIQ', data)
        assert (magic, version, cipher, of, own, begins) == (b'annalseg', 1, 0, store, number, first)
        assert first == seqno and crc(0, data[:92]) == struct.unpack_from('<I', data, 92)[0]
        if sealed is None:
            end = clean[0]
            assert len(data) == end
        else:
            size, found = struct.unpack_from('<II', data, len(data) - 16)
            end = len(data) - 16 - size
            assert len(data) == sealed and data.endswith(b'annalend') and crc(end, data[end:-12]) == found
        for at, kind in batches(data, crc, 96, end, seqno):
            seqno, kinds[kind] = at + 1, kinds.get(kind, 0) + 1
    assert seqno == clean[1]['next_seqno'] and sum(kinds.values()) == clean[1]['totals'][1]
    print(f'{seqno - 1} records, by kind:', dict(sorted(kinds.items())))


main(Path(sys.argv[1]))
