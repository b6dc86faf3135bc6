"""CrewAI: tools are wrapped, because its hooks run after the tool; events are noted as structure."""

from __future__ import annotations

from typing import Any

from annals.adapters._calls import note, tool_call_sync


def recorded_tools(tools: list[Any]) -> list[Any]:
    """The tools with recorded calls: `Agent(tools=recorded_tools([search]))`. They are changed in place."""
    for tool in tools:
        run = tool._run

        def recorded(*args: Any, run: Any = run, name: str = tool.name, **kwargs: Any) -> Any:
            return tool_call_sync(name, {"args": list(args), **kwargs}, lambda: run(*args, **kwargs))

        object.__setattr__(tool, "_run", recorded)
    return tools


def event_listener() -> Any:
    """Notes agents and tasks. The listener registers itself at the event bus."""
    from crewai.events import AgentExecutionStartedEvent, BaseEventListener, TaskStartedEvent

    class AnnalsStructure(BaseEventListener):
        def setup_listeners(self, crewai_event_bus: Any) -> None:
            @crewai_event_bus.on(AgentExecutionStartedEvent)
            def agent_started(source: Any, event: Any) -> None:
                note("planner", str(getattr(event.agent, "role", "agent")))

            @crewai_event_bus.on(TaskStartedEvent)
            def task_started(source: Any, event: Any) -> None:
                note("planner", "task")

    return AnnalsStructure()
