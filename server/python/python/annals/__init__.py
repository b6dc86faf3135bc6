"""annals records AI-agent runs bit-exactly, replays them with a proof, and forks them at any step.

    import annals

    with annals.open("agent.annals") as store:
        space = store.namespace("default")
        with space.begin_run("loan-42", agent="lending") as run:
            run.record("llm", request, response)
        for frame in space.run("loan-42"):
            print(frame.seq, frame.component, len(frame.output))

No framework is imported here: `annals.langgraph` and the other modules import theirs when they are imported.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from annals._annals import (
    Bug,
    Conflict,
    Damaged,
    Diverged,
    Error,
    Frame,
    Frames,
    Gone,
    Invalid,
    Locked,
    MemoryHit,
    Namespace,
    NotFound,
    Poisoned,
    Run,
    RunInfo,
    RunReader,
    Store,
    Unavailable,
    Unsupported,
    VectorHit,
    __version__,
)
from annals._tables import Difference, attach, difference

if TYPE_CHECKING:
    # What __getattr__ loads.
    from annals import nondet
    from annals.errors import NotSerializable, ToolError, Unrecorded
    from annals.recording import Receipt, current_run, record, replay
    from annals.snapshots import frozen, merge_recorded
    from annals.tools import tool

attach()

__all__ = [
    "Bug",
    "Conflict",
    "Damaged",
    "Difference",
    "Diverged",
    "Error",
    "Frame",
    "Frames",
    "Gone",
    "Invalid",
    "Locked",
    "MemoryHit",
    "Namespace",
    "NotFound",
    "Poisoned",
    "Run",
    "RunInfo",
    "RunReader",
    "Store",
    "Unavailable",
    "Unsupported",
    "VectorHit",
    "__version__",
    "difference",
    "find_store",
    "nondet",
    "open",
    "current_run",
    "frozen",
    "merge_recorded",
    "record",
    "replay",
    "tool",
    "NotSerializable",
    "Receipt",
    "ToolError",
    "Unrecorded",
]

# Loaded when they are used: importing annals patches nothing and starts nothing.
_LAZY = {
    **dict.fromkeys(("NotSerializable", "Unrecorded", "ToolError"), "annals.errors"),
    **dict.fromkeys(("record", "replay", "current_run", "Receipt"), "annals.recording"),
    **dict.fromkeys(("tool",), "annals.tools"),
    **dict.fromkeys(("frozen", "merge_recorded"), "annals.snapshots"),
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "nondet":
            return importlib.import_module("annals.nondet")
        if name in _LAZY:
            return getattr(importlib.import_module(_LAZY[name]), name)
        raise AttributeError(f"module 'annals' has no attribute {name!r}")


def find_store(path: str | os.PathLike[str] | None = None) -> Path:
    """The directory of the store, as the command line finds it: `path`, else $ANNALS_STORE, else the nearest .annals in
    the working directory or one of its parents, else .annals in the working directory."""
    given = path or os.environ.get("ANNALS_STORE")
    if given:
        return Path(given)
    here = Path.cwd()
    for directory in (here, *here.parents):
        if (directory / ".annals").is_dir():
            return directory / ".annals"
    return Path(".annals")


def open(path: str | os.PathLike[str] | None = None, *, read_only: bool = False) -> Store:
    """Opens a store; creates a missing one unless `read_only`.

    Several processes may have a store open. The first one holds it; what the others write goes through that process,
    and one of them takes the store over when it ends. `Locked` means that a process holds the store without serving it.

    A forked child must open the store itself: the parent's handles raise `Invalid` there.
    """
    return Store.open(find_store(path), read_only)
