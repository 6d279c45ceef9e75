// All sandboxes: as a table, on a phone as cards, as a wall, and those that were deleted.
import { Ask, IconButton, Sign, ago, call, fail, html, plain, quantity, recall, remember, toast, useEffect, useMemo, useState } from "../ui/ui.js";
import { Bar, coresOf, endOf, faultOf, useOf } from "./state.js";
import { Create, Empty } from "./create.js";
import { act, address, api, box, dots, everybody, link, sleeps, undoable } from "./sandbox.js";
import { Wall } from "./wall.js";

/** @typedef {import("./sandbox.js").Sandbox} Sandbox */
/** @typedef {import("./live.js").Usage} Usage */

/** stamp returns the current time in a form suitable for names. */
const stamp = () => new Date().toISOString().slice(0, 19).replace(/[^0-9]/g, "");

/** actionsOf returns the actions on sandboxes. @param {(dialog: any) => void} show shows a dialog @returns {Record<string, (list: Sandbox[]) => unknown>} */
export const actionsOf = (show) => ({
  pause: (list) => act("Paused", list, (sb) => call(box(sb, "pause"), { body: {} })),
  resume: (list) => act("Resumed", list, (sb) => call(box(sb, sb.status === "paused" ? "resume" : "start"), { body: {} })),
  fork: (list) => act("Forked", list, (sb) => call(box(sb, "fork"), { body: { count: 1 } })),
  snapshot: (list) => act("Took a snapshot of", list, (sb) => call(box(sb, "snapshot"), { body: { snapshot: `${sb.name.slice(0, 40)}-${stamp()}` } })),
  extend: (list) => act("Extended", list, (sb) => call(box(sb, "extend"), { body: sb.expires_at ? {} : { timeout: -1 } })),
  delete: (list) => show(html`<${Ask} title="Delete" danger text=${`Delete ${list.length === 1 ? `the sandbox ${list[0].name} with everything in it` : `${list.length} sandboxes with everything in them`}?`} action="Delete" onClose=${() => show(null)} onYes=${() => act("Deleted", list, (sb) => call(box(sb), { method: "DELETE" }), undoable(list))} />`),
});

/** @type {Record<string, (sb: Sandbox, usage?: Usage) => string | number>} */
const orders = {
  name: (sb) => sb.name.toLowerCase(), state: (sb) => sb.status, owner: (sb) => sb.user || "", environment: (sb) => sb.image || sb.environment,
  cpu: (sb, u) => -(u?.cpu ?? -1), memory: (sb, u) => -(u?.memory ?? -1), ends: (sb) => endOf(sb).at, used: (sb) => -new Date(sb.last_active_at).getTime(),
};

/** sorted sorts sandboxes. @param {Sandbox[]} list @param {Map<string, Usage>} usage @param {string} by @param {boolean} down */
function sorted(list, usage, by, down) {
  const value = orders[by] || orders.name;
  const compare = (/** @type {any} */ a, /** @type {any} */ b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a < b ? -1 : a > b ? 1 : 0);
  const out = [...list].sort((a, b) => compare(value(a, usage.get(a.id)), value(b, usage.get(b.id))) || a.name.localeCompare(b.name));
  return down ? out.reverse() : out;
}

/** wordsOf returns the text of a sandbox that the filter searches. @param {Sandbox} sb */
const wordsOf = (sb) => `${sb.name} ${sb.user || ""} ${sb.image || ""} ${sb.environment} ${sb.status} ${Object.entries(sb.labels || {}).map(([k, v]) => `${k}=${v}`).join(" ")}`.toLowerCase();

const views = [["table", "list", "Table"], ["wall", "grid", "Wall"], ["deleted", "trash", "Deleted"]];

/** @param {{ admin: boolean, all: Sandbox[] | null, usage: Map<string, Usage>, hub: any, reader: boolean }} props */
export function Sandboxes({ admin, all, usage, hub, reader }) {
  const [view, setView] = useState(recall("hub-view", "table"));
  const [text, setText] = useState("");
  const [order, setOrder] = useState(recall("hub-order", { by: "name", down: false }));
  const [picked, setPicked] = useState(/** @type {Record<string, boolean>} */ ({}));
  const [dialog, setDialog] = useState(/** @type {any} */ (null));
  useEffect(() => remember("hub-view", view), [view]);
  useEffect(() => remember("hub-order", order), [order]);
  const shown = useMemo(() => sorted((all || []).filter((sb) => wordsOf(sb).includes(text.toLowerCase())), usage, order.by, order.down), [all, text, usage, order]);
  const selected = shown.filter((sb) => picked[sb.id]);
  const pick = (/** @type {Sandbox[]} */ list, /** @type {boolean} */ on) => setPicked((old) => ({ ...old, ...Object.fromEntries(list.map((sb) => [sb.id, on])) }));
  const actions = actionsOf(setDialog);
  const owners = admin && hub.tenants; // otherwise all sandboxes have the same
  const create = (environment = "") => setDialog(html`<${Create} onClose=${() => setDialog(null)} hub=${hub} environment=${environment} />`);
  return html`
    <div class="tools"><h2>Sandboxes ${all && html`<span class="tag">${all.length}</span>`}</h2>
      <input type="search" id="filter" placeholder="Filter" aria-label="Filter sandboxes" value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} />
      <div class="pair" role="group" aria-label="Show as">${views.map(([name, sign, title]) => html`<button key=${name} aria-pressed=${String(view === name)} onClick=${() => setView(name)}><${Sign} of=${sign} />${title}</button>`)}</div>
      ${!reader && html`<button class="primary" onClick=${() => create()}><${Sign} of="plus" />New sandbox</button>`}</div>
    ${selected.length > 0 && view !== "deleted" && html`<${Several} selected=${selected} actions=${actions} onClear=${() => setPicked({})} />`}
    ${view === "deleted" ? html`<${Deleted} admin=${admin} text=${text.toLowerCase()} />`
      : !all ? html`<div class="empty"><span class="spin"></span></div>`
      : shown.length === 0 ? all.length === 0 && !reader ? html`<${Empty} hub=${hub} onCreate=${create} />` : html`<div class="card empty">${all.length ? "No sandbox matches the filter." : "There are no sandboxes yet."}</div>`
      : view === "wall" ? html`<${Wall} list=${shown} usage=${usage} picked=${picked} onPick=${pick} admin=${owners} />`
      : html`<${Table} list=${shown} usage=${usage} picked=${picked} onPick=${pick} admin=${owners} actions=${actions} order=${order} onOrder=${setOrder} reader=${reader} />`}
    ${dialog}`;
}

/** Several shows the actions for the selected sandboxes. @param {any} props */
function Several({ selected, actions, onClear }) {
  const button = (/** @type {string} */ name, /** @type {string} */ title, kind = "") => html`<button class=${kind} onClick=${() => actions[name](selected)}>${title}</button>`;
  return html`<div class="several" role="group" aria-label="Selected sandboxes"><b>${selected.length} selected</b>
    ${button("pause", "Pause")}${button("resume", "Resume")}${button("snapshot", "Snapshot")}${button("fork", "Fork")}${button("delete", "Delete", "danger")}
    <button class="plain" onClick=${onClear}>Clear</button></div>`;
}

/** Head is the header of a column, which sorts by it. @param {any} props */
function Head({ by, title, order, onOrder }) {
  const on = order.by === by;
  return html`<th aria-sort=${on ? (order.down ? "descending" : "ascending") : undefined}><button class="plain sort" onClick=${() => onOrder({ by, down: on && !order.down })}>${title}<span aria-hidden="true">${on ? (order.down ? "▾" : "▴") : ""}</span></button></th>`;
}

/** Table lists sandboxes. @param {any} props */
function Table({ list, usage, picked, onPick, admin, actions, order, onOrder, reader }) {
  const head = (/** @type {string} */ by, /** @type {string} */ title) => html`<${Head} by=${by} title=${title} order=${order} onOrder=${onOrder} />`;
  return html`<div class="board cards" tabindex="0" role="region" aria-label="Table of sandboxes"><table>
    <thead><tr><th><input type="checkbox" aria-label="Select all" checked=${list.every((/** @type {Sandbox} */ sb) => picked[sb.id])} onChange=${(/** @type {any} */ e) => onPick(list, e.target.checked)} /></th>
      ${head("name", "Name")}${head("state", "State")}${admin && head("owner", "Owner")}${head("environment", "Environment")}${head("cpu", "CPU")}${head("memory", "Memory")}${head("ends", "Ends")}${head("used", "Last used")}<th><span class="unseen">Actions</span></th></tr></thead>
    <tbody>${list.map((/** @type {Sandbox} */ sb) => html`<${Row} key=${sb.id} sb=${sb} usage=${usage.get(sb.id)} picked=${Boolean(picked[sb.id])} onPick=${onPick} admin=${admin} actions=${actions} reader=${reader} />`)}</tbody></table></div>`;
}

/** Row shows a sandbox. @param {any} props */
function Row({ sb, usage, picked, onPick, admin, actions, reader }) {
  const fault = faultOf(sb, usage);
  const end = endOf(sb);
  const running = sb.status === "running" && usage;
  return html`<tr aria-selected=${String(picked)} class=${fault?.bad ? "faulty" : ""}>
    <td class="pick"><input type="checkbox" aria-label=${`Select ${sb.name}`} checked=${picked} onChange=${(/** @type {any} */ e) => onPick([sb], e.target.checked)} /></td>
    <td class="name"><a href=${link(sb)}>${sb.name}</a>${Object.entries(sb.labels || {}).slice(0, 3).map(([k, v]) => html` <span class="tag label">${plain(k)}${v ? `=${plain(v)}` : ""}</span>`)}
      ${fault && html`<a class=${`fault ${fault.bad ? "bad" : "dim"}`} href=${link(sb, fault.tab)} title=${fault.text}>${fault.text}</a>`}</td>
    <td><span class="tag"><span class=${`dot ${dots[sb.status] || ""}`}></span>${sb.status}</span></td>
    ${admin && html`<td class="owner">${sb.user || "–"}</td>`}<td class="environment" title=${quantity(sb.cpu_limit, true)}>${sb.image || sb.environment}</td>
    <td class="figure"><a href=${link(sb, "processes")}><span class="unseen">Processes of ${sb.name}: </span>${running ? html`<${Bar} label=${`CPU of ${sb.name}`} used=${usage.cpu} limit=${usage.cpu_limit} text=${coresOf(usage.cpu, usage.cpu_limit)} />` : html`<span class="dim">–</span>`}</a></td>
    <td class="figure">${running ? html`<${Bar} label=${`Memory of ${sb.name}`} used=${usage.memory} limit=${usage.memory_limit} text=${useOf(usage.memory, usage.memory_limit)} />` : html`<span class="dim">–</span>`}</td>
    <td class=${end.soon ? "warn ends" : "ends"} title=${end.more}>${end.text}</td><td class="used dim">${ago(sb.last_active_at)} ago</td>
    <td class="acts"><a class="button plain icon" href=${address(sb)} target="_blank" rel="noopener" title=${`Open ${sb.name}`} aria-label=${`Open ${sb.name}`}><${Sign} of="open" /></a>
      ${!reader && html`<${IconButton} sign=${sleeps(sb) ? "play" : "pause"} label=${`${sleeps(sb) ? "Resume" : "Pause"} ${sb.name}`} onClick=${() => actions[sleeps(sb) ? "resume" : "pause"]([sb])} />
      <${IconButton} sign="trash" label=${`Delete ${sb.name}`} onClick=${() => actions.delete([sb])} />`}</td></tr>`;
}

/** faultsOf returns the last problems of a deleted sandbox, which may explain its end. @param {any} d @returns {any[]} */
const faultsOf = (d) => (d.history || []).filter((/** @type {any} */ m) => m.bad && m.message).slice(0, 2);

/** Deleted lists the sandboxes that were deleted during the last day, and why. @param {{ admin: boolean, text: string }} props */
function Deleted({ admin, text }) {
  const [list, set] = useState(/** @type {any[] | null} */ (null));
  const [records, setRecords] = useState(/** @type {Set<string>} */ (new Set()));
  const read = () => { call(api("deleted"), { query: everybody(admin) }).then(set, (e) => { set([]); fail(e); }); };
  useEffect(() => {
    read();
    call(api("record"), { query: everybody(admin) }).then((all) => setRecords(new Set(all.map((/** @type {any} */ r) => r.id)))).catch(() => {});
  }, []);
  const restore = (/** @type {any} */ d) => call(box(d, "undelete"), { body: {} }).then(() => { toast(`Restored ${d.name}. It is stopped; the next use starts it.`); read(); }, fail);
  if (!list) return html`<div class="empty"><span class="spin"></span></div>`;
  const shown = list.filter((d) => `${d.name} ${d.user || ""} ${d.reason}`.toLowerCase().includes(text));
  if (shown.length === 0) return html`<div class="card empty">No sandbox was deleted during the last day.</div>`;
  return html`<div class="board cards" tabindex="0" role="region" aria-label="Deleted sandboxes"><table><thead><tr><th>Name</th>${admin && html`<th>Owner</th>`}<th>Deleted</th><th>Reason</th><th><span class="unseen">Actions</span></th></tr></thead>
    <tbody>${shown.map((d) => html`<tr key=${d.id}><td class="name"><a href=${link(d)}>${d.name}</a></td>${admin && html`<td>${d.user || "–"}</td>`}<td title=${new Date(d.deleted_at).toLocaleString()}>${ago(d.deleted_at)} ago</td><td class="why">${plain(d.reason)}${faultsOf(d).map((m) => html`<span class="fault bad">${plain(m.message)}</span>`)}</td>
      <td class="acts">${records.has(d.id) && html`<a class="button" href=${`#records/${encodeURIComponent(d.id)}`}><${Sign} of="play" />Record</a> `}${d.restorable && html`<button onClick=${() => restore(d)}>Restore</button>`}</td></tr>`)}</tbody></table></div>`;
}
