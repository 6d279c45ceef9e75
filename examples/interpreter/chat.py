"""A code interpreter for a chat: the model's code runs in a session that keeps its variables."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from sandbox import new_sandbox  # noqa: E402


def ask_model(question):
    """Stand in for a model: return the code that answers a question."""
    return {
        "Take the numbers from 1 to 100.": "numbers = list(range(1, 101))\nlen(numbers)",
        "What is their mean?": "mean = sum(numbers) / len(numbers)\nprint('mean', mean)",
        "How far is the largest from it?": "max(numbers) - mean",
        "And divided by nothing?": "mean / 0",
    }[question]


with new_sandbox() as api:
    for question in ["Take the numbers from 1 to 100.", "What is their mean?", "How far is the largest from it?",
                     "And divided by nothing?"]:
        print("user:", question)
        reply = api.jupyter.execute_code(code=ask_model(question), session_id="chat").data
        for output in reply.outputs:
            if output.output_type == "stream":
                print("  ", output.text.strip())
            elif output.output_type == "error":
                print("  ", output.ename, output.evalue)  # so that the model can retry
            else:
                print("  ", output.data["text/plain"])
