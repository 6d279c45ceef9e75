// Every page of the list: accessibility, in light and dark mode, on a phone and at 200 %; no messages in the console, no
// requests to other hosts, small size, and full keyboard access.
// SHOTS saves screenshots in that folder. BENCH only measures the time until each page is usable.
import { mkdirSync } from "node:fs";
import { axe, check, until, withPage } from "./browser.mjs";
import { pages } from "./pages.mjs";

const { URL: sandbox, KEY_URL: hub, KEY: key, DIR: dir, SHOTS: shots, BENCH: bench, ONLY: only } = process.env;
const maxSize = 300_000;
const views = { wide: { width: 1280, height: 800 }, phone: { width: 390, height: 780 }, "200 %": { width: 640, height: 400 } };
const post = async (base, path, body, headers = {}) => {
  const reply = await (await fetch(base + path, { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(body) })).json();
  check(reply.success === true || reply.code === "0", `${path}: ${JSON.stringify(reply)}`);
};

// Content to show.
await post(sandbox, "/v1/file/write", { file: `${dir}/hello.py`, content: "# A greeting\nprint('hello', 6 * 7)\n" });
await post(sandbox, "/v1/bash/exec", { command: `cd ${dir} && mkdir -p docs && echo '# Notes' > docs/notes.md && ls -l` });
await post(sandbox, "/v1/file/replace", { file: `${dir}/hello.py`, old_str: "hello", new_str: "goodbye" });
const signed = key ? { "X-API-Key": key } : {};
await post(hub, "/sandbox/a/v1/shell/exec", { command: "ls -l /", id: "s" }, signed);
/** Values of the words in capitals in the addresses of pages. @type {Record<string, string>} */
const words = { DIR: encodeURIComponent(dir) };
if (!bench) {
  const ask = async (path, body, method) => (await (await fetch(`${hub}/api/v1/${path}`, { method: method || (body ? "POST" : "GET"), headers: { "Content-Type": "application/json", ...signed }, body: body && JSON.stringify(body) })).json()).data;
  await post(hub, "/api/v1/sandbox", { name: "gone" }, signed);
  await post(hub, "/sandbox/gone/v1/bash/exec", { command: "echo last words > file.txt" }, signed);
  words.GONE = (await ask("sandbox/gone")).id;
  await fetch(`${hub}/api/v1/sandbox/gone`, { method: "DELETE", headers: signed });
  await post(hub, "/api/v1/sandbox", { name: "stopped" }, signed);
  words.STOPPED = (await ask("sandbox/stopped")).id;
  await ask("sandbox/stopped/stop", {});
  if (key) {
    await post(hub, "/api/v1/sandbox", { name: "shown" }, signed);
    words.WATCH = (await ask("sandbox/shown/share", { minutes: 60, read_only: true })).url;
    const revoked = await ask("sandbox/shown/share", { minutes: 60, read_only: true });
    words.REVOKED = revoked.url;
    await ask(`share/${revoked.id}`, undefined, "DELETE");
  }
}

async function signIn(page) {
  await page.goto(hub);
  if (key) {
    await page.getByLabel("API key or token").fill(key);
    await page.keyboard.press("Enter");
  }
  await page.getByRole("row", { name: /Select a / }).waitFor();
}

const addressOf = (one) => `${one.at === "sandbox" ? sandbox : one.at === "watcher" ? "" : hub}${one.path.replace(/[A-Z]{3,}/, (word) => words[word] ?? word)}`;

// visit opens a page in a new browser context.
async function visit(page, one) {
  await page.goto("about:blank");
  const devtools = await page.context().newCDPSession(page);
  await devtools.send("Network.clearBrowserCache");
  await devtools.detach();
  const began = performance.now();
  await page.goto(addressOf(one), { waitUntil: "commit" });
  await one.ready(page).waitFor().catch(async (error) => { throw new Error(`${one.path} shows ${JSON.stringify((await page.locator("body").innerText()).slice(0, 500))}: ${error.message}`); });
  return performance.now() - began;
}

async function measure(page, name, one) {
  const took = [];
  for (let i = 0; i < 5; i++) took.push(await visit(page, one));
  console.log(`${name}: usable after ${Math.round(took.sort((a, b) => a - b)[2])} ms (target 1000)`);
}

async function look(page, name, one) {
  const host = new URL(addressOf(one)).host;
  const away = [];
  const loaded = [];
  const ask = (request) => {
    const to = new URL(request.url());
    const ours = to.host === host || to.hostname.endsWith(".localhost") && host.endsWith(`:${to.port}`); // programs have their own names
    if (/^(http|ws)/.test(to.protocol) && !ours) away.push(request.url());
  };
  const got = (request) => { if (request.frame() === page.mainFrame()) loaded.push(request.sizes().then((s) => s.responseBodySize, () => 0)); };
  page.on("request", ask);
  page.on("requestfinished", got);
  await visit(page, one);
  page.off("requestfinished", got);
  const size = (await Promise.all(loaded)).reduce((sum, n) => sum + n, 0);
  check(size < maxSize, `${name} has ${size} bytes, want fewer than ${maxSize}`);
  await one.open?.(page);
  for (const [view, viewport] of Object.entries(views)) {
    await page.setViewportSize(viewport);
    for (const colorScheme of view === "200 %" ? ["light"] : ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await settled(page);
      if (shots) await page.screenshot({ path: `${shots}/${name.replaceAll(/\W+/g, "-")}-${view.replaceAll(/\W+/g, "")}-${colorScheme}.png` });
      if (view !== "200 %") await axe(page, `${name}, ${view}, ${colorScheme}`);
    }
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    check(wide <= 0, `${name}, ${view}: the page is ${wide} pixels wider than the window`);
  }
  await page.setViewportSize(views.wide);
  await page.emulateMedia({ colorScheme: "light" });
  if (!one.own) await byKeyboard(page, name);
  await one.after?.(page);
  page.off("request", ask);
  check(away.length === 0, `${name} asks other hosts: ${away}`);
  console.log(`ok ${name}: ${size} bytes`);
}

// settled waits for colour transitions.
const settled = (page) => page.evaluate(() => Promise.all(document.getAnimations().filter((a) => a.effect?.getComputedTiming().iterations !== Infinity).map((a) => a.finished.catch(() => {}))).then(() => new Promise((done) => requestAnimationFrame(() => done()))));

// byKeyboard moves through the page with the Tab key, which must reach all controls with a visible focus. In a group of radio
// buttons it reaches the selected one; the arrow keys select another.
async function byKeyboard(page, name) {
  const total = await page.evaluate(() => {
    const usable = "a[href], button:not(:disabled), input:not(:disabled, [type=hidden]), select:not(:disabled), textarea:not(:disabled), summary, [tabindex]";
    const room = document.querySelector("dialog[open]") || document;
    globalThis.reachable = () => [...room.querySelectorAll(usable)].filter((e) => e.tabIndex >= 0 && (e.type !== "radio" || e.checked) && e.checkVisibility({ visibilityProperty: true }));
    globalThis.left = new Set(globalThis.reachable());
    if (!document.querySelector("dialog[open]")) document.activeElement?.blur?.();
    return globalThis.left.size;
  });
  for (let i = 0, most = total; i < most + 8; i++) {
    await page.keyboard.press("Tab");
    const [rest, now] = await page.evaluate(() => {
      const at = document.activeElement;
      globalThis.left.delete(at);
      return [globalThis.left.size, globalThis.reachable().length];
    });
    if (rest === 0) return;
    most = Math.max(most, now); // a live page grows
  }
  const missed = await page.evaluate(() => [...globalThis.left].filter((e) => e.isConnected && e.checkVisibility({ visibilityProperty: true })).map((e) => e.outerHTML.slice(0, 120)));
  check(missed.length === 0, `${name}: the keyboard does not reach ${missed.slice(0, 5).join(", ")}`);
}

if (shots) mkdirSync(shots, { recursive: true });
const chosen = Object.entries(pages).filter(([name, one]) => (!only || only.split(",").includes(name)) && (key || !["stranger", "watcher"].includes(one.at)) && !(bench && one.kept));
for (const at of ["sandbox", "stranger", "watcher", "hub"]) {
  const mine = chosen.filter(([, one]) => one.at === at);
  if (mine.length === 0) continue;
  await withPage(async (page) => {
    if (at === "hub") await signIn(page);
    for (const [name, one] of mine) {
      await (bench ? measure : look)(page, name, one);
    }
  }, { viewport: views.wide, colorScheme: "light", ignore: bench ? /status of [45]/ : at === "watcher" ? /status of 40[13]|Applying inline style/ : /status of (401|403|404|409|502|503)/ }); // the benchmark's hub has no tenants
}

if (!bench && !only) {
  // The terminal captures the Tab key; another key leaves it.
  await withPage(async (page) => {
    await visit(page, pages.terminal);
    const on = () => page.evaluate(() => document.activeElement.id || document.activeElement.className);
    await page.keyboard.press("Tab");
    check(/xterm/.test(await on()), `Tab leaves the terminal for ${await on()}`);
    await page.keyboard.press("Control+Shift+ArrowUp");
    check(/tab/.test(await on()), `Ctrl+Shift+Up leads to ${await on()}`);
    await page.keyboard.press("Tab");
    check((await on()) === "new", `Tab leads to ${await on()}`);
    await page.keyboard.press("Enter");
    await until("a second session", async () => (await page.locator(".tab").count()) === 2);
    await page.locator(".screen.shown .xterm-rows").getByText(/[#$]/).first().waitFor();
    await page.keyboard.press("Control+Shift+ArrowUp");
    await page.keyboard.press("ArrowLeft");
    check((await page.locator(".tab[aria-selected=true]").evaluate((t) => [...t.parentElement.children].indexOf(t))) === 0, "the arrow does not choose the tab before");
    await page.keyboard.press("Delete");
    await until("the session is ended", async () => (await page.locator(".tab").count()) === 1);
  }, { ignore: /status of 404/ });
  console.log("ok the terminal by keyboard");
}
