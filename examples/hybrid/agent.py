"""Hybrid: the loop runs outside, with the model; a helper inside works on all files at once and reports back."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from sandbox import new_sandbox  # noqa: E402

HELPER = """
import concurrent.futures, json, pathlib, sys

def look(path):
    lines = path.read_text().splitlines()
    return {"file": path.name, "lines": len(lines), "hits": [n for n, line in enumerate(lines, 1) if sys.argv[1] in line]}

with concurrent.futures.ThreadPoolExecutor() as pool:
    print(json.dumps(sorted(pool.map(look, pathlib.Path("logs").glob("*.log")), key=lambda report: report["file"])))
"""


def ask_model(history):
    """Stand in for a model: look for errors, then read around the only one, then conclude."""
    if not history:
        return "helper", "ERROR"
    if len(history) == 1:
        [report] = [r for r in history[0] if r["hits"]]
        return "command", f"sed -n {report['hits'][0] - 1}p logs/{report['file']}"
    return "answer", f"the error follows: {history[-1].strip()}"


with new_sandbox() as api:
    for i in range(20):
        lines = [f"step {n} of job {i}" for n in range(1, 101)]
        if i == 13:
            lines[41] = "ERROR disk full"
        api.file.write_file(file=f"logs/{i:02}.log", content="\n".join(lines))
    api.file.write_file(file="helper.py", content=HELPER)
    history = []
    while True:
        kind, text = ask_model(history)
        if kind == "answer":
            print(text)
            break
        result = api.bash.exec(command=f"python3 helper.py {text}" if kind == "helper" else text, timeout=200).data
        if result.exit_code != 0:
            sys.exit(result.stderr)
        print(f"{kind} {text}: {len(result.stdout)} bytes")
        history.append(json.loads(result.stdout) if kind == "helper" else result.stdout)
