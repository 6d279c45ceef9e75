// The sandbox's desktop in a page: noVNC over one WebSocket. The address may say, in its query or behind #:
// autoconnect, resize (scale, remote, off), view_only, path, ticket, quality, compression, show_dot, reconnect,
// reconnect_delay, bar.
import RFB from "../vendor/novnc/core/rfb.js";

const $ = (id) => document.getElementById(id);
const prefix = new URL("..", import.meta.url); // the page may live below a path
const given = new URLSearchParams(location.search);
for (const [name, value] of new URLSearchParams(location.hash.slice(1))) given.set(name, value);
const flag = (name, otherwise) => (given.has(name) ? ["", "1", "true", "yes", "on"].includes(given.get(name).toLowerCase()) : otherwise);
const number = (name, otherwise, least, most) => {
  const n = Number.parseInt(given.get(name) ?? "", 10);
  return Number.isNaN(n) ? otherwise : Math.min(most, Math.max(least, n));
};

let rfb; // the connection, if there is one
let wanted = false; // whether there should be one
let tries = 0;
let timer;

function address() {
  const url = new URL(given.get("path") || "websockify", prefix);
  url.protocol = url.protocol.replace("http", "ws");
  if ($("view-only").checked) url.searchParams.set("view_only", "true"); // the server sees to it, too
  if (given.has("ticket")) url.searchParams.set("ticket", given.get("ticket"));
  return url.href;
}

function show(text, connected = false) {
  $("state").textContent = text;
  document.body.classList.toggle("connected", connected);
}

function connect() {
  clearTimeout(timer);
  wanted = true;
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
    show("Connected", true);
    mine.focus();
  });
  mine.addEventListener("disconnect", (event) => {
    if (mine === rfb) ended(event.detail.clean);
  });
  mine.addEventListener("clipboard", (event) => received(event.detail.text));
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
  if (!wanted) return show("Not connected");
  // A refused handshake does not tell why; a plain request does.
  const status = await fetch(new URL("auth", prefix)).then((res) => res.status, () => 0);
  if (status === 401 || status === 403) return show("Not signed in: open this page again with a new ticket (?ticket=…)");
  if (!flag("reconnect", true)) return show(clean ? "The desktop closed the connection" : "The connection was lost");
  tries++;
  show("The connection was lost; trying again…");
  timer = setTimeout(connect, Math.min(10000, number("reconnect_delay", 250, 50, 60000) * 2 ** Math.min(tries - 1, 6)));
}

function apply() {
  if (!rfb) return;
  const how = $("resize").value;
  rfb.scaleViewport = how === "scale";
  rfb.resizeSession = how === "remote";
  rfb.clipViewport = how === "off";
  rfb.viewOnly = $("view-only").checked;
}

// What is copied on the desktop goes to the person's clipboard where the browser lets it, and always to the box.
function received(text) {
  $("text").value = text;
  if (document.hasFocus()) navigator.clipboard?.writeText(text).catch(() => {});
}

// What the person has copied elsewhere is offered to the desktop when they come back, if the browser may read it unasked.
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

$("resize").value = ["scale", "remote", "off"].includes(given.get("resize")) ? given.get("resize") : "scale";
$("view-only").checked = flag("view_only", false);
// In a frame of another page the bar would be in the way.
document.body.classList.toggle("framed", !flag("bar", window === window.top));
$("connect").onclick = connect;
$("resize").onchange = apply;
$("view-only").onchange = () => {
  if (!wanted) return;
  disconnect();
  connect();
};
$("text").oninput = () => rfb?.clipboardPasteFrom($("text").value);
$("clipboard").onclick = () => {
  const open = $("copied").toggleAttribute("hidden") === false;
  $("clipboard").setAttribute("aria-expanded", String(open));
  if (open) $("text").focus();
};
$("full").onclick = () => (document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen());
window.addEventListener("focus", offer);
window.addEventListener("pagehide", disconnect);
if (flag("autoconnect", false)) connect();
