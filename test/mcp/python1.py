"""Python's MCP client 1.x: list, call, stream, cancel; openai-agents, langchain; the schemas as three makers of models convert them."""
import asyncio, json, re, sys
import anyio
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from mcp.types import CancelledNotification, CancelledNotificationParams, ClientNotification


async def story(url, call, mark):
    gate = "/tmp/mcp-python1-" + mark
    wait = "until [ -e %s ]; do sleep 0.05; done"
    async with streamablehttp_client(url) as (r, w, _), ClientSession(r, w) as s:
        await s.initialize()
        names = [t.name for t in (await s.list_tools()).tools]
        assert ("bash_exec" in names) or ("sandboxExecutor" in names), names
        got = await s.call_tool(*call("bash_exec", {"command": "echo hello; seq 200000"}))
        assert got.content[0].text.startswith("hello") and not got.isError, got
        progress = []

        async def heard(done, total, message):
            if not progress:  # it ends the call
                progress.append(asyncio.create_task(s.call_tool(*call("bash_exec", {"command": "touch " + gate}))))

        await s.call_tool(*call("bash_exec", {"command": wait % gate, "timeout": 120}), progress_callback=heard)
        assert progress, "no progress was reported"
        await progress[0]
        wrong = await s.call_tool(*call("bash_exec", {"comand": "x"}))
        assert wrong.isError and 'did you mean "command"' in wrong.content[0].text, wrong
        # A client that gives up tells the server, which ends the command.
        scope, sent = anyio.CancelScope(), []

        async def endless():
            with scope:
                sent.append(s._request_id)
                await s.call_tool(*call("bash_exec", {"command": f"touch {gate}.runs; sleep {mark}"}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(endless)
            await s.call_tool(*call("bash_exec", {"command": wait % (gate + ".runs"), "timeout": 120}))
            scope.cancel()
        # This version does not tell the server by itself.
        canceled = CancelledNotificationParams(requestId=sent[0])
        await s.send_notification(ClientNotification(CancelledNotification(method="notifications/cancelled", params=canceled)))
        await s.call_tool(*call("bash_exec", {"command": f"rm -f {gate} {gate}.runs"}))
        print("sdk ok", len(names))


def check_gemini(name, schema):
    assert schema.type is not None, (name, schema)
    for key, p in (schema.properties or {}).items():
        check_gemini(f"{name}.{key}", p)
    if schema.items:
        check_gemini(name + "[]", schema.items)


async def frameworks(url, call):
    from agents.mcp import MCPServerStreamableHttp, MCPUtil
    from agents.strict_schema import ensure_strict_json_schema
    from anthropic.lib.tools.mcp import async_mcp_tool
    from google.genai._mcp_utils import mcp_to_gemini_tool
    async with MCPServerStreamableHttp(params={"url": url + "?tools=all,older"}, client_session_timeout_seconds=60) as server:
        tools = await server.list_tools()
        for t in tools:
            strict = ensure_strict_json_schema(json.loads(json.dumps(t.inputSchema)))
            assert set(strict.get("required", [])) == set(strict.get("properties", {})), (t.name, strict)
            # Without arguments only "additionalProperties": false is strict there, and that breaks google-genai.
            converted = MCPUtil.to_function_tool(t, server, convert_schemas_to_strict=True)
            assert converted.strict_json_schema == bool(strict.get("properties")), t.name
            param = async_mcp_tool(t, server.session).to_dict()
            assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", param["name"]) and param["description"], param
            assert param["input_schema"]["type"] == "object" and not {"anyOf", "oneOf", "allOf"} & set(param["input_schema"]), param
            assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key) for key in param["input_schema"].get("properties", {})), param
            declared = mcp_to_gemini_tool(t).function_declarations[0]
            assert set(declared.parameters.properties or {}) == set(t.inputSchema.get("properties", {})), declared
            check_gemini(t.name, declared.parameters)
        got = await server.call_tool(*call("bash_exec", {"command": "echo agents"}))
        assert "agents" in got.content[0].text, got
        print("openai-agents, anthropic and google-genai ok", len(tools))

    from langchain_mcp_adapters.client import MultiServerMCPClient
    client = MultiServerMCPClient({"cove": {"transport": "streamable_http", "url": url}})
    tools = {t.name: t for t in await client.get_tools()}
    name, args = call("bash_exec", {"command": "echo langchain"})
    got = await tools[name].ainvoke(args)
    assert "langchain" in str(got), got
    print("langchain ok")


async def main():
    for target in json.loads(sys.argv[1]):
        def call(tool, args):
            """A call of a sandbox's tool, direct or through the hub."""
            if not target["sandbox"]:
                return tool, args
            return "sandboxExecutor", {"sandbox_name": target["sandbox"], "tool_name": tool, "arguments": args}

        print(target)
        await story(target["url"], call, target["mark"])
        await frameworks(target["url"], call)


asyncio.run(main())
