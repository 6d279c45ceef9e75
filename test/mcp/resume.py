"""Python's MCP clients with sessions: a call whose connection is cut gets its result when the stream is resumed."""
import asyncio, json, sys
from datetime import timedelta

generation, url, params = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])


async def first():
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client
    async with streamablehttp_client(url) as (r, w, _), ClientSession(r, w) as s:
        await s.initialize()
        return await s.call_tool(params["name"], params["arguments"], read_timeout_seconds=timedelta(seconds=240))


async def second():
    from mcp import Client
    async with Client(url, mode="legacy") as c:
        return await c.call_tool(params["name"], params["arguments"])


print(asyncio.run(first() if generation == "1" else second()).content[0].text)
