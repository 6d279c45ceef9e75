// The tabs of one sandbox. What a sandbox reports is shown as text only. None of them wakes the sandbox.
import { Timeline } from "../activity/view.js";
import { Ask, CopyButton, Dialog, IconButton, Sign, ago, at, bytes, call, fail, html, plain, quantity, span, toast, usePoll, useEffect, useMemo, useState } from "../ui/ui.js";
import { target } from "./attention.js";
import { Chart } from "./chart.js";
import { entriesOf, sound } from "./record.js";
import { act, address, api, box, link, nameRule } from "./sandbox.js";
import { clock, coresOf, useOf } from "./state.js";
import { Story } from "./story.js";
import { zip } from "./zip.js";

/** @typedef {import("./sandbox.js").Sandbox} Sandbox */
/** @typedef {import("../activity/replay.js").Entry} Entry */
/** @typedef {{ sb: Sandbox, admin: boolean, hub: any, show: (dialog: any) => void, reader: boolean }} Props */

const rate = (/** @type {number} */ n) => `${bytes(n)}/s`;

/** Asleep says that a sandbox must run first. @param {{ sb: Sandbox, what: string }} props */
const Asleep = ({ sb, what }) => html`<div class="card empty">${sb.name} is ${sb.status}. ${what}</div>`;

/** useRefused returns the latest denied connections that no rule allows now, and a function that reads them again. @param {Sandbox} sb @returns {[any[], () => Promise<void>]} */
function useRefused(sb) {
  const [list, set] = useState(/** @type {any[]} */ ([]));
  const read = async () => {
    const out = await call(box(sb, "network"));
    const ruled = new Set(out.allow);
    /** @type {Map<string, any>} */
    const latest = new Map((out.connections || []).map((/** @type {any} */ c) => [target(c), c]));
    set([...latest.values()].filter((c) => c.verdict === "denied" && c.port > 0 && out.mode !== "open" && !ruled.has(target(c)) && !ruled.has(c.host)).slice(-5).reverse());
  };
  usePoll(read, 5000, [sb.id]);
  return [list, read];
}

/** Overview shows the last hour, ports and events. @param {Props} props */
export function Overview({ sb, reader }) {
  const [metrics, setMetrics] = useState(/** @type {any} */ (null));
  const [past, setPast] = useState(/** @type {any[] | null} */ (null));
  const [ports, setPorts] = useState(/** @type {any[] | null} */ (null));
  const [fault, setFault] = useState("");
  usePoll(() => call(box(sb, "metrics")).then(setMetrics, (e) => setFault(e.message)), 5000, [sb.id]);
  usePoll(() => call(box(sb, "history")).then(setPast, () => setPast([])), 5000, [sb.id]);
  usePoll(async () => { if (!reader && sb.status === "running") await call(box(sb, "ports")).then(setPorts, () => setPorts([])); }, 5000, [sb.id, sb.status]);
  const [refused, readRefused] = useRefused(sb);
  const allow = (/** @type {any} */ c) => call(box(sb, "egress/allow"), { body: { rules: [target(c)] } }).then(() => { toast(`Allowed ${plain(target(c))}`); readRefused(); }, fail);
  const samples = metrics?.samples || [];
  const last = sb.status === "running" ? samples[samples.length - 1] : undefined;
  const of = (/** @type {string[]} */ ...names) => samples.map((/** @type {any} */ s) => ({ time: s.time, values: names.map((n) => s[n]) }));
  return html`
    ${fault ? html`<div class="card empty">${fault}</div>` : html`<div class="charts">
      <${Chart} title="CPU" now=${last ? coresOf(last.cpu, metrics.cpu_limit) : "–"} samples=${of("cpu")} limit=${metrics?.cpu_limit} format=${(/** @type {number} */ n) => coresOf(n, 0)} gap=${metrics?.interval_seconds || 5} />
      <${Chart} title="Memory" now=${last ? useOf(last.memory, metrics.memory_limit) : "–"} samples=${of("memory")} limit=${metrics?.memory_limit} format=${bytes} gap=${metrics?.interval_seconds || 5} />
      <${Chart} title="Disk" now=${last ? useOf(last.disk, metrics.disk_limit) : "–"} samples=${of("disk")} limit=${metrics?.disk_limit} format=${bytes} gap=${metrics?.interval_seconds || 5} />
      <${Chart} title="Network" now=${last ? `↓ ${rate(last.received)}  ↑ ${rate(last.sent)}` : "–"} samples=${of("received", "sent")} names=${["received", "sent"]} format=${rate} gap=${metrics?.interval_seconds || 5} /></div>`}
    <div class="split"><section class="card"><h3>Events</h3>${!past ? html`<span class="spin"></span>` : html`<${Story} list=${past} />`}</section>
      <section class="card"><h3>Details</h3><dl class="facts"><dt>Created</dt><dd>${clock(sb.created_at)}</dd><dt>Last used</dt><dd>${ago(sb.last_active_at)} ago</dd>
        <dt>Ends</dt><dd>${sb.expires_at ? html`${sb.timeout_policy} at ${clock(sb.expires_at)}` : "no timeout"}</dd><dt>When idle</dt><dd>${sb.idle_timeout > 0 ? `${sb.idle_policy} after ${span(sb.idle_timeout * 60)}` : "nothing"}</dd>
        ${sb.isolation && html`<dt>Isolation</dt><dd>${sb.isolation}</dd>`}<dt>Network</dt><dd>${sb.network.mode}</dd></dl>
        ${refused.length > 0 && html`<h3>Denied connections</h3><ul class="ports">${refused.map((c) => html`<li key=${target(c)}><span class="grow"><b class="mono">${plain(target(c))}</b> <span class="dim">${plain(c.program)} ${clock(c.time)}</span></span>${!reader && html`<button aria-label=${`Allow ${plain(target(c))}`} onClick=${() => allow(c)}>Allow</button>`}</li>`)}</ul>`}
        ${!reader && html`<h3>Ports</h3>${sb.status !== "running" ? html`<p class="dim">The sandbox is ${sb.status}.</p>` : !ports ? html`<span class="spin"></span>` : ports.length === 0 ? html`<p class="dim">No program listens on a port.</p>`
          : html`<ul class="ports">${ports.map((p) => html`<li key=${`${p.port} ${p.address}`}><a href=${`${address(sb)}proxy/${Number(p.port)}/`} target="_blank" rel="noopener">${Number(p.port)}</a><span class="cut grow" title=${plain(p.command)}>${plain(p.process) || "–"}</span></li>`)}</ul>`}`}</section></div>`;
}

/** @type {Record<string, (p: any) => string | number>} */
const orders = { pid: (p) => p.pid, name: (p) => p.name.toLowerCase(), cpu: (p) => -p.cpu, memory: (p) => -p.memory, age: (p) => -p.age_seconds };

/** Processes lists the processes, which can be ended. @param {Props} props */
export function Processes({ sb, show }) {
  const [list, set] = useState(/** @type {any[] | null} */ (null));
  const [error, setError] = useState("");
  const [by, setBy] = useState("cpu");
  const read = () => call(box(sb, "processes")).then((l) => { set(l); setError(""); }, (e) => setError(e.message));
  usePoll(async () => { if (sb.status === "running") await read(); }, 2500, [sb.id, sb.status]);
  const shown = useMemo(() => [...(list || [])].sort((a, b) => (orders[by](a) < orders[by](b) ? -1 : 1)), [list, by]);
  if (sb.status !== "running") return html`<${Asleep} sb=${sb} what="Its processes do not run." />`;
  if (error && !list) return html`<div class="card empty">${error}</div>`;
  if (!list) return html`<div class="empty"><span class="spin"></span></div>`;
  const send = (/** @type {any} */ p, /** @type {string} */ signal) => call(box(sb, `processes/${p.pid}/signal`), { body: { signal, started: p.started } }).then(() => { toast(`${signal === "KILL" ? "Killed" : "Ended"} ${plain(p.name)} (${p.pid})`); read(); }, fail);
  const ask = (/** @type {any} */ p, /** @type {string} */ signal) => show(html`<${Ask} title=${signal === "KILL" ? "Kill process" : "Terminate process"} danger action=${signal === "KILL" ? "Kill" : "Terminate"} onClose=${() => show(null)} onYes=${() => send(p, signal)}
    text=${`${signal === "KILL" ? "Kill" : "Terminate"} process ${p.pid} (${plain(p.command)})?${signal === "KILL" ? " Its unsaved data is lost." : ""}`} />`);
  const head = (/** @type {string} */ name, /** @type {string} */ title) => html`<th aria-sort=${by === name ? "ascending" : undefined}><button class="plain sort" onClick=${() => setBy(name)}>${title}<span aria-hidden="true">${by === name ? "▴" : ""}</span></button></th>`;
  return html`<div class="board cards" tabindex="0" role="region" aria-label="Processes"><table><thead><tr>${head("pid", "PID")}${head("name", "Program")}${head("cpu", "CPU")}${head("memory", "Memory")}${head("age", "Uptime")}<th>User</th><th><span class="unseen">Actions</span></th></tr></thead>
    <tbody>${shown.map((p) => html`<tr key=${`${p.pid} ${p.started}`}><td class="mono">${p.pid}</td><td class="command" title=${plain(p.command)}><b>${plain(p.name)}</b> <span class="dim mono">${plain(p.command)}</span></td><td class=${p.cpu >= 0.9 ? "bad" : ""}>${coresOf(p.cpu, 0)}</td><td>${bytes(p.memory)}</td><td>${span(p.age_seconds)}</td><td>${plain(p.user)}</td>
      <td class="acts">${p.server ? html`<span class="dim">system process</span>` : html`<button onClick=${() => ask(p, "TERM")} aria-label=${`Terminate ${plain(p.name)} (${p.pid})`}>Terminate</button> <button class="danger" onClick=${() => ask(p, "KILL")} aria-label=${`Kill ${plain(p.name)} (${p.pid})`}>Kill</button>`}</td></tr>`)}</tbody></table></div>`;
}

/** Activity shows the activity record, or the saved one if the sandbox does not run. @param {Props & { entry: number }} props */
export function Activity({ sb, entry }) {
  const [all, set] = useState(/** @type {Entry[] | null} */ (null));
  const [saved, setSaved] = useState(false);
  const running = sb.status === "running";
  usePoll(async () => {
    if (!running) return;
    const after = all?.length ? all[all.length - 1].id : 0;
    const fresh = (await call(box(sb, "activity"), { query: { limit: 1000, after } })).map(sound);
    set((old) => [...(old || []), ...fresh.filter((/** @type {Entry} */ e) => !old?.some((o) => o.id === e.id))].slice(-2000));
  }, 3000, [sb.id, running, all?.length]);
  useEffect(() => {
    if (running) return;
    fetch(at(api(`record/${encodeURIComponent(sb.id)}`))).then((reply) => (reply.ok ? reply.text() : "")).then((text) => { set(entriesOf(text)); setSaved(true); }).catch(() => set([]));
  }, [sb.id, running]);
  const pictureOf = (/** @type {number} */ id) => (running ? `${address(sb)}v1/sandbox/activity/${id}/picture` : at(api(`record/${encodeURIComponent(sb.id)}/picture/${id}`)).href);
  return html`${saved && html`<p class="dim">Recorded until the sandbox was last paused or stopped.</p>`}<div class="card kept"><${Timeline} all=${all || []} ready=${all !== null} start=${all ? entry : 0} linkOf=${(/** @type {number} */ n) => new URL(`${link(sb, "activity")}/${n}`, location.href).href} pictureOf=${pictureOf} /></div>`;
}

/** Logs shows the output of the main program. @param {Props} props */
export function Logs({ sb }) {
  const [text, set] = useState(/** @type {string | null} */ (null));
  const [error, setError] = useState("");
  usePoll(async () => {
    const reply = await fetch(at(api(`sandbox/${encodeURIComponent(sb.id)}/logs`), { max: 262_144 }));
    if (reply.ok) { set(plain(await reply.text())); setError(""); } else setError((await reply.json().catch(() => ({})))?.error || `The server replied with status ${reply.status}.`);
  }, 4000, [sb.id]);
  return html`<div class="tools"><p class="dim grow">Output of the sandbox's main program</p>${text && html`<${CopyButton} text=${text} />`}</div>
    ${error ? html`<div class="card empty">${error}</div>` : text === null ? html`<div class="empty"><span class="spin"></span></div>` : html`<pre class="card log" tabindex="0" aria-label="Logs">${text || "The main program has printed nothing."}</pre>`}`;
}

// One archive of changed files is built in the browser.
const maxFiles = 1000;
const maxArchive = 200 * 1024 * 1024;

/** Files lists what has changed on the disk, with downloads. @param {Props} props */
export function Files({ sb }) {
  const [diff, set] = useState(/** @type {any} */ (null));
  const [text, setText] = useState("");
  const [error, setError] = useState("");
  const read = () => { call(box(sb, "diff"), { query: { limit: 5000 } }).then(set, (e) => setError(e.message)); };
  useEffect(read, [sb.id]);
  const [packing, setPacking] = useState(false);
  const save = (/** @type {Blob} */ data, /** @type {string} */ name) => {
    const url = URL.createObjectURL(data);
    Object.assign(document.createElement("a"), { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  };
  const get = async (/** @type {string} */ path) => {
    const reply = await fetch(`${address(sb)}v1/file/download?path=${encodeURIComponent(path)}`).catch(() => null);
    if (!reply?.ok) throw new Error(`Cannot download ${plain(path)}.`);
    return reply.arrayBuffer();
  };
  const download = (/** @type {string} */ path) => get(path).then((data) => save(new Blob([data], { type: "application/octet-stream" }), path.split("/").pop() || "file"), fail);
  const downloadAll = async (/** @type {any[]} */ list) => {
    setPacking(true);
    try {
      const packed = [];
      let left = maxArchive;
      for (const { path } of list) { // a file can disappear or grow meanwhile
        const data = new Uint8Array(await get(path));
        if ((left -= data.length) < 0) throw new Error(`The files have more than ${bytes(maxArchive)}. Filter them, or use cove cp.`);
        packed.push({ name: path.replace(/^\/+/, "").replaceAll("\\", "_"), data });
      }
      save(zip(packed), `${sb.name}.zip`);
    } catch (e) { fail(e); }
    setPacking(false);
  };
  if (error) return html`<div class="card empty">${error}</div>`;
  if (!diff) return html`<div class="empty"><span class="spin"></span></div>`;
  const files = diff.changes.filter((/** @type {any} */ c) => !c.dir && c.path.toLowerCase().includes(text.toLowerCase()));
  const kept = files.filter((/** @type {any} */ c) => c.kind !== "deleted");
  const total = kept.reduce((/** @type {number} */ sum, /** @type {any} */ c) => sum + c.size, 0);
  const fits = kept.length > 0 && kept.length <= maxFiles && total <= maxArchive;
  return html`<div class="tools"><p class="dim grow">${files.length} files changed since the start${diff.truncated ? " (the list is truncated)" : ""}</p><input type="search" placeholder="Filter" aria-label="Filter files" value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} />${sb.status === "running" && html`<button disabled=${!fits || packing} title=${fits ? `Download ${kept.length} files as a ZIP archive` : `At most ${maxFiles} files and ${bytes(maxArchive)}; filter the list`} onClick=${() => downloadAll(kept)}><${Sign} of="down" />${packing ? "Downloading…" : "Download all"}</button>`}<button onClick=${read}><${Sign} of="reload" />Refresh</button></div>
    ${files.length === 0 ? html`<div class="card empty">No changed file${text ? " matches" : ""}.</div>` : html`<div class="board" tabindex="0" role="region" aria-label="Changed files"><table><thead><tr><th>Change</th><th>Path</th><th>Size</th><th><span class="unseen">Actions</span></th></tr></thead>
      <tbody>${files.slice(0, 1000).map((/** @type {any} */ c) => html`<tr key=${c.path}><td><span class=${`tag ${c.kind}`}>${c.kind}</span></td><td class="mono path">${plain(c.path)}</td><td>${c.kind === "deleted" ? "–" : bytes(c.size)}</td><td class="acts">${c.kind !== "deleted" && sb.status === "running" && html`<${IconButton} sign="down" label=${`Download ${plain(c.path)}`} onClick=${() => download(c.path)} />`}</td></tr>`)}</tbody></table></div>`}`;
}

/** Snapshots lists the snapshots of the sandbox. @param {Props} props */
export function Snapshots({ sb, show, reader }) {
  const [list, set] = useState(/** @type {any[] | null} */ (null));
  const [error, setError] = useState("");
  const read = () => { call(api("snapshot"), { query: { user: sb.user } }).then((all) => set(all.filter((/** @type {any} */ s) => s.sandbox === sb.name || s.sandbox === sb.id)), (e) => { set([]); setError(e.message); }); };
  useEffect(read, [sb.id]);
  const path = (/** @type {any} */ s) => api(`snapshot/${encodeURIComponent(s.name)}`);
  const make = (/** @type {any} */ event) => {
    event.preventDefault();
    const name = String(new FormData(event.target).get("name")).trim();
    call(box(sb, "snapshot"), { body: { snapshot: name } }).then(() => { toast(`Took the snapshot ${name}`); show(null); read(); }, fail);
  };
  const take = () => show(html`<${Dialog} title="New snapshot" onClose=${() => show(null)}><form onSubmit=${make}><label class="field"><span>Name</span><input name="name" required autofocus autocomplete="off" value=${`${sb.name.slice(0, 40)}-${new Date().toISOString().slice(0, 10)}`} /></label><div class="actions"><button type="button" onClick=${() => show(null)}>Cancel</button><button class="primary">Take snapshot</button></div></form><//>`);
  const create = (/** @type {any} */ s) => call(api("sandbox"), { query: { full: true }, body: { from_snapshot: s.name, environment: sb.environment || undefined, keep: true } }).then((made) => { toast(`Created ${made.name}`); location.hash = link(made); }, fail);
  const back = (/** @type {any} */ s) => show(html`<${Ask} title="Roll back" danger text=${`Changes in ${sb.name} since the snapshot ${s.name} are lost.`} action="Roll back" onClose=${() => show(null)} onYes=${() => act("Rolled back", [sb], (one) => call(box(one, "rollback"), { body: { snapshot: s.name } }))} />`);
  const remove = (/** @type {any} */ s) => show(html`<${Ask} title="Delete" danger text=${`Delete the snapshot ${s.name}?`} action="Delete" onClose=${() => show(null)} onYes=${() => call(path(s), { method: "DELETE", query: { user: s.user } }).then(() => { toast(`Deleted the snapshot ${s.name}`); read(); }, fail)} />`);
  return html`<div class="tools"><p class="dim grow">A snapshot is a copy of the disk. Roll back to it, or create sandboxes from it.</p>${!reader && html`<button class="primary" onClick=${take}><${Sign} of="camera" />New snapshot</button>`}</div>
    ${!list ? html`<div class="empty"><span class="spin"></span></div>` : list.length === 0 ? html`<div class="card empty">${error || "No snapshots of this sandbox."}</div>`
      : html`<div class="board cards" tabindex="0" role="region" aria-label="Snapshots"><table><thead><tr><th>Name</th><th>Size</th><th>Age</th><th><span class="unseen">Actions</span></th></tr></thead><tbody>${list.map((s) => html`<tr key=${s.name}><td class="name">${s.name}</td><td>${bytes(s.size)}</td><td>${ago(s.created)}</td>
        <td class="acts">${!reader && html`<button onClick=${() => create(s)} aria-label=${`New sandbox from ${s.name}`}>New sandbox</button> <button onClick=${() => back(s)} aria-label=${`Roll back to ${s.name}`}>Roll back…</button> <${IconButton} sign="trash" label=${`Delete the snapshot ${s.name}`} onClick=${() => remove(s)} />`}</td></tr>`)}</tbody></table></div>`}`;
}

/** Lifetime edits when a sandbox ends, and what happens if it is idle. @param {{ sb: Sandbox, reader: boolean }} props */
function Lifetime({ sb, reader }) {
  const [error, setError] = useState("");
  const save = (/** @type {any} */ event) => {
    event.preventDefault();
    const data = new FormData(event.target);
    const minutes = (/** @type {string} */ name) => (String(data.get(name)).trim() === "" ? -1 : Number(data.get(name)));
    const left = minutes("timeout");
    const body = { idle_timeout: minutes("idle_timeout"), idle_policy: data.get("idle_policy"), timeout_policy: data.get("timeout_policy"), ...(left === now ? {} : { timeout: left }) };
    setError("");
    call(box(sb, "extend"), { body }).then(() => toast("Saved"), (e) => setError(e.message));
  };
  const now = sb.expires_at ? Math.max(1, Math.round((new Date(sb.expires_at).getTime() - Date.now()) / 60_000)) : -1;
  const field = (/** @type {string} */ name, /** @type {string} */ label, /** @type {number} */ value) => html`<label class="field"><span>${label}</span><input type="number" name=${name} min="0.1" step="any" defaultValue=${value > 0 ? value : ""} placeholder="never" disabled=${reader} /></label>`;
  const choice = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ value, /** @type {string[]} */ list) => html`<label class="field"><span>${label}</span><select name=${name} disabled=${reader}>${list.map((v) => html`<option value=${v} selected=${v === value}>${v}</option>`)}</select></label>`;
  const idle = ["stop", "pause", "delete", ...(sb.idle_policy === "scaledown" ? ["scaledown"] : [])];
  return html`<section class="card"><h3>Lifetime</h3><form class="stack" onSubmit=${save} key=${`${sb.expires_at} ${sb.idle_timeout} ${sb.idle_policy} ${sb.timeout_policy}`}>
    <div class="form">${field("timeout", "Timeout (minutes)", now)}${choice("timeout_policy", "On timeout", sb.timeout_policy, ["delete", "stop", "pause"])}${field("idle_timeout", "Idle timeout (minutes)", sb.idle_timeout)}${choice("idle_policy", "When idle", sb.idle_policy, idle)}</div>
    ${error && html`<p class="bad" role="alert">${error}</p>`}${!reader && html`<div><button>Save lifetime</button></div>`}</form></section>`;
}

/** Settings shows how the sandbox was created, and changes its name and network. @param {Props} props */
export function Settings({ sb, reader }) {
  // Events carry no variables, so the whole sandbox is read again after each change.
  const [whole, setWhole] = useState(/** @type {Sandbox} */ ({}));
  useEffect(() => { call(box(sb)).then(setWhole, fail); }, [sb]);
  const [mode, setMode] = useState(sb.network.mode);
  const save = (/** @type {any} */ event) => {
    event.preventDefault();
    const allow = String(new FormData(event.target).get("allow") || "").split(/[\s,]+/).filter(Boolean);
    call(box(sb, "network"), { method: "PUT", body: { mode, ...(mode === "allow" ? { allow } : {}) } }).then(() => toast("Saved the network policy"), fail);
  };
  const rename = (/** @type {any} */ event) => {
    event.preventDefault();
    const name = String(new FormData(event.target).get("name")).trim();
    call(box(sb, "rename"), { body: { new_name: name } }).then(() => toast(`Renamed to ${name}`), fail);
  };
  const table = (/** @type {string} */ title, /** @type {[string, string][]} */ rows, /** @type {string} */ none) => html`<section class="card"><h3>${title}</h3>${rows.length === 0 ? html`<p class="dim">${none}</p>` : html`<dl class="facts">${rows.map(([k, v]) => html`<dt class="mono">${plain(k)}</dt><dd class="mono">${plain(v) || "–"}</dd>`)}</dl>`}</section>`;
  return html`<div class="split">
    <section class="card"><h3>Name</h3><form class="row" onSubmit=${rename}><input name="name" aria-label="Name" defaultValue=${sb.name} disabled=${reader} required ...${nameRule} autocomplete="off" />${!reader && html`<button>Rename</button>`}</form>
      <h3>Network</h3><form class="stack" onSubmit=${save}><label class="field"><span>Connections to other hosts</span><select value=${mode} disabled=${reader} onChange=${(/** @type {any} */ e) => setMode(e.target.value)}><option value="open">open, except private addresses</option><option value="allow">allowed hosts only</option><option value="none">none</option></select></label>
        ${mode === "allow" && html`<label class="field"><span>Allowed hosts</span><input name="allow" defaultValue=${sb.network.allow.join(", ")} placeholder="example.com, *.example.org" required disabled=${reader} /></label>`}${!reader && html`<div><button>Save</button></div>`}</form></section>
    <${Lifetime} sb=${sb} reader=${reader} />
    ${table("Limits", [["CPU", quantity(sb.cpu_limit, true)], ["Memory", quantity(sb.memory_limit)], ["Disk", quantity(sb.disk_limit)]], "")}
    ${table("Labels", Object.entries(sb.labels || {}), "No labels.")}
    ${table("Environment variables", Object.entries(whole.env || {}), "No variables.")}
    ${table("Volumes", sb.volumes.map((/** @type {any} */ v) => [v.target, `${v.name}${v.read_only ? " (read-only)" : ""}`]), "No volumes.")}
    ${table("Secrets", (sb.secrets || []).map((/** @type {string} */ s) => [s, "in use"]), "No secrets.")}</div>`;
}
