"""A program that uses the unmodified public desktop SDK."""
import io
import os
import sys
import time

from e2b_desktop import Sandbox
from PIL import Image


def eq(what, got, want):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


def until(what, check, limit=120):
    end = time.time() + limit
    while not check():
        assert time.time() < end, f"timed out: {what}"
        time.sleep(0.1)


# A page whose title contains the text that it receives.
PAGE = """<title>page</title><body style="margin:0;background:#f00">
<textarea autofocus style="position:fixed;inset:20% 0 30% 40%"></textarea>
<script>
const input = document.querySelector("textarea")
const show = () => document.title = "page " + input.value
input.oninput = show
onkeydown = (e) => { if (e.key === "Enter") { e.preventDefault(); input.value += "!"; show() } }
</script>"""


def look(desktop):
    eq("size", desktop.get_screen_size(), (1000, 700))
    eq("pointer in the center", desktop.get_cursor_position(), (500, 350))
    image = Image.open(io.BytesIO(bytes(desktop.screenshot())))
    eq("screenshot", (image.format, image.size), ("PNG", (1000, 700)))
    eq("stream", b"".join(desktop.screenshot("stream"))[:8], b"\x89PNG\r\n\x1a\n")


def mouse(desktop):
    desktop.move_mouse(321, 123)
    eq("pointer", desktop.get_cursor_position(), (321, 123))
    desktop.drag((100, 100), (200, 150))
    eq("dragged", desktop.get_cursor_position(), (200, 150))
    desktop.left_click(50, 60)
    desktop.double_click()
    shot = lambda: Image.open(io.BytesIO(bytes(desktop.screenshot()))).convert("RGB")
    before = shot()
    desktop.right_click()
    until("the menu opens", lambda: shot() != before)
    desktop.press("escape")
    until("the menu closes", lambda: shot() == before)
    desktop.middle_click()
    desktop.scroll("up", 2)
    desktop.scroll("down", 3)
    desktop.mouse_press()
    desktop.mouse_release()
    eq("clicked", desktop.get_cursor_position(), (50, 60))


def titles(desktop):
    try:
        return [desktop.get_window_title(w) for w in desktop.get_application_windows("chromium")]
    except Exception:
        return []  # the window does not exist yet


def keyboard(desktop):
    desktop.files.write("page.html", PAGE)
    desktop.launch("google-chrome", "file:///home/user/page.html")
    until("the application shows its page", lambda: any(t.startswith("page") for t in titles(desktop)))
    width, height = desktop.get_screen_size()

    def red():
        return Image.open(io.BytesIO(bytes(desktop.screenshot()))).convert("RGB").getpixel((width // 4, height // 2)) == (255, 0, 0)

    until("the page is painted", red)
    desktop.left_click(width // 2, height // 2)
    desktop.press(["ctrl", "a"])
    desktop.write("Hello; $5 & more, longer than a chunk", delay_in_ms=1)
    desktop.press("enter")
    until("the text has arrived", lambda: any(t.startswith("page Hello; $5 & more, longer than a chunk!") for t in titles(desktop)))
    window = desktop.get_current_window_id()
    assert desktop.get_window_title(window).startswith("page "), desktop.get_window_title(window)


def stream(desktop):
    assert not desktop.stream._check_vnc_running()
    desktop.stream.start(require_auth=True)
    key = desktop.stream.get_auth_key()
    url = desktop.stream.get_url(auth_key=key)
    assert url.startswith("https://6080-") and url.endswith("/vnc.html?autoconnect=true&resize=scale&password=" + key), url
    assert desktop.stream._check_vnc_running()
    try:
        desktop.stream.start()
    except RuntimeError:
        pass
    else:
        raise AssertionError("a second stream was started")
    eq("page", desktop.commands.run("curl -s --noproxy '*' localhost:6080/vnc.html | grep -c ./core/rfb.js").stdout, "1\n")
    eq("code", desktop.commands.run("curl -s --noproxy '*' localhost:6080/core/rfb.js | grep -c 'as default'").stdout, "1\n")
    desktop.stream.stop()  # which only signals the server
    until("the server has ended", lambda: not desktop.stream._check_vnc_running())
    until("the page server has ended", lambda: desktop.commands.run("netstat -tln | grep -c ':6080 ' || true").stdout == "0\n")


def opening(desktop):
    desktop.files.write("other.html", "<title>opened by name</title>")
    desktop.open("/home/user/other.html")
    until("the file is open", lambda: any(t.startswith("opened by name") for t in titles(desktop)))


stories = {f.__name__: f for f in (look, mouse, stream, keyboard, opening)}

if __name__ == "__main__":
    desktop = Sandbox.create(resolution=(1000, 700), timeout=3600)
    try:
        for name in sys.argv[1:] or stories:
            stories[name](desktop)
            print("passed", name, flush=True)
    finally:
        desktop.kill()
    os._exit(0)  # threads of the client's HTTP library can abort Python while it ends
