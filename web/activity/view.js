// The activity of a sandbox, as a list and as a replay of each step. Content of the sandbox is shown as text only.
import { Sign, html, useEffect, useMemo, useState } from "../ui/ui.js";
import { visible } from "./ansi.js";
import { Body } from "./entry.js";
import { Player } from "./player.js";
import { byPerson, exitOf, hasFailed, summaryOf } from "./replay.js";

/** @typedef {import("./replay.js").Entry} Entry */
/** @typedef {(id: number) => string} PictureOf returns the URL of an entry's picture */

const maxShown = 500;
/** @type {Record<string, (e: Entry) => boolean>} */
const who = { everyone: () => true, agents: (e) => !byPerson(e), people: byPerson };

/** Timeline shows entries. children are additional tools. start: the entry at which a replay begins. linkOf returns the link to a moment. @param {{ all: Entry[], ready: boolean, pictureOf: PictureOf, start?: number, linkOf?: (id: number) => string, children?: any }} props */
export function Timeline({ all, ready, pictureOf, start = 0, linkOf, children }) {
  const [text, setText] = useState("");
  const [kind, setKind] = useState("");
  const [failed, setFailed] = useState(false);
  const [reads, setReads] = useState(false);
  const [group, setGroup] = useState("everyone");
  const [open, setOpen] = useState(0);
  const [moment, setMoment] = useState(/** @type {number | null} */ (start || null));
  useEffect(() => { if (start) setMoment(start); }, [start]);
  const kinds = useMemo(() => [...new Set(all.map((e) => e.kind))].sort(), [all]);
  const listed = useMemo(() => (reads ? all : all.filter((e) => !e.reads || hasFailed(e))), [all, reads]);
  const shown = useMemo(() => {
    const needle = text.toLowerCase();
    return listed.filter((e) => (!kind || e.kind === kind) && (!failed || hasFailed(e)) && who[group](e) && (!needle || `${e.op} ${e.input} ${e.output} ${e.error}`.toLowerCase().includes(needle)));
  }, [listed, text, kind, failed, group]);
  const begin = () => setMoment(moment === null ? listed[0].id : null);
  return html`
    <div class="filters" role="search"><input type="search" aria-label="Search the activity" placeholder="Search" value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} />
      <label><span class="unseen">Who</span><select value=${group} onChange=${(/** @type {any} */ e) => setGroup(e.target.value)}>${Object.keys(who).map((g) => html`<option value=${g}>${g}</option>`)}</select></label>
      <label><span class="unseen">Kind</span><select value=${kind} onChange=${(/** @type {any} */ e) => setKind(e.target.value)}><option value="">all kinds</option>${kinds.map((k) => html`<option value=${k}>${k}</option>`)}</select></label>
      <label class="check"><input type="checkbox" checked=${failed} onChange=${(/** @type {any} */ e) => setFailed(e.target.checked)} />failed</label>
      <label class="check"><input type="checkbox" checked=${reads} onChange=${(/** @type {any} */ e) => setReads(e.target.checked)} />reads</label>
      <button aria-pressed=${String(moment !== null)} disabled=${listed.length === 0} onClick=${begin}><${Sign} of="play" />Replay</button>${children}</div>
    ${moment !== null && listed.length > 0 ? html`<${Player} all=${listed} id=${moment} onMove=${setMoment} pictureOf=${pictureOf} linkOf=${linkOf} />`
      : shown.length === 0 ? html`<div class="empty">${!ready ? html`<span class="spin"></span>` : listed.length ? "No entry matches." : "Nothing has happened yet. What agents and people do appears here."}</div>`
      : html`<ol class="steps" aria-label="Steps, latest first" tabindex="0">${shown.slice(-maxShown).reverse().map((e) => html`<${Step} key=${e.id} e=${e} open=${open === e.id} onOpen=${() => setOpen(open === e.id ? 0 : e.id)} pictureOf=${pictureOf} />`)}
        ${shown.length > maxShown && html`<li class="dim more">${shown.length - maxShown} older entries: search, or export them.</li>`}</ol>`}`;
}

/** Step is one entry of the timeline. @param {{ e: Entry, open: boolean, onOpen: () => void, pictureOf: PictureOf }} props */
function Step({ e, open, onOpen, pictureOf }) {
  const exit = exitOf(e);
  const bad = hasFailed(e);
  const summary = visible(summaryOf(e));
  return html`<li><button class="step" aria-expanded=${String(open)} onClick=${onOpen}>
    <span class=${`dot ${bad ? "bad" : "good"}`}></span>${bad && html`<span class="unseen">failed</span>`}<time datetime=${e.time}>${new Date(e.time).toLocaleTimeString()}</time>${summary ? html`<span class="cut grow mono">${summary}</span><span class="dim op">${e.op}</span>` : html`<span class="cut grow">${e.op}</span>`}${byPerson(e) && html`<span class="tag">person</span>`}${exit !== 0 && html`<span class="tag">exit ${exit}</span>`}${e.changes && html`<span class="tag">${e.changes.length} ${e.changes.length === 1 ? "file" : "files"}</span>`}<span class="dim">${duration(e.took_ms)}</span></button>
    ${open && html`<${Body} e=${e} pictureOf=${pictureOf} />`}</li>`;
}

/** @param {number} ms */
const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);
