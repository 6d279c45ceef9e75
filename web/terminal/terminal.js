// Web terminal: each tab is one shell session over one WebSocket. After a lost
// connection it reconnects to the same session. After a reload it finds the session
// by the ID in the URL.
import { BoxHeader } from "../box/header.js";
import { mayConnect } from "../box/identity.js";
import { fitKeyboard, keyRow } from "../ui/keyrow.js";
import { hasExpired, opaque } from "../ui/session.js";
import { Ask, Sign, Toasts, call, html, isDark, onTheme, render } from "../ui/ui.js";
import { Terminal } from "../vendor/xterm/xterm.js";
import { FitAddon } from "../vendor/xterm-fit/fit.js";
import { WebLinksAddon } from "../vendor/xterm-links/links.js";
import { Unicode11Addon } from "../vendor/xterm-unicode/unicode.js";
import { Finder } from "./find.js";
import { Sessions } from "./sessions.js";
import { ignoreHeldKeys, offer } from "./suggestion.js";

const $ = (id) => document.getElementById(id);
const page = new URL(location.href);
const prefix = new URL("..", import.meta.url); // the page may be served below a path prefix
// The first three colours are --surface, --text and --accent of the design system.
const dark = {
  background: "#161b22", foreground: "#e3e9f0", cursor: "#6cb2ff", selectionBackground: "#31506e",
  black: "#3a4451", red: "#ff8a80", green: "#56c271", yellow: "#e3b341", blue: "#6cb2ff", magenta: "#d2a8ff", cyan: "#7fd6e6", white: "#c9d1d9",
  brightBlack: "#98a4b3", brightRed: "#ffb4ab", brightGreen: "#9ad6a4", brightYellow: "#f3d48a", brightBlue: "#a8d2ff", brightMagenta: "#e6ccff", brightCyan: "#b0e9f3", brightWhite: "#ffffff",
};
const light = {
  background: "#ffffff", foreground: "#17202b", cursor: "#0a62bd", selectionBackground: "#bcd9f5",
  black: "#17202b", red: "#b3261e", green: "#176c34", yellow: "#855700", blue: "#0a55ad", magenta: "#8430a8", cyan: "#0a6577", white: "#55606e",
  brightBlack: "#55606e", brightRed: "#b3261e", brightGreen: "#176c34", brightYellow: "#855700", brightBlue: "#0a62bd", brightMagenta: "#9440b8", brightCyan: "#0a7285", brightWhite: "#17202b",
};

// A page with an opaque origin has no storage.
const storage = (kind) => {
  try { return globalThis[kind]; } catch { return { getItem: () => null, setItem: () => {} }; }
};
const memory = storage("sessionStorage");
const theme = () => (isDark() ? dark : light);

class Tab {
  constructor(session) {
    this.session = session;
    this.command = ""; // runs when the session is ready
    this.ready = false;
    this.used = false; // whether the user typed
    this.title = "shell";
    this.tries = 0;
    this.ended = false;
    this.resting = false; // the sandbox sleeps or has ended
    this.screen = Object.assign(document.createElement("div"), { className: "screen" });
    $("screens").append(this.screen);
    this.term = new Terminal({ fontFamily: "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace", fontSize: 14, scrollback: 10000, cursorBlink: true, allowProposedApi: true, theme: theme() });
    this.pending = ""; // output that is drawn with the next frame
    this.fit = new FitAddon();
    this.term.loadAddon(this.fit);
    this.finder = new Finder(this.term);
    this.term.loadAddon(new WebLinksAddon((_event, uri) => open(uri, "_blank", "noopener")));
    this.term.loadAddon(new Unicode11Addon());
    this.term.unicode.activeVersion = "11";
    this.term.open(this.screen);
    this.term.onData((data) => this.typed(data));
    for (const type of ["keydown", "input", "paste"]) this.screen.addEventListener(type, () => { this.used = true; }, true);
    this.term.onResize(({ cols, rows }) => this.send("resize", { cols, rows }));
    this.term.onTitleChange((title) => { this.title = title || "shell"; draw(); });
    this.term.attachCustomKeyEventHandler((event) => this.key(event));
    this.button = tabButton(this);
    this.connect();
  }

  // Copy and paste use the shortcuts of terminals. The browser pastes; xterm adds the brackets of bracketed paste. The terminal
  // captures all other keys, so one key moves the focus out of it for users without a mouse.
  key(event) {
    if (event.type === "keydown" && event.ctrlKey && event.shiftKey && event.code === "KeyF") { event.preventDefault(); find(true); return false; }
    if (!event.ctrlKey || !event.shiftKey) return true;
    if (event.code === "KeyV") return false;
    if (event.code === "ArrowUp") {
      event.preventDefault();
      if (event.type === "keydown") this.button.focus();
      return false;
    }
    if (event.code !== "KeyC") return true;
    event.preventDefault();
    const text = this.term.getSelection();
    if (event.type === "keydown" && text) copy(text);
    return false;
  }

  // run runs a command line, now or when the session is ready.
  run(command) {
    this.used = true;
    if (this.ready) this.send("input", command + "\r");
    else this.command = command;
  }

  typed(data) {
    const held = row.take();
    const text = held.ctrl || held.alt ? combined(data, held) : data;
    if (!this.ended) return this.send("input", text);
    if (data === "\r") {
      this.ended = false;
      this.session = "";
      this.term.reset();
      this.connect();
    }
  }

  send(type, data) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type, data }));
  }

  connect() {
    clearTimeout(this.timer);
    const url = new URL("v1/shell/ws", prefix);
    url.protocol = url.protocol.replace("http", "ws");
    if (this.session) url.searchParams.set("session_id", this.session);
    if (this.tries > 0) url.searchParams.set("wake", "false");
    const socket = new WebSocket(url);
    this.socket = socket;
    socket.onmessage = (event) => { if (socket === this.socket) this.message(JSON.parse(event.data)); };
    socket.onclose = (event) => { if (socket === this.socket) this.closed(event); };
  }

  message({ type, data }) {
    switch (type) {
      case "session_id":
        this.session = typeof data === "string" ? data : data?.session_id;
        this.pending = "";
        this.term.reset(); // the server now sends the recent output from its beginning
        remember();
        break;
      case "ready":
        connected = true;
        this.tries = 0;
        this.refit();
        this.send("resize", { cols: this.term.cols, rows: this.term.rows });
        this.ready = true;
        if (this.command) this.run(this.command);
        this.command = "";
        draw();
        break;
      case "output":
        this.output(data);
        break;
      case "ping":
        this.send("pong", { timestamp: data?.timestamp ?? Date.now() });
        break;
      case "exit":
        this.code = data?.code ?? data;
        break;
    }
  }

  // output draws once per frame, however many messages arrive. Hidden pages have no frames.
  output(data) {
    if (this.pending === "") {
      const flush = () => { const text = this.pending; this.pending = ""; if (text) this.term.write(text); };
      if (document.hidden) setTimeout(flush, 100);
      else requestAnimationFrame(flush);
    }
    this.pending += data;
    if (this.pending.length > maxPending) { const text = this.pending; this.pending = ""; this.term.write(text); }
  }

  async closed(event) {
    this.ready = false;
    if (event.code === 1000 || event.code === 1008) {
      const code = this.code ?? /-?\d+/.exec(event.reason)?.[0];
      const why = event.code === 1008 ? event.reason : `exited with code ${code ?? "unknown"}`;
      this.code = undefined;
      this.ended = true;
      this.output(`\r\n\x1b[2m${why} — press Enter for a new session\x1b[0m\r\n`);
      draw();
      return;
    }
    this.tries++;
    draw();
    // A failed WebSocket handshake does not report the status, so request it.
    const status = await fetch(new URL("auth?wake=false", prefix)).then((res) => res.status, () => 0);
    if (status === 401 || status === 403) {
      this.ended = true;
      this.term.write("\r\n\x1b[2mnot signed in — open this page again with a new ticket (?ticket=…)\x1b[0m\r\n");
      draw();
      return;
    }
    if (status === 0 && connected && await hasExpired(new URL("auth?wake=false", prefix))) return location.reload();
    this.retry();
  }

  // retry connects again, unless the sandbox sleeps or has ended.
  retry() {
    this.timer = setTimeout(async () => {
      this.resting = !(await mayConnect());
      draw();
      if (this.resting) this.retry();
      else this.connect();
    }, Math.min(10000, 250 * 2 ** Math.min(this.tries, 6)));
  }

  refit() {
    if (this === active) this.fit.fit();
  }

  // close ends the session, or leaves it to its other users.
  close(end = true) {
    clearTimeout(this.timer);
    const socket = this.socket;
    this.socket = null;
    socket?.close(1000);
    if (end && this.session) fetch(new URL(`v1/shell/sessions/${encodeURIComponent(this.session)}`, prefix), { method: "DELETE" }).catch(() => {});
    this.term.dispose();
    this.screen.remove();
    this.button.remove();
  }
}

function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).catch(() => {});
  const area = Object.assign(document.createElement("textarea"), { value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

// combined applies held keys to what a soft keyboard typed.
function combined(data, { ctrl, alt }) {
  const code = data.length === 1 ? data.toUpperCase().charCodeAt(0) : 0;
  const text = ctrl && code >= 0x3f && code <= 0x5f ? String.fromCharCode(code === 0x3f ? 0x7f : code & 0x1f) : data === " " && ctrl ? "\0" : data;
  return alt ? `\x1b${text}` : text;
}

const arrows = { ArrowUp: "A", ArrowDown: "B", ArrowRight: "C", ArrowLeft: "D", Home: "H", End: "F" };

// sequence returns what a key of the key row sends.
function sequence(key, { ctrl, alt }, application) {
  const plain = { Escape: "\x1b", Tab: "\t" }[key];
  if (plain) return alt ? `\x1b${plain}` : plain;
  const modifier = 1 + (alt ? 2 : 0) + (ctrl ? 4 : 0);
  return modifier > 1 ? `\x1b[1;${modifier}${arrows[key]}` : `\x1b${application ? "O" : "["}${arrows[key]}`;
}

const maxPending = 1 << 20;
const tabs = [];
let active = null;
let connected = false; // whether a session was ready

function tabButton(tab) {
  const button = Object.assign(document.createElement("button"), { className: "tab", role: "tab", type: "button" });
  button.setAttribute("aria-keyshortcuts", "Delete");
  const name = Object.assign(document.createElement("span"), { className: "name" });
  const close = Object.assign(document.createElement("span"), { className: "close", title: "End this session (Delete)" });
  close.setAttribute("aria-hidden", "true"); // users of screen readers close the tab with the Delete key
  close.onclick = (event) => { event.stopPropagation(); end(tab); };
  render(html`<${Sign} of="close" />`, close);
  button.append(name, close);
  button.onclick = () => show(tab);
  button.onkeydown = (event) => move(event, tab);
  $("tabs").append(button);
  return button;
}

// move handles keys on a tab: Left and Right select a tab, Delete closes it, Down returns to the terminal.
function move(event, tab) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step) {
    show(tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length]);
    active.button.focus();
  } else if (event.key === "Delete") end(tab);
  else if (event.key === "ArrowDown") tab.term.focus();
  else return;
  event.preventDefault();
}

function add(session = "") {
  const tab = new Tab(session);
  tabs.push(tab);
  show(tab);
  return tab;
}

// end closes a tab and its session. It asks if a program runs in it, or others use the session.
async function end(tab) {
  const list = tab.session && !tab.ended ? await call("v1/shell/sessions").then((data) => data.sessions, () => ({})) : {};
  if (!tabs.includes(tab)) return;
  const command = list[tab.session]?.current_command;
  if (!command && !tab.attached) return remove(tab);
  const close = () => { ask(null); active?.term.focus(); };
  ask(html`<${Ask} title="End this session?" text=${command ? "A program is running in it:" : "It was not opened here: an agent may use it."} action="End the session" danger onYes=${() => remove(tab)} other="Close the tab only" onOther=${() => remove(tab, false)} onClose=${close}>
    ${command && html`<pre class="running" tabindex="0">${visible(command).slice(0, 500)}</pre>`}<//>`);
}

const ask = (dialog) => render(dialog, $("ask"));

function remove(tab, ends = true) {
  tab.close(ends);
  const at = tabs.indexOf(tab);
  tabs.splice(at, 1);
  if (tab === active) active = null;
  if (tabs.length === 0) add();
  else if (!active) show(tabs[Math.max(0, at - 1)]);
  remember();
}

function show(tab) {
  active = tab;
  for (const t of tabs) t.screen.classList.toggle("shown", t === tab);
  tab.button.scrollIntoView?.({ block: "nearest", inline: "nearest" });
  tab.refit();
  tab.term.focus();
  remember();
}

// remember saves the sessions for a reload: the active one in the URL, which can be
// shared, and all of them in the storage of this window or else in the fragment.
function remember() {
  const url = new URL(location.href);
  if (active?.session) url.searchParams.set("session_id", active.session);
  else url.searchParams.delete("session_id");
  url.searchParams.delete("command");
  url.searchParams.delete("ticket");
  const sessions = tabs.map((t) => t.session).filter(Boolean);
  if (opaque) {
    url.hash = `tabs=${sessions.join()}`;
    if (self !== top) parent.postMessage({ cove: "tabs", tabs: sessions.join() }, "*"); // the page around this one loads it again
  }
  history.replaceState(null, "", url);
  memory.setItem("terminal-tabs", JSON.stringify(sessions));
  draw();
}

// visible replaces characters that are invisible or change the direction of text.
const visible = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, "\uFFFD");

function draw() {
  for (const t of tabs) {
    t.button.setAttribute("aria-selected", String(t === active));
    t.button.tabIndex = t === active ? 0 : -1;
    t.button.querySelector(".name").textContent = visible(t.title);
    t.button.title = `${t.session || t.title} (Ctrl+Shift+Up leads here from the terminal)`;
  }
  $("notice").textContent = active && active.tries > 0 && !active.ended ? active.resting ? "Disconnected" : "Connection lost, trying again…" : "";
}

function paint() {
  for (const t of tabs) t.term.options.theme = theme();
}

function find(open) {
  render(open && active ? html`<${active.finder.Bar} key=${active.screen} onClose=${() => find(false)} />` : null, $("find"));
  if (!open) active?.term.focus();
}

// attach opens a tab for a session of an agent, or shows its tab.
function attach(session) {
  const tab = tabs.find((t) => t.session === session);
  if (tab) return show(tab);
  add(session).attached = true;
}

const row = keyRow($("keys"), (key, held) => {
  if (!active) return;
  active.used = true;
  active.send("input", sequence(key, held, active.term.modes.applicationCursorKeysMode));
  active.term.focus();
});

render(html`<${BoxHeader} title="Terminal" keys=${[["Ctrl+Shift+C", "Copy"], ["Ctrl+Shift+V", "Paste"], ["Ctrl+Shift+F", "Find"], ["Ctrl+Shift+↑", "Leave the terminal, to its tab"], ["Delete", "On a tab: end its session"]]} />`, $("box"));
render(html`<${Sign} of="plus" />`, $("new"));
render(html`<${Sign} of="search" />`, $("search"));
render(html`<${Sessions} shown=${() => tabs.map((t) => t.session)} onAttach=${attach} />`, $("sessions"));
render(html`<${Toasts} />`, $("toasts"));
$("new").onclick = () => add();
$("search").onclick = () => find(!$("find").firstChild);
onTheme(paint);
fitKeyboard();
new ResizeObserver(() => active?.refit()).observe($("screens"));
addEventListener("online", () => { for (const t of tabs) if (t.tries > 0 && !t.ended) t.connect(); });

ignoreHeldKeys();
paint();
const wanted = page.searchParams.get("session_id");
let stored = [];
try { stored = JSON.parse(memory.getItem("terminal-tabs")) || []; } catch { /* no valid value */ }
if (opaque) stored = (new URLSearchParams(page.hash.slice(1)).get("tabs") || "").split(",").filter(Boolean);
const command = page.searchParams.get("command") || "";
if (command && !wanted) stored = [];
if (wanted && !stored.includes(wanted)) stored = [wanted];
for (const session of stored) add(session);
if (tabs.length === 0) {
  const first = add();
  // A tab in which the user has typed is not used, because the command would be appended to the input.
  offer(command, (line) => {
    const tab = tabs.includes(first) && !first.used && !first.ended ? first : add();
    show(tab);
    tab.run(line);
  });
}
if (wanted) show(tabs.find((t) => t.session === wanted) || tabs[0]);
