"""Runs and frames as tables: in notebooks, in pandas and in Arrow.

The classes of the extension module get these methods when `annals` is imported. pandas and pyarrow are imported when
their method is called.
"""

from __future__ import annotations

import html
from datetime import datetime, timezone
from typing import Any

from annals._annals import Frame, RunInfo, RunReader

# A notebook shows this much of a body, and this many frames.
SHOWN_CHARACTERS = 300
SHOWN_FRAMES = 200

COLUMNS = (
    "seq",
    "component",
    "parent",
    "started",
    "duration_ms",
    "severity",
    "error",
    "incomplete",
    "input",
    "output",
    "metadata",
)


def _time(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / 1e9, timezone.utc)


def _row(frame: Frame) -> tuple[Any, ...]:
    return (
        frame.seq,
        frame.component,
        frame.parent,
        _time(frame.started_ns),
        frame.duration_ns / 1e6,
        frame.severity,
        frame.error,
        frame.incomplete,
        frame.input,
        frame.output,
        frame.metadata.decode("utf-8", "replace"),
    )


def _columns(run: RunReader) -> dict[str, list[Any]]:
    rows = [_row(frame) for frame in run.frames()]
    return {name: [row[place] for row in rows] for place, name in enumerate(COLUMNS)}


def to_pandas(run: RunReader) -> Any:
    """The frames as a pandas.DataFrame: a row a frame; `input` and `output` are bytes. Needs pandas."""
    import pandas

    return pandas.DataFrame(_columns(run))


def to_arrow(run: RunReader) -> Any:
    """The frames as a pyarrow.Table: a row a frame; `input` and `output` are binary. Needs pyarrow."""
    import pyarrow

    kinds = {
        "seq": pyarrow.uint32(),
        "parent": pyarrow.uint32(),
        "started": pyarrow.timestamp("us", "UTC"),
        "duration_ms": pyarrow.float64(),
        "error": pyarrow.bool_(),
        "incomplete": pyarrow.bool_(),
        "input": pyarrow.binary(),
        "output": pyarrow.binary(),
    }
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in COLUMNS])
    return pyarrow.table(_columns(run), schema=schema)


def _text(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}… ({len(body)} bytes)"


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    def cells(kind: str, values: tuple[Any, ...]) -> str:
        shown = ("" if value is None else html.escape(str(value)) for value in values)
        return "<tr>" + "".join(f"<{kind} style='text-align:left'>{value}</{kind}>" for value in shown) + "</tr>"

    return f"<table>{cells('th', head)}{''.join(cells('td', row) for row in rows)}</table>"


def run_html(run: RunReader) -> str:
    """The frames as a table of HTML: long bodies and long runs are cut, and say so."""
    rows = []
    for frame in run.frames():
        if len(rows) == SHOWN_FRAMES:
            break
        shown = (frame.seq, frame.component, frame.parent, f"{frame.duration_ns / 1e6:.1f}")
        rows.append((*shown, _text(frame.input), _text(frame.output)))
    head = ("frame", "component", "parent", "ms", "input", "output")
    left = len(run) - len(rows)
    more = f"<p>{left} more frames</p>" if left > 0 else ""
    return info_html(run.info) + _table(head, rows) + more


def frame_html(frame: Frame) -> str:
    """The frame as a table of HTML."""
    rows = [(name, _text(value) if isinstance(value, bytes) else value) for name, value in zip(COLUMNS, _row(frame), strict=True)]
    return _table(("field", "value"), rows)


def info_html(info: RunInfo) -> str:
    """The run's fields as a table of HTML."""
    parent = f"{info.parent[0] or 'a dropped run'}@{info.parent[1]}" if info.parent else None
    row = (info.name, info.status, info.frames, info.agent, info.model, parent, _time(info.started_ns))
    return _table(("run", "status", "frames", "agent", "model", "fork of", "started"), [row])


def difference(one: RunReader, other: RunReader) -> Difference:
    """Two runs side by side, frame by frame: which frames differ in component, input or output."""
    return Difference(one, other)


class Difference:
    """Frames of two runs that differ. `rows` has their numbers, what differs, and both frames (None: missing)."""

    def __init__(self, one: RunReader, other: RunReader) -> None:
        self.names = (one.info.name, other.info.name)
        self.rows: list[tuple[int, str, Frame | None, Frame | None]] = []
        left, right = iter(one), iter(other)
        for seq in range(1, max(len(one), len(other)) + 1):
            pair = (next(left, None), next(right, None))
            if pair[0] is None or pair[1] is None:
                self.rows.append((seq, "missing", *pair))
                continue
            parts = [name for name in ("component", "input", "output") if getattr(pair[0], name) != getattr(pair[1], name)]
            if parts:
                self.rows.append((seq, ", ".join(parts), *pair))

    def _repr_html_(self) -> str:
        def shown(frame: Frame | None) -> str:
            return "" if frame is None else f"{_text(frame.input)} → {_text(frame.output)}"

        rows = [(seq, what, shown(one), shown(other)) for seq, what, one, other in self.rows[:SHOWN_FRAMES]]
        return _table(("frame", "differs in", *self.names), rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<annals.Difference of {self.names[0]!r} and {self.names[1]!r}: {len(self.rows)} frames>"


def attach() -> None:
    """Adds the methods to the classes of the extension module."""
    RunReader.to_pandas, RunReader.to_arrow, RunReader._repr_html_ = to_pandas, to_arrow, run_html  # type: ignore[attr-defined]
    Frame._repr_html_ = frame_html  # type: ignore[attr-defined]
    RunInfo._repr_html_ = info_html  # type: ignore[attr-defined]
