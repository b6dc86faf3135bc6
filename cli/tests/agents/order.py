"""Clients whose requests overlap or repeat, of the standard library alone: does what its first argument says."""
import http.client
import json
import os
import socket
import sys
import threading
import urllib.parse

BASE = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])


def chat(text, **more):
    return json.dumps({"model": "m-1", "messages": [{"role": "user", "content": text}], **more}).encode()


def ask(body, path="/chat/completions", content_type="application/json"):
    connection = http.client.HTTPConnection(BASE.hostname, BASE.port, timeout=60)
    connection.request("POST", BASE.path + path, body, {"Content-Type": content_type})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def said(text):
    return json.loads(ask(chat(text))[1])["choices"][0]["message"]["content"]


def stops_at_done(steps="2"):
    """Reads each stream up to its last event and no byte further, and asks the next on another connection."""
    streams = []
    for step in range(int(steps)):
        body = chat(f"step {step}", stream=True)
        stream = socket.create_connection((BASE.hostname, BASE.port))
        head = f"POST {BASE.path}/held HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        stream.sendall(head.encode() + body)
        told = b""
        while not told.endswith(b"data: [DONE]\n\n"):
            told += stream.recv(1)
        print(told.partition(b"\r\n\r\n")[2], flush=True)
        streams.append(stream)
    print(said("after"))
    print(ask(b"{}", "/finish"))
    for stream in streams:
        while stream.recv(100):
            pass


def same(count, prints="by thread"):
    """The same request of several threads at once. Prints the answers by thread, or as they come."""
    answers, lock = {}, threading.Lock()

    def one(number):
        answer = said("the same")
        with lock:
            answers[number] = answer

    threads = [threading.Thread(target=one, args=(number,)) for number in range(int(count))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for number in sorted(answers) if prints == "by thread" else answers:
        print(answers[number])


def merges(count):
    """Calls two or more tools at once, and merges the results as they come: the merge order is chance."""
    merged, lock = [], threading.Lock()

    def one(number):
        answer = said(f"tool {number}")
        with lock:
            merged.append(answer)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(int(count))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(" then ".join(merged))


def gathers(count, prints="by task"):
    """The same of tasks of one thread, as an agent does that samples an answer several times."""
    import asyncio
    body = chat("the same")
    head = f"POST {BASE.path}/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"

    async def one():
        reader, writer = await asyncio.open_connection(BASE.hostname, BASE.port)
        writer.write(head.encode() + body)
        told = (await reader.read()).partition(b"\r\n\r\n")[2]
        writer.close()
        answer = json.loads(told)["choices"][0]["message"]["content"]
        if prints != "by task":
            print(answer)
        return answer

    async def all_of_them():
        return await asyncio.gather(*[one() for _ in range(int(count))])

    answers = asyncio.run(all_of_them())
    if prints == "by task":
        print("\n".join(answers))


def twice():
    print(said("the same"))
    print(said("the same"))


def prints_time():
    """Its output is another each time, its request is not."""
    import time
    print(said("hello"), time.time_ns())


def uploads(boundary, *parts):
    """A form: each part is NAME=VALUE, or NAME@FILENAME=VALUE."""
    body = b""
    for part in parts:
        name, _, value = part.partition("=")
        name, _, filename = name.partition("@")
        body += f"--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"".encode()
        if filename:
            body += f"; filename=\"{filename}\"\r\nContent-Type: text/plain".encode()
        body += b"\r\n\r\n" + value.encode() + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    status, told = ask(body, "/audio/transcriptions", f"multipart/form-data; boundary={boundary}")
    print(status, told)


def timed():
    """A request with the time in it."""
    import time
    status, told = ask(chat(f"It is {time.strftime('%Y-%m-%dT%H:%M:%S')}.{time.time_ns() % 1000000000:09} now"))
    print(status, told)


globals()[sys.argv[1]](*sys.argv[2:])
