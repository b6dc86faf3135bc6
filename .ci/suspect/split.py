"""The split of annotated logs into a development half and a test half.

A log belongs to the development half if the first byte of the SHA-256 of its task id (`question_ID`, UTF-8) is
even, else to the test half. Logs of the same task are always in the same half. The rule was committed before
any log was read. Signals and weights are made from the development half only.
"""

import hashlib
import json


def half(task_id):
    """`development` or `test`."""
    first = hashlib.sha256(task_id.encode("utf-8")).digest()[0]
    return "development" if first % 2 == 0 else "test"


def read(path, wanted):
    """The logs of one half, in the order of the file. `path` is a file of JSON Lines, plain or `.xz`."""
    import lzma
    opened = lzma.open(path, "rt", encoding="utf-8") if str(path).endswith(".xz") else open(path, encoding="utf-8")
    with opened as lines:
        logs = [json.loads(line) for line in lines if line.strip()]
    return [log for log in logs if half(log["question_ID"]) == wanted]
