"""Each adapter with the real framework against its own stand-in for a model. Skipped where it is not installed."""

import asyncio

import pytest

import annals
from annals import _annals

ran = []


@pytest.fixture(autouse=True)
def _nothing_ran():
    ran.clear()


@pytest.fixture
def store(tmp_path):
    return tmp_path / "s"


def check(store, agent, planner=None, **options):
    """Recorded once; the replay gives the same and runs no tool."""
    with annals.record("r", store=store, **options):
        recorded = agent()
    assert ran, "the tool ran when it was recorded"
    frames = _annals.frames(store, "default", "r")
    assert [frame["component"] for frame in frames].count("tool") == len(ran)
    if planner:
        assert "planner" in {frame["component"] for frame in frames}
    ran.clear()
    with annals.replay("r", store=store, **options) as replay:
        assert agent() == recorded
    assert ran == [] and replay.receipt.faithful


def test_openai_agents_tool_is_substituted(store):
    agents = pytest.importorskip("agents")
    testing = pytest.importorskip("agents.testing")
    from annals.adapters import openai_agents

    @agents.function_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        ran.append(city)
        return f"sunny in {city}"

    def agent():
        model = testing.ScriptedModel(_openai_script(testing))
        made = agents.Agent(name="a", model=model, tools=openai_agents.recorded_tools([weather]))
        agents.set_trace_processors([openai_agents.tracing_processor()])
        return asyncio.run(agents.Runner.run(made, "hi")).final_output

    check(store, agent, planner=True)


def _openai_script(testing):
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    call = ResponseFunctionToolCall(
        type="function_call", call_id="1", name="weather", arguments='{"city":"Oslo"}', id="1"
    )
    text = ResponseOutputText(type="output_text", text="It is sunny.", annotations=[])
    message = ResponseOutputMessage(
        id="2", type="message", role="assistant", status="completed", content=[text]
    )
    return [[call], [message]]


def test_langchain_tool_is_substituted(store):
    agents = pytest.importorskip("langchain.agents")
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool

    from annals.adapters import langchain

    @tool
    def weather(city: str) -> str:
        """The weather of a city."""
        ran.append(city)
        return f"sunny in {city}"

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools, **kwargs):
            return self

    def agent():
        call = {"name": "weather", "args": {"city": "Oslo"}, "id": "1", "type": "tool_call"}
        model = Model(messages=iter([AIMessage(content="", tool_calls=[call]), AIMessage(content="Sunny.")]))
        made = agents.create_agent(model, [weather], middleware=[langchain.tool_middleware()])
        done = made.invoke(
            {"messages": [("user", "hi")]}, config={"callbacks": [langchain.callback_handler()]}
        )
        return [(message.type, message.content) for message in done["messages"]]

    check(store, agent, planner=True)


def test_pydantic_ai_tool_is_substituted(store):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.test import TestModel

    from annals.adapters import pydantic_ai as adapter

    def agent():
        made = pydantic_ai.Agent(TestModel(), capabilities=[adapter.tool_hooks()])

        @made.tool_plain
        def weather(city: str) -> str:
            """The weather of a city."""
            ran.append(city)
            return f"sunny in {city}"

        return made.run_sync("hi").output

    check(store, agent)


def test_google_adk_tool_is_substituted(store):
    pytest.importorskip("google.adk")
    from google.adk.agents import LlmAgent
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_response import LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    from annals.adapters import google_adk

    class Model(BaseLlm):
        async def generate_content_async(self, llm_request, stream=False):
            last = llm_request.contents[-1].parts[-1]
            if last.function_response:
                part = types.Part(text=str(last.function_response.response))
            else:
                part = types.Part(function_call=types.FunctionCall(name="weather", args={"city": "Oslo"}))
            yield LlmResponse(content=types.Content(role="model", parts=[part]))

    def weather(city: str) -> dict:
        """The weather of a city."""
        ran.append(city)
        return {"weather": f"sunny in {city}"}

    def agent():
        async def main():
            made = LlmAgent(name="a", model=Model(model="m"), tools=[weather])
            runner = InMemoryRunner(agent=made, app_name="app", plugins=[google_adk.plugin()])
            session = await runner.session_service.create_session(app_name="app", user_id="u")
            message = types.Content(role="user", parts=[types.Part(text="hi")])
            texts = []
            async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
                texts += [part.text for part in event.content.parts if part.text]
            return texts

        return asyncio.run(main())

    check(store, agent, planner=True)


def test_autogen_tool_is_substituted(store):
    pytest.importorskip("autogen_agentchat")
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core import FunctionCall
    from autogen_core.models import CreateResult, RequestUsage
    from autogen_core.tools import FunctionTool
    from autogen_ext.models.replay import ReplayChatCompletionClient

    from annals.adapters import autogen

    def weather(city: str) -> str:
        ran.append(city)
        return f"sunny in {city}"

    def agent():
        call = FunctionCall(id="1", name="weather", arguments='{"city":"Oslo"}')
        usage = RequestUsage(prompt_tokens=1, completion_tokens=1)
        first = CreateResult(finish_reason="function_calls", content=[call], usage=usage, cached=False)
        info = {
            "function_calling": True, "vision": False, "json_output": False, "family": "unknown", "structured_output": False,
        }  # fmt: skip
        client = ReplayChatCompletionClient([first, "done"], model_info=info)
        tool = FunctionTool(weather, description="The weather of a city.")
        made = AssistantAgent("a", model_client=client, workbench=autogen.workbench([tool]))
        return [
            str(getattr(message, "content", "")) for message in asyncio.run(made.run(task="hi")).messages
        ]

    check(store, agent)


def test_ag2_tool_is_substituted(store):
    ag2 = pytest.importorskip("ag2")
    testing = pytest.importorskip("ag2.testing")
    from ag2.events import ToolCallEvent

    from annals.adapters import ag2 as adapter

    def weather(city: str) -> str:
        """The weather of a city."""
        ran.append(city)
        return f"sunny in {city}"

    def agent():
        config = testing.TestConfig(ToolCallEvent(name="weather", arguments='{"city":"Oslo"}'), "Sunny.")
        made = ag2.Agent("a", config=config, tools=[weather], middleware=[adapter.middleware()])
        return asyncio.run(made.ask("hi")).body

    check(store, agent)


def test_agent_framework_tool_is_substituted(store):
    framework = pytest.importorskip("agent_framework")
    from annals.adapters import agent_framework as adapter

    class Client(framework.BaseChatClient):
        def _inner_get_response(self, *, messages, stream=False, options=None, **kwargs):
            async def answer():
                if messages[-1].role == "tool":
                    content = framework.Content.from_text("Sunny.")
                else:
                    content = framework.Content.from_function_call("1", "weather", arguments={"city": "Oslo"})
                message = framework.Message("assistant", [content])
                return framework.ChatResponse(messages=[message])

            return answer()

    class Invoking(framework.FunctionInvocationLayer, framework.ChatMiddlewareLayer, Client):
        pass

    @framework.tool(approval_mode="never_require")
    def weather(city: str) -> str:
        """The weather of a city."""
        ran.append(city)
        return f"sunny in {city}"

    def agent():
        made = framework.Agent(
            client=Invoking(),
            name="a",
            tools=[weather],
            middleware=[adapter.function_middleware(), adapter.agent_middleware()],
        )
        return asyncio.run(made.run("hi")).text

    check(store, agent, planner=True)


def test_crewai_tool_is_substituted(store):
    pytest.importorskip("crewai")
    from crewai.tools import BaseTool

    from annals.adapters import crewai

    class Weather(BaseTool):
        name: str = "weather"
        description: str = "The weather of a city."

        def _run(self, city: str) -> str:
            ran.append(city)
            return f"sunny in {city}"

    def agent():
        (tool,) = crewai.recorded_tools([Weather()])
        return tool.run(city="Oslo")

    check(store, agent)


def test_crewai_crew_is_noted(store, monkeypatch, tmp_path):
    # A whole crew with a scripted model: the tool is substituted, agents and tasks are noted.
    crew = pytest.importorskip("crewai")
    from crewai.tools import BaseTool

    from annals.adapters import crewai

    monkeypatch.setenv("CREWAI_TRACING_ENABLED", "false")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path / "crew"))

    class Weather(BaseTool):
        name: str = "weather"
        description: str = "The weather of a city."

        def _run(self, city: str) -> str:
            ran.append(city)
            return f"sunny in {city}"

    class Scripted(crew.BaseLLM):
        def call(self, messages, *args, **options):
            seen = str(messages)
            if "sunny in Oslo" in seen:
                return "Thought: I now know the final answer\nFinal Answer: It is sunny in Oslo."
            return 'Thought: I look it up\nAction: weather\nAction Input: {"city": "Oslo"}'

        def supports_function_calling(self):
            return False

    def agent():
        crewai.event_listener()
        tools = crewai.recorded_tools([Weather()])
        worker = crew.Agent(role="guide", goal="g", backstory="b", llm=Scripted(model="scripted"), tools=tools)
        task = crew.Task(description="The weather in Oslo?", expected_output="a sentence", agent=worker)
        return crew.Crew(agents=[worker], tasks=[task]).kickoff().raw

    # CrewAI's own draws of ids and times come in another order in the second run.
    check(store, agent, planner=True, nondet=False)


def test_claude_hooks_note_tools_and_functions_are_substituted(store):
    sdk = pytest.importorskip("claude_agent_sdk")
    from annals.adapters import claude_agent_sdk

    @sdk.tool("weather", "The weather of a city.", {"city": str})
    @annals.tool
    async def weather(arguments):
        ran.append(arguments["city"])
        return {"content": [{"type": "text", "text": f"sunny in {arguments['city']}"}]}

    async def work():
        # What the SDK does when its other process asks for a tool, and tells that it was used.
        options = sdk.ClaudeAgentOptions(hooks=claude_agent_sdk.tool_hooks())
        result = await weather.handler({"city": "Oslo"})
        (matcher,) = options.hooks["PostToolUse"]
        used = {"hook_event_name": "PostToolUse", "tool_name": "Bash", "tool_input": {}, "tool_response": {}}
        assert await matcher.hooks[0](used, "id", {"signal": None}) == {}
        return result

    check(store, lambda: asyncio.run(work()), planner=True)
