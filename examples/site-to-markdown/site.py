"""A web page as Markdown for a model, after its scripts have run. The page is served in the sandbox; public URLs also work."""
import pathlib
import sys

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from sandbox import new_sandbox  # noqa: E402

PAGE = """<html><head><title>Shop</title><style>body { color: red }</style></head><body><nav><a href="/">Home</a></nav>
<h1>Opening hours</h1><table><tr><th>Day</th><th>Hours</th></tr><tr><td>Monday</td><td>9 to 17</td></tr></table>
<p>See <a href="/contact">how to reach us</a>.</p><p id="note"></p>
<script>document.querySelector("#note").textContent = "Closed on holidays.";</script></body></html>"""

with new_sandbox() as api:
    url = sys.argv[1] if len(sys.argv) > 1 else ""
    if not url:
        api.file.write_file(file="site/index.html", content=PAGE)
        api.bash.exec(command="cd site && python3 -m http.server 8000", async_mode=True)
        api.bash.exec(command="curl -s -o /dev/null --retry 100 --retry-connrefused --retry-delay 1 http://127.0.0.1:8000/", timeout=200)
        url = "http://127.0.0.1:8000/"
    with sync_playwright() as playwright:
        browser = playwright.chromium.connect_over_cdp(api.browser.get_info().data.cdp_url)
        page = browser.contexts[0].new_page()
        page.goto(url)
        api.file.write_file(file="page.html", content=page.content())
        page.close()
    print(api.util.convert_to_markdown(uri="page.html").data)
