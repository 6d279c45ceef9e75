// The hub's dashboard: all sandboxes as a table and as a wall, and what surrounds them. What each caller sees, the API decides.
import { Ask, Connection, Dialog, Failure, IconButton, Sign, Toasts, ago, at, bytes, call, fail, follow, html, recall, remember, render, toast, usePoll, useEffect, useMemo, useRef, useState } from "../ui/ui.js";
import { Audit, Events, Keys, Machine, Secrets, Snapshots, Usage } from "./rest.js";

/** @typedef {Record<string, any>} Sandbox */

const api = (/** @type {string} */ path) => `api/v1/${path}`;
const box = (/** @type {string} */ name, verb = "") => api(`sandbox/${encodeURIComponent(name)}${verb ? `/${verb}` : ""}`);

/** @type {[string, string, any, boolean?][]} id, name, what it shows, whether only an administrator sees it */
const places = [["sandboxes", "Sandboxes", Sandboxes], ["snapshots", "Snapshots", Snapshots], ["secrets", "Secrets", Secrets], ["usage", "Usage", Usage], ["keys", "Keys", Keys, true], ["events", "Events", Events], ["audit", "Audit", Audit, true], ["machine", "Machine", Machine]];

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
  const out = async () => {
    await fetch(at("sign-out"), { method: "POST", redirect: "manual" }).catch(() => {});
    location.replace(at(""));
  };
  return html`
    <header><h1>Cove</h1>
      <nav aria-label="Parts">${shown.map(([id, title]) => html`<a key=${id} href=${`#${id}`} aria-current=${title === name ? "page" : undefined}>${title}</a>`)}</nav>
      ${who && html`<span class="dim">${who.subject || (admin ? "administrator" : "")}${who.subject && who.role ? ` (${who.role})` : ""}</span>`}
      <a class="button plain" href=${at("guide").href}>Guide</a>
      <a class="button plain" href=${at("v1/docs").href}>Docs</a>
      <button onClick=${out}>Sign out</button>
    </header>
    <${Connection} />
    <main>${who && html`<${Shown} key=${name} admin=${admin} who=${who} />`}</main>
    <${Toasts} />`;
}

/** useSandboxes follows all sandboxes that the caller may see. @returns {Sandbox[] | null} */
function useSandboxes() {
  const [all, set] = useState(/** @type {Map<string, Sandbox> | null} */ (null));
  useEffect(() => {
    /** @type {undefined | (() => void)} */
    let stop;
    const read = () => call(api("sandbox")).then((list) => set(new Map(list.map((/** @type {Sandbox} */ sb) => [sb.id, sb])))).catch(fail);
    const turn = () => {
      stop?.();
      stop = undefined;
      if (document.hidden) return;
      read();
      stop = follow(api("events"), {}, (name, event) => set((old) => {
        const next = new Map(old || []);
        if (!event.sandbox?.id) return old;
        if (event.type === "deleted" || event.sandbox.status === "deleting") next.delete(event.sandbox.id);
        else next.set(event.sandbox.id, { ...next.get(event.sandbox.id), ...event.sandbox });
        return next;
      }), (state) => { if (state === "open") read(); });
    };
    turn();
    document.addEventListener("visibilitychange", turn);
    return () => { stop?.(); document.removeEventListener("visibilitychange", turn); };
  }, []);
  return all && [...all.values()].sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
}

/** @type {Record<string, string>} */
const dots = { running: "good", creating: "warn", paused: "warn", failed: "bad" };

/** act does something with sandboxes, one after the other. @param {string} what @param {string[]} names @param {(name: string) => Promise<unknown>} run */
async function act(what, names, run) {
  /** @type {string[]} */
  const failed = [];
  for (const name of names) await run(name).catch((error) => failed.push(`${name}: ${error.message}`));
  if (failed.length) fail(new Failure(failed.join("; "), 0));
  else toast(`${what} ${names.length === 1 ? names[0] : `${names.length} sandboxes`}`);
}

/** @param {{ admin: boolean }} props */
function Sandboxes({ admin }) {
  const all = useSandboxes();
  const [wall, setWall] = useState(recall("hub-wall", false));
  const [text, setText] = useState("");
  const [picked, setPicked] = useState(/** @type {Record<string, boolean>} */ ({}));
  const [dialog, setDialog] = useState(/** @type {any} */ (null));
  useEffect(() => remember("hub-wall", wall), [wall]);
  const shown = useMemo(() => (all || []).filter((sb) => `${sb.name} ${sb.user || ""} ${sb.environment} ${sb.status}`.toLowerCase().includes(text.toLowerCase())), [all, text]);
  const chosen = shown.filter((sb) => picked[sb.id]).map((sb) => sb.name);
  const close = () => setDialog(null);
  const actions = {
    pause: (/** @type {string[]} */ names) => act("Paused", names, (n) => call(box(n, "pause"), { body: {} })),
    resume: (/** @type {string[]} */ names) => act("Resumed", names, (n) => call(box(n, "resume"), { body: {} })),
    fork: (/** @type {string[]} */ names) => act("Forked", names, (n) => call(box(n, "fork"), { body: { count: 1 } })),
    snapshot: (/** @type {string[]} */ names) => act("Took a snapshot of", names, (n) => call(box(n, "snapshot"), { body: { snapshot: `${n}-${new Date().toISOString().slice(0, 19).replace(/[^0-9]/g, "")}` } })),
    delete: (/** @type {string[]} */ names) => setDialog(html`<${Ask} title="Delete" danger text=${`Delete ${names.length === 1 ? `the sandbox ${names[0]}` : `${names.length} sandboxes`} with everything in it? This cannot be undone.`} action="Delete" onClose=${close} onYes=${() => act("Deleted", names, (n) => call(box(n), { method: "DELETE" }))} />`),
  };
  const several = html`<div class="several" role="group" aria-label="Chosen sandboxes"><b>${chosen.length} chosen</b><button onClick=${() => actions.pause(chosen)}>Pause</button><button onClick=${() => actions.resume(chosen)}>Resume</button><button onClick=${() => actions.snapshot(chosen)}>Snapshot</button><button onClick=${() => actions.fork(chosen)}>Fork</button><button class="danger" onClick=${() => actions.delete(chosen)}>Delete</button><button class="plain" onClick=${() => setPicked({})}>Clear</button></div>`;
  const more = (/** @type {Sandbox} */ sb) => setDialog(html`<${More} sandbox=${sb} actions=${actions} onClose=${close} onShow=${setDialog} />`);
  return html`
    <div class="tools"><h2>Sandboxes ${all && html`<span class="tag">${all.length}</span>`}</h2>
      <input type="search" placeholder="Filter" aria-label="Filter sandboxes" value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} />
      <div class="row" role="group" aria-label="Show as"><button aria-pressed=${String(!wall)} onClick=${() => setWall(false)}><${Sign} of="list" />Table</button><button aria-pressed=${String(wall)} onClick=${() => setWall(true)}><${Sign} of="grid" />Wall</button></div>
      <button class="primary" onClick=${() => setDialog(html`<${Create} onClose=${close} />`)}><${Sign} of="plus" />New sandbox</button></div>
    ${chosen.length > 0 && several}
    ${!all ? html`<div class="empty"><span class="spin"></span></div>` : shown.length === 0 ? html`<div class="card empty">${all.length ? "No sandbox fits." : "There are no sandboxes yet. Create one: it is ready in milliseconds."}</div>`
      : wall ? html`<ul class="wall">${shown.map((sb) => html`<${Tile} key=${sb.id} sandbox=${sb} onMore=${() => more(sb)} />`)}</ul>`
      : html`<div class="board" tabindex="0" role="region" aria-label="Table of sandboxes"><table><thead><tr><th><input type="checkbox" aria-label="Choose all" checked=${shown.every((sb) => picked[sb.id])} onChange=${(/** @type {any} */ e) => setPicked(Object.fromEntries(shown.map((sb) => [sb.id, e.target.checked])))} /></th><th>Name</th><th>State</th>${admin && html`<th>Owner</th>`}<th>Environment</th><th>CPU, memory</th><th>Network</th><th>Age</th><th>Used</th><th><span class="unseen">Actions</span></th></tr></thead>
        <tbody>${shown.map((sb) => html`<tr key=${sb.id} aria-selected=${String(Boolean(picked[sb.id]))}><td><input type="checkbox" aria-label=${`Choose ${sb.name}`} checked=${Boolean(picked[sb.id])} onChange=${(/** @type {any} */ e) => setPicked((old) => ({ ...old, [sb.id]: e.target.checked }))} /></td>
          <td><a href=${open(sb)} target="_blank" rel="noopener">${sb.name}</a></td><td title=${sb.message}><span class="tag"><span class=${`dot ${dots[sb.status] || ""}`}></span>${sb.status}</span></td>${admin && html`<td>${sb.user || "–"}</td>`}<td>${sb.image || sb.environment}</td><td>${sb.cpu_limit}, ${sb.memory_limit}</td><td>${sb.network?.mode}</td><td>${ago(sb.created_at)}</td><td>${ago(sb.last_active_at)} ago</td>
          <td><${IconButton} sign=${sb.status === "paused" || sb.status === "stopped" ? "play" : "pause"} label=${`${sb.status === "paused" || sb.status === "stopped" ? "Resume" : "Pause"} ${sb.name}`} onClick=${() => (sb.status === "paused" ? actions.resume([sb.name]) : sb.status === "stopped" ? act("Started", [sb.name], (n) => call(box(n, "start"), { body: {} })) : actions.pause([sb.name]))} /><${IconButton} sign="trash" label=${`Delete ${sb.name}`} onClick=${() => actions.delete([sb.name])} /><${IconButton} sign="more" label=${`More about ${sb.name}`} onClick=${() => more(sb)} /></td></tr>`)}</tbody></table></div>`}
    ${dialog}`;
}

/** open is the address of a sandbox's page. @param {Sandbox} sb */
const open = (sb) => at(`sandbox/${encodeURIComponent(sb.name)}/`).href;

/** Tile shows a sandbox at a glance. It asks only while it is visible, and less often the longer nothing changes. @param {{ sandbox: Sandbox, onMore: () => void }} props */
function Tile({ sandbox, onMore }) {
  const place = useRef(/** @type {Element | null} */ (null));
  const [seen, setSeen] = useState(false);
  const [scene, set] = useState(/** @type {any} */ (null));
  const pause = useRef(2000);
  useEffect(() => {
    const watch = new IntersectionObserver((entries) => setSeen(entries.some((e) => e.isIntersecting)), { rootMargin: "100px" });
    if (place.current) watch.observe(place.current);
    return () => watch.disconnect();
  }, []);
  const awake = sandbox.status === "running";
  useEffect(() => {
    if (!seen || !awake) return undefined;
    let timer = 0;
    let over = false;
    let last = "";
    const turn = async () => {
      clearTimeout(timer);
      if (over || document.hidden) return;
      const next = await call(box(sandbox.name, "glance"), { query: { width: 320 } }).catch(() => null);
      if (over) return;
      const key = next && (next.picture || next.text || next.kind);
      pause.current = key === last ? Math.min(10_000, pause.current * 1.4) : 2000;
      last = key;
      if (next) set(next);
      timer = window.setTimeout(turn, pause.current);
    };
    timer = window.setTimeout(turn, Math.random() * 1000);
    document.addEventListener("visibilitychange", turn);
    return () => { over = true; clearTimeout(timer); document.removeEventListener("visibilitychange", turn); };
  }, [seen, awake, sandbox.name]);
  return html`<li class=${`tile ${awake ? "" : "asleep"}`} ref=${place}><div class="scene">
    ${scene?.kind === "screen" ? html`<img alt=${`Screen of ${sandbox.name}`} src=${`data:image/jpeg;base64,${scene.picture}`} />` : scene?.kind === "terminal" ? html`<pre aria-hidden="true">${scene.text}</pre>` : html`<span class="quiet">${awake ? "nothing to see yet" : sandbox.status}</span>`}</div>
    <div class="line"><span class=${`dot ${dots[sandbox.status] || ""}`}></span><b class="cut grow"><a href=${open(sandbox)} target="_blank" rel="noopener">${sandbox.name}</a></b>${!awake && html`<span class="dim">${sandbox.status}</span>`}<${IconButton} sign="more" label=${`More about ${sandbox.name}`} onClick=${onMore} /></div></li>`;
}

/** More is what else can be done with a sandbox. @param {any} props */
function More({ sandbox, actions, onClose, onShow }) {
  const [snapshots, setSnapshots] = useState(/** @type {any[]} */ ([]));
  const [stats, setStats] = useState(/** @type {any} */ (null));
  const [link, setLink] = useState("");
  const { name } = sandbox;
  useEffect(() => { call(api("snapshot")).then(setSnapshots).catch(() => {}); }, []);
  usePoll(() => call(box(name, "stats")).then(setStats), 3000);
  const share = (/** @type {boolean} */ readOnly) => call(box(name, "share"), { body: { read_only: readOnly, minutes: 60 } }).then((made) => setLink(made.url), fail);
  const done = (/** @type {() => void} */ run) => () => { onClose(); run(); };
  const own = snapshots.filter((s) => !s.sandbox || s.sandbox === name || s.sandbox === sandbox.id);
  return html`<${Dialog} title=${name} onClose=${onClose}>
    <div class="row"><span class="tag"><span class=${`dot ${dots[sandbox.status] || ""}`}></span>${sandbox.status}</span><span class="dim">${sandbox.id}</span></div>${sandbox.message && html`<p>${sandbox.message}</p>`}
    ${stats && html`<p class="dim">${stats.cpu_seconds >= 0 ? `${stats.cpu_seconds.toFixed(1)} s of CPU, ` : ""}${bytes(stats.memory_bytes)} of memory, ${bytes(stats.disk_bytes)} on disk, ${stats.pids} processes</p>`}
    <div class="row"><a class="button" href=${open(sandbox)} target="_blank" rel="noopener"><${Sign} of="open" />Open</a>${sandbox.status === "paused" ? html`<button onClick=${done(() => actions.resume([name]))}>Resume</button>` : html`<button onClick=${done(() => actions.pause([name]))}>Pause</button>`}
      <button onClick=${done(() => actions.fork([name]))}>Fork</button><button onClick=${done(() => actions.snapshot([name]))}>Snapshot</button><button class="danger" onClick=${done(() => actions.delete([name]))}>Delete</button></div>
    <div class="row"><button onClick=${() => share(true)}>Share to watch</button><button onClick=${() => share(false)}>Share to use</button></div>
    ${link && html`<p role="status">This link works for an hour:<code class="secret">${link}</code></p>`}
    ${own.length > 0 && html`<label class="field"><span>Roll back to a snapshot</span><select value="" onChange=${(/** @type {any} */ e) => { const to = e.target.value; onShow(html`<${Ask} title="Roll back" danger text=${`Everything in ${name} since the snapshot ${to} is lost.`} action="Roll back" onClose=${onClose} onYes=${() => act("Rolled back", [name], (n) => call(box(n, "rollback"), { body: { snapshot: to } }))} />`); }}><option value="">Choose…</option>${own.map((s) => html`<option value=${s.name}>${s.name}</option>`)}</select></label>`}
  <//>`;
}

/** Create asks what kind of sandbox to create. @param {{ onClose: () => void }} props */
function Create({ onClose }) {
  const [environments, setEnvironments] = useState(/** @type {any[]} */ ([]));
  const [secrets, setSecrets] = useState(/** @type {any[]} */ ([]));
  const [snapshots, setSnapshots] = useState(/** @type {any[]} */ ([]));
  const [mode, setMode] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  useEffect(() => {
    call(api("environment")).then(setEnvironments).catch(() => {});
    call(api("secret")).then(setSecrets).catch(() => {});
    call(api("snapshot")).then(setSnapshots).catch(() => {});
  }, []);
  /** @param {any} event */
  const submit = async (event) => {
    event.preventDefault();
    const data = new FormData(event.target);
    /** @type {Record<string, any>} */
    const body = {};
    for (const [key, value] of data) if (typeof value === "string" && value.trim() && !["mode", "allow", "secrets", "count"].includes(key)) body[key] = key === "timeout" ? Number(value) : value.trim();
    if (data.get("mode")) body.network = { mode: data.get("mode"), ...(data.get("allow") ? { allow: String(data.get("allow")).split(/[\s,]+/).filter(Boolean) } : {}) };
    if (data.getAll("secrets").length) body.secrets = data.getAll("secrets");
    const count = Math.max(1, Number(data.get("count")) || 1);
    setBusy(true);
    setError("");
    try {
      for (let i = 1; i <= count; i++) await call(api("sandbox"), { body: count > 1 && body.name ? { ...body, name: `${body.name}-${i}` } : body });
      toast(count > 1 ? `Created ${count} sandboxes` : "Created the sandbox");
      onClose();
    } catch (e) { setError(/** @type {Error} */ (e).message); setBusy(false); }
  };
  const field = (/** @type {string} */ name, /** @type {string} */ label, /** @type {any} */ more = {}) => html`<label class="field"><span>${label}</span><input name=${name} autocomplete="off" spellcheck="false" ...${more} /></label>`;
  return html`<${Dialog} title="New sandbox" onClose=${onClose}><form onSubmit=${submit}><div class="form">
    ${field("name", "Name", { placeholder: "chosen for you", autofocus: true })}${field("count", "How many", { type: "number", min: 1, max: 100, placeholder: "1" })}
    <label class="field"><span>Environment</span><select name="environment"><option value="">default</option>${environments.map((e) => html`<option value=${e.name} title=${e.description}>${e.name}</option>`)}</select></label>
    ${field("image", "Image", { placeholder: "the environment's" })}${field("cpu_limit", "CPU limit", { placeholder: "1000m" })}${field("memory_limit", "Memory limit", { placeholder: "1Gi" })}${field("disk_limit", "Disk limit", { placeholder: "10Gi" })}${field("timeout", "Minutes to live", { type: "number", min: -1, placeholder: "default" })}
    <label class="field"><span>From a snapshot</span><select name="from_snapshot"><option value="">none</option>${snapshots.map((s) => html`<option>${s.name}</option>`)}</select></label>
    <label class="field"><span>Network</span><select name="mode" value=${mode} onChange=${(/** @type {any} */ e) => setMode(e.target.value)}><option value="">default</option><option value="open">open</option><option value="allow">only some hosts</option><option value="none">none</option></select></label>
    ${mode === "allow" && html`<label class="field wide"><span>Allowed hosts</span><input name="allow" placeholder="example.com, *.example.org" required /></label>`}
    ${secrets.length > 0 && html`<fieldset class="wide row"><legend>Secrets</legend>${secrets.map((s) => html`<label class="check"><input type="checkbox" name="secrets" value=${s.name} />${s.name}</label>`)}</fieldset>`}</div>
    ${error && html`<p class="bad" role="alert">${error}</p>`}
    <div class="actions"><button type="button" onClick=${onClose}>Cancel</button><button class="primary" disabled=${busy}>${busy ? "Creating…" : "Create"}</button></div></form><//>`;
}

render(html`<${App} />`, /** @type {Element} */ (document.getElementById("app")));
