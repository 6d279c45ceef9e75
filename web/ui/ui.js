// Shared by all pages: Preact with htm, controls, API calls, and stored settings.
// Content of a sandbox (names, titles, output) becomes text nodes and attributes, never markup.
import { Component, createContext, h, render } from "../vendor/preact/preact.js";
import { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact/hooks.js";
import htm from "../vendor/htm/htm.js";
import { hasExpired, isUnsaved } from "./session.js";

export const html = htm.bind(h);
export { Component, createContext, h, render, useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState };

/** Root URL of the server for this page, which may be below a path prefix. */
export const root = new URL("..", import.meta.url);

/** at returns the URL of a path on the server. @param {string} path @param {Record<string, unknown>} [query] */
export function at(path, query) {
  const url = new URL(path.replace(/^\//, ""), root);
  for (const [name, value] of Object.entries(query || {})) if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, String(value));
  return url;
}

/** Failure is the error of a call. Its message explains what to do. Its status is 0 if the server is unreachable. */
export class Failure extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/**
 * call sends a request and returns the data of its response. A request with a body is a POST of JSON.
 * @param {string} path
 * @param {{ body?: unknown, method?: string, query?: Record<string, unknown>, signal?: AbortSignal, whole?: boolean }} [options] whole: return the envelope, too
 * @returns {Promise<any>}
 */
export async function call(path, { body, method, query, signal, whole } = {}) {
  const form = body instanceof FormData;
  const init = { method: method || (body === undefined ? "GET" : "POST"), signal, headers: { Accept: "application/json" } };
  if (body !== undefined) Object.assign(init, { body: form ? body : JSON.stringify(body) });
  if (body !== undefined && !form) Object.assign(init.headers, { "Content-Type": "application/json" });
  let reply;
  try {
    reply = await fetch(at(path, init.method === "GET" ? { ...query, ...quiet } : query), init);
  } catch (error) {
    if (signal?.aborted) throw error;
    report(0);
    throw new Failure("The server cannot be reached.", 0);
  }
  report(reply.status);
  const text = await reply.text();
  let data;
  try { data = text === "" ? null : JSON.parse(text); } catch { throw new Failure(reply.ok ? "The server sent an invalid reply." : `The server replied with status ${reply.status}.`, reply.status); }
  if (!reply.ok) throw new Failure(messageOf(data) || `The server replied with status ${reply.status}.`, reply.status);
  if (data && typeof data === "object" && data.success === false) throw new Failure(messageOf(data) || "The call failed.", reply.status);
  if (whole) return data;
  if (data && typeof data === "object" && "code" in data && "data" in data && !("success" in data)) return data.data; // the hub's envelope
  return data && typeof data === "object" && "success" in data && "data" in data ? data.data : data;
}

/** @param {any} data */
function messageOf(data) {
  const said = data?.message ?? data?.error ?? data?.detail;
  if (typeof said === "string") return said;
  return Array.isArray(said) ? said.map((e) => [(e.loc || []).slice(-1)[0], e.msg].filter(Boolean).join(": ")).join("; ") : "";
}

// State of the connection. Pages show a notice when it is lost and when the session has expired.
const listeners = new Set();
let connection = "open";
let used = false; // whether the server has replied to this page
/** @param {number} status */
function report(status) {
  used ||= status !== 0;
  become(status === 0 || status === 502 || status === 503 || status === 504 ? "lost" : status === 401 ? "signed out" : "open");
}

/** @param {string} next */
function become(next) {
  if (next === connection || connection === "expired") return;
  connection = next;
  for (const tell of listeners) tell(next);
}

/** quiet is the query of requests that must not wake a sandbox. A hub's pages do not need it. @type {Record<string, string>} */
export let quiet = {};
/** gate reports whether the page may send automatic requests now. @type {() => Promise<boolean>} */
let gate = async () => true;
/** setGate sets a condition for automatic requests, which then do not wake a sandbox. @param {() => Promise<boolean>} fn */
export const setGate = (fn) => { gate = fn; quiet = { wake: "false" }; };

/** retry calls the server. If it no longer knows this page, such as after a restart of the hub, the page loads again. */
async function retry() {
  if (!(await gate())) return become("open"); // nothing to connect to
  const reached = await call("auth").then(() => true, (error) => error.status !== 0);
  if (reached || !used || !(await hasExpired(at("auth", quiet)))) return;
  if (isUnsaved()) become("expired");
  else location.reload();
}

/** useConnection returns "open", "lost", "signed out" or "expired". While the connection is lost, it polls the server. */
export function useConnection() {
  const [state, set] = useState(connection);
  useEffect(() => {
    listeners.add(set);
    set(connection);
    return () => { listeners.delete(set); };
  }, []);
  useEffect(() => {
    if (state !== "lost") return undefined;
    const timer = setInterval(retry, 1500);
    return () => clearInterval(timer);
  }, [state]);
  return state;
}

/** Connection shows a notice while the connection is lost. */
export function Connection() {
  const state = useConnection();
  if (state === "open") return html`<div role="status" class="unseen"></div>`;
  if (state === "lost") return html`<div role="status" class="notice"><span class="spin"></span>Connection lost. Trying again…</div>`;
  const [what, action] = state === "expired" ? ["The server has restarted. Copy unsaved text, then reload the page.", "Reload the page"] :
    ["Your session has ended.", "Sign in again"];
  return html`<div role="status" class="notice bad">${what} <button onClick=${() => location.reload()}>${action}</button></div>`;
}

/**
 * follow reads a stream of events until stopped and resumes it after an interruption.
 * @param {string} path
 * @param {Record<string, unknown>} query
 * @param {(name: string, data: any, id: string) => void} take
 * @param {(state: "open" | "lost") => void} [tell]
 */
export function follow(path, query, take, tell) {
  const stop = new AbortController();
  let last = "";
  const run = async () => {
    for (let tries = 0; !stop.signal.aborted; tries++) {
      try {
        if (!(await gate())) throw new Error("not now");
        const headers = { Accept: "text/event-stream" };
        if (last) Object.assign(headers, { "Last-Event-ID": last });
        const reply = await fetch(at(path, { ...query, ...quiet }), { headers, signal: stop.signal });
        if (!reply.ok || !reply.body) {
          if (reply.status >= 400 && reply.status < 500 && reply.status !== 429) { report(reply.status === 401 ? 401 : 200); return; }
          throw new Error("no stream");
        }
        tries = 0;
        report(200);
        tell?.("open");
        await readEvents(reply.body, (name, data, id) => { last = id || last; take(name, data, id); });
      } catch { /* reconnects below */ }
      if (stop.signal.aborted) return;
      tell?.("lost");
      await new Promise((go) => setTimeout(go, Math.min(10_000, 300 * 2 ** Math.min(tries, 5))));
      if (tries > 0 && await gate()) await call("auth").catch(() => {});
    }
  };
  run();
  return () => stop.abort();
}

/** readEvents reads a stream of events to its end. @param {ReadableStream<Uint8Array>} body @param {(name: string, data: any, id: string) => void} take */
export async function readEvents(body, take) {
  const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const event = { name: "message", data: "", id: "" };
      for (const line of text.slice(0, end).split("\n")) {
        if (line.startsWith("event:")) event.name = line.slice(6).trim();
        if (line.startsWith("id:")) event.id = line.slice(3).trim();
        if (line.startsWith("data:")) event.data += line.slice(5).trimStart();
      }
      text = text.slice(end + 2);
      if (event.data) take(event.name, JSON.parse(event.data), event.id);
    }
  }
}

/** usePoll calls fn at an interval while the page is visible. @param {() => Promise<unknown>} fn @param {number} every @param {unknown[]} deps */
export function usePoll(fn, every, deps = []) {
  useEffect(() => {
    let timer = 0;
    let over = false;
    const turn = async () => {
      clearTimeout(timer);
      if (over || document.hidden) return;
      try { if (await gate()) await fn(); } catch { /* Connection shows a notice */ }
      if (!over) timer = window.setTimeout(turn, every);
    };
    turn();
    document.addEventListener("visibilitychange", turn);
    return () => { over = true; clearTimeout(timer); document.removeEventListener("visibilitychange", turn); };
  }, deps);
}

// A page with an opaque origin has no storage.
/** @type {Pick<Storage, "getItem" | "setItem">} */
const storage = (() => { try { return localStorage; } catch { return { getItem: () => null, setItem: () => {} }; } })();

/** remember stores a value for the next visit. @param {string} name @param {unknown} value */
export function remember(name, value) {
  try { storage.setItem(`cove-${name}`, JSON.stringify(value)); } catch { /* storage is full or unavailable */ }
}

/** @template T @param {string} name @param {T} otherwise @returns {T} */
export function recall(name, otherwise) {
  try { return JSON.parse(storage.getItem(`cove-${name}`) ?? "null") ?? otherwise; } catch { return otherwise; }
}

/** The theme that the person chose: "light", "dark", or "system". */
let chosen = recall("theme", "system");
const themes = ["system", "light", "dark"];
/** @type {Set<() => void>} */
const dressers = new Set();
const dress = () => {
  document.documentElement.style.colorScheme = themes.includes(chosen) && chosen !== "system" ? chosen : "";
  for (const tell of dressers) tell();
};
dress();
const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", dress);

/** themeNow returns the theme that the person chose. */
export const themeNow = () => (themes.includes(chosen) ? chosen : "system");

/** isDark reports whether the page is dark now. */
export const isDark = () => (themes.includes(chosen) && chosen !== "system" ? chosen === "dark" : dark.matches);

/** onTheme calls fn after each change between dark and light. @param {() => void} fn */
export const onTheme = (fn) => { dressers.add(fn); return () => { dressers.delete(fn); }; };

// A pane without storage gets the theme from the page around it.
if (self !== top) addEventListener("message", ({ source, data }) => { if (source === parent && data?.cove === "theme") { chosen = data.theme; dress(); } });
addEventListener("storage", (event) => { if (event.key === "cove-theme") { chosen = recall("theme", "system"); dress(); } });

/** nextTheme switches to the next theme and returns it. */
export function nextTheme() {
  chosen = themes[(themes.indexOf(chosen) + 1) % themes.length];
  remember("theme", chosen);
  dress();
  return chosen;
}

/** bytes formats an amount of memory. @param {number | null | undefined} n */
export function bytes(n) {
  if (n === null || n === undefined) return "–";
  if (n < 1024) return `${n} B`;
  const names = ["kB", "MB", "GB", "TB"];
  let value = n / 1024;
  let unit = 0;
  while (value >= 999.5 && unit < names.length - 1) { value /= 1024; unit++; }
  return `${value >= 100 ? Math.round(value) : value.toFixed(1).replace(/\.0$/, "")} ${names[unit]}`;
}

/** @type {Record<string, number>} */
const units = { Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, k: 1e3, M: 1e6, G: 1e9, T: 1e12 };

/** quantity formats a resource quantity, such as 1000m CPUs or 1024Mi. @param {string | undefined} text @param {boolean} [cpu] */
export function quantity(text, cpu) {
  const [, number, unit] = /^([0-9.]+)([a-zA-Z]*)$/.exec(text || "") || [];
  if (number === undefined || (unit && unit !== "m" && !units[unit])) return text || "–";
  const count = Number(number) / (unit === "m" ? 1000 : 1);
  if (cpu) return `${count} ${count === 1 ? "core" : "cores"}`;
  return bytes(Number(number) * (units[unit] || 1));
}

/** plain makes untrusted text safe to read: it removes terminal sequences and shows other control and direction characters as codes. @param {unknown} text */
export function plain(text) {
  return String(text ?? "").replace(/\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]/g, "").replace(/\r\n/g, "\n")
    .replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** span formats a duration. @param {number} s seconds */
export function span(s) {
  if (s < 90) return `${Math.max(0, Math.round(s))} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 172_800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86_400)} d`;
}

/** ago formats the time elapsed since a time. @param {string | number | Date} time */
export function ago(time) {
  const s = Math.max(0, (Date.now() - new Date(time).getTime()) / 1000);
  if (Number.isNaN(s)) return "–";
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.round(s / 60)} min`;
  if (s < 86_400) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86_400)} d`;
}

/** @type {Record<string, string>} */
const signs = {
  code: "M9 7l-5 5 5 5M15 7l5 5-5 5", browser: "M3 5h18v14H3zM3 9h18", terminal: "M4 5h16v14H4zM7 9l3 3-3 3M12 15h5", jupyter: "M5 4h14v16H5zM9 4v16M12 9h4M12 13h4",
  files: "M3 6h6l2 2h10v11H3z", activity: "M3 12h4l3-7 4 14 3-7h4", docs: "M6 3h9l4 4v14H6zM9 12h7M9 16h7", max: "M4 9V4h5M20 9V4h-5M4 15v5h5M20 15v5h-5", min: "M9 4v5H4M15 4v5h5M9 20v-5H4M15 20v-5h5",
  close: "M6 6l12 12M18 6L6 18", reload: "M20 11a8 8 0 1 0-2 6M20 5v6h-6", open: "M14 4h6v6M20 4l-9 9M18 14v6H4V6h6", folder: "M3 6h6l2 2h10v11H3z", file: "M6 3h9l4 4v14H6zM14 3v5h5",
  up: "M12 19V5M6 11l6-6 6 6", down: "M12 5v14M6 13l6 6 6-6", search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l5 5", plus: "M12 5v14M5 12h14", trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  pen: "M4 20l1-4L16 5l3 3L8 19z", right: "M9 6l6 6-6 6", left: "M15 6l-6 6 6 6", image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15 9h.01", pause: "M8 5v14M16 5v14", play: "M7 5l12 7-12 7z", more: "M4.500 12a.5.5 0 1 0 1 0 .5.5 0 1 0-1 0M11.500 12a.5.5 0 1 0 1 0 .5.5 0 1 0-1 0M18.500 12a.5.5 0 1 0 1 0 .5.5 0 1 0-1 0",
  check: "M5 12l5 5 9-10", share: "M18 8a3 3 0 1 0-2.900-2.300L8.700 9.300a3 3 0 1 0 0 5.400l6.400 3.600A3 3 0 1 0 18 16a3 3 0 0 0-2 .8l-7.100-4M16 7.200l-7 4", clock: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM12 7v5l3 2", bell: "M6 17V11a6 6 0 0 1 12 0v6l2 2H4zM10 21h4", box: "M4 8l8-4 8 4v8l-8 4-8-4zM4 8l8 4 8-4M12 12v8", camera: "M4 8h4l2-3h4l2 3h4v11H4zM12 10a3.500 3.500 0 1 0 0 7 3.500 3.500 0 0 0 0-7z", fork: "M7 4v6a4 4 0 0 0 4 4h6M17 10l4 4-4 4M7 10v10", stop: "M6 6h12v12H6z", link: "M10 14a4 4 0 0 0 6 .4l3-3a4.200 4.200 0 0 0-6-6l-1.500 1.500M14 10a4 4 0 0 0-6-.4l-3 3a4.200 4.200 0 0 0 6 6l1.500-1.500", chart: "M4 19h16M6 16l4-6 4 3 5-8", alert: "M12 4l9 16H3zM12 10v4M12 17h.01", gear: "M12 8.500a3.500 3.500 0 1 0 0 7 3.500 3.500 0 0 0 0-7zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M19 5l-2 2M7 17l-2 2",
  theme: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18", keyboard: "M3 6h18v12H3zM7 10h.01M11 10h.01M15 10h.01M7 14h10", help: "M9 9a3 3 0 1 1 4 2.800c-1 .5-1 1.200-1 2.200M12 18h.01", copy: "M9 9h11v11H9zM5 15H4V4h11v1", grid: "M4 4h7v7H4zM13 4h7v7h-7zM4 13h7v7H4zM13 13h7v7h-7z", list: "M4 6h16M4 12h16M4 18h16", key: "M15 8a4 4 0 1 0-3 6l2-2h2v-2h2l2-2V6h-3zM8 11h.01", hand: "M8 12V6a1.5 1.5 0 0 1 3 0v5V4.500a1.500 1.500 0 0 1 3 0V11V6a1.500 1.500 0 0 1 3 0v8a6 6 0 0 1-11 3l-3-4a1.500 1.500 0 0 1 2.500-1.500z", eye: "M2 12s4-7 10-7 10 7 10 7-4 7-10 7S2 12 2 12zM12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6z",
};

/** Logo is the decorative mark of Cove. */
export function Logo() {
  return html`<svg class="logo" viewBox="0 0 24 24" aria-hidden="true"><path d="M20 6.500A9.500 9.500 0 1 0 20 17.500" /><path d="M8.500 14c1.200-1.400 2.400-1.400 3.600 0s2.400 1.400 3.600 0 2.400-1.400 3.600 0M11 10c1-1.200 2-1.200 3 0s2 1.200 3 0" /></svg>`;
}

/** CopyButton copies a text. @param {{ text: string, label?: string, class?: string }} props */
export function CopyButton({ text, label = "Copy", class: more = "" }) {
  const [done, set] = useState(false);
  const copy = async () => {
    try { await navigator.clipboard.writeText(text); } catch { // without a secure context
      const area = Object.assign(document.createElement("textarea"), { value: text });
      (document.querySelector("dialog[open]") || document.body).append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    set(true);
    setTimeout(() => set(false), 2000);
  };
  return html`<button type="button" class=${more} onClick=${copy}><${Sign} of=${done ? "check" : "copy"} /><span aria-live="polite">${done ? "Copied" : label}</span></button>`;
}

/** Sign is a decorative icon, hidden from screen readers. @param {{ of: string }} props */
export function Sign({ of }) {
  return html`<svg class="sign" viewBox="0 0 24 24" aria-hidden="true"><path d=${signs[of] || ""} /></svg>`;
}

/** IconButton is a button with an icon and an accessible name. @param {any} props */
export function IconButton({ sign, label, class: more = "", ...rest }) {
  return html`<button type="button" class=${`plain icon ${more}`} title=${label} aria-label=${label} ...${rest}><${Sign} of=${sign} /></button>`;
}

/** Dialog is a modal window. It calls onClose when it is dismissed. @param {{ title: string, onClose: () => void, children?: any }} props */
export function Dialog({ title, onClose, children }) {
  const box = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useLayoutEffect(() => { box.current?.showModal(); }, []);
  return html`<dialog ref=${box} aria-label=${title} onClose=${onClose} onClick=${(/** @type {Event} */ e) => { if (e.target === box.current) onClose(); }}>
    <div class="body"><div class="row"><h2 class="grow">${title}</h2><${IconButton} sign="close" label="Close" onClick=${onClose} /></div>${children}</div>
  </dialog>`;
}

/** Ask is a dialog that asks for confirmation of an action. other and onOther are a third choice. @param {any} props */
export function Ask({ title, text, action, danger, onYes, other, onOther, onClose, children }) {
  return html`<${Dialog} title=${title} onClose=${onClose}><p>${text}</p>${children}
    <div class="actions"><button onClick=${onClose}>Cancel</button>${other && html`<button onClick=${() => { onClose(); onOther(); }}>${other}</button>`}<button autofocus class=${danger ? "primary danger" : "primary"} onClick=${() => { onClose(); onYes(); }}>${action}</button></div>
  <//>`;
}

// Toasts: short notices at the lower edge, with at most one action.
let toastID = 0;
/** @type {Set<(list: any[]) => void>} */
const toastViews = new Set();
/** @type {any[]} */
let toastList = [];
const showToasts = () => { for (const set of toastViews) set([...toastList]); };

/** toast shows a notice. @param {string} text @param {{ action?: string, onAction?: () => void, time?: number }} [options] */
export function toast(text, { action, onAction, time = 6000 } = {}) {
  const one = { id: ++toastID, text, action, onAction };
  const drop = () => { toastList = toastList.filter((t) => t !== one); showToasts(); };
  toastList = [...toastList.slice(-3), one];
  showToasts();
  setTimeout(drop, time);
  return drop;
}

/** fail shows an error as a notice. @param {unknown} error */
export function fail(error) {
  if (error instanceof DOMException && error.name === "AbortError") return;
  toast(error instanceof Error ? error.message : String(error), { time: 10_000 });
}

/** Toasts shows the notices. */
export function Toasts() {
  const [list, set] = useState(toastList);
  useEffect(() => { toastViews.add(set); return () => { toastViews.delete(set); }; }, []);
  return html`<div class="toasts" role="status" aria-live="polite">${list.map((t) => html`<div class="toast" key=${t.id}><span class="grow">${t.text}</span>
    ${t.action && html`<button onClick=${() => { toastList = toastList.filter((o) => o !== t); showToasts(); t.onAction(); }}>${t.action}</button>`}</div>`)}</div>`;
}
