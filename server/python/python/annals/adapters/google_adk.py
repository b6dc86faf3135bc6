"""Google ADK: a plugin for tools, and its clock and ids."""

from __future__ import annotations

from typing import Any

from annals import lanes, nondet
from annals.adapters._calls import note


def providers() -> None:
    """Makes ADK draw times and ids from `annals.nondet`, also where the patches do not reach."""
    from google.adk.platform import time, uuid

    time.set_time_provider(nondet.time)
    uuid.set_id_provider(lambda: str(nondet.uuid4()))


def plugin() -> Any:
    """Records and substitutes tools: `Runner(…, plugins=[plugin()])`."""
    from google.adk.plugins.base_plugin import BasePlugin

    from annals import tools
    from annals.adapters._calls import _Named, _plain

    class AnnalsPlugin(BasePlugin):
        def __init__(self) -> None:
            super().__init__(name="annals")
            self._open: dict[int, Any] = {}

        async def before_tool_callback(self, *, tool: Any, tool_args: dict, tool_context: Any) -> Any:
            lane, mode = tools.lane_and_mode()
            named, kwargs = _Named(tool.name, None), _plain(tool_args)
            if mode == "record":
                self._open[id(tool_context)] = tools.RecordedCall(named, lane, (), kwargs)
                return None
            if mode == "serve":
                return await tools.served_coroutine(named, lane, (), kwargs)
            return None

        async def after_tool_callback(
            self, *, tool: Any, tool_args: dict, tool_context: Any, result: Any
        ) -> Any:
            if recorded := self._open.pop(id(tool_context), None):
                recorded.result(result)
            return None

        async def on_tool_error_callback(
            self, *, tool: Any, tool_args: dict, tool_context: Any, error: Exception
        ) -> Any:
            if recorded := self._open.pop(id(tool_context), None):
                recorded.fail(error)
            return None

        async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> Any:
            if lanes.current() is not None:
                note("planner", agent.name)
            return None

    return AnnalsPlugin()
