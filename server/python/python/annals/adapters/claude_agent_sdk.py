"""Claude Agent SDK: its model calls are made by another process, so record it behind the proxy.

`annals record -- python agent.py` records the model calls. Tools of the SDK's own MCP servers run in this process:
decorate their functions with `annals.tool` for their results to be recorded and handed back.
`tool_hooks` notes the tools that the other process runs.
"""

from __future__ import annotations

from typing import Any

from annals.adapters._calls import note


def tool_hooks() -> dict[str, list[Any]]:
    """Notes tools: `ClaudeAgentOptions(hooks=tool_hooks())`."""
    from claude_agent_sdk import HookMatcher

    async def used(input_data: Any, tool_use_id: Any, context: Any) -> dict[str, Any]:
        note("planner", str(input_data.get("tool_name", "tool")), event=str(input_data.get("hook_event_name")))
        return {}

    return {"PostToolUse": [HookMatcher(hooks=[used])]}
