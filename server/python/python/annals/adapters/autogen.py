"""AutoGen: a workbench for tools, and an intervention handler for structure."""

from __future__ import annotations

from typing import Any

from annals.adapters._calls import note, tool_call


def workbench(tools: list[Any]) -> Any:
    """Records and substitutes tools: `AssistantAgent(…, workbench=workbench([tool]))`."""
    from autogen_core.tools import StaticWorkbench

    class AnnalsWorkbench(StaticWorkbench):
        async def call_tool(self, name: str, arguments: Any = None, *args: Any, **kwargs: Any) -> Any:
            base = super().call_tool
            return await tool_call(name, dict(arguments or {}), lambda: base(name, arguments, *args, **kwargs))

    return AnnalsWorkbench(tools)


def intervention_handler() -> Any:
    """Notes messages between agents; it passes all of them on."""
    from autogen_core import DefaultInterventionHandler

    class AnnalsStructure(DefaultInterventionHandler):
        async def on_send(self, message: Any, *, message_context: Any, recipient: Any) -> Any:
            note("planner", str(recipient), message=type(message).__name__)
            return message

    return AnnalsStructure()
