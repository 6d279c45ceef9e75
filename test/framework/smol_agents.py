"""A code agent of smolagents, whose code runs in a sandbox."""
import os

from smolagents import CodeAgent, OpenAIServerModel

model = OpenAIServerModel(model_id="scripted", api_base=os.environ["OPENAI_BASE_URL"], api_key="none")
with CodeAgent(tools=[], model=model, executor_type="e2b") as agent:
    print(agent.run("What is the answer?"))
