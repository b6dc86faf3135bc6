#!/usr/bin/env bash
# The fsync trap on a real file system: writes succeed, the first fsync fails, the second says OK and the data is gone.
# An ext4 image lies on a tmpfs that fills up while `annals` records. What must hold: recording stops at the first
# failed sync, and every run that was said to be on disk is there, whole, once the file system is mounted again.
# Usage: .ci/real-faults/fsync-trap.sh [ROUNDS]   (default 3). Needs root, loop mounts and e2fsprogs; says so and ends
# with 0 where they are not to be had. ANNALS names the binary (default: target/release/annals, built where missing).
set -euo pipefail
cd "$(dirname "$0")/../.."
exec </dev/null
rounds=${1:-3}

skip() { echo "fsync-trap: skipped: $1"; exit 0; }
[ "$(id -u)" = 0 ] || skip "it mounts file systems, and this is not root"
for tool in mkfs.ext4 mount umount losetup python3; do
  command -v "$tool" >/dev/null || skip "$tool is missing"
done

work=$(mktemp -d)
cleanup() {
  for ((try = 0; try < 20; try++)); do
    mountpoint -q "$work/disk" || break
    umount "$work/disk" 2>/dev/null || sleep 0.2
  done
  for ((try = 0; try < 20; try++)); do
    mountpoint -q "$work/small" || break
    umount "$work/small" 2>/dev/null || sleep 0.2
  done
  rm -rf "$work"
}
trap cleanup EXIT
mkdir "$work/small" "$work/disk"
mount -t tmpfs -o size=24m tmpfs "$work/small" 2>/dev/null || skip "tmpfs cannot be mounted"

annals=${ANNALS:-}
if [ -z "$annals" ]; then
  annals=$PWD/target/release/annals
  [ -x "$annals" ] || cargo build --release --bin annals
fi

fresh_disk() {
  truncate -s 256M "$work/small/image"
  mkfs.ext4 -q -F -E lazy_itable_init=1,lazy_journal_init=1 -J size=4 "$work/small/image"
  mount -o loop "$work/small/image" "$work/disk"
}
old_disk() {
  umount "$work/disk"
  mount -o "remount,size=${1}m" "$work/small"
}

# The trap itself, so that nobody has to believe it.
fresh_disk 2>/dev/null || skip "loop mounts do not work"
python3 - "$work/disk/file" <<'PY'
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"x" * (1 << 20), 0)
os.fsync(fd)
at, outcomes = 1 << 20, []
while len(outcomes) < 2 and at < (200 << 20):
    os.pwrite(fd, os.urandom(1 << 20), at)
    at += 1 << 20
    try:
        os.fsync(fd)
        ok = True
    except OSError as error:
        ok = False
        print(f"the trap: {at >> 20} MiB written without an error, fsync: {error.strerror}")
    if not ok:
        outcomes.append("failed")
        try:
            os.fsync(fd)
            outcomes.append("ok")
        except OSError:
            outcomes.append("failed again")
print("the trap: the second fsync:", outcomes[1] if len(outcomes) > 1 else "never came to that")
PY
old_disk 24
rm -f "$work/small/image"

# Runs that do not compress, one commit each.
python3 - >"$work/runs.jsonl" <<'PY'
import base64, json, os
for number in range(4000):
    text = base64.b64encode(os.urandom(12000)).decode()
    print(json.dumps({"id": f"run-{number:05}", "messages": [{"role": "assistant", "content": text}]}))
PY

for ((round = 1; round <= rounds; round++)); do
  fresh_disk
  code=0
  "$annals" --store "$work/disk/store" --json import --format chat "$work/runs.jsonl" \
    >"$work/said" 2>"$work/errors" || code=$?
  [ "$code" = 1 ] || { echo "fsync-trap: the import ended with $code, not 1" >&2; cat "$work/errors" >&2; exit 1; }
  # The other way round it would be no trap: the process goes on after the error, and its next sync says OK.
  later=0
  "$annals" --store "$work/disk/store" put key value >/dev/null 2>&1 || later=$?
  old_disk 400
  mount -o loop "$work/small/image" "$work/disk"
  "$annals" --store "$work/disk/store" verify >/dev/null || { echo "fsync-trap: the store does not verify" >&2; exit 1; }
  "$annals" --store "$work/disk/store" --json runs >"$work/found"
  python3 - "$work/said" "$work/found" "$work/errors" "$round" "$later" <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
said = [line["run"] for line in lines if "run" in line]
runs = {line["id"]: line for line in map(json.loads, open(sys.argv[2]))}
lost = [run for run in said if runs.get(run, {}).get("frames") != 1]
error = open(sys.argv[3]).readline().strip()
print(f"round {sys.argv[4]}: {len(said)} runs acknowledged, {len(runs)} found, {len(lost)} lost; {error}; a later put ended with {sys.argv[5]}")
if lost or len(said) < 100 or len(runs) > len(said) + 1:
    sys.exit(f"fsync-trap: acknowledged {len(said)}, found {len(runs)}, lost {lost[:5]}")
PY
  old_disk 24 2>/dev/null || { umount "$work/disk" 2>/dev/null || true; }
  rm -f "$work/small/image"
  mount -o remount,size=24m "$work/small"
done
echo "fsync-trap: $rounds rounds, nothing acknowledged was lost"
