"""LangChain and LangGraph: an agent middleware for tools, a callback handler for structure."""

from __future__ import annotations

from typing import Any

from annals.adapters._calls import note, tool_call, tool_call_sync


def tool_middleware() -> Any:
    """Records and substitutes tools: `create_agent(model, tools, middleware=[tool_middleware()])`."""
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.messages import ToolMessage

    def message(request: Any, result: Any) -> Any:
        # The id of the call is the model's, and may be drawn again.
        return ToolMessage(
            content=result["content"],
            artifact=result["artifact"],
            status=result["status"],
            name=result["name"],
            tool_call_id=request.tool_call["id"],
        )

    def plain(result: Any) -> dict[str, Any]:
        if not isinstance(result, ToolMessage):
            raise TypeError(f"a tool that returns {type(result).__name__} cannot be substituted")
        return {
            "content": result.content, "artifact": result.artifact, "status": result.status, "name": result.name,
        }  # fmt: skip

    class AnnalsTools(AgentMiddleware):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            call = request.tool_call
            result = tool_call_sync(call["name"], call["args"], lambda: plain(handler(request)))
            return message(request, result)

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            call = request.tool_call

            async def run() -> Any:
                return plain(await handler(request))

            return message(request, await tool_call(call["name"], call["args"], run))

    return AnnalsTools()


def callback_handler() -> Any:
    """Notes chains and agents: `agent.invoke(…, config={"callbacks": [callback_handler()]})`."""
    from langchain_core.callbacks import BaseCallbackHandler

    class AnnalsStructure(BaseCallbackHandler):
        run_inline = True

        def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: Any, **kwargs: Any) -> None:
            name = kwargs.get("name") or (serialized or {}).get("name") or "chain"
            node = (kwargs.get("metadata") or {}).get("langgraph_node")
            if node is None or node == name:
                note("planner", str(name))

    return AnnalsStructure()
