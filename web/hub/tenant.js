// Usage and quotas: of all tenants that the caller may see, and of one of them with its sandboxes, volumes and keys.
import { IconButton, bytes, call, html, plain, quantity, usePoll, useState } from "../ui/ui.js";
import { Board, useList } from "./rest.js";
import { api, dots, everybody, link } from "./sandbox.js";
import { Bar, clock, endOf } from "./state.js";

/** @type {Record<string, number>} */
const units = { "": 1, m: 0.001, k: 1e3, M: 1e6, G: 1e9, T: 1e12, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40 };

/** numberOf returns the value of a quantity; NaN if it is none. @param {any} text */
const numberOf = (text) => { const [, n, unit] = /^([0-9.]+)([a-zA-Z]*)$/.exec(String(text ?? "")) || []; return Number(n) * units[unit]; };

/** has reports whether a limit is set. @param {any} limit */
const has = (limit) => numberOf(limit) > 0;

/** of formats a value with its limit. @param {any} used @param {any} limit @param {(q: string) => string | number} show */
const of = (used, limit, show = (q) => q) => (has(limit) ? `${show(used)} of ${show(limit)}` : show(used));

/** nameOf is what the page calls a tenant; the operator has no name. @param {string | undefined} user */
const nameOf = (user) => user || "operator";

const cores = (/** @type {string} */ q) => quantity(q, true);

/** @param {{ admin: boolean, hub: any, all: any[] | null, part: string }} props */
export function Usage({ admin, hub, all, part }) {
  const [list, set] = useState(/** @type {any[] | null} */ (null));
  usePoll(() => call(api("usage"), { query: everybody(admin) }).then(set), 4000);
  const one = part && list?.find((u) => nameOf(u.user) === part);
  if (one) return html`<${Tenant} key=${part} u=${one} admin=${admin} hub=${hub} all=${all || []} />`;
  return html`<${Board} title="Usage and quotas" empty="No usage yet." columns=${["Tenant", "Sandboxes", "CPU", "Memory", "Disk", "Calls in progress", "CPU time", "Memory in use", "Sent", "Received"]}
    rows=${list?.map((u) => html`<tr key=${u.user}><td><a href=${`#usage/${encodeURIComponent(nameOf(u.user))}`}>${nameOf(u.user)}</a></td><td>${of(u.sandboxes, u.limits?.sandboxes)}</td><td>${of(u.cpu, u.limits?.cpu, cores)}</td><td>${of(u.memory, u.limits?.memory, quantity)}</td><td>${of(u.disk, u.limits?.disk, quantity)}</td><td>${of(u.calls, u.limits?.calls)}</td><td>${Math.round(u.cpu_seconds)} s</td><td>${bytes(u.memory_bytes)}</td><td>${bytes(u.sent_bytes)}</td><td>${bytes(u.received_bytes)}</td></tr>`)} />`;
}

/** Tenant shows what one tenant uses and owns. @param {{ u: any, admin: boolean, hub: any, all: any[] }} props */
function Tenant({ u, admin, hub, all }) {
  const name = nameOf(u.user);
  const mine = (/** @type {any} */ o) => (o.user || "") === (u.user || "");
  const [volumes] = useList("volume", everybody(admin));
  const boxes = all.filter(mine);
  /** @type {[string, any, any, (q: string) => string | number][]} */
  const quotas = [["Sandboxes", u.sandboxes, u.limits?.sandboxes, (q) => q], ["CPU", u.cpu, u.limits?.cpu, cores], ["Memory", u.memory, u.limits?.memory, quantity], ["Disk", u.disk, u.limits?.disk, quantity], ["Calls in progress", u.calls, u.limits?.calls, (q) => q]];
  /** @type {[string, string][]} */
  const totals = [["CPU time", `${Math.round(u.cpu_seconds)} s`], ["Memory in use", bytes(u.memory_bytes)], ["Sent", bytes(u.sent_bytes)], ["Received", bytes(u.received_bytes)]];
  return html`<div class="tools"><${IconButton} sign="left" label="All tenants" onClick=${() => { location.hash = "usage"; }} /><h2>${name}</h2></div>
    <section class="card"><h3>Quotas</h3><div class="figures">${quotas.map(([title, used, limit, show]) => html`<div key=${title}><span class="dim">${title}</span><${Bar} label=${title} used=${numberOf(used)} limit=${numberOf(limit)} text=${has(limit) ? of(used, limit, show) : `${show(used)}, no limit`} /></div>`)}</div></section>
    <div class="figures">${totals.map(([title, text]) => html`<div class="card" key=${title}><span class="dim">${title}</span><b>${text}</b></div>`)}</div>
    <${Board} title="Sandboxes" empty="No sandboxes." columns=${["Name", "State", "Environment", "Ends"]} rows=${boxes.map((sb) => html`<tr key=${sb.id}><td><a href=${link(sb)}>${sb.name}</a></td><td><span class="tag"><span class=${`dot ${dots[sb.status] || ""}`}></span>${sb.status}</span></td><td>${sb.image || sb.environment}</td><td>${endOf(sb).text}</td></tr>`)} />
    <${Board} title="Volumes" empty="No volumes." columns=${["Name", "Size", "Mounted by"]} rows=${volumes?.filter(mine).map((v) => html`<tr key=${v.name}><td>${plain(v.name)}</td><td>${bytes(v.size)}</td><td>${v.sandboxes.length}</td></tr>`)} />
    ${admin && hub.tenants && u.user && html`<${KeysOf} user=${u.user} />`}`;
}

/** KeysOf lists the keys of a tenant. @param {{ user: string }} props */
function KeysOf({ user }) {
  const [list, error] = useList("key");
  return html`<${Board} title="Keys" error=${error} empty="No keys." columns=${["Name", "Role", "ID", "Created", "Expires"]}
    rows=${list?.filter((k) => k.tenant === user).map((k) => html`<tr key=${k.id}><td>${k.name || "–"}</td><td>${k.role}</td><td class="mono">${k.id}</td><td>${clock(k.created)}</td><td>${k.revoked ? "revoked" : k.expires ? clock(k.expires) : "never"}</td></tr>`)} />`;
}
