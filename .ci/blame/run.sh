#!/usr/bin/env bash
# Records agents with the OpenAI SDK and with LangGraph against a scripted upstream that errs once, blames their runs, and
# fails unless the planted step comes first, as the only root. docs/blame.md shows its output.
# Usage: .ci/blame/run.sh [ANNALS]   (default: target/debug/annals)
# ANNALS_BLAME_PYTHON is a Python that has langgraph, langchain-openai and openai; without it they are installed into a
# temporary environment. Prints SKIPPED and ends with 0 if they cannot be installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
annals=$(realpath "${1:-target/debug/annals}")
agents=$PWD/.ci/blame
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python=${ANNALS_BLAME_PYTHON:-}
if [ -z "$python" ]; then
  if ! { python3 -m venv venv && venv/bin/pip install --quiet langgraph langchain-openai openai; } >pip.log 2>&1; then
    tail -3 pip.log
    echo "SKIPPED: langgraph, langchain-openai and openai cannot be installed. NO REAL AGENT WAS BLAMED"
    exit 0
  fi
  python=$work/venv/bin/python
fi
PATH=$(dirname "$python"):$PATH
"$python" -c 'import importlib.metadata as m; print(*(f"{p} {m.version(p)}" for p in ("openai", "langgraph", "langchain-openai")), sep=", ")'

coproc upstream { python3 -B "$agents/upstream.py"; }
read -r url <&"${upstream[0]}"
export OPENAI_API_KEY=unused
unset OPENAI_BASE_URL
cp "$agents"/agent_*.py .
shows() { printf '$ annals'; printf ' %q' "${@:2}"; echo; "$@"; }

# RUN STEP PROGRAM [ORACLE...]: three commands, from the program to the ranking.
blames() {
  local run=$1 step=$2 program=$3 code=0
  shift 3
  shows "$annals" record --run "$run" --upstream "$url" -- python "$program" || code=$?
  echo "exit code: $code"
  shows "$annals" blame "$run" "$@" --estimate
  shows "$annals" blame "$run" "$@" --k 5 --coalitions 1
  "$annals" blame "$run" --show --json >"$run.json"
  python3 - "$run.json" "$step" <<'PYTHON'
import json, sys
steps = json.load(open(sys.argv[1]))["steps"]
first = (steps[0]["step"], steps[0]["role"], [row["role"] for row in steps].count("root"))
if first != (int(sys.argv[2]), "root", 1):
    sys.exit(f"step {sys.argv[2]} was planted as the root, and the ranking begins with {first}")
print(f"the planted step @{sys.argv[2]} is first, and the only root")
PYTHON
}
blames refund 3 agent_openai.py
blames research 2 agent_langgraph.py --oracle "regex:30 days"
