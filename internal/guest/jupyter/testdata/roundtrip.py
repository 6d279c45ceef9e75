# For each number on stdin, runs that many cells through jupyter_client, in a kernel with the
# same options as Cove's, and prints the duration of each in milliseconds.
import sys
import time

from jupyter_client.manager import KernelManager

manager = KernelManager(transport="ipc")
manager.start_kernel(extra_arguments=sys.argv[1:])
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=60)


def run(code):
    shown = []
    begin = time.perf_counter()
    reply = client.execute_interactive(code, output_hook=shown.append, allow_stdin=False)
    took = time.perf_counter() - begin
    assert reply["content"]["status"] == "ok" and shown
    return took * 1000


run("n = 0; n")
for line in sys.stdin:
    print(*(run("n += 1; n") for _ in range(int(line))), flush=True)
client.stop_channels()
manager.shutdown_kernel(now=True)
