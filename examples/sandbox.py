"""Shared code of the examples: creates a sandbox and deletes it at the end."""
import contextlib
import json
import os
import urllib.request

HUB = os.environ.get("COVE_URL", "http://127.0.0.1:10000")
HEADERS = {"X-API-Key": os.environ["COVE_API_KEY"]} if os.environ.get("COVE_API_KEY") else {}


def call_hub(method, path, body=None):
    """Call the hub and return the data of its reply."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(HUB + path, data=data, method=method, headers={"Content-Type": "application/json"} | HEADERS)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply).get("data")


@contextlib.contextmanager
def new_name(**options):
    """Create a sandbox and yield its name."""
    name = call_hub("POST", "/api/v1/sandbox?full=true", options)["name"]
    try:
        yield name
    finally:
        call_hub("DELETE", f"/api/v1/sandbox/{name}")


@contextlib.contextmanager
def new_sandbox(**options):
    """Create a sandbox and yield the public SDK's client of it."""
    from agent_sandbox import Sandbox

    with new_name(**options) as name:
        yield Sandbox(base_url=f"{HUB}/sandbox/{name}", headers=HEADERS, timeout=300)
