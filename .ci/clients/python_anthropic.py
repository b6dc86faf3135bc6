"""The anthropic SDK for Python. Usage: python_anthropic.py plain|stream|concurrent|errors|tools"""
import asyncio
import sys

from anthropic import Anthropic, AsyncAnthropic, BadRequestError

client = Anthropic()


def ask(text, **more):
    return {"model": "m-1", "max_tokens": 100, "system": "be brief", "messages": [{"role": "user", "content": text}], **more}


def plain(word="one"):
    for text in (word, "two", "three"):
        print(client.messages.create(**ask(text)).model_dump_json())


def stream():
    with client.messages.stream(**ask("é two")) as events:
        for text in events.text_stream:
            print(repr(text))
        print(events.get_final_message().model_dump_json())


def concurrent():
    async def one(client, number):
        answer = await client.messages.create(**ask(f"wait {number}"))
        print(number, answer.content[0].text, flush=True)
        return answer.content[0].text

    async def all_of_them():
        async with AsyncAnthropic() as client:
            return await asyncio.gather(*(one(client, number) for number in range(20)))

    answers = asyncio.run(all_of_them())
    assert all(f"wait {number}" in answer for number, answer in enumerate(answers))


def errors():
    for _ in range(2):
        print(client.messages.create(**ask("fail with 429")).content[0].text)
    try:
        client.messages.create(**ask("fail with 400"))
    except BadRequestError as error:
        print(error.status_code, error.body)


def tools():
    tool = {"name": "add", "input_schema": {"type": "object", "properties": {}}}
    request = ask("what is 2 + 3?", tools=[tool])
    message = client.messages.create(**request)
    call = message.content[0]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": str(sum(call.input.values()))}
    request["messages"] += [{"role": "assistant", "content": message.model_dump(exclude_none=True)["content"]}, {"role": "user", "content": [result]}]
    print(client.messages.create(**request).content[0].text)


globals()[sys.argv[1]](*sys.argv[2:])
