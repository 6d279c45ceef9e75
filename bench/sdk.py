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


creates, commands, spawns = [], [], []
for _ in range(20):
    took, sandbox = timed(first)
    creates.append(took)
    sandbox.kill()
sandbox = Sandbox.create()
for _ in range(100):  # in turns, so that both have the same machine
    commands.append(timed(lambda: sandbox.commands.run("true"))[0])
    spawns.append(timed(lambda: subprocess.run(["/bin/bash", "-c", "true"], check=True))[0])
sandbox.kill()
print(json.dumps({"create": statistics.median(creates), "command": statistics.median(commands), "spawn": statistics.median(spawns)}))
sys.stdout.flush()
os._exit(0)  # threads of the client's HTTP library can abort Python while it ends
