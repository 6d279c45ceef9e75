"""What a program waits for that uses the public SDK: prints medians in seconds."""
import json
import os
import statistics
import subprocess
import sys
import time

from e2b import Sandbox


def timed(call):
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def first():
    sb = Sandbox.create()
    assert sb.commands.run("echo hello").stdout == "hello\n"
    return sb


def peers():
    """The daemon of E2B, if its address is given, without a hub before it."""
    if url := os.environ.get("ENVD_URL"):
        yield Sandbox.create(debug=True, sandbox_url=url)


creates, commands, spawns, daemon = [], [], [], []
for _ in range(20):
    took, sandbox = timed(first)
    creates.append(took)
    sandbox.kill()
sandbox = Sandbox.create()
others = list(peers())
for _ in range(100):  # in turns, so that both have the same machine
    commands.append(timed(lambda: sandbox.commands.run("true"))[0])
    spawns.append(timed(lambda: subprocess.run(["/bin/bash", "-c", "true"], check=True))[0])
    daemon += [timed(lambda: other.commands.run("true"))[0] for other in others]
sandbox.kill()
print(json.dumps({"create": statistics.median(creates), "command": statistics.median(commands),
                  "spawn": statistics.median(spawns), "daemon": statistics.median(daemon or [0])}))
sys.stdout.flush()
os._exit(0)  # threads of the client's HTTP library can abort Python while it ends
