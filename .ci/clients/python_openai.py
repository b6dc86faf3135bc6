"""The openai SDK for Python. Usage: python_openai.py plain|stream|concurrent|errors|tools|binary"""
import asyncio
import json
import sys

from openai import AsyncOpenAI, BadRequestError, OpenAI

client = OpenAI()


def say(text):
    return [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}]


def plain(word="one"):
    messages = say(word)
    for _ in range(3):
        answer = client.chat.completions.create(model="m-1", messages=messages, temperature=0.2)
        print(answer.model_dump_json())
        messages += [{"role": "assistant", "content": answer.choices[0].message.content}, {"role": "user", "content": "go on"}]
    print(client.responses.create(model="m-1", input="a question").output_text)
    print(client.embeddings.create(model="e", input="x").data[0].embedding)
    print([model.id for model in client.models.list()])


def stream():
    for chunk in client.chat.completions.create(model="m-1", messages=say("é two"), stream=True, stream_options={"include_usage": True}):
        print(chunk.model_dump_json())


def concurrent():
    async def one(client, number):
        answer = await client.chat.completions.create(model="m-1", messages=say(f"wait {number}"))
        print(number, answer.choices[0].message.content, flush=True)
        return answer.choices[0].message.content

    async def all_of_them():
        async with AsyncOpenAI() as client:
            return await asyncio.gather(*(one(client, number) for number in range(20)))

    answers = asyncio.run(all_of_them())
    assert all(f"wait {number}" in answer for number, answer in enumerate(answers))


def errors():
    for _ in range(2):
        print(client.chat.completions.create(model="m-1", messages=say("fail with 429")).choices[0].message.content)
    try:
        client.chat.completions.create(model="m-1", messages=say("fail with 400"))
    except BadRequestError as error:
        print(error.status_code, error.body)


def tools():
    messages = say("what is 2 + 3?")
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    for streamed in (False, True):
        if streamed:
            with client.chat.completions.stream(model="m-1", messages=messages, tools=[tool]) as events:
                message = events.until_done().get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(model="m-1", messages=messages, tools=[tool]).choices[0].message
        call = message.tool_calls[0]
        result = str(sum(json.loads(call.function.arguments).values()))
        more = [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": result}]
        print(client.chat.completions.create(model="m-1", messages=messages + more, tools=[tool]).choices[0].message.content)


def binary():
    with client.audio.speech.with_streaming_response.create(model="t", voice="alloy", input="hello") as answer:
        data = answer.read()
    print(len(data), sum(data), answer.headers["content-type"])


globals()[sys.argv[1]](*sys.argv[2:])
