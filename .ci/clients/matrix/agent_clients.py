"""Coding agents: whole programs that call tools. They are large (npm: 0.5 GB), so they run only with --agents."""
from client import Client

GEMINI = '{"security":{"auth":{"selectedType":"gemini-api-key"}},"telemetry":{"enabled":false},"privacy":{"usageStatisticsEnabled":false}}'

CLIENTS = [
    Client("Codex", ["@openai/codex"], """
export CODEX_HOME=$HOME/.codex; mkdir -p "$CODEX_HOME"
codex exec --skip-git-repo-check -c openai_base_url="\\"$OPENAI_BASE_URL\\"" --model m-1 "say hi"
""", reads={"OPENAI_BASE_URL": "/v1"}, keys=("OPENAI_API_KEY",), runtime="agent", note="reads no variable; `-c openai_base_url` hands it over"),
    Client("Gemini CLI", ["@google/gemini-cli"], f"""
mkdir -p "$HOME/.gemini"; echo '{GEMINI}' > "$HOME/.gemini/settings.json"
gemini --skip-trust --model gemini-2.5-flash --prompt "say hi"
""", reads={"GOOGLE_GEMINI_BASE_URL": ""}, keys=("GEMINI_API_KEY",), runtime="agent"),
]
