"""Browser use: the model reads a snapshot of the page and acts on the references in it. No packages needed."""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from sandbox import call_hub, new_name  # noqa: E402

PAGE = """<title>Shop</title><h1>Shop</h1>
<form onsubmit="event.preventDefault(); document.querySelector('output').textContent = `Ordered ${count.value} for ${name.value}`">
<label>Name <input id=name></label> <label>Count <select id=count><option>1<option>2<option>3</select></label>
<button>Order</button></form><output role=status></output>"""
TASK = {"name": "Ann", "count": "3"}


def reference(snapshot, role, name=""):
    """Return the reference of an element in a snapshot, such as @e2."""
    return re.search(rf'{role} "{name}[^"]*".*?(@e\d+)', snapshot)[1]


def ask_model(snapshot, done):
    """Stand in for a model: given the page and what was done, return the next action, or None at the end."""
    if "Ordered" in snapshot:
        return None
    steps = [
        lambda: ("fill", {"selector": reference(snapshot, "textbox", "Name"), "text": TASK["name"]}),
        lambda: ("select_option", {"selector": reference(snapshot, "combobox", "Count"), "label": TASK["count"]}),
        lambda: ("click", {"selector": reference(snapshot, "button", "Order")}),
    ]
    return steps[len(done)]()


with new_name() as name:
    api = f"/sandbox/{name}/v1"
    path = call_hub("POST", f"{api}/file/write", {"file": "shop.html", "content": PAGE})["file"]
    call_hub("POST", f"{api}/browser/page/navigate", {"url": f"file://{path}"})
    done = []
    while True:
        snapshot = call_hub("GET", f"{api}/browser/page/snapshot")["snapshot"]
        step = ask_model(snapshot, done)
        if not step:
            break
        action, arguments = step
        call_hub("POST", f"{api}/browser/page/{action}", arguments)
        print(f"{action} {arguments}")
        done.append(action)
    print("the page says:", re.search(r"Ordered \d for \w+", snapshot)[0])
