// Activity records of sandboxes, including deleted ones whose records the hub keeps. Records are not trusted: they are shown as
// text and pictures only.
import { IconButton, Sign, ago, at, fail, html, useEffect, useState } from "../ui/ui.js";
import { Timeline } from "../activity/view.js";
import { Board, Remove, useList } from "./rest.js";
import { api, everybody } from "./sandbox.js";

/** @typedef {import("../activity/replay.js").Entry} Entry */

/** @param {string} id @param {string} [more] */
const address = (id, more = "") => at(api(`record/${encodeURIComponent(id)}${more}`)).href;

/** Records lists the records and shows the selected one. @param {{ admin: boolean, part: string, entry: number }} props */
export function Records({ admin, part, entry }) {
  const [list, error, read] = useList("record", everybody(admin));
  const shown = part && (list?.find((r) => r.id === part) || { id: part, name: "Record" });
  if (shown) return html`<${One} record=${shown} entry=${entry} onBack=${() => { location.hash = "records"; }} />`;
  return html`<${Board} title="Activity records" error=${error} empty="No records yet. They are saved when a sandbox is paused, stopped or deleted." columns=${["Name", ...(admin ? ["Owner"] : []), "Sandbox", "Entries", "Saved", ""]}
    rows=${list?.map((r) => html`<tr key=${r.id}><td>${r.name}</td>${admin && html`<td>${r.user || "–"}</td>`}<td class="mono">${r.id}</td><td>${r.entries}</td><td>${ago(r.saved)} ago</td>
      <td class="acts"><${IconButton} sign="play" label=${`Show the record of ${r.name}`} onClick=${() => { location.hash = `records/${encodeURIComponent(r.id)}`; }} /><a class="button plain icon" href=${address(r.id)} download=${`${r.id}.jsonl`} aria-label=${`Download the record of ${r.name}`}><${Sign} of="down" /></a><${Remove} what=${`the record of ${r.name}`} path=${`record/${encodeURIComponent(r.id)}`} onDone=${read} /></td></tr>`)} />`;
}

/** One shows a record. @param {{ record: any, entry: number, onBack: () => void }} props */
function One({ record, entry, onBack }) {
  const [all, set] = useState(/** @type {Entry[] | null} */ (null));
  useEffect(() => {
    fetch(address(record.id)).then((reply) => (reply.ok ? reply.text() : Promise.reject(new Error(`The server replied with status ${reply.status}.`)))).then((text) => set(entriesOf(text))).catch((error) => { set([]); fail(error); });
  }, [record.id]);
  return html`<div class="tools"><${IconButton} sign="left" label="Back to the records" onClick=${onBack} /><h2>${record.name} <span class="dim mono">${record.id}</span></h2></div>
    <div class="card kept"><${Timeline} all=${all || []} ready=${all !== null} start=${all ? entry : 0} linkOf=${(/** @type {number} */ n) => new URL(`#records/${encodeURIComponent(record.id)}/${n}`, location.href).href} pictureOf=${(/** @type {number} */ id) => address(record.id, `/picture/${id}`)} /></div>`;
}

/** entriesOf parses the lines of a record and ignores invalid ones. @param {string} text @returns {Entry[]} */
export function entriesOf(text) {
  const out = [];
  for (const line of text.split("\n")) {
    try {
      const e = JSON.parse(line);
      if (Number.isInteger(e?.id)) out.push(sound(e));
    } catch { /* a truncated line */ }
  }
  return out;
}

/** sound returns an entry whose fields have valid types. @param {any} e @returns {Entry} */
export function sound(e) {
  const text = (/** @type {unknown} */ v) => (typeof v === "string" ? v : "");
  const change = (/** @type {any} */ c) => ({ path: text(c?.path), diff: text(c?.diff), content: text(c?.content), deleted: c?.deleted === true });
  return { id: e.id, time: text(e.time), op: text(e.op), kind: text(e.kind), via: text(e.via), caller: text(e.caller), key: text(e.key), input: text(e.input), output: text(e.output), error: text(e.error),
    took_ms: Number(e.took_ms) || 0, missed: Number(e.missed) || 0, picture: e.picture === true, reads: e.reads === true, failed: e.failed === true, change: e.change ? change(e.change) : null, changes: Array.isArray(e.changes) ? e.changes.map(change) : undefined };
}
