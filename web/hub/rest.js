// The other parts of the dashboard: snapshots, secrets, keys, events, audit log, machine.
import { Ask, CopyButton, Dialog, IconButton, Sign, ago, at, bytes, call, fail, follow, html, plain, quantity, readEvents, toast, usePoll, useEffect, useState } from "../ui/ui.js";
import { api, everybody, link } from "./sandbox.js";

/** useList reads a list and returns it, an error, and a function that reads it again. @param {string} path @param {Record<string, unknown>} [query] @returns {[any[] | null, string, () => void]} */
export function useList(path, query) {
  const [list, set] = useState(/** @type {any[] | null} */ (null));
  const [error, setError] = useState("");
  const read = () => call(api(path), { query }).then((l) => { set(l || []); setError(""); }, (e) => { set([]); setError(e.message); });
  useEffect(() => { read(); }, [path]);
  return [list, error, read];
}

/** Board is a table with a title. @param {any} props */
export function Board({ title, columns, rows, error, empty, children }) {
  return html`<div class="tools"><h2>${title}</h2>${children}</div>${error ? html`<div class="card empty">${error}</div>` : !rows ? html`<div class="empty"><span class="spin"></span></div>` : rows.length === 0 ? html`<div class="card empty">${empty}</div>`
    : html`<div class="board" tabindex="0" role="region" aria-label=${title}><table><thead><tr>${columns.map((/** @type {string} */ c) => html`<th>${c || html`<span class="unseen">Actions</span>`}</th>`)}</tr></thead><tbody>${rows}</tbody></table></div>`}`;
}

/** Remove is a button that deletes an item after confirmation. @param {any} props */
export function Remove({ what, path, query, onDone }) {
  const [ask, set] = useState(false);
  return html`<${IconButton} sign="trash" label=${`Delete ${what}`} onClick=${() => set(true)} />${ask && html`<${Ask} title="Delete" danger text=${`Delete ${what}?`} action="Delete" onClose=${() => set(false)} onYes=${() => call(api(path), { method: "DELETE", query }).then(() => { toast(`Deleted ${what}`); onDone(); }, fail)} />`}`;
}

/** @param {{ admin: boolean, all: any[] | null, who: any, reader: boolean }} props */
export function Snapshots({ admin, all, who, reader }) {
  const [list, error, read] = useList("snapshot", everybody(admin));
  // A snapshot can name its sandbox by ID. Only the owner can create sandboxes from it.
  const source = (/** @type {any} */ s) => { const sb = all?.find((one) => one.id === s.sandbox || (one.name === s.sandbox && one.user === s.user)); return sb ? html`<a href=${link(sb)}>${sb.name}</a>` : s.sandbox || "–"; };
  const create = (/** @type {any} */ s) => call(api("sandbox"), { query: { full: true }, body: { from_snapshot: s.name, keep: true } }).then((made) => { toast(`Created ${made.name}`); location.hash = link(made); }, fail);
  return html`<${Board} title="Snapshots" error=${error} empty="No snapshots. Take a snapshot of a sandbox to roll back to it, or to create sandboxes from it." columns=${["Name", ...(admin ? ["Owner"] : []), "Sandbox", "Size", "Age", ""]}
    rows=${list?.map((s) => html`<tr key=${`${s.user}/${s.name}`}><td>${s.name}</td>${admin && html`<td>${s.user || "–"}</td>`}<td>${source(s)}</td><td>${bytes(s.size)}</td><td>${ago(s.created)}</td>
      <td class="acts">${!reader && (s.user || "") === (who.subject || "") && html`<button onClick=${() => create(s)} aria-label=${`New sandbox from ${s.name}`}>New sandbox</button> `}<${Remove} what=${`the snapshot ${s.name}`} path=${`snapshot/${encodeURIComponent(s.name)}`} query=${{ user: s.user }} onDone=${read} /></td></tr>`)} />`;
}

export function Secrets() {
  const [list, error, read] = useList("secret");
  const [adding, setAdding] = useState(false);
  /** @param {any} event */
  const add = (event) => {
    event.preventDefault();
    const data = new FormData(event.target);
    const hosts = String(data.get("hosts") || "").split(/[\s,]+/).filter(Boolean);
    call(api(`secret/${encodeURIComponent(String(data.get("name")))}`), { method: "PUT", body: { value: data.get("value"), ...(hosts.length ? { mode: "broker", hosts } : {}) } }).then(() => { setAdding(false); toast("Saved the secret"); read(); }, fail);
  };
  return html`<${Board} title="Secrets" error=${error} empty="No secrets. Sandboxes can use a secret without reading it." columns=${["Name", "Mode", "Hosts", ""]}
    rows=${list?.map((s) => html`<tr key=${s.name}><td>${s.name}</td><td>${s.mode || "–"}</td><td>${(s.hosts || []).join(", ") || "–"}</td><td class="acts"><${Remove} what=${`the secret ${s.name}`} path=${`secret/${encodeURIComponent(s.name)}`} onDone=${read} /></td></tr>`)}><button class="primary" onClick=${() => setAdding(true)}><${Sign} of="plus" />New secret</button><//>
    ${adding && html`<${Dialog} title="New secret" onClose=${() => setAdding(false)}><form onSubmit=${add}><label class="field"><span>Name</span><input name="name" required autofocus autocomplete="off" /></label><label class="field"><span>Value</span><input name="value" type="password" required autocomplete="off" /></label><label class="field"><span>Hosts that receive the secret as a header (if empty, it is an environment variable)</span><input name="hosts" autocomplete="off" /></label><div class="actions"><button type="button" onClick=${() => setAdding(false)}>Cancel</button><button class="primary">Save</button></div></form><//>`}`;
}

export function Keys() {
  const [list, error, read] = useList("key");
  const [adding, setAdding] = useState(false);
  const [made, setMade] = useState("");
  /** @param {any} event */
  const add = (event) => {
    event.preventDefault();
    const data = new FormData(event.target);
    call(api("key"), { body: { tenant: data.get("tenant"), role: data.get("role"), name: data.get("name") || undefined, ...(data.get("days") ? { days: Number(data.get("days")) } : {}) } }).then((key) => { setMade(key.secret); read(); }, fail);
  };
  return html`<${Board} title="Tenants and keys" error=${error} empty="No keys yet." columns=${["Tenant", "Name", "Role", "ID", "Created", "Expires", ""]}
    rows=${list?.map((k) => html`<tr key=${k.id}><td><a href=${`#usage/${encodeURIComponent(k.tenant)}`}>${k.tenant}</a></td><td>${k.name || "–"}</td><td>${k.role}</td><td class="mono">${k.id}</td><td>${ago(k.created)} ago</td><td>${k.revoked ? "revoked" : k.expires ? new Date(k.expires).toLocaleDateString() : "never"}</td><td class="acts">${!k.revoked && html`<${Remove} what=${`the key ${k.id} of ${k.tenant}`} path=${`key/${encodeURIComponent(k.id)}`} onDone=${read} />`}</td></tr>`)}>${!error && html`<button class="primary" onClick=${() => { setMade(""); setAdding(true); }}><${Sign} of="plus" />New key</button>`}<//>
    ${adding && html`<${Dialog} title="New key" onClose=${() => setAdding(false)}>${made ? html`<p>Copy the key now. It is not shown again.</p><code class="secret">${made}</code><div class="actions"><${CopyButton} text=${made} label="Copy key" /><button class="primary" onClick=${() => setAdding(false)}>Done</button></div>` : html`<form onSubmit=${add}><label class="field"><span>Tenant</span><input name="tenant" required autofocus autocomplete="off" /></label><label class="field"><span>Name of the key</span><input name="name" autocomplete="off" /></label><label class="field"><span>Role</span><select name="role"><option>user</option><option>viewer</option><option>admin</option></select></label><label class="field"><span>Days until it expires</span><input name="days" type="number" min="1" placeholder="never" /></label><div class="actions"><button type="button" onClick=${() => setAdding(false)}>Cancel</button><button class="primary">Create</button></div></form>`}<//>`}`;
}

/** @param {string} time */
const clock = (time) => {
  const at = new Date(time);
  return html`<time datetime=${time} title=${at.toLocaleString()}>${at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString()} `}${at.toLocaleTimeString()}</time>`;
};

/** @param {{ admin: boolean, all: any[] | null }} props */
export function Events({ admin, all }) {
  const [list, set] = useState(/** @type {any[]} */ ([]));
  const [state, setState] = useState("open");
  const [only, setOnly] = useState("");
  const [past, setPast] = useState(/** @type {any[]} */ ([]));
  useEffect(() => follow(api("events"), everybody(admin), (name, event) => set((old) => [{ ...event, key: Math.random() }, ...old].slice(0, 500)), setState), []);
  // The stream begins with this page. For one sandbox the hub also remembers what was before.
  useEffect(() => {
    setPast([]);
    if (only) call(api(`sandbox/${encodeURIComponent(only)}/history`)).then((l) => setPast(l.map((/** @type {any} */ m) => ({ ...m, key: `past ${m.time} ${m.type} ${m.message}` }))), fail);
  }, [only]);
  const name = all?.find((sb) => sb.id === only)?.name || "";
  const live = list.filter((e) => !only || e.sandbox?.id === only);
  const had = new Set(live.map((e) => e.time));
  const rows = [...live, ...past.filter((m) => !had.has(m.time)).map((m) => ({ ...m, sandbox: { id: only, name } }))].sort((a, b) => (a.time < b.time ? 1 : a.time > b.time ? -1 : 0));
  return html`<${Board} title="Live events" empty="No events yet. New events appear here." columns=${["Time", "Event", "Sandbox", "State", "Owner", "Reason"]}
    rows=${rows.map((e) => html`<tr key=${e.key}><td>${clock(e.time)}</td><td>${e.type}</td><td>${e.sandbox?.id ? html`<a href=${link(e.sandbox)}>${e.sandbox.name}</a>` : ""}</td><td>${e.sandbox?.status || ""}</td><td>${e.sandbox?.user || "–"}</td><td class="cut" title=${plain(e.message || "")}>${plain(e.message || e.sandbox?.message || "")}</td></tr>`)}><select aria-label="Events of" value=${only} onChange=${(/** @type {any} */ e) => setOnly(e.target.value)}><option value="">all sandboxes</option>${(all || []).map((sb) => html`<option value=${sb.id}>${sb.name}</option>`)}</select><span class="tag"><span class=${`dot ${state === "open" ? "good" : "warn"}`}></span>${state === "open" ? "live" : "reconnecting"}</span><//>`;
}

/** @type {[number, string][]} */
const periods = [[0, "any time"], [60, "last hour"], [1440, "last day"], [10_080, "last week"]];

export function Audit() {
  const [list, set] = useState(/** @type {any[] | null} */ (null));
  const [filter, setFilter] = useState({ q: "", sandbox: "", user: "", minutes: 0, log: "changes" });
  const [verdict, setVerdict] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const change = (/** @type {string} */ name) => (/** @type {any} */ e) => setFilter((old) => ({ ...old, [name]: e.target.value }));
  // The hub searches, because the page shows only a part of the log. A search starts when the user pauses typing.
  useEffect(() => {
    let stop = () => {};
    const timer = setTimeout(() => {
      /** @type {any[]} */
      let lines = [];
      stop = follow(api("audit"), { lines: 500, follow: true, ...filter }, (name, line) => { if (line.hash && !lines.some((l) => l.hash === line.hash)) set(lines = [line, ...lines].slice(0, 1000)); }, () => set(lines));
    }, list ? 250 : 0);
    return () => { clearTimeout(timer); stop(); };
  }, [filter]);
  const verify = () => call(api("audit/verify")).then((v) => {
    const { problem: p } = v;
    setVerdict(p ? { text: `${p.file}${p.line ? `, line ${p.line}` : ""}: ${p.why}: ${p.detail}. The ${v.lines} lines before are unchanged.` } : { good: !v.lost, text: `${v.lines} lines in ${v.files} ${v.files === 1 ? "file" : "files"} are complete and unchanged${v.lost ? `, but ${v.lost} could not be written` : ""}.` });
  }, (e) => setVerdict({ text: e.message }));
  const save = async () => {
    setBusy(true);
    try {
      const reply = await fetch(at(api("audit"), { lines: 100_000, ...filter }), { headers: { Accept: "text/event-stream" } });
      if (!reply.ok || !reply.body) throw new Error(`The server replied with status ${reply.status}.`);
      /** @type {string[]} */
      const lines = [];
      await readEvents(reply.body, (name, line) => { if (line.hash) lines.push(`${JSON.stringify(line)}\n`); });
      const url = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
      Object.assign(document.createElement("a"), { href: url, download: "audit.jsonl" }).click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
    } catch (e) { fail(e); }
    setBusy(false);
  };
  const field = (/** @type {"q" | "sandbox" | "user"} */ name, /** @type {string} */ label, /** @type {string} */ hint) => html`<input type="search" placeholder=${hint} aria-label=${label} value=${filter[name]} onInput=${change(name)} />`;
  return html`<${Board} title="Audit" empty="No entries match." columns=${["Time", "Tenant", "Key", "Operation", "Sandbox", "Result", "Duration"]}
    rows=${list?.map((l) => html`<tr key=${l.hash}><td>${clock(l.time)}</td><td>${l.tenant || l.role || "–"}</td><td class="mono">${l.key || "–"}</td><td class="cut">${l.op || [l.method, l.path, l.kind, l.text].filter(Boolean).join(" ")}</td><td>${l.name || l.sandbox || "–"}</td><td class=${l.status >= 400 ? "bad" : ""}>${[l.status, l.code].filter(Boolean).join(" ")}</td><td>${((l.took_us || 0) / 1000).toFixed(1)} ms</td></tr>`)}>
    ${field("q", "Search the audit log", "Search")}${field("sandbox", "Only this sandbox", "Sandbox")}${field("user", "Only this tenant", "Tenant")}
    <select aria-label="Period" value=${filter.minutes} onChange=${change("minutes")}>${periods.map(([n, title]) => html`<option value=${n}>${title}</option>`)}</select>
    <select aria-label="Log" value=${filter.log} onChange=${change("log")}><option value="changes">changes</option><option value="requests">requests</option><option value="all">all</option></select>
    <button disabled=${busy} onClick=${save}><${Sign} of="down" />Download</button><button onClick=${verify}>Verify</button><//>
    ${verdict && html`<p role="status" class=${`card verdict ${verdict.good ? "good" : "bad"}`}>${verdict.text}</p>`}`;
}

/** @param {{ admin: boolean }} props */
export function Machine({ admin }) {
  const [info, set] = useState(/** @type {any} */ (null));
  const [environments, setEnvironments] = useState(/** @type {any[]} */ ([]));
  useEffect(() => { call(api("environment")).then(setEnvironments).catch(fail); }, []);
  usePoll(() => call(api("hub")).then(set), 3000);
  if (!info) return html`<div class="empty"><span class="spin"></span></div>`;
  const a = info.abilities || {};
  const can = ["pause", "pause_to_disk", "stop", "fork", "snapshot", "diff", "export", "image", "volume", "egress", "logs", "stats"];
  const pool = (/** @type {any} */ e) => {
    const p = (info.pools || []).find((/** @type {any} */ one) => one.environment === e.name);
    if (!p) return e.pool || "–";
    return html`<span class="tag"><span class=${`dot ${p.ready >= p.size ? "good" : p.ready ? "warn" : "bad"}`}></span>${p.ready} of ${p.size} ready</span>`;
  };
  return html`<div class="tools"><h2>This machine</h2></div>
    <div class="figures"><div class="card"><span class="dim">Version</span><b>${info.version}</b></div><div class="card"><span class="dim">Provider</span><b>${a.provider}</b></div><div class="card"><span class="dim">Memory</span><b>${bytes(a.max_memory)}</b></div></div>
    <section class="card"><h3>Environments and warm pools</h3>${info.environments_fault && html`<p class="bad" role="alert">The environments file is not in use: ${info.environments_fault}</p>`}
      <div class="scroll" tabindex="0" role="region" aria-label="Environments and warm pools"><table><thead><tr><th scope="col">Environment</th><th scope="col">Image</th><th scope="col">CPU and memory</th><th scope="col">Network</th><th scope="col">Warm pool</th></tr></thead>
      <tbody>${environments.map((e) => html`<tr key=${e.name}><td title=${e.description}>${e.name}</td><td>${e.image || "the host's programs"}</td><td>${[e.cpu_limit && quantity(e.cpu_limit, true), e.memory_limit && quantity(e.memory_limit)].filter(Boolean).join(", ") || "default"}</td><td>${e.network?.mode || "default"}</td><td>${pool(e)}</td></tr>`)}</tbody></table></div></section>
    <section class="card"><h3>Supported features</h3><p class="row">${can.map((c) => html`<span class="tag"><span class=${`dot ${a[c] ? "good" : ""}`}></span>${c.replaceAll("_", " ")}${a[c] ? "" : ": no"}</span>`)}</p><h3>Limits</h3><p>${(a.limits || []).join(", ") || "none"}</p></section>
    ${admin ? html`<${Doctor} />` : html`<section class="card"><h3>Isolation</h3><ul>${(a.tiers || []).map((/** @type {string} */ t) => html`<li>${t}</li>`)}</ul></section>
      ${(a.missing || []).length > 0 && html`<section class="card"><h3>Not available</h3><ul>${a.missing.map((/** @type {string} */ m) => html`<li>${m}</li>`)}</ul></section>`}`}`;
}

/** Doctor shows the results of cove doctor on the machine of the hub, failures first. */
function Doctor() {
  const [list, error, read] = useList("hub/doctor");
  const missing = list?.filter((f) => !f.ok) || [];
  return html`<section class="card"><div class="tools"><h3>Results of <code>cove doctor</code></h3>${list && html`<span class="tag"><span class=${`dot ${missing.length ? "warn" : "good"}`}></span>${missing.length ? `${missing.length} missing` : "all available"}</span>`}<button onClick=${read}>Check again</button></div>
    ${error && html`<p class="bad" role="alert">${error}</p>`}${!list && html`<span class="spin"></span>`}
    <ul class="findings">${missing.concat(list?.filter((f) => f.ok) || []).map((f) => html`<li key=${f.what}><span class=${`dot ${f.ok ? "good" : "warn"}`}></span><div><span class="unseen">${f.ok ? "available: " : "missing: "}</span>${f.what}${f.fix && html`<div class="dim">${f.fix}</div>`}</div></li>`)}</ul></section>`;
}
