"""An agent of browser-use in the browser of a sandbox: browser_use_agent.py CDP-URL"""
import asyncio
import sys

from browser_use import Agent, Browser, ChatOpenAI


async def main():
    browser = Browser(cdp_url=sys.argv[1])
    agent = Agent(task="Greet the shop.", llm=ChatOpenAI(model="scripted"), browser=browser, use_vision=False)
    history = await agent.run(max_steps=6)
    print(history.final_result(), history.errors())


asyncio.run(main())
