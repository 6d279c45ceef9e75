"""Computer use: the model sees screenshots, and acts with mouse and keyboard. No packages needed."""
import pathlib
import struct
import sys
import urllib.request
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from sandbox import HEADERS, HUB, call_hub, new_name  # noqa: E402

PAGE = """<title>Form</title><style>body { margin: 0 } input, button { position: absolute; left: 100px; border: 0 }
input { top: 80px; width: 300px; height: 60px; background: #00f; color: #fff }
button { top: 180px; width: 200px; height: 80px; background: #f00 }</style>
<input onchange="document.title='Hello '+value"><button onclick="document.title+=', pressed'"></button>"""
BLUE, RED = (0, 0, 255), (255, 0, 0)


def pixels(png):
    """Decode a PNG of 8 bits per channel into its rows of (red, green, blue)."""
    width, height, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert depth == 8 and kind in (2, 6), (depth, kind)
    size, data, at = 3 if kind == 2 else 4, b"", 8
    while at < len(png):
        length, name = struct.unpack(">I4s", png[at : at + 8])
        data += png[at + 8 : at + 8 + length] if name == b"IDAT" else b""
        at += 12 + length
    raw, before, rows = zlib.decompress(data), bytearray(width * size), []
    for y in range(height):
        start = y * (width * size + 1)
        how, line = raw[start], bytearray(raw[start + 1 : start + 1 + width * size])
        for i in range(len(line)) if how else ():
            left, up, corner = (line[i - size] if i >= size else 0), before[i], (before[i - size] if i >= size else 0)
            nearest = min((abs(up - corner), 0, left), (abs(left - corner), 1, up), (abs(left + up - 2 * corner), 2, corner))[2]
            line[i] = (line[i] + (0, left, up, (left + up) // 2, nearest)[how]) & 255
        rows.append([tuple(line[i : i + 3]) for i in range(0, len(line), size)])
        before = line
    return rows


def center(rows, color):
    """Return the center of the pixels with a color."""
    found = [(x, y) for y, row in enumerate(rows) for x, pixel in enumerate(row) if pixel == color]
    return [sum(axis) / len(found) for axis in zip(*found)] if found else None


def ask_model(picture, done):
    """Stand in for a model: it sees the screen, and wants to fill the blue field and press the red button."""
    if done == ["CLICK"]:
        return {"action_type": "TYPING", "text": "Ann"}
    if len(done) == 3:
        return None
    at = center(pixels(picture), BLUE if not done else RED)
    if not at:  # the page is not visible yet
        return {"action_type": "WAIT", "duration": 0.5}
    return {"action_type": "CLICK", "x": at[0], "y": at[1]}


with new_name(env={"DISPLAY_WIDTH": "640", "DISPLAY_HEIGHT": "480"}) as name:  # small screenshots
    api = f"/sandbox/{name}/v1"
    path = call_hub("POST", f"{api}/file/write", {"file": "form.html", "content": PAGE})["file"]
    call_hub("POST", f"{api}/browser/page/navigate", {"url": f"file://{path}"})
    done = []
    while True:
        with urllib.request.urlopen(urllib.request.Request(f"{HUB}{api}/browser/screenshot", headers=HEADERS)) as reply:
            picture = reply.read()
        action = ask_model(picture, done)
        if not action:
            break
        call_hub("POST", f"{api}/browser/actions", action)
        print(action)
        if action["action_type"] != "WAIT":
            done.append(action["action_type"])
    call_hub("POST", f"{api}/browser/page/wait", {"type": "function", "expression": "document.title.includes('pressed')", "timeout": 60})
    print("the title is:", call_hub("POST", f"{api}/browser/page/evaluate", {"expression": "document.title"}))
