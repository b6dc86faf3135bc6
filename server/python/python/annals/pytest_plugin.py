"""Tests that replay recorded runs.

    @pytest.mark.annals
    def test_agent(): ...

The run of a test is a tape in the repository: `tapes/<module>/<test>.annals` beside the test's file. What a tape
lacks is an error. The marker takes the options of `annals.record` and `annals.replay`, and `tape="PATH"`.

| `--annals-record=` | a test with a tape | a test without one |
|---|---|---|
| `none` (default) | replays | fails |
| `once` | replays | records |
| `all` | records; the new tape replaces the old one if the test passes | records |
| `rewrite` | deletes the tape, then records | records |

A tape of a failed test is not written. A tape does not hold snapshots.
"""

from __future__ import annotations

import pathlib
import re
import tempfile
from typing import Any

import pytest

_MODES = ("none", "once", "all", "rewrite")
_RECORD_ONLY = {"agent", "model", "tags", "secrets"}
_REPLAY_ONLY = {"rules", "chaos", "tools", "drifting", "network", "strict"}


def pytest_addoption(parser: Any) -> None:
    """Adds the option."""
    group = parser.getgroup("annals")
    group.addoption(
        "--annals-record",
        choices=_MODES,
        default="none",
        help="when tests marked with annals record their tape: none, once, all, rewrite (default: none)",
    )


def pytest_configure(config: Any) -> None:
    """Registers the marker."""
    config.addinivalue_line(
        "markers", "annals(tape=None, **options): replay the test from its tape, or record it"
    )


def tape_path(item: Any) -> pathlib.Path:
    """The tape of a test."""
    marker = item.get_closest_marker("annals")
    if named := marker.kwargs.get("tape"):
        return item.path.parent / named
    name = item.nodeid.partition("::")[2].replace("::", ".")
    name = re.sub(r"[^A-Za-z0-9._\[\]=-]+", "_", name)
    return item.path.parent / "tapes" / item.path.stem / f"{name}.annals"


def _options(item: Any, mode: str) -> dict[str, Any]:
    marker = item.get_closest_marker("annals")
    other = _REPLAY_ONLY if mode == "record" else _RECORD_ONLY
    return {key: value for key, value in marker.kwargs.items() if key not in {*other, "tape"}}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Any:
    """Runs the test inside of a block. Without a tape to replay, it does not run at all."""
    if item.get_closest_marker("annals") is None:
        return (yield)
    from annals import _annals, errors, recording

    mode, tape = item.config.getoption("--annals-record"), tape_path(item)
    if mode == "rewrite":
        tape.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        store = pathlib.Path(directory) / "s"
        if mode in ("all", "rewrite") or (mode == "once" and not tape.exists()):
            with recording.record(item.name, store=store, **_options(item, "record")) as run:
                result = yield
            tape.parent.mkdir(parents=True, exist_ok=True)
            unfinished = tape.with_suffix(".new")
            unfinished.write_bytes(_annals.export_tape(store, "default", run.name))
            unfinished.replace(tape)
            return result
        if not tape.exists():
            raise errors.NotFound(f"{tape} does not exist: record it with --annals-record=once")
        try:
            name = _annals.import_tape(store, "default", tape.read_bytes())
        except errors.Error as error:
            raise type(error)(f"{tape}: {error}") from None
        with recording.replay(name, store=store, **_options(item, "replay")):
            return (yield)
