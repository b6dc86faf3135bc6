"""AG2: a middleware around the execution of tools."""

from __future__ import annotations

from typing import Any

from annals.adapters._calls import tool_call


def middleware() -> Any:
    """Records and substitutes tools: a class for `Agent(…, middleware=[middleware()])`."""
    from ag2.events import ToolResultEvent
    from ag2.middleware import BaseMiddleware

    class AnnalsTools(BaseMiddleware):
        async def on_tool_execution(self, call_next: Any, event: Any, context: Any) -> Any:
            async def run() -> Any:
                result = await call_next(event, context)
                return result.result.content

            return ToolResultEvent.from_call(event, await tool_call(event.name, event.arguments, run))

    return AnnalsTools
