// A link to watch a sandbox: the owner creates it in the dashboard, another person opens it on a phone and sees screen, terminal and
// activity live. The watcher cannot act, through no operation and no WebSocket, and the page ends with the link.
import { readFileSync } from "node:fs";
import { request } from "node:http";
import { audit, check, until, withPage } from "./browser.mjs";

const { KEY_URL: base, KEY: key } = process.env;
const headers = { "X-API-Key": key, "Content-Type": "application/json" };
const inside = async (path, body) => {
  const reply = await (await fetch(`${base}/sandbox/a/${path}`, { method: "POST", headers, body: JSON.stringify(body) })).json();
  check(reply.success === true, `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
};
const get = async (path) => (await (await fetch(`${base}/api/v1/${path}`, { headers })).json()).data;
const hostile = `<img src=x onerror="attacked=1">`;

await withPage(async (owner) => {
  await owner.goto(base);
  await owner.getByLabel("API key or token").fill(key);
  await owner.keyboard.press("Enter");
  await owner.getByRole("link", { name: "a", exact: true }).click();
  await owner.getByRole("button", { name: "Share" }).click();
  await owner.getByRole("radio", { name: /^Watch/ }).check();
  await audit(owner, "the dialog to share");
  await owner.getByRole("button", { name: "Create link" }).click();
  const link = await owner.getByLabel(/Copy the link now/).inputValue();
  await owner.getByRole("button", { name: "Copy link" }).click();
  check((await owner.evaluate(() => navigator.clipboard.readText())) === link, "Copy does not copy the link");
  check(link.startsWith(`${base}/share?token=`), `the link is ${link}`);

  await withPage(async (page) => {
    await page.goto(link);
    await page.getByText("Watching", { exact: true }).waitFor();
    await page.getByText(/^ends in (60|59) min$/).waitFor();
    await page.getByRole("heading", { level: 1, name: "a" }).waitFor();
    check((await page.title()) === "a – Cove", `the title is ${await page.title()}`);
    check((await page.getByRole("button").count()) === 1 && (await page.locator("input, textarea, select").count()) === 0, "the page has controls");

    // Live: the terminal, the activity, a failure, and the screen.
    await inside("v1/shell/exec", { command: `echo '${hostile}' seen-$((40+2))`, id: "s" });
    await page.getByLabel("Latest terminal").getByText("seen-42").waitFor();
    await inside("v1/bash/exec", { command: "cat /does/not/exist" });
    const failed = page.locator(".steps li").filter({ hasText: "cat /does/not/exist" });
    await failed.getByText("failed").waitFor();
    await audit(page, "the page of a watcher");
    check((await page.getByRole("img").count()) === 0, "there is a screen although no display runs");
    check((await fetch(`${base}/sandbox/a/v1/browser/screenshot`, { headers })).ok, "the display does not start");
    const screen = page.getByRole("img", { name: "Screen of a" });
    await screen.waitFor();
    await until("the picture loads", () => screen.evaluate((img) => img.complete && img.naturalWidth > 300));
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await audit(page, `the page of a watcher, ${colorScheme}`);
    }
    check(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page is wider than the phone");
    check(!(await page.evaluate(() => globalThis.attacked)), "content of the sandbox ran in the page");
    console.log("ok watching from a phone");

    await attack(new URL(link).searchParams.get("token"), page);

    // A paused sandbox is not woken, and the page goes on when its owner resumes it.
    await fetch(`${base}/api/v1/sandbox/a/pause`, { method: "POST", headers, body: "{}" });
    await page.reload().catch(() => {});
    check((await get("sandbox/a")).status === "paused", "the watcher woke the sandbox");
    await fetch(`${base}/api/v1/sandbox/a/resume`, { method: "POST", headers, body: "{}" });
    await page.goto(link);
    await page.getByText(/^ends in/).waitFor();

    // Revoked: the page says so.
    await owner.keyboard.press("Escape");
    await owner.getByRole("link", { name: "Links" }).click();
    await owner.getByText("Watch", { exact: true }).waitFor();
    await audit(owner, "links");
    await owner.getByRole("button", { name: /^Revoke the link Watch/ }).click();
    await owner.getByText("No active links.").waitFor();
    await page.getByRole("heading", { name: "This link has ended" }).waitFor();
  }, { viewport: { width: 390, height: 844 }, ignore: /status of 40[139]|CORS|Applying inline style/ }); // axe copies the style sheets of a page without origin
}, { ignore: /status of 401/ });

// attack tries every operation and WebSocket of the sandbox with the link.
async function attack(token, page) {
  const { paths } = JSON.parse(readFileSync("../../api/aio-openapi.json", "utf8"));
  const reads = new Set("auth_check auth_create_ticket bash_sessions display_control docs_llms docs_openapi file_download health_live health_ready observe_status preview_absproxy preview_proxy sandbox_activity sandbox_get_context sandbox_identity sandbox_mirror shell_get_session_stats shell_list_sessions skills_list vnc_page watch_list".split(" "));
  const { id } = await get("sandbox/a");
  const marker = "/tmp/attacked";
  const body = JSON.stringify({ command: `touch ${marker}`, code: `open("${marker}", "w")`, file: marker, path: marker, content: "x", keys: "x", text: "x", url: "about:blank", signal: "KILL", id: "s", session_id: "s", language: "python", input: `touch ${marker}\n` });
  const credentials = { Authorization: `Bearer ${token}`, "X-Aio-Access": "", "X-Aio-Caller": "subject=admin" };
  const sessions = async () => JSON.stringify((await (await fetch(`${base}/sandbox/a/v1/shell/sessions`, { headers })).json()).data);
  let tried = 0;
  for (const [path, methods] of Object.entries(paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      if (reads.has(operation.operationId) || method === "parameters") continue;
      const to = `${base}/sandbox/${id}${path.replace(/{[^}]*}/g, "1")}`;
      const reply = await fetch(to, { method: method.toUpperCase(), headers: { ...credentials, "Content-Type": "application/json" }, body: method === "get" ? undefined : body, redirect: "manual" });
      const said = await reply.text();
      check([403, 404].includes(reply.status) || (reply.status === 200 && JSON.parse(said).success === false && said.includes("read-only")), `${operation.operationId}: ${method} ${path} of a watcher: ${reply.status} ${said.slice(0, 200)}`);
      tried++;
    }
  }
  for (const path of ["v1/shell/ws", "v1/shell/ws?session_id=s", "websockify", "websockify?take_over=evil", "websockify?view_only=true", "cdp", "v1/browser/cdp", "devtools/browser/x", "v1/sandbox/ports/22/tunnel", "v1/sandbox/ports/9000/listen", "v1/sandbox/ports/9000/accept?id=x", "proxy/3000/ws", "absproxy/3000/ws", "code-server/ws", "jupyter/api/kernels/x/channels", "mcp", "v1/sandbox/mirror"]) {
    const status = await upgrade(`${base}/sandbox/${id}/${path}`, credentials);
    check(status !== 101 && status >= 400, `a watcher opens the WebSocket ${path}: ${status}`);
    tried++;
  }
  for (const method of ["POST", "PUT", "PATCH", "DELETE"]) {
    for (const path of [`api/v1/sandbox/${id}`, `api/v1/sandbox/${id}/processes/1/signal`, `api/v1/sandbox/${id}/share`, "api/v1/sandbox", "api/v1/key", "mcp", "sandboxes"]) {
      const reply = await fetch(`${base}/${path}`, { method, headers: { ...credentials, "Content-Type": "application/json" }, body });
      check([401, 403, 404, 405].includes(reply.status), `${method} ${path} of a watcher: ${reply.status}`);
      tried++;
    }
  }
  // From the page itself.
  const inner = await page.evaluate(async (text) => {
    const to = (path) => new URL(path, new URL("./", location.href)).href;
    const exec = await fetch(to("v1/bash/exec"), { method: "POST", headers: { "Content-Type": "application/json" }, body: text }).then((r) => r.status, () => 0);
    const socket = await new Promise((done) => { const ws = new WebSocket(to("v1/shell/ws?session_id=s").replace("http", "ws")); ws.onopen = () => done("open"); ws.onerror = () => done("refused"); });
    return [exec, socket];
  }, body);
  check((inner[0] === 403 || inner[0] === 0) && inner[1] === "refused", `the page itself may act: ${inner}`);
  const { output } = await inside("v1/bash/exec", { command: `ls ${marker} 2>&1 || true` }).then((d) => ({ output: d.stdout }));
  check(output.includes("No such file"), `a watcher acted: ${output}`);
  check((await sessions()).includes('"s"'), "a watcher ended a session");
  console.log(`ok ${tried} attempts to act with a link to watch`);
}

// upgrade requests a WebSocket and returns the status of the reply.
function upgrade(to, more) {
  return new Promise((done, fail) => {
    const call = request(to, { headers: { ...more, Connection: "Upgrade", Upgrade: "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==" } });
    call.on("upgrade", (reply, socket) => { socket.destroy(); done(reply.statusCode); });
    call.on("response", (reply) => { reply.resume(); done(reply.statusCode); });
    call.on("error", fail);
    call.end();
  });
}
