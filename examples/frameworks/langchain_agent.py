"""LangChain with the tools of a sandbox, over MCP: pip install langchain-mcp-adapters."""
import asyncio
import pathlib
import sys

from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_mcp_adapters.client import MultiServerMCPClient

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from sandbox import HEADERS, HUB, new_name  # noqa: E402

CALL = {"name": "bash_exec", "args": {"command": "echo $((6 * 7))"}, "id": "1"}


class Model(FakeMessagesListChatModel):
    """Stands in for a model: it runs one command and reports its result."""

    def bind_tools(self, tools, **_):
        assert CALL["name"] in [tool.name for tool in tools], tools
        return self


async def main(name):
    client = MultiServerMCPClient({"sandbox": {"transport": "streamable_http", "url": f"{HUB}/sandbox/{name}/mcp", "headers": HEADERS}})
    tools = {tool.name: tool for tool in await client.get_tools()}
    model = Model(responses=[AIMessage("", tool_calls=[CALL]), AIMessage("the sandbox has answered")]).bind_tools(list(tools.values()))
    messages = [HumanMessage("What is six times seven?")]
    while True:
        messages.append(await model.ainvoke(messages))
        if not messages[-1].tool_calls:
            break
        for call in messages[-1].tool_calls:
            result = await tools[call["name"]].ainvoke(call)
            messages.append(result if isinstance(result, ToolMessage) else ToolMessage(str(result), tool_call_id=call["id"]))
    print("LangChain got", messages[-2].text.split()[0])


with new_name() as name:
    asyncio.run(main(name))
