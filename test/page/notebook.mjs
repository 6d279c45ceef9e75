// The notebook: it shares kernels with the API, saves files, and shows output of kernels as text. Standalone, below a prefix
// and through a hub.
import { audit, check, until, withPage } from "./browser.mjs";

const { URL: direct, PREFIX_URL: prefixed, KEY_URL: guarded, KEY: key, DIR: dir } = process.env;
const poster = (root, headers = {}) => async (path, body) => {
  const reply = await (await fetch(root + path, { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(body) })).json();
  check(reply.success === true, `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
};
const post = poster(direct);
const agentRuns = async (code, run = post) => (await run("/v1/jupyter/execute", { code, session_id: "agent", timeout: 120 })).outputs.map((o) => o.text ?? o.data?.["text/plain"] ?? o.evalue).join("");
const cells = (page) => page.getByRole("region", { name: /cell/ });
// fill replaces the code of a cell by a paste, as people do.
const fill = async (page, n, code) => {
  const editor = cells(page).nth(n).getByLabel("Code");
  await editor.focus();
  await page.keyboard.press("Control+a");
  await editor.evaluate((at, text) => {
    const data = new DataTransfer();
    data.setData("text/plain", text);
    at.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, composed: true, cancelable: true }));
  }, code);
};
const write = async (page, n, code) => { await fill(page, n, code); await page.keyboard.press("Shift+Enter"); };
const chosen = (page, session) => until(`the session ${session} is chosen`, async () => (await page.getByLabel("Kernel session").inputValue()) === session, () => page.getByLabel("Kernel session").inputValue());
const shows = (page, n, text) => cells(page).nth(n).getByRole("log").filter({ hasText: text }).waitFor();

await agentRuns("answer = 42");
await withPage(async (page) => {
  await page.goto(`${direct}/notebook?path=${encodeURIComponent(`${dir}/work.ipynb`)}`);
  // The kernel of the agent is selected, with its variables, and the agent sees variables that the user sets.
  await chosen(page, "agent");
  await write(page, 0, "print(answer + 1)\nmine = 'set by a person'");
  const focused = () => page.evaluate(() => [...document.querySelectorAll(".cell")].indexOf(document.activeElement.closest(".cell")));
  await until("the next cell has the focus", async () => (await focused()) === 1, focused);
  await shows(page, 0, "43");
  check((await agentRuns("mine")).includes("set by a person"), "the agent does not see the person's variable");
  await page.getByText("Ran in this kernel").click();
  await page.locator(".runs li pre").filter({ hasText: "answer = 42" }).waitFor();
  await audit(page, "the notebook");

  // Shift+Enter leads to the next cell, Ctrl+Enter stays, Alt+Enter adds one.
  await cells(page).nth(1).getByLabel("Code").focus();
  await page.keyboard.type("1/0");
  await page.keyboard.press("Control+Enter");
  await shows(page, 1, "ZeroDivisionError");
  check((await focused()) === 1 && (await cells(page).count()) === 2, "Ctrl+Enter moved the focus");
  // A traceback has its lines, and its colours without control sequences.
  const trace = await cells(page).nth(1).getByRole("log").innerText();
  check(/Traceback \(most recent call last\)\n/.test(trace) && /\n.*1 1\/0\n/.test(trace) && !/\x1b|\[0;31m/.test(trace), `the traceback is ${JSON.stringify(trace)}`);
  await page.keyboard.press("Alt+Enter");
  await until("a cell is added and has the focus", async () => (await cells(page).count()) === 3 && (await focused()) === 2, focused);
  await write(page, 2, "from IPython.display import HTML, display\nprint('<img src=x onerror=alert(1)>')\ndisplay(HTML('<script>document.title=\"broken\"</script>'))");
  await shows(page, 2, "onerror");
  check((await page.title()) !== "broken" && (await page.locator("main img").count()) === 0, "output became markup");
  // A table, such as a DataFrame, is shown as a table of texts, regardless of the HTML around it.
  const hostile = `<style scoped>.x { color: red }</style><script>document.title = "broken"</script><table border="1" class="dataframe" onclick="alert(1)"><thead><tr style="text-align: right;"><th></th><th>name</th><th colspan="2">&lt;b&gt; &amp; &#960;</th></tr></thead><tbody><tr><th>0</th><td><img src=x onerror="document.title='broken'">Anna</td><td>1.5</td><td><a href="javascript:alert(1)">link</a></td></tr></tbody></table><p>1 rows × 3 columns</p>`;
  await write(page, 2, `class Frame:\n    def _repr_html_(self): return ${JSON.stringify(hostile)}\n    def __repr__(self): return "as text"\nFrame()`);
  await cells(page).nth(2).getByRole("table").waitFor();
  const rows = await cells(page).nth(2).locator("tr").evaluateAll((all) => all.map((r) => [...r.children].map((c) => c.textContent)));
  check(JSON.stringify(rows) === JSON.stringify([["", "name", "<b> & π"], ["0", "Anna", "1.5", "link"]]), `the table is ${JSON.stringify(rows)}`);
  check((await page.locator(".outputs a, .outputs img, .outputs style, .outputs script, .outputs [onclick]").count()) === 0 && (await page.title()) !== "broken", "the HTML of a table became markup");
  await cells(page).nth(2).getByRole("log").getByText("1 rows × 3 columns").waitFor();
  await audit(page, "a table in the notebook");
  await write(page, 3, "import time\nprint('started', flush=True)\nwhile True: time.sleep(0.01)");
  await shows(page, 3, "started");
  await page.getByRole("button", { name: "Interrupt" }).click();
  await until("the cell has ended", async () => (await cells(page).nth(3).getAttribute("aria-busy")) === "false");
  check((await agentRuns("answer")).includes("42"), "the interrupt cost the variables");

  // The file is a valid notebook and is restored with its outputs.
  await cells(page).nth(0).getByLabel("Code").focus();
  await page.keyboard.press("Control+s");
  await page.getByText("Saved").waitFor();
  const saved = JSON.parse(await (await fetch(`${direct}/v1/file/download?path=${encodeURIComponent(`${dir}/work.ipynb`)}`)).text());
  check(saved.nbformat === 4 && saved.cells[0].source.join("").startsWith("print(answer") && saved.cells[0].outputs[0].text.includes("43"), `the file: ${JSON.stringify(saved).slice(0, 500)}`);
  await page.reload();
  await shows(page, 0, "43");
  // Edits during a save do not count as saved.
  let begun, release;
  const writing = new Promise((resolve) => { begun = resolve; });
  const held = new Promise((resolve) => { release = resolve; });
  await page.route("**/v1/file/write", async (route) => {
    begun();
    await held;
    await route.continue();
  }, { times: 1 });
  await fill(page, 0, "answer + 1");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await writing;
  await fill(page, 0, "answer + 2");
  release();
  await page.getByText("Saved").waitFor();
  check(await page.getByRole("button", { name: "Save", exact: true }).isEnabled(), "edits during a save count as saved");
  // Another client changed the file. The page asks before it discards any content.
  await post("/v1/file/write", { file: `${dir}/work.ipynb`, content: JSON.stringify({ ...saved, cells: [] }) });
  await fill(page, 0, "answer");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await page.getByRole("dialog", { name: "Replace the file?" }).getByRole("button", { name: "Cancel" }).click();
  await page.setViewportSize({ width: 390, height: 780 });
  check(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page is wider than the telephone");
});

await withPage(async (page) => {
  await page.goto(`${prefixed}/notebook?session=agent&path=${encodeURIComponent(`${dir}/other.ipynb`)}`);
  await chosen(page, "agent");
  await write(page, 0, "print(answer * 2)");
  await shows(page, 0, "84");
});
console.log("ok below a prefix");

await withPage(async (page) => {
  const run = poster(`${guarded}/sandbox/a`, { "X-API-Key": key });
  await agentRuns("inside = 'the hub'", run);
  await page.goto(`${guarded}/sandbox/a/notebook?session=agent`);
  await page.getByLabel("API key or token").fill(key);
  await page.keyboard.press("Enter");
  await chosen(page, "agent");
  await write(page, 0, "print('through', inside)\nback = 7 * 6");
  await shows(page, 0, "through the hub");
  check((await agentRuns("back", run)).includes("42"), "the agent does not see the person's variable through the hub");
}, { ignore: /status of 401/ });
console.log("ok through the hub");
