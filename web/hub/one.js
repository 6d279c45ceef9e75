// One sandbox: its state and actions, and its parts as tabs.
import { Ask, IconButton, Sign, ago, call, fail, html, plain, toast, usePoll, useEffect, useState } from "../ui/ui.js";
import { actionsOf } from "./list.js";
import { address, api, box, dots, everybody, link, sleeps } from "./sandbox.js";
import { Links, Share } from "./share.js";
import { endOf } from "./state.js";
import { Story } from "./story.js";
import { Activity, Files, Logs, Overview, Processes, Settings, Snapshots } from "./tabs.js";

/** @typedef {import("./sandbox.js").Sandbox} Sandbox */

/** @type {[string, string, any][]} id, name, component */
const tabs = [["", "Overview", Overview], ["processes", "Processes", Processes], ["activity", "Activity", Activity], ["logs", "Logs", Logs], ["files", "Changed files", Files], ["snapshots", "Snapshots", Snapshots], ["links", "Links", Links], ["settings", "Settings", Settings]];

/** @type {Record<string, [string, string]>} title and effect of an action */
const verbs = { extend: ["Extend", "Its deadline is postponed."], pause: ["Pause", "Its programs stop until it is resumed."], resume: ["Start", "Its programs run again."], snapshot: ["Snapshot", "Its disk is saved."], fork: ["Fork", "A copy of it is created."] };

/** @param {{ id: string, tab: string, entry: number, admin: boolean, all: Sandbox[] | null, usage: Map<string, any>, hub: any, reader: boolean }} props */
export function One({ id, tab, entry, admin, all, usage, hub, reader }) {
  const known = all?.find((sb) => sb.id === id || sb.name === id);
  const [sb, setSb] = useState(/** @type {Sandbox | null} */ (known || null));
  const [dialog, setDialog] = useState(/** @type {any} */ (null));
  useEffect(() => { if (known) setSb(known); }, [known]);
  const name = sb?.name || "Sandbox";
  useEffect(() => { document.title = `${name} – Cove`; }, [name]);
  if (!all) return html`<div class="empty"><span class="spin"></span></div>`;
  if (!known) return html`<${Gone} id=${sb?.id || id} name=${name} admin=${admin} />`;
  const doing = tab.startsWith("?do=") ? tab.slice(4) : "";
  if (doing) tab = "";
  const [, , Shown] = tabs.find(([t]) => t === tab) || tabs[0];
  const shown = tabs.filter(([t]) => (t !== "links" || hub.tenants) && (!reader || t === "links" || ["", "logs", "snapshots", "settings"].includes(t)));
  return html`
    ${doing && html`<${Doing} key=${doing} name=${doing} sb=${known} show=${setDialog} reader=${reader} hub=${hub} />`}
    <${Header} sb=${known} show=${setDialog} reader=${reader} hub=${hub} />
    <nav class="tabs" aria-label="Parts of the sandbox">${shown.map(([t, title]) => html`<a key=${t} href=${link(known, t)} aria-current=${t === tab ? "page" : undefined}>${title}</a>`)}</nav>
    <${Shown} key=${`${known.id}/${tab}`} sb=${known} usage=${usage.get(known.id)} entry=${entry} admin=${admin} hub=${hub} show=${setDialog} reader=${reader} />
    ${dialog}`;
}

/** Header identifies a sandbox and has the actions on it. @param {{ sb: Sandbox, show: (dialog: any) => void, reader: boolean, hub: any }} props */
function Header({ sb, show, reader, hub }) {
  const [, tick] = useState(0);
  useEffect(() => { const timer = setInterval(() => tick((n) => n + 1), 10_000); return () => clearInterval(timer); }, []);
  const actions = actionsOf(show);
  const end = endOf(sb);
  const able = reader ? [] : ["snapshot", "fork"];
  return html`<div class="subject"><a class="button plain icon" href="#sandboxes" title="All sandboxes" aria-label="All sandboxes"><${Sign} of="left" /></a>
    <div class="grow who"><h2>${sb.name}</h2><div class="row facts"><span class="tag"><span class=${`dot ${dots[sb.status] || ""}`}></span>${sb.status}</span>
      <span class=${end.soon ? "tag warn" : "dim"} title=${end.more}>${end.text}</span><span class="dim">${sb.image || sb.environment}</span>${sb.user && html`<span class="dim">${sb.user}</span>`}<span class="dim mono">${sb.id}</span></div></div>
    <div class="row doing"><a class="button primary" href=${address(sb)} target="_blank" rel="noopener"><${Sign} of="open" />Open</a>
      ${!reader && sb.ends_at && html`<button onClick=${() => actions.extend([sb])}><${Sign} of="clock" />Extend</button>`}
      ${!reader && hub.tenants && html`<button onClick=${() => show(html`<${Share} sb=${sb} onClose=${() => show(null)} />`)}><${Sign} of="share" />Share</button>`}
      ${!reader && html`<button onClick=${() => actions[sleeps(sb) ? "resume" : "pause"]([sb])}><${Sign} of=${sleeps(sb) ? "play" : "pause"} />${sb.status === "paused" ? "Resume" : sleeps(sb) ? "Start" : "Pause"}</button>`}
      ${able.map((name) => html`<button key=${name} onClick=${() => actions[name]([sb])}><${Sign} of=${name === "fork" ? "fork" : "camera"} />${name === "fork" ? "Fork" : "Snapshot"}</button>`)}
      ${!reader && html`<${IconButton} sign="trash" class="danger" label=${`Delete ${sb.name}`} onClick=${() => actions.delete([sb])} />`}</div></div>
    ${sb.message && html`<div class=${`notice ${sb.status === "failed" || sb.status === "running" ? "bad" : ""}`} role="status"><${Sign} of="alert" /><span class="grow">${plain(sb.message)}</span></div>`}`;
}

/** Doing asks for the action that a link names. A link alone changes nothing, because any page can contain it. @param {{ name: string, sb: Sandbox, show: (dialog: any) => void, reader: boolean, hub: any }} props */
function Doing({ name, sb, show, reader, hub }) {
  useEffect(() => {
    history.replaceState(null, "", link(sb)); // so that a reload does not ask again
    const run = actionsOf(show)[name];
    const close = () => show(null);
    if (reader) return;
    if (name === "share") { if (hub.tenants) show(html`<${Share} sb=${sb} onClose=${close} />`); } else if (name === "delete") run([sb]);
    else if (run && verbs[name]) show(html`<${Ask} title=${verbs[name][0]} text=${`${verbs[name][0]} ${sb.name}? ${verbs[name][1]}`} action=${verbs[name][0]} onClose=${close} onYes=${() => run([sb])} />`);
  }, []);
  return null;
}

/** Gone explains what happened to a sandbox that no longer exists. @param {{ id: string, name: string, admin: boolean }} props */
function Gone({ id, name, admin }) {
  const [past, set] = useState(/** @type {any} */ (undefined));
  const [record, setRecord] = useState(false);
  // The reason can be known a moment later than the deletion.
  usePoll(async () => { if (!past) await call(api("deleted"), { query: everybody(admin) }).then((list) => set(list.find((/** @type {any} */ d) => d.id === id || d.name === id) || null), () => set(null)); }, 2000, [id, Boolean(past)]);
  useEffect(() => {
    call(api("record"), { query: everybody(admin) }).then((all) => setRecord(all.some((/** @type {any} */ r) => r.id === id))).catch(() => {});
  }, [id]);
  if (past === undefined) return html`<div class="empty"><span class="spin"></span></div>`;
  const restore = () => call(box(past, "undelete"), { body: {} }).then(() => toast(`Restored ${past.name}. It is stopped; the next use starts it.`), fail);
  return html`<div class="card ended" role="status"><h2>${past ? `${past.name} was deleted ${ago(past.deleted_at)} ago` : `${name === "Sandbox" ? "This sandbox" : name} does not exist`}</h2>
    <p>${past ? `Reason: ${plain(past.reason)}.` : "It was deleted more than a day ago, or you have no access to it."}</p>
    ${past?.history?.length > 0 && html`<${Story} list=${past.history} />`}
    <div class="row"><a class="button" href="#sandboxes"><${Sign} of="left" />All sandboxes</a>${record && html`<a class="button" href=${`#records/${encodeURIComponent(id)}`}><${Sign} of="play" />Show its record</a>`}${past?.restorable && html`<button class="primary" onClick=${restore}>Restore</button>`}</div></div>`;
}
