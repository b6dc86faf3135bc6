"""Programs of the shell. They come with the system (apt), httpie from PyPI."""
from client import OPENAI, Client

ASKED = """'{"model":"m-1","messages":[{"role":"user","content":"hi"}]}'"""

CLIENTS = [
    Client("curl: plain, stream, file upload", ["curl"], f"""
curl -sS "$OPENAI_BASE_URL/chat/completions" -H 'content-type: application/json' -d {ASKED}
curl -sSN "$OPENAI_BASE_URL/chat/completions" -H 'content-type: application/json' -d '{{"model":"m-1","stream":true,"messages":[{{"role":"user","content":"hi"}}]}}'
curl -sS "$OPENAI_BASE_URL/files" -F purpose=assistants -F 'file=some text;filename=a.txt'
""", **OPENAI, runtime="shell"),
    Client("curl: a fixed address", ["curl"], f"""
curl -sS "$OPENAI_BASE_URL/chat/completions" -H 'content-type: application/json' -d {ASKED}
curl -sS FIXED/v1/chat/completions -H 'content-type: application/json' -d {ASKED}
""", **OPENAI, runtime="shell", note="one call through the variable, one to a fixed address"),
    Client("wget", ["wget"], f"""
wget -qO- "$OPENAI_BASE_URL/chat/completions" --header 'content-type: application/json' --post-data {ASKED}
""", **OPENAI, runtime="shell"),
    Client("httpie", ["httpie"], """
http --ignore-stdin --body POST "$OPENAI_BASE_URL/chat/completions" model=m-1 messages:='[{"role":"user","content":"hi"}]'
""", **OPENAI, expected=("packages.httpie.io",), runtime="shell"),
]
