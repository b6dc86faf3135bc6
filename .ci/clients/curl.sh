# bash and curl. Usage: curl.sh plain|stream|concurrent|errors|binary
set -eu
ask() { curl -sS -i "$OPENAI_BASE_URL/$1" -H "authorization: Bearer ${OPENAI_API_KEY:-}" -H "content-type: application/json" -d "$2"; echo; }
chat() { echo '{"model":"m-1","messages":[{"role":"user","content":"'"$1"'"}]'"${2:-}}"; }
case $1 in
plain) ask chat/completions "$(chat "${2:-one}")"; ask chat/completions "$(chat two)" ;;
stream) ask chat/completions "$(chat two ',"stream":true')" ;;
concurrent)
  # Each writes a file of its own: what comes out does not hang on who is first.
  dir=$(mktemp -d); trap 'rm -r "$dir"' EXIT
  for n in 1 2 3 4 5 6 7 8; do ask chat/completions "$(chat "wait $n")" >"$dir/$n" & done
  wait
  for n in 1 2 3 4 5 6 7 8; do grep -q "wait $n" "$dir/$n"; cat "$dir/$n"; done ;;
errors) ask chat/completions "$(chat 'fail with 429')"; ask chat/completions "$(chat 'fail with 429')"; ask chat/completions "$(chat 'fail with 400')" ;;
binary) ask audio/speech '{"input":"hello"}' | sha256sum ;;
esac
