"""BLAKE3 in plain Python, because the standard library has none: fast enough for stores of some hundred kilobytes."""

import struct

MASK = 0xFFFFFFFF
IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
CHUNK_START, CHUNK_END, PARENT, ROOT_NODE, CONTEXT, MATERIAL = 1, 2, 4, 8, 32, 64


def compress(chain, block, counter, length, flags):
    m = list(struct.unpack("<16I", block.ljust(64, b"\0")))
    v = [*chain, *IV[:4], counter & MASK, counter >> 32, length, flags]
    for _ in range(7):
        for lane, (a, b, c, d) in enumerate(((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
                                             (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))):
            for word, first, second in ((m[2 * lane], 16, 12), (m[2 * lane + 1], 8, 7)):
                v[a] = v[a] + v[b] + word & MASK
                x = v[d] ^ v[a]
                v[d] = (x >> first | x << 32 - first) & MASK
                v[c] = v[c] + v[d] & MASK
                x = v[b] ^ v[c]
                v[b] = (x >> second | x << 32 - second) & MASK
        m = [m[at] for at in ORDER]
    return [v[at] ^ v[at + 8] for at in range(8)]


def blake3(data, context=None):
    """The BLAKE3 of some bytes, 32 bytes: the plain hash, or in derive_key mode with this context."""
    if context is None:
        return tree(data, IV, 0)
    return tree(data, struct.unpack("<8I", tree(context.encode(), IV, CONTEXT)), MATERIAL)


def tree(data, key, mode):
    def node(part, counter, root):
        if len(part) <= 1024:
            chain, blocks = key, [part[at:at + 64] for at in range(0, len(part), 64)] or [b""]
            for at, block in enumerate(blocks):
                last = at == len(blocks) - 1
                flags = mode | (CHUNK_START if at == 0 else 0) | (CHUNK_END if last else 0) | (root if last else 0)
                chain = compress(chain, block, counter, len(block), flags)
            return chain
        left = 1 << ((len(part) - 1) // 1024).bit_length() - 1  # chunks: the largest power of two that leaves a rest
        both = node(part[:left * 1024], counter, 0) + node(part[left * 1024:], counter + left, 0)
        return compress(key, struct.pack("<16I", *both), 0, 64, mode | PARENT | root)
    return struct.pack("<8I", *node(data, 0, ROOT_NODE))
