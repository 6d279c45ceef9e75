"""A coding agent's loop over MCP: write, test, read the error, fix. No packages needed."""
import json
import os
import urllib.request

HUB = os.environ.get("COVE_URL", "http://127.0.0.1:10000")
KEY = os.environ.get("COVE_API_KEY", "")


def call_tool(tool, server="/mcp", **arguments):
    """Call an MCP tool and return the text of its result."""
    request = urllib.request.Request(
        HUB + server,
        data=json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}).encode(),
        headers={"Content-Type": "application/json", "Accept": "application/json, text/event-stream"} | ({"X-API-Key": KEY} if KEY else {}),
    )
    with urllib.request.urlopen(request) as reply:
        result = json.load(reply)["result"]
    text = "".join(part.get("text", "") for part in result["content"])
    if result.get("isError"):
        raise RuntimeError(f"{tool}: {text}")
    return text


TEST = """
from median import median
assert median([3, 1, 2]) == 2, "odd number of values"
assert median([4, 1, 3, 2]) == 2.5, "even number of values"
print("passed")
"""
FIRST = "def median(values):\n    return sorted(values)[len(values) // 2]\n"


def ask_model(history):
    """Stand in for a model: given what happened so far, return the next tool call, or None at the end."""
    if not history:
        return "file_write", {"path": "test_median.py", "content": TEST}
    tool, result = history[-1]
    if len(history) == 1:
        return "file_write", {"path": "median.py", "content": FIRST}
    if tool != "bash_exec":
        return "bash_exec", {"command": "python3 test_median.py 2>&1; true"}
    if "passed" in result:
        return None
    assert "even number of values" in result, result
    return "file_replace", {
        "path": "median.py",
        "old_str": "    return sorted(values)[len(values) // 2]",
        "new_str": "    values, n = sorted(values), len(values)\n    return (values[(n - 1) // 2] + values[n // 2]) / 2",
    }


headers = {"Content-Type": "application/json"} | ({"X-API-Key": KEY} if KEY else {})
with urllib.request.urlopen(urllib.request.Request(HUB + "/api/v1/sandbox?full=true", data=b"{}", headers=headers)) as reply:
    name = json.load(reply)["data"]["name"]
try:
    history = []
    while step := ask_model(history):
        tool, arguments = step
        result = call_tool(tool, f"/sandbox/{name}/mcp", **arguments)
        print(f"{tool}: {result.strip()[:200]}")
        history.append((tool, result))
    attempts = sum(tool == "bash_exec" for tool, _ in history)
    print(f"the tests pass after {attempts} attempts")
finally:
    call_tool("deleteSandbox", name=name)
