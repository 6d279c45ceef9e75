// VS Code: starts on the first visit while our page shows progress, edits files that the API reads, and restarts after a kill.
// Standalone, below a prefix and through a hub; denied to read-only callers and other origins.
import { audit, check, patience, until, withPage } from "./browser.mjs";

const { URL: direct, PREFIX_URL: prefixed, KEY_URL: guarded, KEY: key, DIR: dir, DISABLED_URL: disabled, BARE_URL: bare } = process.env;
const caller = (root, headers = {}) => async (method, path, body) => {
  const reply = await (await fetch(root + path, { method, headers: { "Content-Type": "application/json", ...headers }, body: body && JSON.stringify(body) })).json();
  check(reply.success === true || reply.code, `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
};
const api = caller(direct);
const read = async (file, call = api) => (await call("POST", "/v1/file/read", { file })).content;
const state = async () => (await api("GET", "/v1/sandbox/components"))[0].state;
// VS Code logs many errors about features of Microsoft's build. Our own pages are audited.
const ignore = /./;

// edit opens an existing file, inserts a line at its start and saves it.
async function edit(page, file, text, frame = page) {
  await frame.locator(".monaco-workbench .explorer-viewlet").waitFor();
  await frame.getByRole("treeitem", { name: file }).dblclick();
  const editor = frame.locator(".monaco-editor[data-uri$='" + file + "']");
  await editor.locator(".view-line").first().click();
  await page.keyboard.press("Control+Home");
  await page.keyboard.type(text);
  await page.keyboard.press("Control+s");
}
const holds = (file, text, call) => until(`${file} holds ${text}`, async () => (await read(file, call)).includes(text), () => read(file, call));

check((await state()) === "idle", "VS Code runs before the first visit");
await api("POST", "/v1/file/write", { file: `${dir}/notes.txt`, content: "by the agent\n" });
await withPage(async (page, context) => {
  // A cold visit shows our page immediately, then the editor.
  const first = await page.goto(`${direct}/code-server`, { waitUntil: "commit" });
  check((await first.text()).includes('name="component" content="code-server"'), "the first page is not ours");
  await edit(page, "notes.txt", "by a person ");
  await holds(`${dir}/notes.txt`, "by a person by the agent");
  check(new URL(page.url()).searchParams.get("folder") === dir, `the workspace is not open: ${page.url()}`);
  const [dark, light] = [await theme(page, "dark"), await theme(page, "light")];
  check(/vs-dark/.test(dark) && !/vs-dark/.test(light), `the theme does not follow: ${dark}, ${light}`);

  // Its terminal runs as the user of the sandbox, in the workspace.
  await page.keyboard.press("Control+`");
  await page.locator(".terminal-wrapper.active .xterm-helper-textarea").focus();
  await page.keyboard.type(`echo "$(id -u) $PWD" > who.txt\n`);
  await until("the terminal has written", async () => (await api("POST", "/v1/bash/exec", { command: `cat ${dir}/who.txt 2>/dev/null || true` })).stdout.trim() === `${(await api("POST", "/v1/bash/exec", { command: "id -u" })).stdout.trim()} ${dir}`);

  // Killed: the next visit shows a notice until it is dismissed, then continues with the saved files. No page is connected
  // during this step, because an open page would restart it, too.
  await page.close();
  await api("POST", "/v1/bash/exec", { command: `pkill -9 -f 'code-server/out/node/[e]ntry.js --config.* ${dir}$'` }); // only the one of this test
  await until("the death is noticed", async () => (await state()) !== "ready", state);
  const later = await (await context.browser().newContext()).newPage(); // without stored state
  later.setDefaultTimeout(patience);
  // Below a prefix it would have the origin of the API.
  await later.goto(`${prefixed}/?panes=code`);
  await later.frameLocator(".pane[data-pane=code] iframe").getByText("VS Code needs its own host name").waitFor();
  // In a pane of the page of the sandbox, the browser may block storage, as this one does.
  await later.goto(`${direct}/?panes=code`);
  const [tab] = await Promise.all([later.waitForEvent("popup"), later.frameLocator(".pane[data-pane=code] iframe").getByRole("link", { name: "Open VS Code in a tab" }).click()]);
  tab.setDefaultTimeout(patience);
  await tab.getByRole("alert").filter({ hasText: "VS Code ended unexpectedly" }).waitFor();
  await tab.getByRole("button", { name: "Open VS Code" }).click();
  await edit(tab, "notes.txt", "again ");
  await holds(`${dir}/notes.txt`, "again by a person by the agent");
}, { ignore, colorScheme: "light" });
console.log("ok alone, in a pane and below a prefix");

async function theme(page, colorScheme) {
  await page.emulateMedia({ colorScheme });
  const name = () => page.locator(".monaco-workbench").first().getAttribute("class");
  await until(`the theme is ${colorScheme}`, async () => /vs-dark/.test(await name()) === (colorScheme === "dark"), name);
  return name();
}

// visit opens VS Code through the hub with a ticket.
async function visit(page, at) {
  const { ticket } = await (await fetch(`${guarded}/tickets`, { method: "POST", headers: { "X-API-Key": key } })).json();
  await page.goto(`${at}/v1/docs?ticket=${ticket}`);
  await page.goto(`${at}/sandbox/a/code-server/`);
}

// Through a hub: it works by host name, at an IP address the page explains what to do, and read-only callers are denied.
const hub = caller(`${guarded}/sandbox/a`, { "X-API-Key": key });
await hub("POST", "/v1/file/write", { file: "notes.txt", content: "inside\n" });
await withPage(async (page, context) => {
  await visit(page, guarded.replace("127.0.0.1", "localhost"));
  await edit(page, "notes.txt", "through the hub ");
  check(new URL(page.url()).hostname === "a.localhost", `got ${page.url()}, want a host of the sandbox`);
  await holds("notes.txt", "through the hub inside", hub);
  const other = await context.newPage();
  await visit(other, guarded);
  await other.getByRole("link", { name: /localhost/ }).waitFor();
  // A page of another origin can neither read nor use it.
  const at = new URL(page.url());
  const stranger = await context.newPage();
  await stranger.goto(bare);
  const got = await stranger.evaluate(async (url) => {
    const tried = await fetch(url, { credentials: "include" }).then(() => "read", () => "refused");
    const socket = await new Promise((done) => { const s = new WebSocket(url.replace("http", "ws")); s.onopen = () => done("opened"); s.onerror = () => done("refused"); });
    return `${tried} ${socket}`;
  }, `${at.origin}/code-server/`);
  check(got === "refused refused", `another origin: ${got}`);
}, { ignore });
const share = await (await fetch(`${guarded}/api/v1/sandbox/a/share`, { method: "POST", headers: { "X-API-Key": key, "Content-Type": "application/json" }, body: JSON.stringify({ minutes: 5, read_only: true }) })).json();
for (const path of ["/code-server/", "/code-server/static/x", "/v1/sandbox/components/code-server/install"]) {
  const reply = await fetch(`${guarded}/sandbox/${share.data.sandbox}${path}`, { method: path.startsWith("/v1") ? "POST" : "GET", headers: { Authorization: `Bearer ${share.data.token}`, Accept: "text/html" } });
  const text = await reply.text();
  check(text.includes("read-only"), `a read-only link gets ${path}: ${reply.status} ${text}`);
}
console.log("ok through the hub");

// Disabled: neither the page nor the pane exists. Not installed: the page offers to install it.
check((await fetch(`${disabled}/code-server/`, { headers: { Accept: "text/html" } })).status === 404, "the disabled page exists");
await withPage(async (page) => {
  await page.goto(`${disabled}/?panes=code,jupyter,terminal`);
  await page.frameLocator(".pane[data-pane=terminal] iframe").locator(".xterm-rows").waitFor();
  await until("the pane is gone", async () => (await page.getByRole("navigation").getByRole("button", { name: /Code|Jupyter/ }).count()) === 0 && (await page.locator(".pane").count()) === 1);
  await page.goto(`${bare}/code-server/`);
  await page.getByRole("button", { name: "Install VS Code" }).waitFor();
  await page.getByText("aio component install code-server").waitFor();
  await audit(page, "the page of what is not installed");
});
console.log("ok disabled, not installed");
