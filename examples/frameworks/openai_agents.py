"""OpenAI Agents with the tools of a sandbox, over MCP: pip install openai-agents."""
import asyncio
import pathlib
import sys

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from sandbox import HEADERS, HUB, new_name  # noqa: E402


class Scripted(Model):
    """Stands in for a model: it runs one command and reports its result."""

    async def get_response(self, system_instructions, input, model_settings, tools, *_, **__):
        items = input if isinstance(input, list) else []
        results = [item for item in items if isinstance(item, dict) and item.get("type") == "function_call_output"]
        if not results:
            assert "bash_exec" in [tool.name for tool in tools], tools
            output = ResponseFunctionToolCall(type="function_call", call_id="1", name="bash_exec",
                                              arguments='{"command": "echo $((6 * 7))"}')
        else:
            text = "42" if "42" in str(results[-1]["output"]) else str(results[-1]["output"])
            answer = ResponseOutputText(type="output_text", text=text, annotations=[])
            output = ResponseOutputMessage(id="2", type="message", role="assistant", status="completed", content=[answer])
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError


async def main(name):
    address = {"url": f"{HUB}/sandbox/{name}/mcp", "headers": HEADERS}
    async with MCPServerStreamableHttp(address, client_session_timeout_seconds=60) as server:
        agent = Agent(name="Assistant", instructions="Use the sandbox.", model=Scripted(), mcp_servers=[server])
        result = await Runner.run(agent, "What is six times seven?")
        print("OpenAI Agents got", result.final_output)


set_tracing_disabled(True)
with new_name() as name:
    asyncio.run(main(name))
