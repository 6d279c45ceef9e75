"""Drives every method of the public Python client, sync or async, against one sandbox.

usage: story.py URL KEY sync|async PORT

The client checks the types of replies itself; this story checks what they say.
"""
import asyncio
import inspect
import io
import sys
import threading
import time
import zipfile

from agent_sandbox import AsyncSandbox, Sandbox
from agent_sandbox.browser.types.action import Action_Click, Action_Scroll
from agent_sandbox.core.api_error import ApiError
from agent_sandbox.types.resolution import Resolution
from agent_sandbox.types.restart_request import RestartRequest
from agent_sandbox.types.route_response_model import RouteResponseModel

URL, KEY, KIND, PORT = sys.argv[1:5]
HEADERS = {"X-AIO-API-Key": KEY} if KEY else None
HERE = f"http://127.0.0.1:{PORT}"
called = set()


class Async:
    """A separate event loop, in which the methods of the async client run."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, value):
        async def finish():
            if inspect.isasyncgen(value):
                return [chunk async for chunk in value]
            return await value

        return asyncio.run_coroutine_threadsafe(finish(), self.loop).result(300)


class Group:
    def __init__(self, name, group, runner):
        self.name, self.group, self.runner = name, group, runner

    def __getattr__(self, method):
        function = getattr(self.group, method)

        def call(*args, **kwargs):
            called.add(f"{self.name}.{method}")
            out = function(*args, **kwargs)
            if self.runner and (inspect.isawaitable(out) or inspect.isasyncgen(out)):
                out = self.runner.run(out)
            if inspect.isgenerator(out):
                out = list(out)
            if getattr(out, "success", True) is not True:
                raise AssertionError(f"{self.name}.{method}: {out}")
            return out

        return call


class Client:
    def __init__(self):
        self.runner = Async() if KIND == "async" else None
        maker = AsyncSandbox if self.runner else Sandbox
        self.client = maker(base_url=URL, headers=HEADERS, timeout=120)

    def __getattr__(self, name):
        return Group(name, getattr(self.client, name), self.runner)

    def methods(self):
        for name, value in inspect.getmembers(type(self.client), lambda v: isinstance(v, property)):
            group = getattr(self.client, name)
            for method, _ in inspect.getmembers(type(group), inspect.isfunction):
                if not method.startswith("_") and method != "with_raw_response":
                    yield f"{name}.{method}"


def want(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, want {wanted!r}")


def holds(what, got, part):
    if part not in got:
        raise AssertionError(f"{what}: got {got!r}, want {part!r} in it")


def sandbox(api):
    context = api.sandbox.get_context()
    assert context.home_dir.startswith("/"), context
    holds("version", context.version, ".")
    api.sandbox.get_python_packages()
    api.sandbox.get_nodejs_packages()
    api.sandbox.register_hook(name="bye", command="true", timeout=5.0, priority=1)
    want("hooks", [h.name for h in api.sandbox.list_hooks(event="shutdown").data], ["bye"])
    api.sandbox.remove_hook("bye")
    try:
        api.auth.create_ticket()
        api.auth.authenticate()
    except ApiError as error:  # a hub has its own tickets
        assert error.status_code in (401, 403, 404), error
    return context.home_dir


def shell(api, home):
    out = api.shell.exec_command(command="cd /tmp && echo hi").data
    want("exec", (out.output, out.exit_code, out.status), ("hi", 0, "completed"))
    want("same session", api.shell.exec_command(id=out.session_id, command="pwd").data.output, "/tmp")
    api.shell.create_session(id="s", exec_dir=home, no_change_timeout=60)
    api.shell.update_session(id="s", no_change_timeout=50)
    want("async", api.shell.exec_command(id="s", command="read x; echo got $x", async_mode=True).data.status, "running")
    api.shell.write_to_process(id="s", input="it", press_enter=True)
    want("wait", api.shell.wait_for_process(id="s", seconds=60).data.status, "completed")
    holds("view", api.shell.view(id="s").data.output, "got it")
    api.shell.exec_command(id="s", command="sleep 1000", async_mode=True)
    api.shell.kill_process(id="s")
    want("sessions", "s" in api.shell.list_sessions().data.sessions, True)
    assert api.shell.get_session_stats().data.active_sessions >= 2
    holds("terminal", api.shell.get_terminal_url().data, "/terminal")
    api.shell.cleanup_session("s")
    try:
        api.shell.view(id="s")
        raise AssertionError("view of a session that is gone: got a reply, want 404")
    except ApiError as error:
        want("a session that is gone", error.status_code, 404)
    api.shell.cleanup_all_sessions()


def bash(api, home):
    out = api.bash.exec(command="echo $A; echo bad >&2; exit 3", env={"A": "1"}).data
    want("bash", (out.stdout, out.stderr, out.exit_code), ("1\n", "bad\n", 3))
    api.bash.create_session(session_id="b", exec_dir=home)
    run = api.bash.exec(session_id="b", command="cat", async_mode=True).data
    api.bash.write(session_id="b", input="typed\n", command_id=run.command_id)
    want("output", api.bash.output(session_id="b", command_id=run.command_id, wait=True, wait_timeout=60).data.stdout, "typed\n")
    api.bash.kill(session_id="b", signal="SIGKILL")
    assert "b" in [s.session_id for s in api.bash.sessions().data]
    api.bash.close_session("b")


def files(api, home):
    path = f"{home}/sdk/a.txt"
    want("written", api.file.write_file(file=path, content="one\ntwo\n").data.bytes_written, 8)
    want("read", api.file.read_file(file=path, start_line=1, end_line=2).data.content, "two")
    want("replaced", api.file.replace_in_file(file=path, old_str="two", new_str="2").data.replaced_count, 1)
    want("search", api.file.search_in_file(file=path, regex="^o").data.matches, ["one"])
    want("find", api.file.find_files(path=f"{home}/sdk", glob="*.txt").data.files, [path])
    want("grep", api.file.grep_files(path=f"{home}/sdk", pattern="one").data.matches[0].line_number, 1)
    want("glob", api.file.glob_files(path=f"{home}/sdk", pattern="**/*.txt", include_metadata=True).data.files[0].path, path)
    want("list", [f.name for f in api.file.list_path(path=f"{home}/sdk", include_size=True).data.files], ["a.txt"])
    api.file.str_replace_editor(command="str_replace", path=path, old_str="one", new_str="1")
    up = api.file.upload_file(file=("up.bin", b"\x00\x01"), path=f"{home}/sdk/up.bin").data
    want("upload", up.file_size, 2)
    want("download", b"".join(api.file.download_file(path=f"{home}/sdk/up.bin")), b"\x00\x01")
    want("read of no file", fail(api, "read_file", file="/none"), "Failed to read file: [Errno 2] No such file or directory: '/none'")
    for method, arguments in {
        "replace_in_file": {"file": "/none", "old_str": "a", "new_str": "b"}, "search_in_file": {"file": "/none", "regex": "a"},
        "find_files": {"path": "/none", "glob": "*"}, "grep_files": {"path": "/none", "pattern": "a"},
        "glob_files": {"path": "/none", "pattern": "*"},
        "list_path": {"path": "/none"}, "write_file": {"file": "/proc/none", "content": "x"},
        "upload_file": {"file": ("x", b"x"), "path": "/proc/none"},
        "str_replace_editor": {"command": "view", "path": "/none"},
    }.items():
        assert fail(api, method, **arguments)


def fail(api, method, **arguments):
    """The message of a file operation that fails: the client must understand the reply."""
    out = getattr(api.client.file, method)(**arguments)
    out = api.runner.run(out) if api.runner else out
    want(f"{method} that fails", out.success, False)
    return out.message


def watch(api, home):
    made = api.file.watch_create(path=f"{home}/sdk", recursive=True)
    watcher = made["data"]["watcher_id"]
    want("watchers", [w["watcher_id"] for w in api.file.watch_list()["watchers"]], [watcher])
    ended = []

    def follow():
        try:
            api.file.watch_events(watcher)
        except ApiError as error:  # it is a stream, which the client takes for JSON
            ended.append(error.status_code)

    follower = threading.Thread(target=follow)
    follower.start()
    api.file.write_file(file=f"{home}/sdk/seen.txt", content="x")
    deadline, seen = time.time() + 60, []
    while not seen and time.time() < deadline:
        seen = api.file.watch_poll(watcher, since=0, timeout=10)["events"]
    event = seen[0]
    want("event", (event["relative_path"], event["is_dir"], type(event["timestamp"])), ("seen.txt", False, float))
    want("wait", api.file.watch_wait(path=f"{home}/sdk/seen.txt", event_types=["create"], timeout=30)["event"]["is_dir"], False)
    api.file.watch_stop(watcher)
    follower.join(60)
    want("stream", ended, [200])


def code(api, home):
    out = api.jupyter.execute_code(code="x = 6 * 7\nx", session_id="j").data
    want("jupyter", (out.status, out.outputs[-1].data["text/plain"]), ("ok", "42"))
    assert api.jupyter.get_info().data.available_kernels
    api.jupyter.create_session(session_id="k", cwd=home)
    want("kernels", sorted(api.jupyter.list_sessions().data.sessions), ["j", "k"])
    api.jupyter.delete_session("k")
    want("nodejs", api.nodejs.execute_code(code="console.log(6 * 7)", files={"a.txt": "x"}, stdin="").data.stdout, "42\n")
    want("exit", api.nodejs.execute_code(code="process.exit(0)").data.status, "ok")
    assert api.nodejs.get_info().data.node_version
    api.nodejs.create_session(session_id="n", cwd=home, max_idle_time=60)
    want("idle", api.nodejs.get_session("n").data.session.max_idle_time, 60000)
    api.nodejs.update_session("n", max_idle_time=90)
    want("sessions", list(api.nodejs.list_sessions().data.sessions), ["n"])
    api.nodejs.delete_session("n")
    out = api.code.execute_code(language="python", code="print(1)\n2", session_id="j").data
    want("code", (out.status, out.stdout), ("ok", "1\n"))
    want("code that fails", api.code.execute_code(language="javascript", code="throw new Error('x')").data.status, "error")
    want("languages", sorted(lang.language for lang in api.code.get_info().data.languages), ["javascript", "python"])
    api.jupyter.delete_sessions()


def skills(api, home):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr("greet/SKILL.md", "---\nname: greet\ndescription: Greets.\n---\nSay hello.\n")
    api.skills.register_skills(file=("greet.zip", memory.getvalue()), path=f"{home}/skills")
    want("skills", [s.name for s in api.skills.list_metadata(names="greet").data.skills], ["greet"])
    want("skill", api.skills.get_content("greet").data.content.strip(), "Say hello.")
    want("skill that was deleted", api.skills.delete_skill("greet").data.name, "greet")
    api.skills.clear_skills()


def outbound(api, _home):
    want("mapping", api.proxy.add_mapping(source="mapped.test", target="3000").data.source_host, "mapped.test")
    want("mappings", [m.source for m in api.proxy.list_mappings().data], ["mapped.test"])
    want("route", api.proxy.diagnose(url="http://mapped.test/").data.route, "mapping")
    api.proxy.remove_mapping("mapped.test")
    api.proxy.add_exclude(pattern="*.direct.test")
    holds("excludes", api.proxy.list_excludes().data, "*.direct.test")
    api.proxy.remove_exclude(pattern="*.direct.test")
    api.proxy.set_upstream(server="http://user:secret@127.0.0.1:9")
    upstream = api.proxy.get_upstream().data
    assert "secret" not in str(upstream), upstream
    api.proxy.remove_upstream()
    want("upstream", api.proxy.get_upstream().data, None)


def tools(api, _home):
    servers = api.mcp.list_mcp_servers().data
    holds("servers", servers, "file")
    assert api.mcp.list_mcp_tools("file").data.tools
    holds("tool", str(api.mcp.execute_mcp_tool("shell", "sandbox_execute_bash", request={"cmd": "echo $((6*7))"}).data.content), "42")
    holds("markdown", str(api.util.convert_to_markdown(uri="data:text/html,<h1>Hi</h1>").data), "Hi")


PAGE = """<!doctype html><title>Shop</title><h1>Shop</h1><p>Welcome text</p>
<input id=name><input type=checkbox id=agree><input type=file id=file>
<select id=color><option value=r>Red<option value=g>Green</select>
<button id=go onclick="document.title='Went'">Go</button><a href=/next.html>Next</a>
<div style="height:3000px"></div><p id=end>End</p><script>console.log('ready')</script>"""


def browser(api, home):
    api.file.write_file(file=f"{home}/site/index.html", content=PAGE)
    api.file.write_file(file=f"{home}/site/next.html", content="<title>Next</title>next page")
    api.shell.exec_command(id="site", command=f"python3 -m http.server {PORT} --bind 127.0.0.1 --directory {home}/site", async_mode=True)
    for _ in range(600):
        if api.bash.exec(command=f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {PORT}))\"").data.exit_code == 0:
            break
        time.sleep(0.1)
    info = api.browser.get_info().data
    assert info.cdp_url.startswith("ws"), info
    page = api.browser_page
    want("navigate", page.navigate(url=f"{HERE}/", wait_until="load").data["title"], "Shop")
    page.fill(selector="#name", text="Ann")
    page.click(selector="#name")
    page.press_key(key="End")
    page.type_text(text="e", delay=0)
    want("typed", page.evaluate(expression="document.querySelector('#name').value").data, "Anne")
    page.hot_key(keys=["Control", "a"])
    page.hover(selector="#go")
    page.select_option(selector="#color", value="g")
    page.check(selector="#agree")
    page.uncheck(selector="#agree")
    page.upload_file(selector="#file", files=[f"{home}/site/index.html"])
    page.fill_form(items=[{"selector": "#name", "value": "Bob"}])
    page.click(selector="#go")
    page.wait(type="function", expression="document.title === 'Went'", timeout=60)
    page.scroll(direction="down", amount=300)
    page.scroll_to(x=0, y=0)
    page.scroll_to_element(selector="#end")
    holds("html", page.get_html(outer=True).data, "<h1>Shop</h1>")
    holds("text", page.get_text().data, "Welcome text")
    holds("markdown", page.get_markdown().data["markdown"], "Shop")
    want("elements", page.get_elements().data[0]["index"], 0)
    holds("console", [entry["text"] for entry in page.get_console().data], "ready")
    page.export_console(save_path=f"{home}/console.json")
    assert page.find_text(keyword="welcome").data
    holds("picture", b"".join(page.screenshot(format="png"))[:8], b"PNG")
    want("record", page.record(action="status").data["status"], "idle")
    page.navigate(url=f"{HERE}/next.html")
    page.back()
    page.forward()
    page.reload()

    api.browser_network.set_headers(headers={"X-Test": "1"})
    api.browser_network.set_scoped_headers(origin=HERE, headers={"X-Scoped": "1"})
    api.browser_network.add_route(url_pattern="**/fake", response=RouteResponseModel(status=200, body="faked", content_type="text/plain"))
    page.navigate(url=f"{HERE}/fake")
    holds("route", page.get_text().data, "faked")
    holds("requests", str(api.browser_network.get_requests(filter="fake", limit=10).data), "/fake")
    api.browser_network.remove_route(url_pattern="**/fake")
    api.browser_network.export_har(save_path=f"{home}/all.har")

    api.browser_cookies.set_cookies(cookies=[{"name": "a", "value": "1", "url": HERE}])
    want("cookies", [c["value"] for c in api.browser_cookies.get_cookies(urls=HERE).data], ["1"])
    api.browser_state.save(path=f"{home}/state.json")
    api.browser_cookies.clear_cookies()
    api.browser_state.load(path=f"{home}/state.json")
    want("cookies that were loaded", [c["name"] for c in api.browser_cookies.get_cookies(urls=HERE).data], ["a"])

    before = len(api.browser_tabs.list().data)
    api.browser_tabs.create(url=f"{HERE}/next.html")
    want("tabs", [t["is_active"] for t in api.browser_tabs.list().data][before], True)
    api.browser_tabs.activate(0)
    api.browser_tabs.close(before)
    want("tabs that are left", len(api.browser_tabs.list().data), before)

    api.browser_captcha.detect()
    want("captcha", api.browser_captcha.wait(timeout=5.0).data.resolved, True)
    holds("display", b"".join(api.browser.screenshot())[:8], b"PNG")
    want("action", api.browser.execute_action(request=Action_Click(x=10, y=10)).status, "success")
    want("scroll", api.browser.execute_action(request=Action_Scroll(dy=100)).action_performed, "SCROLL")
    api.browser.set_config(resolution=Resolution(width=1024, height=768))
    try:
        api.browser.get_proxy_pac()
    except ApiError as error:  # the script is no JSON, which the client expects
        want("proxy.pac", error.status_code, 200)
    want("recording", api.display.record(action="start", save_path=f"{home}/film.mp4", fps=5).data.status, "recording")
    want("recorded", api.display.record(action="stop").data.status, "stopped")
    api.browser.restart(request=RestartRequest(mode="soft"))


def main():
    api = Client()
    home = sandbox(api)
    for part in (shell, bash, files, watch, code, skills, outbound, tools, browser):
        began = time.time()
        part(api, home)
        print(f"{part.__name__}: {time.time() - began:.1f} s")
    missed = sorted(set(api.methods()) - called)
    want("methods that were not called", missed, [])
    print(f"{len(called)} methods")


main()
