// A foreign site makes the browser of a user request every URL of both programs in every possible way, while files of the
// attacker are in every possible place. No script of the attacker may run on our origins or use our APIs.
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";
import { check, hold, keys, patience, typeInstead, until } from "./browser.mjs";
import { call, run, server, signIn, start } from "./origin.mjs";
import { listen } from "./sweep_evil.mjs";
import { plantScript } from "./sweep_plant.mjs";
import { embeds, tops } from "./sweep_ways.mjs";

const { AIO, AIO_HOME, KEY: key, KEY_URL: keyed, OPEN_URL: open, FULL: full, ONLY: only } = process.env;
const targets = JSON.parse(readFileSync(process.env.TARGETS, "utf8"));
const began = performance.now();
const note = (text) => console.log(`${((performance.now() - began) / 1000).toFixed(1)} s: ${text}`);
const portOf = (url) => new URL(url).port;
const named = (url, name = "localhost") => `http://${name}:${portOf(url)}`;

const lines = []; // what scripts of the attacker report
const failures = new Set();
const evil = await listen(lines);
const weak = `http://weak.test:${evil.port}`; // a server without any protection
const aims = [AIO, named(AIO), open, named(open), named(open, "api.localhost"), named(open, "a.localhost"), named(keyed), named(keyed, "a.localhost")];
const planted = evil.arm(aims);

// Planting.

const markup = planted["Downloads/invoice.html"];
const post = async (api, path, body) => {
  const res = await fetch(api.url + path, { method: "POST", headers: { "Content-Type": "application/json", ...(api.key && { "X-API-Key": api.key }) }, body: JSON.stringify(body) });
  const text = await res.text();
  check(res.ok, `${path}: got ${res.status} ${text}`);
  return JSON.parse(text).data;
};

// plant creates the files and traces of the attacker in a sandbox and returns the values for the parameters of URLs.
async function plant(api, port) {
  await post(api, "/v1/bash/exec", { command: plantScript(planted) });
  const home = (await post(api, "/v1/bash/exec", { command: "cd; pwd" })).stdout.trim();
  await post(api, "/v1/bash/exec", { command: `cat ${home}/Downloads/invoice.html`, session_id: "s" });
  await post(api, "/v1/shell/exec", { command: `cat ${home}/Downloads/invoice.html`, id: "s" });
  await fetch(`${api.url}/v1/file/read`, { method: "POST", headers: { "Content-Type": "application/json", ...(api.key && { "X-API-Key": api.key }) }, body: JSON.stringify({ file: `/nowhere/${markup}` }) });
  const form = new FormData();
  form.append("path", home + "/skill");
  const skill = await fetch(`${api.url}/v1/skills/register`, { method: "POST", headers: api.key ? { "X-API-Key": api.key } : {}, body: form });
  check(skill.ok, `register a skill: ${skill.status} ${await skill.text()}`);
  const { watcher_id: watch } = await post(api, "/v1/file/watch", { path: home + "/Downloads" });
  const { entries } = await (await fetch(`${api.url}/v1/sandbox/activity?limit=10`, { headers: api.key ? { "X-API-Key": api.key } : {} })).json();
  return { XHOMEX: home, XPORTX: port, XACTIVITYX: entries.at(-1).id, XWATCHX: watch, XEVILX: evil.evil };
}

// plantHub creates the sandboxes of a hub, and the data of a deleted one.
async function plantHub(hub, hostile) {
  const site = Object.fromEntries(Object.entries(planted).filter(([name]) => name.startsWith("site/")));
  const setup = `${plantScript(site)}\ncat > ~/server.py <<'END'\n${server}\nEND\ncd ~; exec python3 server.py 8000 site`;
  const create = (body) => call(hub, "POST", "/api/v1/sandbox", { timeout: 240, idle_timeout: 60, ...body }); // a busy machine is slow
  const refused = [];
  await Promise.all([
    create({ name: "a", labels: { note: "x" }, annotations: { note: "<script>sweep()</script>" } }),
    create({ name: "gone" }).then(async () => {
      await run(hub, "gone", `cat <<'END'\n${markup}\nEND`);
      await call(hub, "DELETE", "/api/v1/sandbox/gone");
    }),
    ...hostile.map((name) => create({ name, environment: "fake", env: { SETUP: setup } }).catch((error) => refused.push([name, error.message]))),
  ]);
  for (const [name, why] of refused) check(/reserved|name/.test(why), `create ${name}: ${why}`);
  const fill = await plant({ url: `${hub.url}/sandbox/a`, key: hub.key }, 3000);
  await start(hub, "a", `cat > ~/server.py <<'END'\n${server}\nEND\ncd ~; exec python3 server.py 3000 site`);
  const headers = hub.key && { "X-API-Key": hub.key };
  await until("the service in the sandbox answers", () => fetch(`${hub.url}/sandbox/a/proxy/3000/`, { headers }).then((res) => res.ok));
  const record = await until("the record is kept", async () => (await call(hub, "GET", "/api/v1/record")).at(0));
  const { id } = await call(hub, "GET", "/api/v1/sandbox/a");
  return { ...fill, XRECORDX: record.id, XENTRYX: "1", XCLIENTX: id.replaceAll("-", "") };
}

const openHub = { url: open, at: named(open), title: "open" };
const keyHub = { url: keyed, at: named(keyed), key, title: "keyed" };
const [own, ofOpen, ofKeyed] = await Promise.all([plant({ url: AIO }, evil.port), plantHub(openHub, ["api", "www"]), plantHub(keyHub, [])]);
note("planted");

// What is visited.

const filled = (path, values) => Object.entries(values).reduce((p, [name, value]) => p.replaceAll(name, encodeURIComponent(value)), path);

const isMarkup = (one) => one.path.includes("onerror");
// URLs that may show content of the attacker: pages, files and proxies.
const isPage = (one) => one.hot && !/_asset$/.test(one.op);
// Some of each kind, for other host names of a program whose URLs were all visited under one name.
const isCore = (one) => isPage(one) && !isMarkup(one) &&
  /(envd|download|preview).*invoice\.(html|svg)$|\/(abs)?proxy.XPORTX\/$|^\/(v1\/docs|terminal|files|activity|hub.index.html)?$|export$|jupyter.files.*html|sandbox.a.(terminal.*|v1.docs)?$|logs$|^.share|picture/.test(one.path);
// One of each kind, which is visited in all ways.
const sample = /envd.files.path=.*invoice\.(html|svg)$|(download|preview).path=.*invoice\.html$|\/proxy.XPORTX\/$|^\/v1\/docs$|activity.export|^\/$|sandbox.a.$/;

// surface is one of our origins. every: all its URLs are visited, not only some of each kind. deep: one of each kind is
// visited in all ways.
const surface = (title, at, list, values, { every, deep, session, only = () => true } = {}) => ({
  title, session, every: every || full,
  urls: list.filter(only).map((one) => ({
    ...one, url: new URL(at + filled(one.path, values)).href, page: isPage(one), markup: isMarkup(one),
    visited: Boolean(full || (every ? isPage(one) || !isMarkup(one) : isCore(one))), deep: Boolean(!isMarkup(one) && (full ? one.hot : deep && sample.test(one.path))),
  })).filter((one) => one.visited),
});
const daemon = ["html", "svg", "xml"].map((type) => ({ op: "e2b_envd", kind: "handler", path: `/files?path=Downloads/invoice.${type}`, hot: true }));
const root = [{ op: "root", kind: "handler", path: "/", hot: true }];
const session = true;
const surfaces = [
  surface("aio by name", named(AIO), targets.sandbox, own, { every: true, deep: true }),
  surface("aio by address", AIO, targets.sandbox, own),
  surface("aio under another name", named(AIO, "x.localhost"), targets.sandbox, own),
  surface("aio by the port of its daemon", named(AIO, "49983-x.localhost"), daemon, own, { every: true }),
  surface("aio by its own port", named(AIO, `${portOf(AIO)}-x.localhost`), targets.sandbox, own),
  surface("hub by name", named(open), targets.hub, ofOpen, { every: true, deep: true }),
  surface("hub by address", open, targets.hub, ofOpen),
  surface("sandbox by name", named(open, "a.localhost"), targets.sandbox, ofOpen),
  surface("sandbox by path", `${named(open)}/sandbox/a`, targets.sandbox, ofOpen),
  surface("sandbox by path and address", `${open}/sandbox/a`, targets.sandbox, ofOpen),
  surface("sandbox by the port of its daemon", named(open, "49983-a.localhost"), daemon, ofOpen, { every: true }),
  surface("sandbox by the port of its daemon and ID", named(open, `49983-${ofOpen.XCLIENTX}.localhost`), daemon, ofOpen, { every: true }),
  surface("service by name", named(open, "3000-a.localhost"), root, ofOpen, { every: true, deep: true }),
  surface("sandbox named api", named(open, "api.localhost"), [...root, ...targets.hub], ofOpen, { every: true, only: (one) => /^root$|^e2b|_page$/.test(one.op) }),
  surface("sandbox named www", named(open, "www.localhost"), root, ofOpen, { every: true }),
  surface("hub with a session", named(keyed), targets.hub, ofKeyed, { session }),
  surface("hub by address with a session", keyed, targets.hub, ofKeyed, { session }),
  surface("sandbox by path with a session", `${named(keyed)}/sandbox/a`, targets.sandbox, ofKeyed, { session }),
  surface("sandbox by path and address with a session", `${keyed}/sandbox/a`, targets.sandbox, ofKeyed, { session }),
];

// Scripts of the attacker may run on the sites of the attacker, on sites of services, and with an opaque origin. The sandbox
// named www has a server of the attacker and may use its own resources.
const ownPorts = ["49983", "49999", portOf(AIO)];
function isForeign(origin) {
  if (origin === "null" || origin === named(open, "www.localhost")) return true;
  const { hostname, port } = new URL(origin);
  const [, service] = hostname.match(/^(\d+)-[^.]+\.localhost$/) ?? [];
  return port === String(evil.port) || (service !== undefined && !ownPorts.includes(service));
}

const bad = new Set(); // failed URLs, which are not retried in every way
function judge(line) {
  const [word, did, origin, url, about] = line.split(" | ");
  if (word !== "SWEEP") return;
  if (did === "ran" && isForeign(origin)) return;
  if (did.startsWith("worker") && isForeign(origin)) return;
  bad.add(url);
  failures.add(`${did === "ran" ? "a script ran" : did} on ${origin} at ${url.slice(0, 160)} ${did === "ran" ? "" : about}`);
}

// Visiting.

const browser = await chromium.launch({ timeout: patience, executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-popup-blocking", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP evil.test 127.0.0.1, MAP weak.test 127.0.0.1"] });

class Visitor {
  pending = new Map();
  ended = [];
  reports = [];
  homes = new Map();

  static async begin(title) {
    const v = new Visitor();
    v.title = title;
    v.context = await browser.newContext({ acceptDownloads: true });
    v.context.setDefaultTimeout(patience);
    v.context.on("console", (message) => { v.reports.push(message.text()); judge(message.text()); });
    v.context.on("request", (r) => { if (v.counts(r)) v.pending.set(r, r.url()); });
    const end = (r) => { if (v.pending.delete(r) && r.isNavigationRequest()) v.ended.push(...v.chain(r)); };
    v.context.on("requestfinished", end);
    v.context.on("requestfailed", end);
    // Streams do not end, and the end of some replies without markup is not reported.
    v.context.on("response", (r) => {
      if (!r.request().isNavigationRequest() || (r.status() >= 300 && r.status() < 400)) return;
      if (/event-stream/.test(r.headers()["content-type"]) || r.status() === 204) end(r.request());
      else setTimeout(() => { if (v.pending.has(r.request())) { end(r.request()); } }, 10_000);
    });
    return v;
  }

  chain(r) { return [r.url(), ...(r.redirectedFrom() ? this.chain(r.redirectedFrom()) : [])]; }

  // counts reports whether the test waits for a request: documents, and requests of the attacker's scripts to our servers. Other
  // requests are those of our own pages, which may never end, and of the attacker's pages, which wait for them.
  counts(r) {
    if (r.isNavigationRequest()) return true;
    try { return /(exec|tickets|v2.sandboxes|envs)$/.test(r.url()) && new URL(r.frame().url()).port !== String(evil.port); } catch { return false; }
  }

  async idle(what) {
    await until(`${this.title}: ${what}: all requests are answered`, () => this.waiting().length === 0, () => this.waiting().slice(0, 9).join(" "));
  }

  // waiting removes requests of closed pages and frames, because their end is not reported.
  waiting() {
    for (const r of [...this.pending.keys()]) {
      let gone = false;
      try { gone = r.frame().isDetached() || r.frame().page().isClosed(); } catch { /* a window that opens */ }
      if (gone) this.pending.delete(r);
    }
    return [...this.pending.values()];
  }

  // loaded waits until pages or frames are complete. A stream of events never is.
  async loaded(list) {
    await Promise.all(list.map((one) => one.waitForLoadState("load", { timeout: 5000 }).catch(() => {})));
  }

  // evilPage is the page of the attacker at a site. It is opened once.
  async evilPage(at) {
    if (!this.homes.has(at)) {
      const page = await this.context.newPage();
      await page.goto(at + "/");
      this.homes.set(at, page);
    }
    return this.homes.get(at);
  }

  // embed tries one way for many URLs in a page of the attacker.
  async embed(at, way, every) {
    const got = [];
    for (let i = 0; i < every.length; i += 60) got.push(...await this.embedSome(at, way, every.slice(i, i + 60).filter((url) => !bad.has(url))));
    return got;
  }

  async embedSome(at, way, list) {
    const page = await this.evilPage(at);
    const quick = !/frame|form|object|embed|prefetch|prerender/.test(way);
    const got = await page.evaluate(`(async () => {
      const way = ${embeds[way]};
      const each = ${JSON.stringify(list)}.map((url) => new Promise((done) => { try { way(url, (t) => done(t && url + " " + t)); } catch (e) { done(""); } }));
      return ${quick ? "(await Promise.all(each)).filter(Boolean)" : "[]"};
    })()`);
    if (!quick) { // requests started before this are known to the driver before it ends
      await page.evaluate((src) => new Promise((done) => { document.body.append(Object.assign(document.createElement("iframe"), { src, onload: done })); }), at + "/");
    }
    await this.idle(way);
    await this.loaded(page.frames());
    await this.idle(way);
    await page.evaluate(() => document.body.replaceChildren());
    return got;
  }

  // open opens URLs in windows of the attacker, several at a time.
  async open(at, way, list) {
    const page = await this.evilPage(at);
    const key = (url) => (/form that gets/.test(way) ? url.split("?")[0] : url);
    for (let i = 0; i < list.length; i += 8) {
      const some = list.slice(i, i + 8).filter((url) => !bad.has(url));
      this.ended.length = 0;
      await page.evaluate((all) => { for (const [n, to] of all.entries()) open(to, "w" + n); }, some.map((url) => tops[way](at, url)));
      const lost = () => some.filter((url) => !this.ended.some((to) => key(to) === key(url)));
      await until(`${this.title}: ${way}: all windows are there`, () => lost().length === 0, () => lost().join(" "));
      const windows = this.windows();
      await this.loaded(windows);
      await this.idle(way);
      if (way === "window") await page.evaluate((n) => { for (let i = 0; i < n; i++) open("", "w" + i)?.postMessage({ type: "input", data: "echo message >> ~/owned\r" }, "*"); }, some.length);
      if (way === "back and forward") for (const p of windows) await this.goBack(p);
    }
    // Our page may have replaced the window that the attacker opened.
    if (this.windows().length > 8) await this.closeWindows();
  }

  windows() { return this.context.pages().filter((p) => ![...this.homes.values()].includes(p)); }

  async closeWindows() { for (const p of this.windows()) await p.close(); }

  // goBack returns a window to the attacker's page, which comes from the cache and leaves again. A download has no history entry.
  async goBack(page) {
    this.ended.length = 0;
    await page.goBack({ waitUntil: "commit" }).catch(() => {});
    const back = page.url().includes("/back?");
    if (back) await until(`${this.title}: a page is left again`, () => page.isClosed() || this.ended.some((to) => !to.includes("/back?")), () => page.url());
    await this.loaded([page]);
    await this.idle("back and forward");
    await page.close();
  }
}

// Every way works against an unprotected server.
async function control() {
  const v = await Visitor.begin("control");
  const quiet = [];
  const good = { EventSource: "/events", picture: "/picture.svg", "style sheet": "/style.css", script: "/p.js", module: "/p.js", worker: "/p.js" };
  for (const way of Object.keys(embeds)) {
    if (way === "service worker") continue; // the page of the attacker is not a secure context
    v.reports.length = 0;
    const got = await v.embed(evil.evil, way, [weak + (good[way] ?? "/attack.html?x=1")]);
    const silent = ["prefetch", "prerender", "fetch without CORS", "fetch that posts"].includes(way);
    if (!silent && got.length === 0 && !v.reports.some((line) => line.includes(`SWEEP | ran | ${weak}`))) quiet.push(way);
  }
  for (const way of Object.keys(tops)) {
    v.reports.length = 0;
    await v.open(evil.evil, way, [`${weak}/attack.html?x=1`]);
    if (!v.reports.some((line) => line.includes(`SWEEP | ran | ${weak}`))) quiet.push(way);
  }
  v.reports.length = 0;
  await v.open(evil.evil, "window", [named(open, "3000-a.localhost") + "/"]);
  if (!v.reports.some((line) => line.includes(`SWEEP | ran | ${named(open, "3000-a.localhost")}`))) quiet.push("window with a service of a sandbox");
  check(quiet.length === 0, `these ways do nothing even where nothing holds them: ${quiet.join(", ")}`);
  await v.context.close();
  note(`ok ${Object.keys(embeds).length} ways within a page and ${Object.keys(tops).length} with windows work where they may`);
}

const sites = [evil.evil, `http://localhost:${evil.port}`]; // another site, and another port of the same site

// Ways in which every URL is visited. WebSockets are only tried where possible, because a browser opens few of them at a time.
const broad = ["frame", "fetch", "form that posts"];
const sockets = ["WebSocket", "WebSocket without an origin"];

async function sweep(v, s) {
  const from = performance.now();
  const pick = (of) => [...new Set(s.urls.filter(of).map((one) => one.url))];
  const all = pick(() => true);
  const plain = pick((one) => !one.markup && one.kind !== "socket");
  const pages = pick((one) => !one.markup && one.page);
  const deep = pick((one) => one.deep && one.kind !== "socket");
  const talk = pick((one) => one.kind === "socket" || (one.deep && /^(cdp|preview_proxy|mcp|sandbox_proxy)$/.test(one.op)));
  let visits = 0;
  const visit = async (list, way, act) => {
    if (list.length === 0) return;
    visits += list.length;
    if (process.env.TRACE) note(`${s.title}: ${way}: ${list.length}`);
    for (const got of (await act(list)) ?? []) failures.add(`${s.title}: ${way}: ${got}`);
  };
  for (const [i, at] of sites.entries()) {
    for (const way of Object.keys(embeds)) {
      const list = sockets.includes(way) ? talk : broad.includes(way) && (i === 0 || full) && (s.every || way === "frame") ? (way === "form that posts" && !full ? pages : plain) : deep;
      if (i === 0 || full || way === "frame") await visit(list, way, (list) => v.embed(at, way, list));
    }
    for (const way of Object.keys(tops)) {
      if (i === 0 || full || way === "window") await visit(way === "window" && i === 0 ? all : deep, way, (list) => v.open(at, way, list));
    }
  }
  await v.idle("everything");
  await v.closeWindows(); // the browser never closes a window that went back from its error page
  note(`ok ${s.title}: ${all.length} addresses, ${visits} visits in ${((performance.now() - from) / 1000).toFixed(1)} s`);
}

// The attacker opens a file that the user downloaded from it.
async function download(v) {
  const page = await v.evilPage(evil.evil);
  const [file] = await Promise.all([page.waitForEvent("download"), page.evaluate(() => { location = "/download"; })]);
  await file.saveAs(`${AIO_HOME}/Downloads/downloaded.html`);
  const path = encodeURIComponent(`${AIO_HOME}/Downloads/downloaded.html`);
  const list = ["/e2b/envd/files?path=Downloads/downloaded.html", `/v1/file/download?path=${path}`, `/v1/file/preview?path=${path}`, `/files?path=${path}`];
  await v.open(evil.evil, "window", [named(AIO), AIO].flatMap((at) => list.map((path) => at + path)));
  note("ok a file that was downloaded and opened");
}

// The user holds a key on a page of the attacker, which opens a terminal with a command. Text typed afterwards proves that the
// terminal works and that the held keys have arrived.
async function holdKeys(v) {
  for (const [i, key] of [keys.enter, keys.space].entries()) {
    const page = await v.evilPage(evil.evil);
    const [terminal] = await Promise.all([v.context.waitForEvent("page"), page.evaluate((url) => { open(url, "_blank"); }, `${named(AIO)}/terminal?command=${encodeURIComponent("echo held >> ~/owned")}`)]);
    await hold(terminal, key, { release: false });
    await until("the terminal shows the command", async () => /echo held/.test(await terminal.locator("body").innerText()), () => terminal.locator("body").innerText());
    await hold(terminal, key, { release: true });
    await typeInstead(terminal, `echo typed${i} >> ~/typed`);
    await until("the terminal works", async () => (await post({ url: AIO }, "/v1/bash/exec", { command: "cat ~/typed; true" })).stdout.includes(`typed${i}`), () => terminal.locator("body").innerText());
    await terminal.close();
  }
  note("ok held keys");
}

try {
  await control();
  for (const session of [false, true]) {
    const v = await Visitor.begin(session ? "with a session" : "without credentials");
    if (session) for (const hub of [keyHub, { ...keyHub, at: keyed }]) await signIn(hub, await v.context.newPage());
    for (const s of surfaces.filter((s) => Boolean(s.session) === session && (!only || only.includes(s.title)))) await sweep(v, s);
    if (!session) {
      await download(v);
      await holdKeys(v);
    }
    await v.context.close();
  }
} finally {
  await browser.close();
}
for (const line of lines) judge(line);
// Results of the attacker's scripts.
const owned = { aio: (await post({ url: AIO }, "/v1/bash/exec", { command: "cat ~/owned 2>/dev/null; true" })).stdout };
for (const hub of [openHub, keyHub]) owned[`sandbox of the ${hub.title} hub`] = await run(hub, "a", "cat ~/owned 2>/dev/null; true");
for (const [where, text] of Object.entries(owned)) for (const line of new Set(text.split("\n").filter(Boolean))) failures.add(`a command ran in ${where}, from ${decodeURIComponent(line).slice(0, 200)}`);
note("swept");
check(failures.size === 0, `${failures.size} failures:\n${[...failures].join("\n")}`);
