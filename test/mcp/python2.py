"""Python's MCP client 2.x, fastmcp and pydantic-ai: list, call, stream, cancel."""
import asyncio, json, sys
import anyio
from mcp import Client


async def story(url, mode, call, mark):
    gate = f"/tmp/mcp-python2-{mode}-{mark}"
    wait = "until [ -e %s ]; do sleep 0.05; done"
    async with Client(url, mode=mode) as c:
        names = [t.name for t in (await c.list_tools()).tools]
        got = await c.call_tool(*call("bash_exec", {"command": "echo hello; seq 200000"}))
        assert got.content[0].text.startswith("hello"), got
        progress = []

        async def heard(done, total, message):
            if not progress:  # it ends the call
                progress.append(asyncio.create_task(c.call_tool(*call("bash_exec", {"command": "touch " + gate}))))

        await c.call_tool(*call("bash_exec", {"command": wait % gate, "timeout": 120}), progress_callback=heard)
        assert progress, mode + ": no progress was reported"
        await progress[0]
        scope = anyio.CancelScope()

        async def endless():
            with scope:
                await c.call_tool(*call("bash_exec", {"command": f"touch {gate}.runs; sleep {mark}"}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(endless)
            await c.call_tool(*call("bash_exec", {"command": wait % (gate + ".runs"), "timeout": 120}))
            scope.cancel()
        await c.call_tool(*call("bash_exec", {"command": f"rm -f {gate} {gate}.runs"}))
        print("sdk", mode, "ok", len(names))


async def frameworks(url, call):
    from fastmcp import Client as Fast
    async with Fast(url) as c:
        got = await c.call_tool(*call("bash_exec", {"command": "echo fast"}))
        assert "fast" in got.content[0].text, got
        print("fastmcp ok")

    from pydantic_ai.mcp import MCPToolset
    server = MCPToolset(url)
    async with server:
        name, args = call("bash_exec", {"command": "echo pydantic"})
        got = await server.direct_call_tool(name, args)
        assert "pydantic" in str(got), got
        print("pydantic-ai ok")


async def main():
    for target in json.loads(sys.argv[1]):
        def call(tool, args):
            """A call of a sandbox's tool, direct or through the hub."""
            if not target["sandbox"]:
                return tool, args
            return "sandboxExecutor", {"sandbox_name": target["sandbox"], "tool_name": tool, "arguments": args}

        print(target)
        for mode in ("auto", "legacy"):
            await story(target["url"], mode, call, target["mark"])
        await frameworks(target["url"], call)


asyncio.run(main())
