"""A LangGraph agent that asks through langchain-openai. Usage: python_langgraph.py plain|stream|concurrent|tools"""
import asyncio
import sys

from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def agent(tools=()):
    model = ChatOpenAI(model="m-1", temperature=0.2)
    model = model.bind_tools(tools) if tools else model

    def think(state):
        return {"messages": [model.invoke(state["messages"])]}

    async def think_async(state):
        return {"messages": [await model.ainvoke(state["messages"])]}


    graph = StateGraph(MessagesState)
    graph.add_node("think", RunnableLambda(think, think_async))
    graph.add_edge(START, "think")
    if tools:
        graph.add_node("tools", ToolNode(tools))
        graph.add_conditional_edges("think", tools_condition)
        graph.add_edge("tools", "think")
    return graph.compile(checkpointer=MemorySaver())


def on(thread):
    return {"configurable": {"thread_id": str(thread)}}


def asking(text):
    return {"messages": [("system", "be brief"), ("user", text)]}


def show(messages):
    for message in messages:
        print(message.type, message.content, getattr(message, "tool_calls", ""), flush=True)


def plain(word="one"):
    graph = agent()
    graph.invoke(asking(word), on(1))
    for _ in range(2):
        state = graph.invoke({"messages": [("user", "go on")]}, on(1))
    show(state["messages"])


def stream():
    for chunk, about in agent().stream(asking("é two"), on(1), stream_mode="messages"):
        print(about["langgraph_node"], chunk.content, flush=True)


def concurrent():
    async def one(graph, number):
        state = await graph.ainvoke(asking(f"wait {number}"), on(number))
        print(number, state["messages"][-1].content, flush=True)
        return state["messages"][-1].content

    async def all_of_them():
        graph = agent()
        return await asyncio.gather(*(one(graph, number) for number in range(20)))

    answers = asyncio.run(all_of_them())
    assert all(f"wait {number}" in answer for number, answer in enumerate(answers))


def tools():
    show(agent([add]).invoke(asking("what is 2 + 3?"), on(1))["messages"])


globals()[sys.argv[1]](*sys.argv[2:])
