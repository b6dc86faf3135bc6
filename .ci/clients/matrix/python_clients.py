"""Python clients, as a user writes them: no address in the text where the client reads a variable."""
from client import ANTHROPIC, AWS, AWS_KEYS, OPENAI, Client

SAY = '[{"role": "user", "content": "hi"}]'
# litellm fetches its table of prices.
LITELLM = ("raw.githubusercontent.com",)

CLIENTS = [
    Client("openai: chat, responses, embeddings", ["openai"], f"""
from openai import OpenAI
client = OpenAI()
print(client.chat.completions.create(model="m-1", messages={SAY}).choices[0].message.content)
print(client.responses.create(model="m-1", input="hi").output_text)
print(client.embeddings.create(model="e", input="hi").data[0].embedding)
""", **OPENAI),
    Client("openai: streams", ["openai"], f"""
from openai import OpenAI
client = OpenAI()
for chunk in client.chat.completions.create(model="m-1", messages={SAY}, stream=True):
    print(chunk.model_dump_json())
for event in client.responses.create(model="m-1", input="hi", stream=True):
    print(event.model_dump_json())
""", **OPENAI),
    Client("openai: async, 8 at once", ["openai"], """
import asyncio
from openai import AsyncOpenAI
client = AsyncOpenAI()
async def ask(number):
    answer = await client.chat.completions.create(model="m-1", messages=[{"role": "user", "content": f"wait {number}"}])
    return answer.choices[0].message.content
async def main():
    print(*await asyncio.gather(*map(ask, range(8))), sep="\\n")
asyncio.run(main())
""", **OPENAI),
    Client("openai: 8 threads, the same prompt", ["openai"], f"""
from concurrent.futures import ThreadPoolExecutor
from openai import OpenAI
client = OpenAI()
def ask(_):
    return client.chat.completions.create(model="m-1", messages={SAY}).choices[0].message.content
with ThreadPoolExecutor(8) as pool:
    print(*pool.map(ask, range(8)), sep="\\n")
""", **OPENAI, note="identical concurrent requests"),
    Client("openai: file upload (multipart)", ["openai"], """
import io
from openai import OpenAI
client = OpenAI()
for name in ("a.txt", "b.txt"):
    print(client.files.create(file=(name, io.BytesIO(b"some text")), purpose="assistants").id)
""", **OPENAI),
    Client("openai: Azure", ["openai"], f"""
from openai import AzureOpenAI
client = AzureOpenAI(api_version="2024-10-21")
print(client.chat.completions.create(model="m-1", messages={SAY}).choices[0].message.content)
""", reads={"AZURE_OPENAI_ENDPOINT": ""}, keys=("AZURE_OPENAI_API_KEY",)),
    Client("openai: a fixed base_url", ["openai"], f"""
from openai import OpenAI
OpenAI().models.list()
client = OpenAI(base_url="FIXED/v1")
print(client.chat.completions.create(model="m-1", messages={SAY}).choices[0].message.content)
for chunk in client.chat.completions.create(model="m-1", messages={SAY}, stream=True):
    print(chunk.model_dump_json())
""", **OPENAI, note="one call through the variable, two to a fixed address"),
    Client("openai: OpenRouter", ["openai"], f"""
import os
from openai import OpenAI
client = OpenAI(base_url=os.environ["OPENROUTER_BASE_URL"], api_key=os.environ["OPENROUTER_API_KEY"])
print(client.chat.completions.create(model="m/m-1", messages={SAY}).choices[0].message.content)
""", reads={"OPENROUTER_BASE_URL": "/api/v1"}, keys=("OPENROUTER_API_KEY",)),
    Client("anthropic: plain, stream", ["anthropic"], f"""
from anthropic import Anthropic
client = Anthropic()
print(client.messages.create(model="m-1", max_tokens=9, messages={SAY}).content[0].text)
with client.messages.stream(model="m-1", max_tokens=9, messages={SAY}) as stream:
    for text in stream.text_stream:
        print(text)
""", **ANTHROPIC),
    Client("anthropic: tools", ["anthropic"], """
from anthropic import Anthropic
client = Anthropic()
tools = [{"name": "add", "description": "adds", "input_schema": {"type": "object", "properties": {}}}]
messages = [{"role": "user", "content": "2 + 3?"}]
answer = client.messages.create(model="m-1", max_tokens=9, messages=messages, tools=tools)
call = answer.content[0]
result = {"type": "tool_result", "tool_use_id": call.id, "content": str(sum(call.input.values()))}
messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
print(client.messages.create(model="m-1", max_tokens=9, messages=messages, tools=tools).content[0].text)
""", **ANTHROPIC),
    Client("anthropic: Bedrock", ["anthropic", "boto3"], f"""
from anthropic import AnthropicBedrock
client = AnthropicBedrock(aws_region="us-east-1")
print(client.messages.create(model="m-1", max_tokens=9, messages={SAY}).content[0].text)
""", reads={"ANTHROPIC_BEDROCK_BASE_URL": ""}, keys=AWS_KEYS),
    Client("google-genai", ["google-genai"], """
from google import genai
client = genai.Client()
print(client.models.generate_content(model="m-1", contents="hi").text)
for chunk in client.models.generate_content_stream(model="m-1", contents="hi"):
    print(chunk.text)
""", reads={"GOOGLE_GEMINI_BASE_URL": ""}, keys=("GEMINI_API_KEY",)),
    Client("mistralai", ["mistralai"], f"""
import os
from mistralai.client import Mistral
client = Mistral(api_key=os.environ["MISTRAL_API_KEY"], server_url="FIXED")
print(client.chat.complete(model="m-1", messages={SAY}).choices[0].message.content)
for event in client.chat.stream(model="m-1", messages={SAY}):
    print(event.data.choices[0].delta.content if event.data.choices else None)
""", keys=("MISTRAL_API_KEY",), note="reads no variable; the address is in the program"),
    Client("cohere", ["cohere"], f"""
import cohere
client = cohere.ClientV2()
print(client.chat(model="m-1", messages={SAY}).message.content[0].text)
for event in client.chat_stream(model="m-1", messages={SAY}):
    print(event.type)
""", reads={"CO_API_URL": ""}, keys=("CO_API_KEY",)),
    Client("groq", ["groq"], f"""
from groq import Groq
client = Groq()
print(client.chat.completions.create(model="m-1", messages={SAY}).choices[0].message.content)
for chunk in client.chat.completions.create(model="m-1", messages={SAY}, stream=True):
    print(chunk.model_dump_json())
""", reads={"GROQ_BASE_URL": ""}, keys=("GROQ_API_KEY",)),
    Client("groq, --upstream", ["groq"], f"""
from groq import Groq
print(Groq().chat.completions.create(model="m-1", messages={SAY}).choices[0].message.content)
""", reads={"GROQ_BASE_URL": ""}, upstreams=("groq",), keys=("GROQ_API_KEY",), note="no variable is set"),
    Client("cohere, --upstream", ["cohere"], f"""
import cohere
print(cohere.ClientV2().chat(model="m-1", messages={SAY}).message.content[0].text)
""", reads={"CO_API_URL": ""}, upstreams=("cohere",), keys=("CO_API_KEY",), note="no variable is set"),
    Client("litellm: 7 providers", ["litellm", "boto3"], f"""
import litellm
litellm.suppress_debug_info = True
for model in ("openai/m-1", "anthropic/m-1", "groq/m-1", "mistral/m-1", "azure/m-1", "bedrock/converse/anthropic.claude-v2", "gemini/m-1"):
    more = {{"api_version": "2024-10-21"}} if model.startswith("azure") else {{}}
    try:
        print(model, litellm.completion(model=model, messages={SAY}, max_retries=0, **more).choices[0].message.content)
    except Exception as error:
        print(model, type(error).__name__, str(error).replace("\\n", " ")[:90])
""", reads={"OPENAI_BASE_URL": "/v1", "ANTHROPIC_BASE_URL": "", "GROQ_API_BASE": "/openai/v1", "MISTRAL_AZURE_API_BASE": "/v1",
            "AZURE_API_BASE": "", "AWS_BEDROCK_RUNTIME_ENDPOINT": "", "GEMINI_API_BASE": ""},
        keys=("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GROQ_API_KEY", "MISTRAL_API_KEY", "AZURE_API_KEY", "GEMINI_API_KEY", *AWS_KEYS),
        settings={"AWS_REGION_NAME": "us-east-1"}, expected=LITELLM),
    Client("litellm: openai, stream", ["litellm", "boto3"], f"""
import litellm
for chunk in litellm.completion(model="openai/m-1", messages={SAY}, stream=True):
    print(chunk.choices[0].delta.content)
""", **OPENAI, expected=LITELLM),
    Client("ollama", ["ollama"], f"""
import ollama
print(ollama.chat(model="m-1", messages={SAY}).message.content)
for part in ollama.chat(model="m-1", messages={SAY}, stream=True):
    print(part.message.content)
""", reads={"OLLAMA_HOST": ""}),
    Client("together", ["together"], f"""
from together import Together
client = Together()
print(client.chat.completions.create(model="m-1", messages={SAY}).choices[0].message.content)
""", reads={"TOGETHER_BASE_URL": "/v1"}, keys=("TOGETHER_API_KEY",)),
    Client("openrouter", ["openrouter"], f"""
import os
from openrouter import OpenRouter
from openrouter.utils import BackoffStrategy, RetryConfig
once = RetryConfig("none", BackoffStrategy(1, 1, 1, 1), False)
with OpenRouter(api_key=os.environ["OPENROUTER_API_KEY"], server_url="FIXED/api/v1", retry_config=once) as client:
    print(client.chat.send(model="m-1", messages={SAY}).choices[0].message.content)
""", keys=("OPENROUTER_API_KEY",), note="reads no variable; the address is in the program; its own retries take an hour"),
    Client("boto3: bedrock-runtime", ["boto3"], """
import json
import boto3
client = boto3.client("bedrock-runtime")
messages = [{"role": "user", "content": [{"text": "hi"}]}]
print(client.converse(modelId="m-1", messages=messages)["output"]["message"]["content"][0]["text"])
for event in client.converse_stream(modelId="m-1", messages=messages)["stream"]:
    print(json.dumps(event))
body = json.dumps({"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]})
print(json.loads(client.invoke_model(modelId="m-1", body=body)["body"].read())["content"][0]["text"])
""", **AWS),
    Client("langchain-openai", ["langchain-openai"], """
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
model = ChatOpenAI(model="m-1")
print(model.invoke("hi").content)
print([chunk.content for chunk in model.stream("hi")])
print(OpenAIEmbeddings(model="e", check_embedding_ctx_length=False).embed_query("hi"))
""", **OPENAI),
    Client("langchain-anthropic", ["langchain-anthropic"], """
from langchain_anthropic import ChatAnthropic
model = ChatAnthropic(model="m-1")
print(model.invoke("hi").content)
print([chunk.content for chunk in model.stream("hi")])
""", **ANTHROPIC),
    Client("langchain-groq", ["langchain-groq"], """
from langchain_groq import ChatGroq
print(ChatGroq(model="m-1").invoke("hi").content)
""", reads={"GROQ_API_BASE": ""}, keys=("GROQ_API_KEY",)),
    Client("langchain-mistralai", ["langchain-mistralai"], """
from langchain_mistralai import ChatMistralAI
print(ChatMistralAI(model="m-1").invoke("hi").content)
""", reads={"MISTRAL_BASE_URL": "/v1"}, keys=("MISTRAL_API_KEY",)),
    Client("langgraph: an agent with a tool", ["langgraph", "langchain", "langchain-openai"], """
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
def add(a: int, b: int) -> int:
    "Adds two numbers."
    return a + b
agent = create_agent(ChatOpenAI(model="m-1"), [add])
for message in agent.invoke({"messages": [("user", "2 + 3?")]})["messages"]:
    print(message.type, message.content)
""", **OPENAI),
    Client("llama-index", ["llama-index-llms-openai"], """
from llama_index.llms.openai import OpenAI
model = OpenAI(model="gpt-4o-mini")
print(model.complete("hi"))
print([chunk.delta for chunk in model.stream_complete("hi")])
""", reads={"OPENAI_API_BASE": "/v1"}, keys=("OPENAI_API_KEY",)),
    Client("pydantic-ai", ["pydantic-ai-slim[openai,anthropic]"], """
from pydantic_ai import Agent
for model in ("openai-chat:m-1", "anthropic:claude-sonnet-4-5"):
    agent = Agent(model)
    print(agent.run_sync("hi").output)
""", reads={"OPENAI_BASE_URL": "/v1", "ANTHROPIC_BASE_URL": ""}, keys=("OPENAI_API_KEY", "ANTHROPIC_API_KEY")),
    Client("openai-agents: a tool", ["openai-agents"], """
from agents import Agent, Runner, function_tool, set_default_openai_api
set_default_openai_api("chat_completions")
@function_tool
def add(a: int, b: int) -> int:
    "Adds two numbers."
    return a + b
print(Runner.run_sync(Agent(name="a", model="m-1", tools=[add]), "2 + 3?").final_output)
""", **OPENAI, expected=("api.openai.com",), note="sends its traces to api.openai.com"),
    Client("openai-agents: responses", ["openai-agents"], """
from agents import Agent, Runner, set_tracing_disabled
set_tracing_disabled(True)
print(Runner.run_sync(Agent(name="a", model="m-1"), "hi").final_output)
""", **OPENAI),
    Client("instructor", ["instructor"], """
import instructor
from openai import OpenAI
from pydantic import BaseModel
class Sum(BaseModel):
    a: int
    b: int
client = instructor.from_openai(OpenAI())
class_name = "add"
Sum.__name__ = class_name
print(client.chat.completions.create(model="m-1", response_model=Sum, messages=[{"role": "user", "content": "2 and 3"}], max_retries=1))
""", **OPENAI),
    Client("dspy", ["dspy"], """
import dspy
model = dspy.LM("openai/m-1", cache=False)
print(model("hi")[0])
""", **OPENAI, expected=LITELLM),
    Client("smolagents", ["smolagents[openai]"], """
from smolagents import OpenAIServerModel
import os
model = OpenAIServerModel(model_id="m-1", api_base=os.environ["OPENAI_BASE_URL"])
print(model.generate([{"role": "user", "content": "hi"}]).content)
""", **OPENAI),
    Client("huggingface_hub: InferenceClient", ["huggingface_hub"], f"""
from huggingface_hub import InferenceClient
client = InferenceClient(base_url="FIXED/v1", api_key="hf_x")
print(client.chat_completion({SAY}, model="m-1").choices[0].message.content)
for chunk in client.chat_completion({SAY}, model="m-1", stream=True):
    print(chunk.choices[0].delta.content if chunk.choices else None)
""", note="the address is in the program"),
    Client("replicate", ["replicate"], """
import replicate
print("".join(replicate.run("a/b", input={"prompt": "hi"})))
""", reads={"REPLICATE_BASE_URL": ""}, keys=("REPLICATE_API_TOKEN",)),
    Client("fireworks-ai", ["fireworks-ai"], f"""
from fireworks import Fireworks
client = Fireworks()
print(client.chat.completions.create(model="m-1", messages={SAY}).choices[0].message.content)
""", reads={"FIREWORKS_BASE_URL": ""}, keys=("FIREWORKS_API_KEY",)),
    Client("cerebras-cloud-sdk", ["cerebras-cloud-sdk"], f"""
from cerebras.cloud.sdk import Cerebras
client = Cerebras(warm_tcp_connection=False)
print(client.chat.completions.create(model="m-1", messages={SAY}).choices[0].message.content)
""", reads={"CEREBRAS_BASE_URL": ""}, keys=("CEREBRAS_API_KEY",)),
    Client("haystack", ["haystack-ai"], """
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
print(OpenAIChatGenerator(model="m-1").run([ChatMessage.from_user("hi")])["replies"][0].text)
""", **OPENAI, settings={"HAYSTACK_TELEMETRY_ENABLED": "False"}),
    Client("autogen", ["autogen-ext[openai]", "autogen-agentchat"], """
import asyncio
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
async def main():
    agent = AssistantAgent("a", OpenAIChatCompletionClient(model="gpt-4o"))
    print((await agent.run(task="hi")).messages[-1].content)
asyncio.run(main())
""", **OPENAI),
    Client("httpx, requests, aiohttp, urllib: bare", ["requests", "httpx", "aiohttp"], """
import asyncio, json, os, urllib.request
import aiohttp, httpx, requests
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
def asked(word):
    return {"model": "m-1", "messages": [{"role": "user", "content": word}]}
print(requests.post(url, json=asked("requests")).text)
print(httpx.post(url, json=asked("httpx")).text)
async def main():
    async with aiohttp.ClientSession() as session, session.post(url, json=asked("aiohttp")) as answer:
        print(await answer.text())
asyncio.run(main())
request = urllib.request.Request(url, json.dumps(asked("urllib")).encode(), {"content-type": "application/json"})
print(urllib.request.urlopen(request).read().decode())
""", **OPENAI),
    Client("four bare libraries, a fixed address", ["httpx", "requests", "aiohttp"], """
import asyncio, json, os, urllib.request
import aiohttp, httpx, requests
asked = {"model": "m-1", "messages": [{"role": "user", "content": "hi"}]}
print(httpx.post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json=asked).text)
url = "FIXED/v1/chat/completions"
print(requests.post(url, json=asked).text)
print(httpx.post(url, json=asked).text)
async def main():
    async with aiohttp.ClientSession() as session, session.post(url, json=asked) as answer:
        print(await answer.text())
asyncio.run(main())
request = urllib.request.Request(url, json.dumps(asked).encode(), {"content-type": "application/json"})
print(urllib.request.urlopen(request).read().decode())
""", **OPENAI, note="one call through the variable, four to a fixed address"),
]
