"""OpenAI Agents SDK: function tools, and agents and hand-offs as frames of structure."""

from __future__ import annotations

import dataclasses
from typing import Any

from annals.adapters._calls import note, tool_call


def recorded_tools(tools: Any) -> list[Any]:
    """The tools with recorded calls: `Agent(tools=recorded_tools([search]))`. Hosted tools stay as they are."""
    return [recorded_tool(tool) for tool in tools]


def recorded_tool(tool: Any) -> Any:
    """A function tool with recorded calls."""
    invoke = getattr(tool, "on_invoke_tool", None)
    if invoke is None or not dataclasses.is_dataclass(tool):
        return tool

    async def on_invoke_tool(context: Any, arguments: str) -> Any:
        return await tool_call(tool.name, arguments, lambda: invoke(context, arguments))

    return dataclasses.replace(tool, on_invoke_tool=on_invoke_tool)


def tracing_processor() -> Any:
    """Notes agents and hand-offs: `agents.add_trace_processor(tracing_processor())`."""
    from agents.tracing import TracingProcessor

    class Processor(TracingProcessor):
        def on_trace_start(self, trace: Any) -> None:
            """Nothing to note."""

        def on_trace_end(self, trace: Any) -> None:
            """Nothing to note."""

        def on_span_start(self, span: Any) -> None:
            """A span is noted when it has ended."""

        def on_span_end(self, span: Any) -> None:
            data = span.span_data
            if data.type in ("agent", "handoff"):
                facts = {key: value for key, value in data.export().items() if isinstance(value, str)}
                note("planner", facts.pop("name", data.type), **facts)

        def shutdown(self) -> None:
            """Nothing is held."""

        def force_flush(self) -> None:
            """Nothing is held."""

    return Processor()
