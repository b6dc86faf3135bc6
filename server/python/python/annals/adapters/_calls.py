"""A framework's tool call as a call of annals."""

from __future__ import annotations

import json
from typing import Any

from annals import lanes, snapshots, tools


class _Named:
    """What `tools` wants to know of a tool."""

    def __init__(self, name: str, function: Any) -> None:
        self.name = name
        self.call_name = f"tool {name}"
        self.facts = {"name": name, "source": tools.source_hash(function) if function is not None else None}

    def input(self, args: tuple, kwargs: dict) -> bytes:
        return snapshots.encode_bytes({"args": list(args), "kwargs": kwargs})


async def tool_call(name: str, arguments: Any, run: Any, function: Any = None) -> Any:
    """Awaits `run()`, recorded, or returns the recorded result. `arguments` is plain data.

    The result must be plain data, a dataclass or a pydantic model: wrap other results before.
    """
    return await tools.recorded_coroutine(_Named(name, function), (), _plain(arguments), run)


def tool_call_sync(name: str, arguments: Any, run: Any, function: Any = None) -> Any:
    """The same for a function that is not async."""
    return tools.recorded_function(_Named(name, function), (), _plain(arguments), run)


def _plain(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            return {"text": arguments}
    return arguments if isinstance(arguments, dict) else {"value": arguments}


def note(component: str, name: str, **facts: Any) -> None:
    """A frame of structure: an agent, a planner, a hand-off, a merge. A replay does not ask for it."""
    lane = lanes.current()
    if lane is not None and lane.session.mode == "record":
        lane.session.record(component, b"", b"", name=name, lane=lane.id, **facts)
