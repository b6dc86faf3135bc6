"""A research agent with LangGraph: it answers a question from a company's pages. It knows nothing about annals.

It prints the answer and always ends with 0: whether the answer is right is for an oracle to say.
"""

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

PAGES = {"returns-2019": "goods can be returned within 14 days", "returns-2025": "goods can be returned within 30 days"}


@tool
def search(words: str) -> str:
    """Finds pages."""
    return ", ".join(PAGES)


@tool
def open_page(page: str) -> str:
    """Opens a page."""
    return PAGES[page]


@tool
def note(text: str) -> str:
    """Keeps a note."""
    return text


tools = [search, open_page, note]
model = ChatOpenAI(model="gpt-4o-mini").bind_tools(tools)


def think(state: MessagesState):
    return {"messages": [model.invoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("think", think)
graph.add_node("tools", ToolNode(tools))
graph.add_edge(START, "think")
graph.add_conditional_edges("think", tools_condition)
graph.add_edge("tools", "think")
question = [SystemMessage("You answer from our pages."), HumanMessage("How long can I return goods?")]
print(graph.compile().invoke({"messages": question})["messages"][-1].content)
