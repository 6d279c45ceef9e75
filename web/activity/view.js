// The activity of a sandbox, as a list and as a replay of each step. Content of the sandbox is shown as text only.
import { IconButton, Sign, html, useMemo, useState } from "../ui/ui.js";
import { changesOf, exitOf, stateAt, summaryOf } from "./replay.js";

/** @typedef {import("./replay.js").Entry} Entry */
/** @typedef {(id: number) => string} PictureOf returns the URL of an entry's picture */

const maxShown = 500;

/** Timeline shows entries. children are additional tools. @param {{ all: Entry[], ready: boolean, pictureOf: PictureOf, children?: any }} props */
export function Timeline({ all, ready, pictureOf, children }) {
  const [text, setText] = useState("");
  const [kind, setKind] = useState("");
  const [failed, setFailed] = useState(false);
  const [open, setOpen] = useState(0);
  const [moment, setMoment] = useState(/** @type {number | null} */ (null));
  const kinds = useMemo(() => [...new Set(all.map((e) => e.kind))].sort(), [all]);
  const shown = useMemo(() => {
    const needle = text.toLowerCase();
    return all.filter((e) => (!kind || e.kind === kind) && (!failed || e.error) && (!needle || `${e.op} ${e.input} ${e.output} ${e.error}`.toLowerCase().includes(needle)));
  }, [all, text, kind, failed]);
  return html`
    <div class="filters"><input type="search" aria-label="Search the activity" placeholder="Search" value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} />
      <label><span class="unseen">Kind</span><select value=${kind} onChange=${(/** @type {any} */ e) => setKind(e.target.value)}><option value="">all kinds</option>${kinds.map((k) => html`<option value=${k}>${k}</option>`)}</select></label>
      <label class="check"><input type="checkbox" checked=${failed} onChange=${(/** @type {any} */ e) => setFailed(e.target.checked)} />failed</label>
      <button aria-pressed=${String(moment !== null)} disabled=${all.length === 0} onClick=${() => setMoment(moment === null ? all[all.length - 1].id : null)}><${Sign} of="play" />Replay</button>${children}</div>
    ${moment !== null && all.length > 0 ? html`<${Replay} all=${all} id=${moment} onMove=${setMoment} pictureOf=${pictureOf} />`
      : shown.length === 0 ? html`<div class="empty">${!ready ? html`<span class="spin"></span>` : all.length ? "No entry matches." : "Nothing has happened yet. What agents and people do appears here."}</div>`
      : html`<ol class="steps" aria-label="Steps, latest first" tabindex="0">${shown.slice(-maxShown).reverse().map((e) => html`<${Step} key=${e.id} e=${e} open=${open === e.id} onOpen=${() => setOpen(open === e.id ? 0 : e.id)} pictureOf=${pictureOf} />`)}
        ${shown.length > maxShown && html`<li class="dim more">${shown.length - maxShown} older entries: search, or export them.</li>`}</ol>`}`;
}

/** Step is one entry of the timeline. @param {{ e: Entry, open: boolean, onOpen: () => void, pictureOf: PictureOf }} props */
function Step({ e, open, onOpen, pictureOf }) {
  const exit = exitOf(e);
  return html`<li><button class="step" aria-expanded=${String(open)} onClick=${onOpen}>
    <span class=${`dot ${e.error ? "bad" : exit ? "warn" : "good"}`}></span>${e.error && html`<span class="unseen">failed</span>`}<time datetime=${e.time}>${new Date(e.time).toLocaleTimeString()}</time><b>${e.op}</b><span class="cut grow dim mono">${summaryOf(e)}</span>${exit !== 0 && html`<span class="tag">exit ${exit}</span>`}${e.changes && html`<span class="tag">${e.changes.length} ${e.changes.length === 1 ? "file" : "files"}</span>`}<span class="dim">${duration(e.took_ms)}</span></button>
    ${open && html`<div class="detail"><div class="dim">${[e.via, e.caller, e.key && `key ${e.key}`].filter(Boolean).join(", ")}${e.missed > 0 ? ` · ${e.missed} entries before this one were lost` : ""}</div>
      ${[e.input, e.output, e.error].filter(Boolean).map((t) => html`<pre tabindex="0">${t}</pre>`)}
      ${changesOf(e).map((c) => html`<div class="mono">${c.path}${c.deleted ? " (deleted)" : ""}</div>${c.diff && html`<${Diff} text=${c.diff} />`}`)}
      ${e.picture && html`<img alt="Screen afterwards" loading="lazy" src=${pictureOf(e.id)} />`}</div>`}</li>`;
}

/** Diff shows a change line by line. @param {{ text: string }} props */
function Diff({ text }) {
  /** @type {Record<string, string>} */
  const classes = { "+": "added", "-": "gone", "@": "dim" };
  return html`<pre class="diff" tabindex="0">${text.replace(/\n$/, "").split("\n").map((line) => html`<span class=${classes[line[0]] || ""}>${`${line}\n`}</span>`)}</pre>`;
}

/** @param {number} ms */
const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

/** Replay shows the sandbox after one step. @param {{ all: Entry[], id: number, onMove: (id: number) => void, pictureOf: PictureOf }} props */
function Replay({ all, id, onMove, pictureOf }) {
  const found = all.findIndex((e) => e.id >= id);
  const n = found < 0 ? all.length - 1 : found;
  const state = useMemo(() => stateAt(all, n), [all, n]);
  const e = all[n];
  /** @param {number} to */
  const move = (to) => onMove(all[to].id);
  return html`<div class="replay"><${IconButton} sign="left" label="Previous step" disabled=${n === 0} onClick=${() => move(n - 1)} />
      <input type="range" aria-label="Moment" aria-valuetext=${`Step ${n + 1} of ${all.length}: ${e.op}`} min="0" max=${all.length - 1} value=${n} onInput=${(/** @type {any} */ ev) => move(Number(ev.target.value))} />
      <${IconButton} sign="right" label="Next step" disabled=${n === all.length - 1} onClick=${() => move(n + 1)} /><span class="mono">${n + 1}/${all.length}</span></div>
    <div class="moment" tabindex="0" role="region" aria-label="The sandbox at this moment"><section><h2>${new Date(e.time).toLocaleString()}</h2><b>${e.op}</b> <span class="dim">${e.caller}</span>${e.error && html`<p class="bad">${e.error}</p>`}${changesOf(e).map((c) => c.diff && html`<${Diff} text=${c.diff} />`)}</section>
      ${state.command && html`<section><h2>Terminal</h2><pre tabindex="0" data-shows="terminal">${`$ ${state.command}\n${state.output}`}</pre></section>`}
      ${state.file && html`<section><h2>File ${state.file}${state.deleted ? " (deleted)" : ""}</h2><pre tabindex="0" data-shows="file">${state.content}</pre></section>`}
      ${state.files.length > 1 && html`<section><h2>Files changed so far</h2><ul class="mono" data-shows="files">${state.files.map((f) => html`<li key=${f}>${f}</li>`)}</ul></section>`}
      ${state.page && html`<section><h2>Page</h2><p class="mono" data-shows="page">${state.page}</p></section>`}
      ${state.picture > 0 && html`<section><h2>Screen</h2><img alt="The screen at this moment" src=${pictureOf(state.picture)} /></section>`}</div>`;
}
