// A video of a replay, recorded in the browser from a canvas. Text of the sandbox is drawn, never markup.
import { visible, spans } from "./ansi.js";
import { exitOf, hasFailed, parse, stateAt, summaryOf } from "./replay.js";

/** @typedef {import("./replay.js").Entry} Entry */

const width = 1280;
const height = 720;
const head = 44;
const foot = 20;
const line = 19;
const rate = 10; // frames per second
const longest = 10 * 60_000; // milliseconds; longer replays are sped up
const tail = 1000; // how long the last step is shown
const colours = { page: "#0e1116", panel: "#161b22", text: "#e3e9f0", dim: "#98a4b3", accent: "#6cb2ff", bad: "#ff8a80", added: "#56c271" };
const types = ["video/webm;codecs=vp9", "video/webm;codecs=vp8", "video/webm", "video/mp4"];

/** typeOf returns a type of video that the browser can record, empty if there is none. */
const typeOf = () => (typeof MediaRecorder === "undefined" ? "" : types.find((type) => MediaRecorder.isTypeSupported(type)) || "");

/** canRecord reports whether the browser can record videos. */
export const canRecord = () => typeOf() !== "";

/** wrap splits text into lines of at most n characters, the latest lines. @param {string} text @param {number} n @param {number} most */
function wrap(text, n, most) {
  const lines = text.slice(-n * most).split("\n").flatMap((l) => (l === "" ? [""] : l.match(new RegExp(`.{1,${n}}`, "gu")) || []));
  return lines.slice(-most);
}

/** panel draws a title and lines. @param {CanvasRenderingContext2D} c @param {string} title @param {string[]} lines @param {number} x @param {number} y @param {number} w @param {number} h @param {(text: string) => string} [colour] */
function panel(c, title, lines, x, y, w, h, colour = () => colours.text) {
  c.fillStyle = colours.panel;
  c.fillRect(x, y, w, h);
  c.fillStyle = colours.dim;
  c.font = "600 13px system-ui, sans-serif";
  c.fillText(title, x + 10, y + 20);
  c.font = "14px ui-monospace, 'DejaVu Sans Mono', monospace";
  c.save();
  c.beginPath();
  c.rect(x, y, w, h);
  c.clip();
  lines.forEach((text, i) => { c.fillStyle = colour(text); c.fillText(text, x + 10, y + 44 + i * line); });
  c.restore();
}

/** draw draws the state after a step. @param {CanvasRenderingContext2D} c @param {Entry[]} all @param {number} n @param {ImageBitmap | null} picture */
function draw(c, all, n, picture) {
  const e = all[n];
  const state = stateAt(all, n);
  const bad = hasFailed(e);
  c.fillStyle = colours.page;
  c.fillRect(0, 0, width, height);
  c.fillStyle = bad ? colours.bad : colours.text;
  c.font = "600 16px system-ui, sans-serif";
  c.fillText(`${new Date(e.time).toLocaleString()}  ${visible(e.op)}  ${visible(summaryOf(e))}${bad ? "  – failed" : ""}`.slice(0, 150), 12, 28);
  const left = picture ? 800 : 0;
  const room = height - head - foot - 8;
  if (picture) {
    const scale = Math.min((left - 8) / picture.width, room / picture.height);
    c.drawImage(picture, 4, head, picture.width * scale, picture.height * scale);
  }
  const w = width - left - 8;
  const columns = Math.floor((w - 20) / 8.5);
  const half = state.diff ? Math.floor(room / 2) - 4 : room;
  const fits = (/** @type {number} */ h) => Math.floor((h - 50) / line);
  const exit = parse(e.input).command === state.command ? exitOf(e) : 0;
  const said = state.command && `$ ${visible(state.command)}\n${spans(state.output).map((s) => s.text).join("")}${exit ? `\nexit code ${exit}` : ""}`;
  panel(c, "Terminal", wrap(said, columns, fits(half)), left + 4, head, w, half);
  if (state.diff) panel(c, visible(state.file), wrap(visible(state.diff), columns, fits(half)), left + 4, head + half + 8, w, half, (text) => ({ "+": colours.added, "-": colours.bad }[text[0]] || colours.text));
}

/** axis draws how far the replay is, and its failures. @param {CanvasRenderingContext2D} c @param {number} part @param {number[]} failures parts of the whole */
function axis(c, part, failures) {
  const y = height - foot + 6;
  c.fillStyle = colours.panel;
  c.fillRect(0, height - foot, width, foot);
  c.fillStyle = colours.accent;
  c.fillRect(0, y, width * part, 6);
  c.fillStyle = colours.bad;
  for (const at of failures) c.fillRect(width * at - 1, y - 3, 2, 12);
}

/** record returns a video of entries. at are the moments of the entries in milliseconds. @param {Entry[]} all @param {number[]} at @param {{ speed: number, pictureOf: (id: number) => string, onProgress: (part: number) => void, signal: AbortSignal }} options @returns {Promise<Blob>} */
export async function record(all, at, { speed, pictureOf, onProgress, signal }) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { alpha: false }));
  const total = Math.max(1, at[at.length - 1]);
  const fast = Math.max(speed, total / longest);
  const failures = all.map((e, i) => (hasFailed(e) ? at[i] / total : -1)).filter((part) => part >= 0);
  draw(context, all, 0, null); // the first frame is not blank
  /** @type {Blob[]} */
  const parts = [];
  const recorder = new MediaRecorder(canvas.captureStream(rate), { mimeType: typeOf(), videoBitsPerSecond: 2_500_000 });
  recorder.ondataavailable = (event) => { if (event.data.size > 0) parts.push(event.data); };
  const ended = new Promise((resolve, reject) => { recorder.onstop = resolve; recorder.onerror = () => reject(new Error("The browser cannot record this video.")); });
  let shown = 0;
  /** @type {ImageBitmap | null} */
  let picture = null;
  try {
    recorder.start(1000);
    const began = performance.now();
    for (let n = 0; n < all.length; n++) {
      const wanted = stateAt(all, n).picture;
      if (wanted !== shown) {
        shown = wanted;
        picture = await fetch(pictureOf(wanted), { signal }).then((r) => (r.ok ? r.blob() : null)).then((b) => b && createImageBitmap(b)).catch(() => null);
      }
      draw(context, all, n, picture);
      const until = began + (n + 1 < all.length ? at[n + 1] / fast : total / fast + tail);
      do {
        signal.throwIfAborted();
        const part = Math.min(1, ((performance.now() - began) * fast) / total);
        axis(context, part, failures);
        onProgress(part);
        await new Promise((go) => setTimeout(go, Math.max(0, Math.min(1000 / rate, until - performance.now()))));
      } while (performance.now() < until);
    }
  } finally {
    if (recorder.state !== "inactive") recorder.stop();
  }
  await ended;
  return new Blob(parts, { type: recorder.mimeType });
}
