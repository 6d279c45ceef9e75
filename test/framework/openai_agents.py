"""An agent of the OpenAI Agents SDK in a sandbox with the default manifest."""
import asyncio

from agents import Runner
from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.run import RunConfig
from agents.sandbox import SandboxAgent, SandboxRunConfig


async def main():
    agent = SandboxAgent(name="Worker", instructions="Work in the sandbox.", model="scripted")
    sandbox = SandboxRunConfig(client=E2BSandboxClient(), options=E2BSandboxClientOptions(sandbox_type="e2b"))
    result = await Runner.run(agent, "Write a file.", run_config=RunConfig(sandbox=sandbox, tracing_disabled=True))
    print(result.final_output)


asyncio.run(main())
