# Functions of .ci/run, .ci/nightly and .ci/soak, which source this file.

# Full files of real runs are not in the repository. Tests use them if a data folder stands beside the checkout.
real_runs() { # VARIABLE FILE
  if [ -z "${!1:-}" ] && [ -f "$2" ]; then
    export "$1=$(realpath "$2")"
  fi
}
real_runs ANNALS_TAU_AIRLINE ../shared/data/tau-airline.json.xz
real_runs ANNALS_WHO_AND_WHEN ../shared/data/who-and-when-algorithm-generated.jsonl.xz

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

need_package() { # COMMAND PACKAGE...
  local command=$1
  shift
  command -v "$command" >/dev/null && return
  if command -v apt-get >/dev/null; then
    as_root apt-get update -q && as_root apt-get install -qy --no-install-recommends "$@"
  else
    echo "$0: '$command' is missing: install $*" >&2
    exit 1
  fi
}

need_component() { # COMMAND COMPONENT
  command -v "$1" >/dev/null && "$1" --version >/dev/null 2>&1 && return
  rustup component add "$2"
}

# The last line is PASS, or FAIL with the step that failed.
current_step="before the first step"
one_result() {
  local code=$?
  if [ $code = 0 ]; then echo "PASS: all steps in $SECONDS s"; else echo "FAIL: $current_step"; fi
  exit $code
}

step() { # NAME COMMAND...
  local name=$1 began=$SECONDS
  current_step=$name
  shift
  echo "==> $name"
  "$@"
  echo "<== $name: $((SECONDS - began)) s"
}

tools() {
  # A Rust that rustup has just installed is not on the path of this shell yet.
  [ -d "${CARGO_HOME:-${HOME:-}/.cargo}/bin" ] && PATH="${CARGO_HOME:-${HOME:-}/.cargo}/bin:$PATH"
  if ! command -v cargo >/dev/null; then
    echo "$0: Rust is missing: see https://rustup.rs" >&2
    exit 1
  fi
  need_package cc gcc libc6-dev
  need_package python3 python3
  need_component rustfmt rustfmt
  need_component cargo-clippy clippy
  cargo --version
}
