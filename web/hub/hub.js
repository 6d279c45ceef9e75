// The dashboard of the hub: all sandboxes as a table and as a wall, and its administration. The API decides what each caller sees.
import { Ask, Connection, IconButton, Sign, Toasts, ago, at, call, fail, follow, html, quantity, recall, remember, render, useEffect, useMemo, useState } from "../ui/ui.js";
import { Records } from "./record.js";
import { Audit, Events, Keys, Machine, Secrets, Snapshots, Usage } from "./rest.js";
import { Create, More, act, address, api, box, dots, everybody } from "./sandbox.js";
import { Wall } from "./wall.js";

/** @typedef {import("./sandbox.js").Sandbox} Sandbox */

/** @type {[string, string, any, boolean?][]} id, name, component, whether only administrators see it */
const places = [["sandboxes", "Sandboxes", Sandboxes], ["snapshots", "Snapshots", Snapshots], ["records", "Records", Records], ["secrets", "Secrets", Secrets], ["usage", "Usage", Usage], ["keys", "Keys", Keys, true], ["events", "Events", Events], ["audit", "Audit", Audit, true], ["machine", "Machine", Machine]];

function App() {
  const [who, setWho] = useState(/** @type {any} */ (null));
  const [place, setPlace] = useState(location.hash.slice(1) || "sandboxes");
  useEffect(() => {
    call("auth").then(setWho).catch(fail);
    const turn = () => setPlace(location.hash.slice(1) || "sandboxes");
    addEventListener("hashchange", turn);
    return () => removeEventListener("hashchange", turn);
  }, []);
  const admin = who?.role === "admin";
  const shown = places.filter(([, , , only]) => admin || !only);
  const [, name, Shown] = shown.find(([id]) => id === place) || shown[0];
  useEffect(() => {
    document.title = `${name} – Cove`;
    document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [name]);
  const out = async () => {
    await fetch(at("sign-out"), { method: "POST", redirect: "manual" }).catch(() => {});
    location.replace(at(""));
  };
  return html`
    <header><h1>Cove</h1>
      <nav aria-label="Parts">${shown.map(([id, title]) => html`<a key=${id} href=${`#${id}`} aria-current=${title === name ? "page" : undefined}>${title}</a>`)}</nav>
      ${who && html`<span class="who dim">${who.subject || (admin ? "administrator" : "")}${who.subject && who.role ? ` (${who.role})` : ""}</span>`}
      <a class="button plain" href=${at("guide").href}>Guide</a>
      <a class="button plain" href=${at("v1/docs").href}>Docs</a>
      <button onClick=${out}>Sign out</button>
    </header>
    <${Connection} />
    <main>${who && html`<${Shown} key=${name} admin=${admin} who=${who} />`}</main>
    <${Toasts} />`;
}

/** useSandboxes returns all sandboxes that the caller may see, updated live. @param {boolean} admin @returns {Sandbox[] | null} */
function useSandboxes(admin) {
  const [all, set] = useState(/** @type {Map<string, Sandbox> | null} */ (null));
  useEffect(() => {
    /** @type {undefined | (() => void)} */
    let stop;
    const query = everybody(admin);
    // Lists and events arrive in any order. So each list is updated with the events since its request.
    let asked = 0;
    let latest = 0; // number of the list that is shown
    /** @type {Map<number, any[]>} */
    const lists = new Map();
    /** @param {Map<string, Sandbox>} now @param {any} event */
    const change = (now, event) => {
      if (event.type === "deleted" || event.sandbox.status === "deleting") now.delete(event.sandbox.id);
      else now.set(event.sandbox.id, { ...now.get(event.sandbox.id), ...event.sandbox });
      return now;
    };
    const read = () => {
      const n = ++asked;
      /** @type {any[]} */
      const since = [];
      lists.set(n, since);
      call(api("sandbox"), { query }).then((list) => {
        if (n < latest) return;
        latest = n;
        set(since.reduce(change, new Map(list.map((/** @type {Sandbox} */ sb) => [sb.id, sb]))));
      }).catch((error) => { fail(error); set((old) => old || since.reduce(change, new Map())); }).finally(() => lists.delete(n));
    };
    const turn = () => {
      stop?.();
      stop = undefined;
      if (document.hidden) return;
      read();
      stop = follow(api("events"), query, (name, event) => {
        if (!event.sandbox?.id) return;
        for (const since of lists.values()) since.push(event);
        set((old) => old && change(new Map(old), event)); // not before the first list, because the result would be incomplete
      }, (state) => { if (state === "open") read(); });
    };
    turn();
    document.addEventListener("visibilitychange", turn);
    return () => { stop?.(); document.removeEventListener("visibilitychange", turn); };
  }, []);
  return all && [...all.values()].sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
}

/** stamp returns the current time in a form suitable for names. */
const stamp = () => new Date().toISOString().slice(0, 19).replace(/[^0-9]/g, "");

/** sleeps reports whether a sandbox must be resumed before use. @param {Sandbox} sb */
const sleeps = (sb) => sb.status === "paused" || sb.status === "stopped";

/** @param {{ admin: boolean }} props */
function Sandboxes({ admin }) {
  const all = useSandboxes(admin);
  const [wall, setWall] = useState(recall("hub-wall", false));
  const [text, setText] = useState("");
  const [picked, setPicked] = useState(/** @type {Record<string, boolean>} */ ({}));
  const [dialog, setDialog] = useState(/** @type {any} */ (null));
  useEffect(() => remember("hub-wall", wall), [wall]);
  const shown = useMemo(() => (all || []).filter((sb) => `${sb.name} ${sb.user || ""} ${sb.image || ""} ${sb.environment} ${sb.status}`.toLowerCase().includes(text.toLowerCase())), [all, text]);
  const chosen = shown.filter((sb) => picked[sb.id]);
  const close = () => setDialog(null);
  const pick = (/** @type {Sandbox[]} */ list, /** @type {boolean} */ on) => setPicked((old) => ({ ...old, ...Object.fromEntries(list.map((sb) => [sb.id, on])) }));
  /** @type {Record<string, (list: Sandbox[]) => void>} */
  const actions = {
    pause: (list) => act("Paused", list, (sb) => call(box(sb, "pause"), { body: {} })),
    resume: (list) => act("Resumed", list, (sb) => call(box(sb, sb.status === "stopped" ? "start" : "resume"), { body: {} })),
    fork: (list) => act("Forked", list, (sb) => call(box(sb, "fork"), { body: { count: 1 } })),
    snapshot: (list) => act("Took a snapshot of", list, (sb) => call(box(sb, "snapshot"), { body: { snapshot: `${sb.name.slice(0, 40)}-${stamp()}` } })),
    delete: (list) => setDialog(html`<${Ask} title="Delete" danger text=${`Delete ${list.length === 1 ? `the sandbox ${list[0].name} with everything in it` : `${list.length} sandboxes with everything in them`}? This cannot be undone.`} action="Delete" onClose=${close} onYes=${() => act("Deleted", list, (sb) => call(box(sb), { method: "DELETE" }))} />`),
  };
  const more = (/** @type {Sandbox} */ sb) => setDialog(html`<${More} sandbox=${sb} actions=${actions} onClose=${close} onShow=${setDialog} />`);
  return html`
    <div class="tools"><h2>Sandboxes ${all && html`<span class="tag">${all.length}</span>`}</h2>
      <input type="search" placeholder="Filter" aria-label="Filter sandboxes" value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} />
      <div class="pair" role="group" aria-label="Show as"><button aria-pressed=${String(!wall)} onClick=${() => setWall(false)}><${Sign} of="list" />Table</button><button aria-pressed=${String(wall)} onClick=${() => setWall(true)}><${Sign} of="grid" />Wall</button></div>
      <button class="primary" onClick=${() => setDialog(html`<${Create} onClose=${close} />`)}><${Sign} of="plus" />New sandbox</button></div>
    ${chosen.length > 0 && html`<${Several} chosen=${chosen} actions=${actions} onClear=${() => setPicked({})} />`}
    ${!all ? html`<div class="empty"><span class="spin"></span></div>`
      : shown.length === 0 ? html`<div class="card empty">${all.length ? "No sandbox matches the filter." : "There are no sandboxes yet. Create one: it is ready in milliseconds."}</div>`
      : wall ? html`<${Wall} list=${shown} picked=${picked} onPick=${pick} onMore=${more} admin=${admin} />`
      : html`<${Table} list=${shown} picked=${picked} onPick=${pick} onMore=${more} admin=${admin} actions=${actions} />`}
    ${dialog}`;
}

/** Several shows the actions for the chosen sandboxes. @param {any} props */
function Several({ chosen, actions, onClear }) {
  const button = (/** @type {string} */ name, /** @type {string} */ title, kind = "") => html`<button class=${kind} onClick=${() => actions[name](chosen)}>${title}</button>`;
  return html`<div class="several" role="group" aria-label="Chosen sandboxes"><b>${chosen.length} chosen</b>
    ${button("pause", "Pause")}${button("resume", "Resume")}${button("snapshot", "Snapshot")}${button("fork", "Fork")}${button("delete", "Delete", "danger")}
    <button class="plain" onClick=${onClear}>Clear</button></div>`;
}

/** Table lists sandboxes. @param {any} props */
function Table({ list, picked, onPick, onMore, admin, actions }) {
  return html`<div class="board" tabindex="0" role="region" aria-label="Table of sandboxes"><table>
    <thead><tr><th><input type="checkbox" aria-label="Choose all" checked=${list.every((/** @type {Sandbox} */ sb) => picked[sb.id])} onChange=${(/** @type {any} */ e) => onPick(list, e.target.checked)} /></th>
      <th>Name</th><th>State</th>${admin && html`<th>Owner</th>`}<th>Environment</th><th>CPU, memory</th><th>Network</th><th>Age</th><th>Used</th><th><span class="unseen">Actions</span></th></tr></thead>
    <tbody>${list.map((/** @type {Sandbox} */ sb) => html`<tr key=${sb.id} aria-selected=${String(Boolean(picked[sb.id]))}>
      <td><input type="checkbox" aria-label=${`Choose ${sb.name}`} checked=${Boolean(picked[sb.id])} onChange=${(/** @type {any} */ e) => onPick([sb], e.target.checked)} /></td>
      <td><a href=${address(sb)} target="_blank" rel="noopener">${sb.name}</a></td>
      <td title=${sb.message}><span class="tag"><span class=${`dot ${dots[sb.status] || ""}`}></span>${sb.status}</span></td>
      ${admin && html`<td>${sb.user || "–"}</td>`}<td>${sb.image || sb.environment}</td><td>${quantity(sb.cpu_limit, true)}, ${quantity(sb.memory_limit)}</td><td>${sb.network?.mode}</td><td>${ago(sb.created_at)}</td><td>${ago(sb.last_active_at)} ago</td>
      <td class="acts"><${IconButton} sign=${sleeps(sb) ? "play" : "pause"} label=${`${sleeps(sb) ? "Resume" : "Pause"} ${sb.name}`} onClick=${() => actions[sleeps(sb) ? "resume" : "pause"]([sb])} />
        <${IconButton} sign="trash" label=${`Delete ${sb.name}`} onClick=${() => actions.delete([sb])} /><${IconButton} sign="more" label=${`More about ${sb.name}`} onClick=${() => onMore(sb)} /></td></tr>`)}</tbody></table></div>`;
}

render(html`<${App} />`, /** @type {Element} */ (document.getElementById("app")));
