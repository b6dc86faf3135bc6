"""Where LangGraph's checkpoints are in a store, byte for byte: keys, records and values (format 2).

| keyspace | key | value |
|---|---|---|
| langgraph.threads | thread | when its first checkpoint was saved |
| langgraph.checkpoints | thread, checkpoint namespace, checkpoint id | parent, checkpoint without values, metadata, value references |
| langgraph.values | thread, checkpoint namespace, channel, id of the checkpoint that saved it | a channel's value |
| langgraph.chunks | thread, checkpoint namespace, first 16 bytes of the chunk's BLAKE3 hash | 16 KiB of long values |
| langgraph.writes | thread, checkpoint namespace, checkpoint id, task, index | a pending write |

A text in a key ends with the bytes 0 1; a byte 0 in it is followed by 255. An id in the form of a UUID is the byte 1 and
16 bytes; another id is the byte 2 and a text. UUIDs sort as their texts do. An index is 4 bytes, big endian, plus 2^31.
"""

from __future__ import annotations

import dataclasses
import re
import struct
import zlib
from typing import Any

import annals
from annals._annals import SerialisedList, chunk_digests

THREADS = "langgraph.threads"
CHECKPOINTS = "langgraph.checkpoints"
VALUES = "langgraph.values"
CHUNKS = "langgraph.chunks"
WRITES = "langgraph.writes"

# The first byte of a checkpoint's record. A record with another one was written by another annals.
FORMAT = 2
CHUNK_BYTES = 16 << 10
DIGEST_BYTES = 16
# The first bytes of a value hold the length of a list, which changes with each element: they are in no chunk.
HEAD_BYTES = 64
WHOLE, CHUNKED, ZIPPED = b"\0", b"\1", b"\2"
# A value of at most this many bytes stands in the checkpoint's record.
INLINE_BYTES = 48
# The store compresses a value of 4 KiB or more, with what is near it. Shorter ones and records are compressed here.
STORE_COMPRESSES_BYTES = 4096
# What records have in common. It belongs to the format: another dictionary needs another format.
DICTIONARY = (
    b"\0\0\0\x0fbranch:to:tools\0\0\0\x06\0null\xa6source\xa5input\xa6update\xa4fork\x04null\xb0updated_channels\xc0"
    b"\xadpending_sends\x90\xa9langgraph__pregel_tasks\0\0\0\x05__start__\xa9__start__\x81\xa9__start__\xd9\x29"
    b"\xb0updated_channels\x92\xafbranch:to:agent\xa8messages\xadversions_seen\x82\xa9__input__\x80\xa5agent\x81"
    b"\0\0\0\x07msgpack\0\0\0\xd0\x85\xa1v\x04\xa2ts\xd9 2026-01-01T00:00:00.000000+00:00\xb0channel_versions\x83"
    b"\xa8messages\xd9)00000000000000000000000000000001.\xafbranch:to:agent\xd9)00000000000000000000000000000002."
    b"\0\0\0\x07msgpack\0\0\0D\x84\xa6source\xa4loop\xa4step\x01\xa7parents\x80\xa6run_id\xd9$"
    b"\0\0\0\x09__start__\0\0\0\x05\0none\0\0\0\x08messages\0\0\0*s00000000000000000000000000000001."
    b"\0\0\0\x01\1\0\0\0\x0fbranch:to:agent\0\0\0*s00000000000000000000000000000002.\0\0\0\x06\3null\0"
)
# Deflate with a window of 4 KiB finds a match in all of a record and the dictionary that are no longer than this together.
SHORT_BYTES = 3 << 10
# Indexes of writes are signed; keys sort as bytes.
INDEX_BIAS = 1 << 31
UUID_TEXT = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

# Where a value is: the id of the checkpoint that saved it ("": the one that names it), or the type and bytes of a short
# value, or None if the channel has no value.
SavedBy = str | tuple[str, bytes] | None
# Channel, version as text, and where the value is.
ValueRef = tuple[str, str, SavedBy]


def config_of(thread: str, ns: str, checkpoint_id: str) -> Any:
    """The config by which LangGraph names a checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


def text(part: str) -> bytes:
    """A part of a key: sorts as the text does, and no other part is its prefix."""
    return part.encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff") + b"\0\1"


def id_bytes(name: str) -> bytes:
    """The id of a checkpoint or a task as a part of a key."""
    if UUID_TEXT.fullmatch(name):
        return b"\1" + bytes.fromhex(name.replace("-", ""))
    return b"\2" + text(name)


def space_key(thread: str, ns: str) -> bytes:
    """The prefix of the keys of a thread's namespace."""
    return text(thread) + text(ns)


def checkpoint_key(thread: str, ns: str, checkpoint_id: str) -> bytes:
    """The key of a checkpoint, which is the prefix of the keys of its writes."""
    return text(thread) + text(ns) + id_bytes(checkpoint_id)


def value_key(thread: str, ns: str, channel: str, saved_by: str) -> bytes:
    return text(thread) + text(ns) + text(channel) + id_bytes(saved_by)


def chunk_key(thread: str, ns: str, digest: bytes) -> bytes:
    return text(thread) + text(ns) + digest


def write_key(thread: str, ns: str, checkpoint_id: str, task: str, index: int) -> bytes:
    return checkpoint_key(thread, ns, checkpoint_id) + id_bytes(task) + struct.pack(">I", index + INDEX_BIAS)


def prefix_end(prefix: bytes) -> bytes:
    """The key after all keys with this prefix; empty: there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""


def texts_of(key: bytes, count: int) -> list[str]:
    """The first texts of a key."""
    texts, at = [], 0
    for _ in range(count):
        part, at = _text_at(key, at)
        texts.append(part)
    return texts


def checkpoint_of(key: bytes) -> tuple[str, str, str]:
    """Thread, namespace and id of a checkpoint's key, or of a key that begins with one."""
    thread, at = _text_at(key, 0)
    ns, at = _text_at(key, at)
    return thread, ns, _id_at(key, at)[0]


def write_of(key: bytes) -> tuple[str, int]:
    """The task and the index of a write's key."""
    _, at = _text_at(key, 0)
    _, at = _text_at(key, at)
    _, at = _id_at(key, at)
    task, at = _id_at(key, at)
    return task, struct.unpack_from(">I", key, at)[0] - INDEX_BIAS


def _text_at(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0\1", at)
    return data[at:end].replace(b"\0\xff", b"\0").decode("utf-8", "surrogatepass"), end + 2


def _id_at(data: bytes, at: int) -> tuple[str, int]:
    if data[at] == 1:
        name = data[at + 1 : at + 17].hex()
        return f"{name[:8]}-{name[8:12]}-{name[12:16]}-{name[16:20]}-{name[20:]}", at + 17
    return _text_at(data, at + 1)


_LENGTH = struct.Struct(">I")


def pack(*parts: bytes) -> bytes:
    return b"".join([_LENGTH.pack(len(part)) + part for part in parts])


def unpack(data: bytes) -> list[bytes]:
    parts, end = [], 0
    while end < len(data):
        start = end + _LENGTH.size
        end = start + _LENGTH.unpack_from(data, end)[0]
        if end > len(data):
            raise annals.Damaged("a record of a checkpoint ends too early")
        parts.append(data[start:end])
    return parts


def version_text(version: Any) -> str:
    """A channel's version as text; equal versions have equal texts."""
    if isinstance(version, float) and version.is_integer():
        version = int(version)
    return f"{type(version).__name__[0]}{version}"


@dataclasses.dataclass
class Record:
    """A checkpoint as it is stored, without its id and its values."""

    parent: str | None
    checkpoint: tuple[str, bytes]
    metadata: tuple[str, bytes]
    refs: list[ValueRef]

    def encode(self) -> bytes:
        parent = b"" if self.parent is None else id_bytes(self.parent)
        parts = [parent, self.checkpoint[0].encode(), self.checkpoint[1]]
        parts += [self.metadata[0].encode(), self.metadata[1]]
        for channel, version, saved_by in self.refs:
            parts += [channel.encode("utf-8", "surrogatepass"), version.encode(), _encode_saved_by(saved_by)]
        packed = pack(*parts)
        # For a short record zlib need not clear its longest tables.
        is_short = len(DICTIONARY) + len(packed) <= SHORT_BYTES
        wbits, memory = (-12, 6) if is_short else (-15, 8)
        press = zlib.compressobj(level=9, wbits=wbits, memLevel=memory, zdict=DICTIONARY)
        return bytes([FORMAT]) + press.compress(packed) + press.flush()

    @classmethod
    def decode(cls, data: bytes) -> Record:
        if data[:1] != bytes([FORMAT]):
            raise annals.Unsupported("another annals saved this checkpoint: use that one")
        press = zlib.decompressobj(wbits=-15, zdict=DICTIONARY)
        parent, kind, checkpoint, metadata_kind, metadata, *refs = unpack(press.decompress(data[1:]))
        return cls(
            _id_at(parent, 0)[0] if parent else None,
            (kind.decode(), checkpoint),
            (metadata_kind.decode(), metadata),
            [
                (channel.decode("utf-8", "surrogatepass"), version.decode(), _decode_saved_by(saved_by))
                for channel, version, saved_by in zip(*[iter(refs)] * 3, strict=True)
            ],
        )


def _encode_saved_by(saved_by: SavedBy) -> bytes:
    if saved_by is None:
        return b"\0"
    if saved_by == "":
        return b"\1"
    if isinstance(saved_by, str):
        return b"\2" + id_bytes(saved_by)
    return b"\3" + saved_by[0].encode() + b"\0" + saved_by[1]


def _decode_saved_by(data: bytes) -> SavedBy:
    if data[0] < 2:
        return None if data[0] == 0 else ""
    if data[0] == 2:
        return _id_at(data, 1)[0]
    kind, _, value = data[1:].partition(b"\0")
    return kind.decode(), value


def encode_value(
    kind: str, value: bytes | SerialisedList, known: bytes
) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """A value as it is stored, and its chunks with their digests, except those in `known`: digests, end to end."""
    # The rest stays long enough for the store to find the bytes that it has of it.
    count = max(len(value) - HEAD_BYTES - STORE_COMPRESSES_BYTES, 0) // CHUNK_BYTES
    part = value.part if isinstance(value, SerialisedList) else lambda start, end: value[start:end]
    if not count:
        whole = part(0, len(value))
        stored = WHOLE + whole
        if len(whole) < STORE_COMPRESSES_BYTES:
            stored = min(stored, ZIPPED + zlib.compress(whole), key=len)
        return kind.encode() + b"\0" + stored, []
    if isinstance(value, SerialisedList):
        digests = value.chunk_digests(count)
    else:
        digests = chunk_digests(value, HEAD_BYTES, CHUNK_BYTES, count)
    chunks = []
    if digests != known:
        there = set(_split(known))
        for number, digest in enumerate(_split(digests)):
            if digest not in there:
                there.add(digest)
                start = HEAD_BYTES + number * CHUNK_BYTES
                chunks.append((digest, part(start, start + CHUNK_BYTES)))
    ends = part(0, HEAD_BYTES) + part(HEAD_BYTES + count * CHUNK_BYTES, len(value))
    return kind.encode() + b"\0" + CHUNKED + struct.pack(">I", count) + digests + ends, chunks


def _split(digests: bytes) -> list[bytes]:
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]


def joined_digests(data: bytes | None) -> bytes:
    """The digests of the chunks of a stored value, end to end."""
    stored = (data or b"").partition(b"\0")[2]
    if stored[:1] != CHUNKED:
        return b""
    (count,) = struct.unpack_from(">I", stored, 1)
    return stored[5 : 5 + count * DIGEST_BYTES]


def digests_of(data: bytes | None) -> list[bytes]:
    """The digests of the chunks of a stored value."""
    return _split(joined_digests(data))


def decode_value(data: bytes, chunk_of: Any) -> tuple[str, bytes]:
    """Type and bytes of a stored value; `chunk_of` gives a chunk by its digest."""
    kind, _, stored = data.partition(b"\0")
    if stored[:1] == WHOLE:
        return kind.decode(), stored[1:]
    if stored[:1] == ZIPPED:
        return kind.decode(), zlib.decompress(stored[1:])
    digests = digests_of(data)
    ends = stored[5 + len(digests) * DIGEST_BYTES :]
    return kind.decode(), b"".join((ends[:HEAD_BYTES], *map(chunk_of, digests), ends[HEAD_BYTES:]))
