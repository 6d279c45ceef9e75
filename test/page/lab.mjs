// JupyterLab: its kernels are sessions of the API and the reverse; kernels survive its restart. Standalone, below a prefix and
// through a hub; denied to read-only callers.
import { check, until, withPage } from "./browser.mjs";

const { URL: direct, PREFIX_URL: prefixed, KEY_URL: guarded, KEY: key, DIR: dir, DISABLED_URL: disabled, BARE_URL: bare } = process.env;
const caller = (root, headers = {}) => async (method, path, body) => {
  const reply = await (await fetch(root + path, { method, headers: { "Content-Type": "application/json", ...headers }, body: body && JSON.stringify(body) })).json();
  check(reply.success === true, `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
};
const api = caller(direct);
const runs = async (session_id, code, call = api) => (await call("POST", "/v1/jupyter/execute", { code, session_id, timeout: 120 })).outputs.map((o) => o.text ?? o.data?.["text/plain"] ?? o.evalue).join("");
const lab = async (method, path) => {
  const reply = await fetch(`${direct}/jupyter/api/${path}`, { method });
  check(reply.ok, `${method} ${path}: ${reply.status}`);
  return reply.status === 204 ? null : reply.json();
};
const cell = (source) => ({ cell_type: "code", id: source.length.toString(36).padStart(8, "x"), metadata: {}, execution_count: null, outputs: [], source });
const notebook = (...cells) => JSON.stringify({ nbformat: 4, nbformat_minor: 5, metadata: { kernelspec: { name: "python3", display_name: "Python 3", language: "python" } }, cells: cells.map(cell) });
const ignore = /./; // messages of the lab in the console

// ready waits until the kernel of the notebook is ready.
const ready = (page) => page.getByText(/Python .* \| Idle/).first().waitFor();
const output = (page, n) => page.locator(".jp-Notebook .jp-CodeCell").nth(n).locator(".jp-OutputArea-output");
async function run(page, n, text) {
  await page.locator(".jp-Notebook .jp-CodeCell").nth(n).locator(".cm-content").click();
  await page.keyboard.press("Shift+Enter");
  await output(page, n).filter({ hasText: text }).first().waitFor();
}

await runs("agent", "answer = 42");
await api("POST", "/v1/file/write", { file: `${dir}/work.ipynb`, content: notebook("mine = 'set by a person'; print('mine' + ' is set')", "print('agent says', said)", "print('answer', answer + 1)") });
await withPage(async (page, context) => {
  const first = await page.goto(`${direct}/jupyter/lab/tree/work.ipynb`, { waitUntil: "commit" });
  check((await first.text()).includes('name="component" content="jupyterlab"'), "the first page is not ours");
  // A kernel that the lab starts is a session, named after its notebook.
  await ready(page);
  await run(page, 0, "mine is set");
  check((await runs("work", "mine")).includes("set by a person"), "the agent does not see the person's variable");
  await runs("work", "said = 'hello'");
  await run(page, 1, "agent says hello");
  // A session of the agent can be selected, with its variables.
  await page.locator(".jp-Toolbar-kernelName").first().click();
  const choice = page.locator(".jp-Dialog select");
  await until("the agent's session is offered", async () => /agent/.test(await choice.innerText()), () => choice.innerText());
  await choice.selectOption({ label: await choice.locator("option", { hasText: "agent" }).first().innerText() });
  const changed = page.waitForResponse((reply) => reply.request().method() === "PATCH" && /api\/sessions\//.test(reply.url())); // until then the old kernel is the idle one
  await page.locator(".jp-Dialog .jp-mod-accept").click();
  await changed;
  await ready(page);
  await run(page, 2, "answer 43");

  // Killed: the next visit shows a notice; kernels, variables and saved files are kept.
  await page.keyboard.press("Control+s");
  await until("the notebook is saved", async () => (await api("POST", "/v1/file/read", { file: `${dir}/work.ipynb` })).content.includes("answer 43"));
  await page.close();
  const kernels = JSON.stringify((await lab("GET", "kernels")).map((k) => k.id).sort());
  await api("POST", "/v1/bash/exec", { command: `pkill -9 -f '[j]upyterlab --config=.*--ServerApp.root_dir=${dir} '` }); // only the one of this test
  const later = await context.newPage();
  await until("the death is noticed", async () => (await api("GET", "/v1/sandbox/components")).find((c) => c.name === "jupyterlab").state !== "ready");
  await later.goto(`${prefixed}/jupyter/lab/tree/work.ipynb`); // there it would have the origin of the API
  await later.getByText("JupyterLab needs its own host name").waitFor();
  await later.goto(`${direct}/jupyter/lab/tree/work.ipynb`);
  await later.getByRole("alert").filter({ hasText: "JupyterLab ended unexpectedly" }).waitFor();
  await later.getByRole("button", { name: "Open JupyterLab" }).click();
  await ready(later);
  await output(later, 2).filter({ hasText: "answer 43" }).first().waitFor();
  await run(later, 2, "answer 43");
  check(JSON.stringify((await lab("GET", "kernels")).map((k) => k.id).sort()) === kernels, "the kernels have other IDs");
}, { ignore });
console.log("ok alone and below a prefix");

// Changes to a kernel are visible on both sides.
const idOf = async (name) => (await lab("GET", "sessions")).find((s) => s.name === name).kernel.id;
await runs("third", "import atexit, time; x = 1; atexit.register(time.sleep, 600)"); // is killed, because it does not exit
const id = await idOf("third");
await lab("POST", `kernels/${id}/restart`);
check((await runs("third", "'x' in globals()")).includes("False"), "the restart kept the variables");
check((await idOf("third")) === id, "the restart has changed the ID");
await lab("DELETE", `kernels/${id}`);
check(!("third" in (await api("GET", "/v1/jupyter/sessions")).sessions), "the API still has a session that the lab has shut down");
await api("DELETE", "/v1/jupyter/sessions/agent");
await until("the lab drops the kernel", async () => !(await lab("GET", "sessions")).some((s) => s.name === "agent"));
// Sessions that are deleted while the lab loads them do not reappear.
const brief = Array.from({ length: 4 }, (_, i) => `brief ${i}`);
for (let round = 0; round < 3; round++) {
  await Promise.all(brief.map((session_id) => api("POST", "/v1/jupyter/sessions/create", { session_id })));
  await Promise.all([lab("GET", "kernels"), lab("GET", "sessions"), ...brief.map((name) => api("DELETE", `/v1/jupyter/sessions/${encodeURIComponent(name)}`))]);
  const back = Object.keys((await api("GET", "/v1/jupyter/sessions")).sessions).filter((name) => brief.includes(name));
  check(back.length === 0, `deleted sessions are there again: ${back}`);
  check(!(await lab("GET", "sessions")).some((s) => brief.includes(s.name)), "the lab has sessions that were deleted");
}
console.log("ok both ways");

const hub = caller(`${guarded}/sandbox/a`, { "X-API-Key": key });
await hub("POST", "/v1/file/write", { file: "inside.ipynb", content: notebook("print('inside ' + 'the hub'); back = 6 * 7") });
await withPage(async (page) => {
  const at = guarded.replace("127.0.0.1", "localhost");
  const { ticket } = await (await fetch(`${guarded}/tickets`, { method: "POST", headers: { "X-API-Key": key } })).json();
  await page.goto(`${at}/v1/docs?ticket=${ticket}`);
  await page.goto(`${at}/sandbox/a/jupyter/lab/tree/inside.ipynb`);
  await ready(page);
  await run(page, 0, "inside the hub");
  check((await runs("inside", "back", hub)).includes("42"), "the agent does not see the person's variable through the hub");
}, { ignore });
const share = await (await fetch(`${guarded}/api/v1/sandbox/a/share`, { method: "POST", headers: { "X-API-Key": key, "Content-Type": "application/json" }, body: JSON.stringify({ minutes: 5, read_only: true }) })).json();
for (const path of ["/jupyter/", "/jupyter/lab", "/jupyter/api/kernels", "/jupyter/api/contents"]) {
  const text = await (await fetch(`${guarded}/sandbox/${share.data.sandbox}${path}`, { headers: { Authorization: `Bearer ${share.data.token}`, Accept: "text/html" } })).text();
  check(text.includes("read-only"), `a read-only link gets ${path}: ${text.slice(0, 200)}`);
}
for (const headers of [{ Origin: "http://evil.example" }, { "Sec-Fetch-Site": "cross-site" }]) {
  const reply = await fetch(`${direct}/jupyter/api/kernels`, { headers });
  check(reply.status === 403 && !reply.headers.get("access-control-allow-origin"), `${JSON.stringify(headers)}: ${reply.status}`);
}
console.log("ok through the hub");

for (const path of ["/jupyter/", "/jupyter/lab", "/notebook"]) check((await fetch(disabled + path, { headers: { Accept: "text/html" } })).status === 404, `the disabled ${path} is there`);
await withPage(async (page) => {
  await page.goto(`${bare}/jupyter`);
  await page.getByRole("button", { name: "Install JupyterLab" }).waitFor();
  await page.getByRole("link", { name: "Open the small notebook" }).click();
  await page.getByLabel("Kernel session").waitFor();
  await page.goto(`${bare}/?panes=jupyter`);
  await page.frameLocator(".pane[data-pane=jupyter] iframe").getByLabel("Kernel session").waitFor();
});
console.log("ok disabled, not installed");
