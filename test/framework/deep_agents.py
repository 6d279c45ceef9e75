"""A deep agent with a sandbox as its backend."""
from deepagents import create_deep_agent
from e2b import Sandbox
from langchain_e2b import E2BSandbox
from langchain_openai import ChatOpenAI

sandbox = Sandbox.create()
try:
    agent = create_deep_agent(model=ChatOpenAI(model="scripted"), backend=E2BSandbox(sandbox=sandbox))
    state = agent.invoke({"messages": [{"role": "user", "content": "Write a file."}]})
    print(state["messages"][-1].content)
finally:
    sandbox.kill()
