"""A support agent with the OpenAI SDK: it refunds a damaged order. It knows nothing about annals.

It ends with 1 if it refunded another amount than was paid.
"""

import json
import sys

from openai import OpenAI

ORDERS = {"A-1042": {"customer": "C-77", "paid": 48.5, "state": "damaged"}}
refunded = {}


def find_order(order):
    return ORDERS[order]


def read_policy(topic):
    return {"topic": topic, "rule": "refund the price that was paid"}


def refund(order, amount):
    refunded[order] = amount
    return {"refunded": amount}


def notify(customer, text):
    return {"sent": customer}


TOOLS = {tool.__name__: tool for tool in (find_order, read_policy, refund, notify)}
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": True}
offered = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in TOOLS]

messages = [{"role": "system", "content": "You refund damaged orders."},
            {"role": "user", "content": "My order A-1042 arrived broken."}]
client = OpenAI()
while True:
    message = client.chat.completions.create(model="gpt-4o-mini", messages=messages, tools=offered).choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        result = TOOLS[call.function.name](**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
print(message.content)
sys.exit(0 if refunded == {"A-1042": 48.5} else 1)
