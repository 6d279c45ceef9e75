"""A program that uses the unmodified public code interpreter."""
import asyncio
import json
import os
import time

from e2b_code_interpreter import AsyncSandbox, Sandbox


def eq(what, got, want):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


def python(sb):
    e = sb.run_code("x = 41\nx + 1")
    eq("text", (e.text, e.execution_count, e.error), ("42", 1, None))
    eq("state", sb.run_code("x").text, "41")
    eq("string", sb.run_code("'plain'").text, "plain")
    out, err = [], []
    e = sb.run_code("import sys\nprint('a')\nprint('b', file=sys.stderr)", on_stdout=lambda m: out.append(m.line), on_stderr=lambda m: err.append(m.line))
    eq("streams", ("".join(out), "".join(err), "".join(e.logs.stdout)), ("a\n", "b\n", "a\n"))
    e = sb.run_code("1/0")
    eq("error", (e.error.name, e.error.value), ("ZeroDivisionError", "division by zero"))
    assert "ZeroDivisionError" in e.error.traceback and "\x1b" not in e.error.traceback, e.error.traceback
    eq("json", sb.run_code("{'a': [1, 2]}").results[0].json, {"a": [1, 2]})
    e = sb.run_code("import pandas as pd\npd.DataFrame({'n': [1, 2], 's': ['x', 'y']})")
    eq("data", e.results[0].data, {"n": [1, 2], "s": ["x", "y"]})
    assert "<table" in e.results[0].html, e.results[0].html
    e = sb.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4])\nplt.title('T')\nplt.show()")
    assert e.error is None, e.error
    r = next(r for r in e.results if r.png)
    eq("chart", (r.chart.type.value, r.chart.title), ("line", "T"))
    eq("variables of a call", sb.run_code("import os\nos.environ.get('V')", envs={"V": "1"}).text, "1")
    eq("only of it", sb.run_code("print(os.environ.get('V'))").logs.stdout, ["None\n"])
    eq("folder", sb.run_code("import os; os.getcwd() + os.environ['HOME']").text, "/home/user/home/user")
    e = sb.run_code("from PIL import Image\nim = Image.new('RGB', (2, 2))\nim.show()\nim.save('x.png')")
    eq("images", [bool(r.png) for r in e.results], [True, True])


def contexts(sb):
    if hasattr(sb, "list_code_contexts"):
        eq("default contexts", {"python", "javascript"} <= {x.language for x in sb.list_code_contexts()}, True)
    c = sb.create_code_context(cwd="/tmp", language="python")
    eq("own folder", sb.run_code("import os; os.getcwd()", context=c).text, "/tmp")
    sb.run_code("y = 1", context=c)
    e = sb.run_code("y")
    eq("own variables", e.error.name, "NameError")
    if hasattr(sb, "list_code_contexts"):
        assert c.id in [x.id for x in sb.list_code_contexts()], "the context is not listed"
        sb.restart_code_context(c)
        eq("restarted", sb.run_code("y", context=c).error.name, "NameError")
        sb.remove_code_context(c)
        try:
            sb.run_code("1", context=c)
        except Exception as e:
            assert "not found" in str(e).lower(), e
        else:
            raise AssertionError("a removed context runs code")


def languages(sb):
    e = sb.run_code("console.log('js'); const a = [1, 2]; a.length", language="javascript")
    eq("javascript", ("".join(e.logs.stdout), e.text), ("js\n", "2"))
    eq("state", sb.run_code("a[0]", language="js").text, "1")
    eq("error", sb.run_code("throw new TypeError('no')", language="javascript").error.name, "TypeError")
    eq("bash", "".join(sb.run_code("echo $((6 * 7)); cd /tmp", language="bash").logs.stdout), "42\n")
    eq("bash keeps its folder", "".join(sb.run_code("pwd", language="bash").logs.stdout), "/tmp\n")


def kernels(sb):
    """R and Java need a kernel. Installed kernels are used; a Python kernel with the name R is the stand-in for R."""
    for language in "r", "java":
        e = sb.run_code("1 + 1", language=language)
        if e.error is not None:
            assert f"no kernel for {language}; " in e.error.value and "install" in e.error.value, e.error.value
    spec = {"argv": ["/usr/bin/python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "R", "language": "R"}
    sb.files.write(".local/share/jupyter/kernels/ir/kernel.json", json.dumps(spec))
    end = time.time() + 60
    while (e := sb.run_code("n = 6; n * 7", language="r")).text != "42":  # the list of kernels may be up to a second old
        assert time.time() < end, f"timed out: R runs, {e}"
    eq("state", sb.run_code("n", language="R").text, "6")
    e = sb.run_code("n", language="python")
    eq("its own variables", e.error and e.error.name, "NameError")


async def concurrently():
    sb = await AsyncSandbox.create(timeout=3600)
    try:
        first = asyncio.Event()
        code = "import os, time\nprint(1, flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nprint(2)"
        running = asyncio.create_task(sb.run_code(code, on_stdout=lambda m: first.set()))
        await asyncio.wait_for(first.wait(), 120)  # a line arrives while the code runs
        await sb.files.write("/tmp/go", "")
        e = await running
        eq("async", (e.error, "".join(e.logs.stdout)), (None, "1\n2\n"))
        eq("commands", (await sb.commands.run("echo hi")).stdout, "hi\n")
    finally:
        await sb.kill()


if __name__ == "__main__":
    sandbox = Sandbox.create(timeout=3600)
    try:
        for story in (python, contexts, languages, kernels):
            story(sandbox)
            print("passed", story.__name__, flush=True)
    finally:
        sandbox.kill()
    asyncio.run(concurrently())
    print("passed concurrently", flush=True)
    os._exit(0)  # threads of the client's HTTP library can abort Python while it ends
