"""Microsoft Agent Framework: a middleware around functions, and one around agents."""

from __future__ import annotations

from typing import Any

from annals.adapters._calls import note, tool_call


def function_middleware() -> Any:
    """Records and substitutes tools: `Agent(…, middleware=[function_middleware()])`."""
    from agent_framework import FunctionMiddleware

    class AnnalsTools(FunctionMiddleware):
        async def process(self, context: Any, call_next: Any) -> None:
            arguments = context.arguments
            plain = arguments.model_dump() if hasattr(arguments, "model_dump") else dict(arguments or {})

            async def run() -> Any:
                await call_next()
                return context.result

            context.result = await tool_call(context.function.name, plain, run)

    return AnnalsTools()


def agent_middleware() -> Any:
    """Notes agents."""
    from agent_framework import AgentMiddleware

    class AnnalsStructure(AgentMiddleware):
        async def process(self, context: Any, call_next: Any) -> None:
            note("planner", str(getattr(context.agent, "name", "agent")))
            await call_next()

    return AnnalsStructure()
