"""Pydantic AI with the tools of a sandbox, over MCP: pip install 'pydantic-ai-slim[mcp]'."""
import asyncio
import pathlib
import sys

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from sandbox import HEADERS, HUB, new_name  # noqa: E402


def ask_model(messages, info):
    """Stand in for a model: run one command and report its result."""
    for part in messages[-1].parts:
        if isinstance(part, ToolReturnPart):
            return ModelResponse(parts=[TextPart(str(part.content).split()[0])])
    assert "bash_exec" in [tool.name for tool in info.function_tools], info.function_tools
    return ModelResponse(parts=[ToolCallPart("bash_exec", {"command": "echo $((6 * 7))"})])


async def main(name):
    tools = MCPToolset(f"{HUB}/sandbox/{name}/mcp", headers=HEADERS)
    result = await Agent(FunctionModel(ask_model), toolsets=[tools]).run("What is six times seven?")
    print("Pydantic AI got", result.output)


with new_name() as name:
    asyncio.run(main(name))
