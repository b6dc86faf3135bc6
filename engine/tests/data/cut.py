#!/usr/bin/env python3
"""Cuts whole runs out of a file of runs: `cut.py SOURCE OUT.json.xz RUN...`, RUN as `{task_id}-{trial}`.

Each run's source text is kept byte for byte, in the source's order, inside a new array. Made for
`tau-airline-cut.json.xz`; PROVENANCE.md names the runs that were chosen.
"""

import lzma
import sys

from expand import members, read, run_id, runs

source, out, wanted = sys.argv[1], sys.argv[2], set(sys.argv[3:])
buf = read(source)
kept = {run_id(buf, members(buf, start)): buf[start:end] for start, end in runs(buf)}
if wanted - kept.keys():
    raise SystemExit(f"cut.py: not in the source: {sorted(wanted - kept.keys())}")
text = b"[\n  " + b",\n  ".join(body for run, body in kept.items() if run in wanted) + b"\n]\n"
with lzma.open(out, "wb", preset=9 | lzma.PRESET_EXTREME) as file:
    file.write(text)
