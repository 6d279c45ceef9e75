// A hostile page in a sandbox, opened by a user who is signed in at the hub. It tries to act as that user: on the hub, on
// another sandbox, and on the server and other ports of its own sandbox. Every way runs in a browser, from two places: the
// page of a service, and that of a sandbox whose server is hostile. The control checks that the same ways work with allowed targets.
import { chromium } from "playwright-core";
import { check, hold, keys, patience, typeInstead, until } from "./browser.mjs";
import { call, hubs, run, server, signIn, start, write } from "./origin.mjs";

// A site with a secret in every form that a page can load.
const site = (secret) => ({
  "index.html": `<!doctype html><title>hostile</title><link rel="icon" href="data:,"><body>hostile</body>`,
  "secret.txt": secret,
  "secret.css": `.secret { content: "${secret}"; }`,
  "secret.js": `globalThis.leak = [...(globalThis.leak ?? []), "${secret}"];`,
  "secret.mjs": `export default "${secret}";`,
  "secret.sse": `data: ${secret}\n\n`,
  "secret.svg": `<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"><rect width="8" height="8" fill="rgb(1,2,3)"/><text>${secret}</text></svg>`,
  "sw.js": `onfetch = () => {}; oninstall = () => skipWaiting();`,
  "fetcher.js": `async function go(done) { const { reads, shots } = JSON.parse(new URLSearchParams(location.search).get("aims"));
    const all = [...reads.map((url) => [url]), ...shots.map(([url, body]) => [url, { method: "POST", body }])];
    done((await Promise.all(all.map(([url, init]) => fetch(url, { ...init, credentials: "include" }).then((r) => r.text(), String)))).join("\\n")); }
  if (self.postMessage) go((m) => postMessage(m)); else onconnect = (e) => go((m) => e.ports[0].postMessage(m));`,
});

// A way is a function that runs in the page. It receives a target and returns everything that it could read.
const ways = {
  fetch: (aim) => aim.all((url, init) => fetch(url, { ...init, credentials: "include", headers: { "Content-Type": "application/json" } })),
  "fetch as a simple request": (aim) => aim.all((url, init) => fetch(url, { ...init, credentials: "include", headers: { "Content-Type": "text/plain" } })),
  "fetch without CORS": (aim) => aim.all((url, init) => fetch(url, { ...init, mode: "no-cors", credentials: "include" })),
  "fetch same-origin": (aim) => aim.all((url, init) => fetch(url, { ...init, credentials: "same-origin", mode: "same-origin" })),
  "fetch that outlives the page": (aim) => aim.all((url, init) => fetch(url, { ...init, keepalive: true, mode: "no-cors", credentials: "include" })),
  "fetch with the headers of proxies": (aim) => aim.all((url, init) => fetch(url, { ...init, credentials: "include", headers: {
    "X-Forwarded-Host": new URL(url).host, "X-Forwarded-Prefix": "", "X-Forwarded-Proto": "https", "X-Original-URL": "/api/v1/sandbox", "X-HTTP-Method-Override": "POST" } })),
  "own host with the header of another port": () => fetch("secret.txt", { headers: { "X-Aio-Proxy-Port": "4000" } }).then((r) => r.text()),
  XMLHttpRequest: (aim) => aim.all((url, init) => new Promise((done) => {
    const x = new XMLHttpRequest();
    x.open(init.method ?? "GET", url);
    x.withCredentials = true;
    x.onloadend = () => done(x.responseText);
    x.send(init.body);
  })),
  "XMLHttpRequest, synchronous": (aim) => aim.all((url, init) => {
    const x = new XMLHttpRequest();
    x.open(init.method ?? "GET", url, false);
    x.withCredentials = true;
    x.send(init.body);
    return x.responseText;
  }),
  beacon: (aim) => aim.acts((url, body) => navigator.sendBeacon(url, body)),
  "beacon of JSON": (aim) => aim.acts((url, body) => navigator.sendBeacon(url, new Blob([body], { type: "application/json" }))),
  WebSocket: (aim) => aim.sockets((url) => new WebSocket(url)),
  EventSource: (aim) => aim.reads("sse", (url) => new Promise((done) => {
    const e = new EventSource(url, { withCredentials: true });
    e.onmessage = (m) => { e.close(); done(m.data); };
    e.onerror = () => { e.close(); done(""); };
  })),
  "form in a frame": (aim) => aim.acts((url, body) => aim.form(url, body, "text/plain")),
  "form, encoded": (aim) => aim.acts((url, body) => aim.form(url, body, "application/x-www-form-urlencoded")),
  "form, multipart": (aim) => aim.acts((url, body) => aim.form(url, body, "multipart/form-data")),
  "frame that is read": (aim) => aim.reads("txt", async (url) => (await aim.load("iframe", url)).contentDocument.body.innerText),
  "frame that is scripted": (aim) => aim.pages(async (url) => {
    const f = await aim.load("iframe", url);
    f.contentWindow.eval(`fetch("v1/bash/exec", { method: "POST", body: ${JSON.stringify(aim.command)} })`);
  }),
  "frame with its own sandbox": (aim) => aim.reads("txt", async (url) => (await aim.load("iframe", url, { sandbox: "allow-scripts allow-same-origin" })).contentDocument.body.innerText),
  "frame of a document": (aim) => aim.all((url, init) => aim.messenger((f) => { f.srcdoc = aim.call(url, init); })),
  "frame of a blob": (aim) => aim.all((url, init) => aim.messenger((f) => { f.src = URL.createObjectURL(new Blob([aim.call(url, init)], { type: "text/html" })); })),
  object: (aim) => aim.reads("svg", async (url) => (await aim.load("object", url)).contentDocument.documentElement.textContent),
  embed: (aim) => aim.reads("svg", async (url) => (await aim.load("embed", url)).getSVGDocument().documentElement.textContent),
  script: (aim) => aim.reads("js", async (url) => { await aim.load("script", url); return leak.join(); }),
  "style sheet": (aim) => aim.reads("css", async (url) => [...(await aim.load("link", url, { rel: "stylesheet" })).sheet.cssRules].map((r) => r.cssText).join()),
  "picture on a canvas": (aim) => aim.reads("svg", async (url) => {
    const to = document.createElement("canvas").getContext("2d");
    to.drawImage(await aim.load("img", url), 0, 0);
    return to.getImageData(1, 1, 1, 1).data.slice(0, 3).join() === "1,2,3" ? "SECRET-PIXEL" : "";
  }),
  "module import": (aim) => aim.reads("mjs", (url) => import(url).then((m) => m.default)),
  "redirect of a request": (aim) => aim.all((url, init) => fetch(aim.redirect(url, init.body ? 307 : 302), { ...init, credentials: "include" })),
  "redirect of a form": (aim) => aim.acts((url, body) => aim.form(aim.redirect(url, 307), body, "text/plain")),
  "redirect of a frame": (aim) => aim.reads("txt", async (url) => (await aim.load("iframe", aim.redirect(url, 302))).contentDocument.body.innerText),
  "redirect of a script": (aim) => aim.reads("js", async (url) => { await aim.load("script", aim.redirect(url, 302)); return leak.join(); }),
  "refresh of a frame": (aim) => aim.reads("txt", async (url) => {
    const f = await aim.load("iframe", URL.createObjectURL(new Blob([`<meta http-equiv="refresh" content="0;url=${url}">`], { type: "text/html" })));
    await new Promise((done) => { f.onload = done; });
    return f.contentDocument.body.innerText;
  }),
  "worker that fetches": (aim) => aim.worker((url) => { const w = new Worker(url); return (done) => { w.onmessage = (m) => done(m.data); w.onerror = () => done("an error"); }; }),
  "shared worker that fetches": (aim) => aim.worker((url) => { const w = new SharedWorker(url); return (done) => { w.port.onmessage = (m) => done(m.data); w.onerror = () => done("an error"); }; }),
  "service worker": (aim) => aim.each(aim.scopes, async (scope) => {
    const { scope: taken } = await navigator.serviceWorker.register("sw.js", { scope });
    return new URL(taken).origin === location.origin && self.origin !== "null" ? "its own worker" : `SECRET-WORKER at ${taken}`;
  }),
  "window that is read": (aim) => aim.window((w) => w.document.body.innerText),
  "window that is scripted": (aim) => aim.window((w) => { w.eval(`fetch("v1/bash/exec", { method: "POST", body: ${JSON.stringify(aim.command)} })`); }),
  "window that is sent a script": (aim) => aim.window((w) => { w.location = `javascript:fetch("v1/bash/exec", { method: "POST", body: ${JSON.stringify(aim.command)} })`; }),
  "window that is spoken to": (aim) => aim.window((w) => new Promise((done) => {
    addEventListener("message", (m) => m.source === w && done(`SECRET-WORD ${JSON.stringify(m.data)}`));
    w.postMessage({ type: "input", data: aim.shell + "\r" }, "*");
    setTimeout(done, 200);
  })),
  "form in a window": (aim) => aim.acts((url, body) => aim.form(url, body, "text/plain", "shots")),
  "terminal with a command": (aim) => aim.terminal((url) => url),
  "redirect to a terminal with a command": (aim) => aim.terminal((url) => aim.redirect(url, 302)),
  "its opener": () => [opener.location.href, opener.document.body.innerText].join(),
  "its ancestors and its referrer": () => [...location.ancestorOrigins, document.referrer].join(),
  "the channel of a page": () => new Promise((done) => { const c = new BroadcastChannel("terminal"); c.onmessage = (m) => done(`SECRET-WORD ${JSON.stringify(m.data)}`); c.postMessage("hello"); setTimeout(done, 200); }),
  "its own ticket": async (aim) => `SECRET-TICKET ${(await (await fetch(aim.hub + "/tickets", { method: "POST", credentials: "include" })).json()).ticket}`,
  "credentials in the address": (aim) => aim.all((url, init) => fetch(url + (url.includes("?") ? "&" : "?") + "ticket=tkt_" + "A".repeat(43), { ...init, credentials: "include" })),
  "its own pass elsewhere": (aim) => aim.each(["mine", aim.name].flatMap((name) => ["v1/file/download?path=/home/gem/secret.txt", "proxy/4000/secret.txt", "proxy/5000/secret.txt"].map((path) => [name, path])), ([name, path]) => {
    const pass = location.pathname.split("/").find((s) => s.startsWith("~")) ?? "";
    return fetch(`${aim.hub}/sandbox/${name}/${pass}/${path}`, { headers: { "X-Aio-Proxy-Port": "4000" } }).then((r) => r.text());
  }),
  "paths that lead out": (aim) => aim.each(["../../mine/proxy/5000/", "../4000/", "../../proxy/4000/", "..%2f4000%2f", "%2e%2e/4000/", "/sandbox/mine/proxy/5000/", "/proxy/4000/", "//mine/"], (path) => fetch(path + "secret.txt", { credentials: "include" }).then((r) => r.text())),
  "fetch from nowhere": (aim) => aim.all((url, init) => aim.messenger((f) => { f.setAttribute("sandbox", "allow-scripts"); f.srcdoc = aim.call(url, init); })),
  "WebSocket from nowhere": (aim) => aim.each(aim.servers.map((url) => url.replace("http", "ws") + "v1/shell/ws"), (url) => aim.messenger((f) => {
    f.setAttribute("sandbox", "allow-scripts");
    f.srcdoc = `<script>const s = new WebSocket(${JSON.stringify(url)}); s.onmessage = () => parent.postMessage("SECRET-SHELL", "*"); s.onerror = () => parent.postMessage("", "*")</script>`;
  })),
  "WebSocket through a redirect": (aim) => aim.sockets((url) => new WebSocket(new URL(aim.redirect(url.replace("ws", "http"), 302), location.href).href.replace("http", "ws"))),
  "EventSource through a redirect": (aim) => aim.reads("sse", (url) => new Promise((done) => {
    const e = new EventSource(aim.redirect(url, 302), { withCredentials: true });
    e.onmessage = (m) => { e.close(); done(m.data); };
    e.onerror = () => { e.close(); done(""); };
  })),
  "preloaded script": (aim) => aim.reads("js", async (url) => { await aim.load("link", url, { rel: "preload", as: "script" }); await aim.load("script", url); return leak.join(); }),
  "prerendered page": (aim) => aim.pages((url) => { document.head.append(Object.assign(document.createElement("script"), { type: "speculationrules", textContent: JSON.stringify({ prerender: [{ urls: [url], eagerness: "immediate" }] }) })); }),
  "worker of a file of the sandbox": (aim) => aim.each(aim.servers.flatMap((url) => ["v1/file/download?path=/home/gem/site/sw.js", "e2b/envd/files?path=/home/gem/site/sw.js"].map((path) => [url, url + path])), async ([scope, url]) =>
    `SECRET-WORKER at ${(await navigator.serviceWorker.register(url, { scope })).scope}`),
  "frames that are spoken to": (aim) => aim.pages(async (url) => {
    const f = await aim.load("iframe", url);
    return new Promise((done) => {
      addEventListener("message", (m) => m.source === f.contentWindow && done(`SECRET-WORD ${JSON.stringify(m.data)}`));
      for (const data of [{ type: "input", data: aim.shell + "\r" }, JSON.stringify({ type: "input", data: aim.shell + "\r" }), { command: aim.shell }]) f.contentWindow.postMessage(data, "*");
      setTimeout(done, 200);
    });
  }),
  // The channel of the terminal is tested above.
  "all channels": () => Promise.all(["files", "home", "hub", "activity", "notebook", "auth", "session", "workbench", ""].map((name) => new Promise((done) => {
    const c = new BroadcastChannel(name);
    c.onmessage = (m) => done(`SECRET-WORD ${JSON.stringify(m.data)}`);
    c.postMessage({ type: "sign-out" });
    setTimeout(done, 200);
  }))).then(String),
  "locks and caches": async () => {
    const held = await navigator.locks.query();
    return [...held.held, ...held.pending].map((lock) => `SECRET-LOCK ${lock.name}`).join() + (await caches.keys()).map((name) => `SECRET-CACHE ${name}`).join() + (await indexedDB.databases()).map((db) => `SECRET-DATA ${db.name}`).join();
  },
  "the clipboard": () => navigator.clipboard.readText().then((text) => `SECRET-CLIPBOARD ${text}`),
  "its opener with a script": (aim) => { opener.location = `javascript:fetch("/api/v1/sandbox", { method: "POST", body: ${JSON.stringify(JSON.stringify({ name: aim.tag }))} })`; },
  "timings of others": (aim) => aim.reads("txt", async (url) => {
    await fetch(url, { mode: "no-cors", credentials: "include" }).catch(() => {});
    return performance.getEntriesByName(url).map((e) => (e.responseStatus === 200 ? `SECRET-STATUS of ${url}` : "")).join();
  }),
  // These change the page itself, so they run last.
  "data of the site that is cleared": () => fetch("clear").then((r) => r.text()),
  "cookies that a server sets": (aim) => fetch("cookies").then((r) => r.text()).then(() => aim.all((url, init) => fetch(url, { ...init, credentials: "include" }))),
  "cookies that are read": (aim) => { document.cookie = `own=${aim.tag}`; return document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage); },
  "cookies that are set": (aim) => {
    for (const domain of ["", "; Domain=localhost", "; Domain=127.0.0.1"]) for (const path of ["/", "/api/", "/sandbox/mine/"]) document.cookie = `cove_session_000000000000=forged; Path=${path}${domain}`;
    return aim.all((url, init) => fetch(url, { ...init, credentials: "include" }));
  },
  "a document of another origin": (aim) => { document.domain = "localhost"; return aim.reads("txt", async (url) => (await aim.load("iframe", url)).contentDocument.body.innerText); },
};
const alone = new Set(["window that is read", "window that is scripted", "window that is sent a script", "window that is spoken to", "form in a window", "terminal with a command", "redirect to a terminal with a command",
  "data of the site that is cleared", "cookies that a server sets", "cookies that are read", "cookies that are set", "a document of another origin"]);

// Runs in the page before the ways: the targets, and how to reach them.
function arm(given) {
  // Every request completes or fails; patience is for requests that a browser drops silently.
  const settle = (promise) => Promise.race([promise.then((v) => (v instanceof Response ? v.text() : String(v ?? ""))).catch(String), new Promise((done) => setTimeout(done, given.patience, "no reply"))]);
  const each = async (list, act) => (await Promise.all(list.map((x) => settle((async () => act(x))())))).join("\n");
  const command = JSON.stringify({ command: given.shell });
  const shots = [...given.shots, ...given.servers.map((url) => [url + "v1/bash/exec", command]), ...given.sites.map((url) => [url, JSON.stringify({ name: given.tag })])];
  const targets = (kind) => [...(kind === "txt" ? given.texts : []), ...given.sites.map((url) => `${url}secret.${kind}`)];
  const files = [...targets("txt"), ...given.servers.map((url) => url + "v1/file/download?path=/home/gem/secret.txt")];
  const place = (e) => { document.body.append(e); return e; };
  return {
    ...given, command, each,
    acts: (act) => each(shots, ([url, body]) => act(url, body)),
    reads: (kind, act) => each(targets(kind), act),
    pages: (act) => each([...given.servers.map((url) => url + "v1/docs"), ...given.sites], act),
    all: async (act) => `${await each(shots, ([url, body]) => act(url, { method: "POST", body }))}\n${await each(files, (url) => act(url, {}))}`,
    call: (url, init) => `<script>fetch(${JSON.stringify(url)}, ${JSON.stringify({ ...init, credentials: "include" })}).then((r) => r.text()).catch(String).then((t) => parent.postMessage(t, "*"))</script>`,
    redirect: (url, status) => `to?status=${status}&url=${encodeURIComponent(url)}`,
    sockets: (act) => each(given.servers.map((url) => url.replace("http", "ws") + "v1/shell/ws"), (url) => new Promise((done) => {
      const s = act(url);
      s.onmessage = () => { s.send(JSON.stringify({ type: "input", data: given.shell + "\r" })); done(`SECRET-SHELL at ${url}`); };
      s.onerror = () => done("");
    })),
    // window opens a page once for several ways and waits until it is loaded.
    window: (act) => each(given.windows, async (url) => {
      globalThis.opened ??= {};
      const w = (opened[url] ??= open(url));
      for (let there = false; !there; await new Promise((done) => setTimeout(done, 20))) {
        try { there = w.closed || (w.location.href !== "about:blank" && w.document.readyState === "complete"); } catch { there = true; }
      }
      return act(w);
    }),
    terminal: (at) => each(given.servers.slice(0, 1), (url) => { open(at(`${url}terminal?command=${encodeURIComponent(given.shell + "\r\n")}`)); }),
    form: (action, body, enctype, target) => new Promise((done) => {
      const cut = body.indexOf(":") + 1; // with text/plain the browser puts = between name and value
      const form = place(Object.assign(document.createElement("form"), { method: "POST", action, enctype, target: target ?? "f" + Math.random() }));
      form.append(Object.assign(document.createElement("input"), { name: body.slice(0, cut) + ' "', value: '", ' + body.slice(cut) }));
      form.append(Object.assign(document.createElement("input"), { name: "command", value: given.shell }));
      if (!target) {
        const frame = place(Object.assign(document.createElement("iframe"), { name: form.target }));
        frame.onload = () => frame.contentWindow !== null && done("");
      } else done("");
      form.submit();
    }),
    messenger: (fill) => new Promise((done) => {
      const f = document.createElement("iframe");
      addEventListener("message", (m) => m.source === f.contentWindow && done(m.data));
      fill(f);
      place(f);
    }),
    load: (tag, url, more = {}) => new Promise((done, fail) => {
      const e = Object.assign(document.createElement(tag), more, { onload: () => done(e), onerror: () => fail(new Error("not loaded")) });
      if (more.sandbox) e.setAttribute("sandbox", more.sandbox);
      e[{ object: "data", link: "href" }[tag] ?? "src"] = url;
      place(e);
    }),
    worker: (begin) => settle((async () => {
      const aims = "aims=" + encodeURIComponent(JSON.stringify({ reads: files, shots }));
      const text = await (await fetch("fetcher.js")).text();
      return new Promise((done) => {
        // A page with an opaque origin can only start workers from blobs.
        try { begin("fetcher.js?" + aims)(done); } catch { begin(URL.createObjectURL(new Blob([text.replace("location.search", JSON.stringify("?" + aims))], { type: "text/javascript" })))(done); }
      });
    })()),
  };
}

// perform runs ways in a page, concurrently except for exclusive ones. It returns what each of them read.
async function perform(page, names, aimsOf) {
  const shoot = (list) => page.evaluate(`(async () => {
    const settle = (act) => (async () => String(await act()))().catch(String);
    return Promise.all([${list.map((way) => `settle(() => (${ways[way]})((${arm})(${JSON.stringify(aimsOf(way))})))`)}]);
  })()`);
  const got = {};
  const together = names.filter((way) => !alone.has(way));
  (await shoot(together)).forEach((text, i) => { got[together[i]] = text; });
  for (const way of names.filter((way) => alone.has(way))) [got[way]] = await shoot([way]);
  return got;
}

async function prepare(hub) {
  // A sandbox with a hostile server instead of aio.
  const pack = (name, secret) => [`mkdir -p ~/${name}`, ...Object.entries(site(secret)).map(([file, text]) => `cat > ~/${name}/${file} <<'END'\n${text}\nEND`)].join("\n");
  const serve = `cat > ~/server.py <<'END'\n${server}\nEND\ncd ~`;
  const setup = `${pack("site", "SECRET-OF-3000")}\n${pack("other", "SECRET-OF-4000")}\nmkdir -p ~/other/proxy/3000; cp ~/other/secret.txt ~/other/proxy/3000/\n${serve}\npython3 server.py 4000 other &\nexec python3 server.py `;
  await Promise.all([
    call(hub, "POST", "/api/v1/sandbox", { name: "fake", environment: "fake", env: { SETUP: setup + "8000 site" } }),
    ...["mine", "evil"].map((name) => call(hub, "POST", "/api/v1/sandbox", { name })),
  ]);
  for (const name of ["mine", "evil"]) await write(hub, name, "/home/gem/secret.txt", `SECRET-OF-${name.toUpperCase()}`);
  await start(hub, "evil", setup + "3000 site");
  await start(hub, "mine", `${pack("site", "SECRET-OF-5000")}\n${serve}\nexec python3 server.py 5000 site`);
  const headers = hub.key && { "X-API-Key": hub.key };
  for (const at of ["evil/proxy/3000/", "evil/proxy/4000/", "mine/proxy/5000/", "fake/", "fake/proxy/4000/"]) await until(`${at} answers`, () => fetch(`${hub.url}/sandbox/${at}`, { headers }).then((res) => res.ok));
}

// enemies returns the targets of a page that may not use any of them.
function enemies(hub, name, tag) {
  const port = new URL(hub.url).port;
  const reach = (label, path) => [`${hub.at}/sandbox/${path}`, `http://${label}.localhost:${port}/`];
  return {
    name, tag, hub: hub.at, patience: 5000, shell: `touch /home/gem/${tag}`,
    shots: [[hub.at + "/api/v1/sandbox", JSON.stringify({ name: tag })], [hub.at + "/api/v1/sandbox/mine/share", "{}"]],
    texts: [hub.at + "/api/v1/sandbox"],
    servers: [...reach("mine", "mine/"), ...(name === "evil" ? reach("evil", "evil/") : [])],
    sites: [...reach("5000-mine", "mine/proxy/5000/"), ...reach(`4000-${name}`, `${name}/proxy/4000/`)],
    windows: [hub.at + "/v1/docs", `${hub.at}/sandbox/mine/v1/docs`, `${hub.at}/sandbox/mine/proxy/5000/secret.txt`, `${hub.at}/sandbox/${name}/proxy/4000/secret.txt`],
    scopes: [hub.at + "/", hub.at + "/sandbox/", hub.at + "/api/", `${hub.at}/sandbox/mine/`, ...reach("mine", "mine/"), `/sandbox/`, "/"],
  };
}

// traces returns the effects of the ways: files, sandboxes, links, requests at other ports.
async function traces(hub) {
  const left = await Promise.all([call(hub, "GET", "/api/v1/sandbox"), run(hub, "mine", "ls -a ~; cat ~/site/posts 2>/dev/null; true"), run(hub, "evil", "ls -a ~; cat ~/other/posts 2>/dev/null; true"), call(hub, "GET", "/api/v1/sandbox/mine/share").catch(() => [])]);
  return JSON.stringify(left);
}

// visit opens a page through a link on the page of the hub.
async function visit(home, url) {
  const [page] = await Promise.all([home.waitForEvent("popup"), home.evaluate((url) => { open(url); }, url)]);
  await page.waitForLoadState();
  return page;
}

// terminals waits for the pages of the neighbor's terminal, and until each shows the command of its link.
async function terminals(context, count) {
  const open = () => context.pages().filter((p) => /^http:\/\/(mine\.[^/]+|[^/]+\/sandbox\/mine\/~[^/]+)\/terminal/.test(p.url()));
  await until(`${count} terminals are open`, () => open().length === count, () => context.pages().map((p) => p.url()).join(" "));
  for (const p of open()) {
    const suggested = () => p.locator("#suggested").textContent();
    await until("the page shows the command", async () => /touch/.test(await suggested()), suggested);
  }
  return open();
}

const numbered = (way) => Object.keys(ways).indexOf(way) + 1;

async function attack(browser, hub, name, at, failures) {
  const context = await browser.newContext();
  context.setDefaultTimeout(patience);
  const pending = new Set();
  // The end of requests for scripts of shared workers and for prerendered pages is not reported.
  const isUntold = (r) => r.url().includes("fetcher.js") || r.method() === "GET" && ["document", "prefetch", "other"].includes(r.resourceType());
  context.on("request", (r) => isUntold(r) || pending.add(r));
  for (const end of ["requestfinished", "requestfailed"]) context.on(end, (r) => pending.delete(r));
  const home = await context.newPage();
  await signIn(hub, home);
  const { id } = await call(hub, "GET", "/api/v1/sandbox/mine");
  const page = await visit(home, `${hub.at}/sandbox/${at}`);
  check((await page.title()) === "hostile", `got ${page.url()} ${await page.content()}, want the hostile page`);
  const origin = await page.evaluate(() => self.origin);
  check(origin !== hub.at, `got ${origin}, want another origin than the hub's`);
  const tag = (way) => `owned-${hub.named ? "n" : "b"}-${name}-${numbered(way)}x`;
  const got = await perform(page, Object.keys(ways), (way) => enemies(hub, name, tag(way)));
  for (const [way, text] of Object.entries(got)) {
    if (/SECRET-(?!OF-3000)|cove_session/.test(text) || text.includes(id)) failures.push(`${hub.title}, from ${at}: ${way}: read ${text.slice(0, 400)}`);
  }
  // A link may suggest a command, which only the user can run. At an IP address a redirect stays below its site.
  for (const p of await terminals(context, hub.named ? 2 : 1)) {
    await hold(p, keys.enter, { release: true });
    const mark = `typed-${Math.random().toString(36).slice(2)}`; // held keys arrive before it
    await typeInstead(p, `touch ~/${mark}`);
    await until("the terminal works", async () => (await run(hub, "mine", "ls ~")).includes(mark), () => p.locator("body").innerText());
  }
  for (const f of page.frames()) {
    const at = await f.evaluate(() => self.origin).catch(() => "null");
    if (at === hub.at || at === `http://mine.localhost:${new URL(hub.url).port}`) failures.push(`${hub.title}, from ${at}: a page of ${at} is in a frame of a hostile page: ${f.url()} ${(await f.content()).slice(0, 200)}`);
  }
  await until("all requests are answered", () => pending.size === 0, () => [...pending].map((r) => `${r.method()} ${r.url()}`).join(" "));
  const left = await traces(hub);
  for (const way of Object.keys(ways)) if (left.includes(tag(way))) failures.push(`${hub.title}, from ${at}: ${way}: acted`);
  // The user still has full access.
  const still = await home.evaluate(async () => (await fetch("/api/v1/sandbox")).status);
  if (still !== 200) failures.push(`${hub.title}: got ${still} for the person's own page afterwards, want 200`);
  await context.close();
  console.log(`ok ${Object.keys(ways).length} ways ${hub.title}, from ${at}`);
}

// accept runs the command that a terminal suggests, like a user.
async function accept(page) {
  const button = page.getByRole("button", { name: /^Run\b/ });
  await ((await button.count()) > 0 ? button.first().click() : page.locator(".xterm-helper-textarea").press("Enter"));
}

// Ways without a control: no page may use their target, or they are meaningless for the page's own site.
const uncontrolled = ["WebSocket", "window that is spoken to", "terminal with a command", "redirect to a terminal with a command", "its opener", "its ancestors and its referrer", "the channel of a page",
  "its own ticket", "its own pass elsewhere", "paths that lead out", "a document of another origin", "fetch from nowhere", "WebSocket from nowhere", "WebSocket through a redirect", "prerendered page",
  "worker of a file of the sandbox", "frames that are spoken to", "all channels", "locks and caches", "the clipboard", "its opener with a script", "timings of others", "data of the site that is cleared",
  "cookies that a server sets"];
// A page with an opaque origin can send, but not read with credentials. It has no cookies, and its frames and windows are
// cross-origin.
const fromNowhere = ["fetch as a simple request", "fetch without CORS", "fetch that outlives the page", "own host with the header of another port", "XMLHttpRequest", "XMLHttpRequest, synchronous", "beacon", "form in a frame", "form, encoded",
  "form, multipart", "frame of a document", "frame of a blob", "script", "module import", "redirect of a form", "redirect of a script", "worker that fetches", "form in a window", "credentials in the address"];
const toServer = ["fetch as a simple request", "fetch without CORS", "fetch that outlives the page", "XMLHttpRequest", "XMLHttpRequest, synchronous", "beacon", "WebSocket", "credentials in the address"];

// control checks that the ways work where they are allowed: from a site to itself, from the page of the server of a sandbox to
// that server, and from the page of the hub to the hub. Otherwise the checks above would prove nothing.
async function control(browser, hub) {
  const context = await browser.newContext();
  context.setDefaultTimeout(patience);
  const home = await context.newPage();
  await signIn(hub, home);
  const none = { name: "evil", hub: hub.at, patience, shots: [], texts: [], servers: [], sites: [], windows: [], scopes: [] };
  const expect = async (page, from, names, aims, secret, posts) => {
    const tag = (way) => `control-${hub.named ? "n" : "b"}-${from}-${numbered(way)}x`;
    const got = await perform(page, names, (way) => ({ ...none, ...aims, tag: tag(way), shell: `touch /home/gem/${tag(way)}` }));
    if (names.includes("terminal with a command")) for (const p of await terminals(context, 1)) await accept(p);
    let left = await posts();
    const through = (way) => secret.test(got[way]) || got[way].includes(`own=${tag(way)}`) || left.includes(tag(way));
    const lost = async () => { left = await posts(); return names.filter((way) => !through(way)); };
    await until(`${hub.title}: all ways from ${from} get through`, async () => (await lost()).length === 0, async () => JSON.stringify((await lost()).map((way) => [way, got[way].slice(0, 300)])));
    console.log(`ok ${names.length} ways ${hub.title}, from the ${from} to itself`);
  };
  const service = await visit(home, `${hub.at}/sandbox/evil/proxy/3000/`);
  const own = service.url();
  await expect(service, "site", hub.named ? Object.keys(ways).filter((way) => !uncontrolled.includes(way)) : fromNowhere,
    { sites: [own], windows: [own + "secret.txt"], scopes: [own] }, /SECRET-(OF-3000|PIXEL)|its own worker/, () => run(hub, "evil", "cat ~/site/posts 2>/dev/null; true"));
  const server = await visit(home, `${hub.at}/sandbox/mine/v1/docs`);
  await expect(server, "server", [...toServer, "terminal with a command"], { servers: [server.url().replace("v1/docs", "")] }, /SECRET-(OF-MINE|SHELL)/, () => run(hub, "mine", "ls ~"));
  await expect(home, "hub", ["fetch", "XMLHttpRequest", "its own ticket"], { texts: [hub.at + "/api/v1/sandbox"] }, /SECRET-TICKET|"id":/, async () => "");
  await context.close();
}

check(Object.keys(ways).length >= 60, `got ${Object.keys(ways).length} ways, want 60`);
console.log(`${Object.keys(ways).length} ways, and held keys`);
await Promise.all(hubs.filter((hub) => hub.named).map(prepare));
const browser = await chromium.launch({ timeout: patience, executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-popup-blocking", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"] });
const failures = [];
try {
  await Promise.all(hubs.map(async (hub) => {
    await attack(browser, hub, "evil", "evil/proxy/3000/", failures);
    if (hub.key) await attack(browser, hub, "fake", "fake/", failures);
  }));
  for (const hub of hubs.filter((hub) => hub.key)) await control(browser, hub);
} finally {
  await browser.close();
}
check(failures.length === 0, failures.join("\n"));
