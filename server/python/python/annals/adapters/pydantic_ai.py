"""pydantic-ai: hooks around the execution of tools."""

from __future__ import annotations

from typing import Any

from annals.adapters._calls import tool_call


def tool_hooks() -> Any:
    """Records and substitutes tools: `Agent(model, capabilities=[tool_hooks()])`."""
    from pydantic_ai.capabilities import Hooks

    hooks = Hooks()

    @hooks.on.tool_execute
    async def execute(ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        return await tool_call(call.tool_name, args, lambda: handler(args))

    return hooks
