"""An agent that takes some steps and then judges itself: it fails if any answer said WRONG.

steps.py STEPS [MODE]; with a mode it misbehaves in the way that a test needs."""
import json
import os
import subprocess
import sys
import time
import urllib.request
import uuid

steps, mode = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "plain"
messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "begin"}]
if mode == "random-request":
    messages[0]["content"] += " " + str(uuid.uuid4())
if mode == "counts-files":
    with open("count", "a") as file:
        file.write("x")
    if os.path.getsize("count") > 1:
        print("good")
        sys.exit(0)
for step in range(steps):
    if mode == "hangs" and os.environ.get("HANG"):
        # A process of its own, which holds none of its outputs.
        subprocess.run(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    body = json.dumps({"model": "gpt-4o-mini", "messages": messages}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, {"content-type": "application/json"})
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(message)
    for call in message.get("tool_calls", []):
        result = {"search": "WRONG city", "other": "Oslo"}[call["function"]["name"]]
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    messages.append({"role": "user", "content": "go on"})
said = " ".join(message["content"] or "" for message in messages)
if mode == "raises-if-right" and "WRONG" not in said:
    raise ValueError("nobody expected that")
if mode == "sleeps-if-right" and "WRONG" not in said:
    time.sleep(600)
print(json.dumps({"status": "bad" if "WRONG" in said else "good"}))
sys.exit(1 if "WRONG" in said else 0)
