// The desktop of the sandbox: noVNC over one WebSocket. Parameters in the query or the fragment of the URL:
// autoconnect, resize (scale, remote, off), view_only, path, ticket, quality, compression, show_dot, reconnect,
// reconnect_delay, bar, start (false: until the user requests it, start neither display nor browser), control (auto: watch while an agent or another person is at work).
import { BoxHeader } from "../box/header.js";
import { mayConnect } from "../box/identity.js";
import { fitKeyboard, keyRow } from "../ui/keyrow.js";
import { hasExpired } from "../ui/session.js";
import { Toasts, html, render } from "../ui/ui.js";
import RFB from "../vendor/novnc/core/rfb.js";

const $ = (id) => document.getElementById(id);
const prefix = new URL("..", import.meta.url); // the page may be served below a path prefix
const given = new URLSearchParams(location.search);
for (const [name, value] of new URLSearchParams(location.hash.slice(1))) given.set(name, value);
const flag = (name, otherwise) => (given.has(name) ? ["", "1", "true", "yes", "on"].includes(given.get(name).toLowerCase()) : otherwise);
const number = (name, otherwise, least, most) => {
  const n = Number.parseInt(given.get(name) ?? "", 10);
  return Number.isNaN(n) ? otherwise : Math.min(most, Math.max(least, n));
};

let rfb; // the current connection, if any
let wanted = false; // whether the page should be connected
let connected = false; // whether it was
let passive = !flag("start", true); // do not start anything
let tries = 0;
let losses = 0;
let turns = 0;
let timer;

// Control of mouse and keyboard. A user who takes over has exclusive control until they hand it back or close the page.
const auto = given.get("control") === "auto";
const me = crypto.getRandomValues(new Uint32Array(2)).join("-");
let control = { holder: "nobody", viewer: "" };
let holding = false;
const other = () => control.holder === "person" && control.viewer !== me;
const watching = () => !holding && ($("view-only").checked || (auto && (control.holder === "agent" || other())));

function address() {
  const url = new URL(given.get("path") || "websockify", prefix);
  url.protocol = url.protocol.replace("http", "ws");
  if (watching()) url.searchParams.set("view_only", "true"); // the server enforces it, too
  else if (holding) url.searchParams.set("take_over", me);
  if (passive) url.searchParams.set("no_start", "true");
  if (tries > 0) url.searchParams.set("wake", "false");
  if (given.has("ticket")) url.searchParams.set("ticket", given.get("ticket"));
  return url.href;
}

function show(text, connected = false) {
  $("state").textContent = text;
  document.body.classList.toggle("connected", connected);
}

async function connect() {
  disconnect(); // one connection at a time: a leaked connection would keep control of the desktop
  wanted = true;
  const turn = ++turns;
  const now = passive ? await components() : { display: "ready", browser: "ready" };
  if (turn !== turns || !wanted) return;
  $("browse").hidden = now.browser === "ready" || now.browser === "starting";
  if (now.display !== "ready" && now.display !== "starting") return rest();
  rested(false);
  show("Connecting…");
  const mine = new RFB($("screen"), address(), { shared: true });
  rfb = mine;
  mine.focusOnClick = true;
  mine.background = "transparent";
  mine.qualityLevel = number("quality", 6, 0, 9);
  mine.compressionLevel = number("compression", 2, 0, 9);
  mine.showDotCursor = flag("show_dot", false);
  apply();
  mine.addEventListener("connect", () => {
    if (mine !== rfb) return;
    tries = 0;
    connected = true;
    show("Connected", true);
    mine.focus();
  });
  mine.addEventListener("disconnect", (event) => {
    if (mine === rfb) ended(event.detail.clean);
  });
  mine.addEventListener("clipboard", (event) => received(event.detail.text));
}

// components returns the states of display and browser. It starts and wakes nothing.
async function components() {
  if (!(await mayConnect())) return {};
  const ready = await fetch(new URL("readyz?wake=false", prefix)).then((reply) => reply.json()).catch(() => null);
  return Object.fromEntries((ready?.components || []).map((one) => [one.name, one.state]));
}

// rest shows that nothing runs, and connects when an agent has started something.
function rest() {
  rested(true);
  show("Nothing runs");
  timer = setTimeout(async () => {
    if (!document.hidden && (await components()).display === "ready") { if (wanted && !rfb) connect(); } else if (wanted && !rfb) rest();
  }, 3000);
}

function rested(on) {
  $("idle").hidden = !on;
  document.body.classList.toggle("idle", on);
}

// begin starts the browser at the request of the user.
function begin() {
  passive = false;
  $("browse").hidden = true;
  connect();
}

function disconnect() {
  clearTimeout(timer);
  wanted = false;
  const old = rfb;
  rfb = undefined;
  old?.disconnect();
}

async function ended(clean) {
  rfb = undefined;
  const mine = ++losses;
  if (!wanted) return show("Not connected");
  // A failed WebSocket handshake does not report the status, so request it.
  const status = await fetch(new URL("auth?wake=false", prefix)).then((res) => res.status, () => 0);
  if (rfb || !wanted || mine !== losses) return; // the user reconnected or disconnected during the request
  if (status === 401 || status === 403) return show("Not signed in: open this page again with a new ticket (?ticket=…)");
  if (!flag("reconnect", true)) return show(clean ? "The desktop closed the connection" : "The connection was lost");
  if (status === 0 && connected && await hasExpired(new URL("auth?wake=false", prefix))) return reload();
  tries++;
  show("The connection was lost; trying again…");
  retry(Math.min(10000, number("reconnect_delay", 250, 50, 60000) * 2 ** Math.min(tries - 1, 6)));
}

// retry connects again, unless the sandbox sleeps or has ended.
function retry(delay) {
  timer = setTimeout(async () => {
    if (!wanted || rfb) return;
    if (await mayConnect()) connect();
    else retry(5000);
  }, delay);
}

// reload loads the page again and connects.
function reload() {
  const url = new URL(location.href);
  url.searchParams.set("autoconnect", "true");
  history.replaceState(null, "", url);
  location.reload();
}

function apply() {
  if (!rfb) return;
  const how = $("resize").value;
  rfb.scaleViewport = how === "scale";
  rfb.resizeSession = how === "remote";
  rfb.clipViewport = how === "off";
  rfb.viewOnly = watching();
}

// draw shows who controls mouse and keyboard.
function draw() {
  $("take").textContent = holding ? "Hand back" : "Take over";
  $("take").setAttribute("aria-pressed", String(holding));
  const who = holding ? "You have taken over: agents wait" : other() ? "Another person has taken over" : control.holder === "agent" ? "An agent is at work" : "";
  document.body.classList.toggle("taken", holding);
  document.body.classList.toggle("other", !holding && other());
  $("holder").textContent = who && watching() ? `${who}; you are watching` : who;
}

function again() {
  if (wanted) connect();
}

function take(hold) {
  if (hold === holding) return;
  holding = hold;
  if (hold) $("view-only").checked = false;
  wanted = true;
  again();
  draw();
}

// follow receives changes of the control of mouse and keyboard.
async function follow() {
  for (;;) {
    try {
      if (!(await mayConnect())) throw new Error("not now");
      const reply = await fetch(new URL("v1/display/control?stream=true", prefix));
      if (!reply.ok) return;
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) told(event);
      }
    } catch { /* reconnects below */ }
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

function told(event) {
  const data = event.split("\n").find((line) => line.startsWith("data:"));
  if (!data) return;
  const before = watching();
  control = JSON.parse(data.slice(5));
  if (holding && other()) holding = false; // another user took over
  if (watching() !== before) again();
  draw();
}

// Text that is copied on the desktop is always shown in the text box. If the browser allows it, it is written to the user's
// clipboard, too.
function received(text) {
  $("text").value = text;
  if (document.hasFocus()) navigator.clipboard?.writeText(text).catch(() => {});
}

// When the user returns to the page, the text of their clipboard is sent to the desktop, if the browser allows it without a prompt.
async function offer() {
  if (!rfb || $("view-only").checked) return;
  const may = await navigator.permissions?.query({ name: "clipboard-read" }).catch(() => null);
  if (may?.state !== "granted") return;
  const text = await navigator.clipboard.readText().catch(() => "");
  if (text && text !== $("text").value) {
    $("text").value = text;
    rfb?.clipboardPasteFrom(text);
  }
}

// Keys of a soft keyboard change the text of a hidden field; the desktop gets the difference. The field is never empty, so that
// Backspace changes it.
const filler = "_".repeat(40);
const keysyms = { Escape: 0xff1b, Tab: 0xff09, ArrowLeft: 0xff51, ArrowUp: 0xff52, ArrowRight: 0xff53, ArrowDown: 0xff54, Home: 0xff50, End: 0xff57, Backspace: 0xff08, Enter: 0xff0d, ctrl: 0xffe3, alt: 0xffe9 };
let soft = filler;

// symbolOf returns the key symbol of a character.
function symbolOf(character) {
  const code = character.codePointAt(0);
  if (character === "\n") return keysyms.Enter;
  return code < 0x100 ? code : 0x01000000 + code;
}

function sendKey(symbol, held) {
  for (const name of ["ctrl", "alt"]) if (held[name]) rfb?.sendKey(keysyms[name], "", true);
  rfb?.sendKey(symbol, "");
  for (const name of ["alt", "ctrl"]) if (held[name]) rfb?.sendKey(keysyms[name], "", false);
}

function typed(event) {
  const now = $("typing").value;
  let same = 0;
  while (same < now.length && same < soft.length && now[same] === soft[same]) same++;
  for (let i = soft.length; i > same; i--) sendKey(keysyms.Backspace, row.take());
  for (const character of now.slice(same)) sendKey(symbolOf(character), row.take());
  soft = now;
  if (!event.isComposing && (now.length < 10 || now.length > 400)) $("typing").value = soft = filler;
}

const row = keyRow($("keys"), (key, held) => sendKey(keysyms[key], held));
fitKeyboard();
$("typing").value = filler;
$("typing").oninput = typed;
for (const type of ["focus", "blur"]) $("typing").addEventListener(type, () => $("soft").setAttribute("aria-pressed", String(type === "focus")));
$("soft").onpointerdown = (event) => event.preventDefault(); // the field keeps the focus
$("soft").onclick = () => {
  const field = $("typing");
  if (document.activeElement === field) return field.blur();
  field.focus({ preventScroll: true });
  field.setSelectionRange(field.value.length, field.value.length);
};

render(html`<${BoxHeader} title="Desktop" />`, $("box"));
render(html`<${Toasts} />`, $("toasts"));
$("resize").value = ["scale", "remote", "off"].includes(given.get("resize")) ? given.get("resize") : "scale";
$("view-only").checked = flag("view_only", false);
// The bar is hidden by default in a frame of another page.
document.body.classList.toggle("framed", !flag("bar", window === window.top));
$("connect").onclick = connect;
$("start").onclick = begin;
$("browse").onclick = begin;
$("resize").onchange = apply;
$("view-only").onchange = () => {
  holding = false;
  again();
  draw();
};
$("take").onclick = () => take(!holding);
$("text").oninput = () => rfb?.clipboardPasteFrom($("text").value);
$("clipboard").onclick = () => {
  const open = $("copied").toggleAttribute("hidden") === false;
  $("clipboard").setAttribute("aria-expanded", String(open));
  if (open) $("text").focus();
};
$("full").onclick = () => (document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen());
window.addEventListener("focus", offer);
window.addEventListener("pagehide", disconnect);
follow();
if (flag("autoconnect", false)) {
  // The initial mode depends on who has control. Request it first, because the event stream may report it later.
  if (auto) await fetch(new URL("v1/display/control", prefix)).then((res) => res.json()).then((reply) => { control = reply.data ?? control; }).catch(() => {});
  draw();
  connect();
}
