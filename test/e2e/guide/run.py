"""Runs blocks of the guide, one after the other: a line of JSON in, a line of JSON out."""
import contextlib
import io
import json
import sys
import traceback

for line in sys.stdin:
    block = json.loads(line)
    out, error = io.StringIO(), ""
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(block["code"], block["name"], "exec"), {"__name__": "__main__"})
        except BaseException:
            error = traceback.format_exc()
    print(json.dumps({"out": out.getvalue(), "error": error}), flush=True)
