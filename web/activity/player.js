// The replay of an activity record: the screen at each step, with the terminal and the changed files beside it.
import { IconButton, Sign, fail, html, useEffect, useMemo, useRef, useState } from "../ui/ui.js";
import { Console, Diff } from "./entry.js";
import { canRecord, record } from "./video.js";
import { visible } from "./ansi.js";
import { exitOf, hasFailed, parse, stateAt, summaryOf } from "./replay.js";

/** @typedef {import("./replay.js").Entry} Entry */

const speeds = [1, 4, 16];
const idle = 1500; // milliseconds that a longer pause between two steps takes, if idle time is skipped
const shortest = 60;
const maxTicks = 300;

/** momentsOf returns the times of entries since the first, in milliseconds. @param {Entry[]} all @param {boolean} skip shorten idle time */
export function momentsOf(all, skip) {
  let now = 0;
  return all.map((e, i) => {
    const pause = i > 0 ? new Date(e.time).getTime() - new Date(all[i - 1].time).getTime() : 0;
    return i > 0 ? now += Math.max(shortest, skip ? Math.min(idle, pause || 0) : pause || 0) : 0;
  });
}

/** clock formats milliseconds as minutes and seconds. @param {number} ms */
const clock = (ms) => { const s = Math.round(ms / 1000); return `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}`; };

/** Player replays entries, from the one with an ID. linkOf returns the link to a moment. @param {{ all: Entry[], id: number, onMove: (id: number) => void, pictureOf: (id: number) => string, linkOf?: (id: number) => string }} props */
export function Player({ all, id, onMove, pictureOf, linkOf }) {
  const found = all.findIndex((e) => e.id >= id);
  const n = found < 0 ? all.length - 1 : found;
  const last = all.length - 1;
  const [playing, play] = useState(false);
  const [speed, setSpeed] = useState(1);
  const [skip, setSkip] = useState(true);
  const [copied, setCopied] = useState(false);
  const at = useMemo(() => momentsOf(all, skip), [all, skip]);
  const total = Math.max(1, at[last]);
  const failures = useMemo(() => all.map((e, i) => (hasFailed(e) ? i : -1)).filter((i) => i >= 0), [all]);
  const state = useMemo(() => stateAt(all, n), [all, n]);
  const e = all[n];
  const latest = useRef({ n, last });
  latest.current = { n, last };
  /** @param {number} to */
  const move = (to) => onMove(all[Math.max(0, Math.min(last, to))].id);
  /** seek goes to the last step that began by a moment. @param {number} ms */
  const seek = (ms) => { const next = at.findIndex((t) => t > ms); move(next < 0 ? last : next - 1); };

  useEffect(() => {
    if (!playing) return undefined;
    if (n >= last) { play(false); return undefined; }
    const timer = setTimeout(() => move(n + 1), (at[n + 1] - at[n]) / speed);
    return () => clearTimeout(timer);
  }, [playing, n, last, speed, at]);
  const toggle = () => { if (!playing && n === last) move(0); play(!playing); };

  useEffect(() => {
    /** @param {KeyboardEvent} event */
    const key = (event) => {
      const at = /** @type {HTMLElement} */ (event.target);
      if (event.ctrlKey || event.metaKey || event.altKey || /^(SELECT|TEXTAREA)$/.test(at.tagName) || (at instanceof HTMLInputElement && at.type !== "range")) return;
      if (event.key === " " && at.tagName !== "BUTTON" && at.tagName !== "SUMMARY") toggle();
      else if (event.key === "ArrowLeft") move(latest.current.n - 1);
      else if (event.key === "ArrowRight") move(latest.current.n + 1);
      else if (event.key === "Home" && at.tagName === "INPUT") move(0);
      else if (event.key === "End" && at.tagName === "INPUT") move(latest.current.last);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  });

  const link = linkOf?.(e.id);
  const copy = () => navigator.clipboard?.writeText(link || "").then(() => { setCopied(true); setTimeout(() => setCopied(false), 2000); }, () => {});
  return html`<div class="replay" role="group" aria-label="Player">
      <${IconButton} sign=${playing ? "pause" : "play"} label=${playing ? "Pause" : "Play"} onClick=${toggle} /><${IconButton} sign="left" label="Previous step" disabled=${n === 0} onClick=${() => move(n - 1)} /><${IconButton} sign="right" label="Next step" disabled=${n === last} onClick=${() => move(n + 1)} />
      <div class="track"><input type="range" aria-label="Moment" aria-valuetext=${`Step ${n + 1} of ${all.length}: ${e.op}${hasFailed(e) ? ", failed" : ""}`} min="0" max=${total} step="1" value=${at[n]} onInput=${(/** @type {any} */ ev) => seek(Number(ev.target.value))} />
        <div class="ticks" aria-hidden="true">${all.slice(0, maxTicks).map((one, i) => html`<i key=${one.id} class=${hasFailed(one) ? "bad" : ""} style=${{ left: `${(100 * at[i]) / total}%` }}></i>`)}${failures.filter((i) => i >= maxTicks).slice(0, maxTicks).map((i) => html`<i key=${all[i].id} class="bad" style=${{ left: `${(100 * at[i]) / total}%` }}></i>`)}</div></div>
      <span class="mono clock">${clock(at[n])} / ${clock(total)}</span><span class="mono count">${n + 1}/${all.length}</span>
      <button disabled=${failures.length === 0} onClick=${() => move(failures.find((i) => i > n) ?? failures[0])}>Next failure</button>
      <label><span class="unseen">Speed</span><select value=${speed} onChange=${(/** @type {any} */ ev) => setSpeed(Number(ev.target.value))}>${speeds.map((s) => html`<option value=${s}>${s}×</option>`)}</select></label>
      <label class="check"><input type="checkbox" checked=${skip} onChange=${(/** @type {any} */ ev) => setSkip(ev.target.checked)} />skip idle</label>
      ${link && html`<button onClick=${copy}>${copied ? "Copied" : "Copy link"}</button>`}<${Video} all=${all} at=${at} speed=${speed} pictureOf=${pictureOf} /></div>
    <div class=${`moment ${state.picture ? "with-screen" : ""}`} tabindex="0" role="region" aria-label="The sandbox at this moment">
      ${state.picture > 0 && html`<section class="screen-part"><h2>${state.plot ? "Plot" : "Screen"}</h2><img alt=${state.plot ? "The latest plot at this moment" : "The screen at this moment"} src=${pictureOf(state.picture)} />${state.page && html`<p class="mono" data-shows="page">${visible(state.page)}</p>`}</section>`}
      <div class="beside"><section><h2>${new Date(e.time).toLocaleString()}</h2><b>${e.op}</b> <span class="dim">${[e.caller, summaryOf(e)].filter(Boolean).map(visible).join(" · ")}</span>${e.error && html`<p class="bad">${visible(e.error)}</p>`}</section>
        ${state.command && html`<section><h2>Terminal</h2><div data-shows="terminal"><${Console} command=${state.command} output=${state.output} exit=${parse(e.input).command === state.command ? exitOf(e) : 0} /></div></section>`}
        ${state.diff && html`<section><h2>Last change</h2><${Diff} text=${state.diff} /></section>`}
        ${!state.picture && state.page && html`<section><h2>Page</h2><p class="mono" data-shows="page">${visible(state.page)}</p></section>`}
        ${state.file && html`<section><h2>File ${visible(state.file)}${state.deleted ? " (deleted)" : ""}</h2><pre tabindex="0" data-shows="file">${state.content}</pre></section>`}
        ${state.files.length > 1 && html`<section><h2>Files changed so far</h2><ul class="mono" data-shows="files">${state.files.map((f) => html`<li key=${f}>${visible(f)}</li>`)}</ul></section>`}</div></div>`;
}

/** Video records the replay as a video and saves it. @param {{ all: Entry[], at: number[], speed: number, pictureOf: (id: number) => string }} props */
function Video({ all, at, speed, pictureOf }) {
  const [part, set] = useState(-1);
  const stop = useRef(/** @type {AbortController | null} */ (null));
  useEffect(() => () => stop.current?.abort(), []);
  if (!canRecord()) return null;
  const start = async () => {
    stop.current = new AbortController();
    set(0);
    try {
      const video = await record(all, at, { speed, pictureOf, onProgress: set, signal: stop.current.signal });
      const url = URL.createObjectURL(video);
      Object.assign(document.createElement("a"), { href: url, download: `replay.${video.type.includes("mp4") ? "mp4" : "webm"}` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
    } catch (error) { fail(error); } finally { set(-1); }
  };
  if (part < 0) return html`<button title=${`Record the replay at ${speed}× as a video`} onClick=${start}><${Sign} of="camera" />Save as video</button>`;
  return html`<span class="row" role="status"><progress max="1" value=${part} aria-label="Video"></progress><button onClick=${() => stop.current?.abort()}>Cancel</button></span>`;
}
