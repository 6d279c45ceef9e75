// One sandbox: its address, its actions, and the dialog that creates one.
import { Ask, Dialog, Failure, Sign, at, bytes, call, fail, html, toast, usePoll, useEffect, useState } from "../ui/ui.js";

/** @typedef {Record<string, any>} Sandbox */

/** api returns a path of the hub's API. @param {string} path */
export const api = (path) => `api/v1/${path}`;

/** everybody returns the query that selects resources of all tenants, for administrators. @param {boolean} admin */
export const everybody = (admin) => (admin ? { user: "*" } : {});

/** box returns the API path of a sandbox. It uses the ID, because names are unique only per owner and administrators see all sandboxes. @param {Sandbox} sb */
export const box = (sb, verb = "") => api(`sandbox/${encodeURIComponent(sb.id)}${verb ? `/${verb}` : ""}`);

/** address returns the URL of the page of a sandbox. @param {Sandbox} sb */
export const address = (sb) => at(`sandbox/${encodeURIComponent(sb.id)}/`).href;

/** @type {Record<string, string>} */
export const dots = { running: "good", creating: "warn", paused: "warn", failed: "bad" };

/** act runs an action on sandboxes, a few at a time. @param {string} what @param {Sandbox[]} list @param {(sb: Sandbox) => Promise<unknown>} run */
export async function act(what, list, run) {
  /** @type {string[]} */
  const failed = [];
  const left = [...list];
  const work = async () => { for (let sb = left.shift(); sb; sb = left.shift()) { const { name } = sb; await run(sb).catch((error) => failed.push(`${name}: ${error.message}`)); } };
  await Promise.all([work(), work(), work(), work()]);
  if (failed.length) fail(new Failure(failed.join("; "), 0));
  else toast(`${what} ${list.length === 1 ? list[0].name : `${list.length} sandboxes`}`);
}

/** More is the dialog with further actions on a sandbox. @param {any} props */
export function More({ sandbox, actions, onClose, onShow }) {
  const [snapshots, setSnapshots] = useState(/** @type {any[]} */ ([]));
  const [stats, setStats] = useState(/** @type {any} */ (null));
  const [link, setLink] = useState("");
  const [to, setTo] = useState("");
  const { name } = sandbox;
  useEffect(() => { call(api("snapshot"), { query: { user: sandbox.user } }).then(setSnapshots).catch(() => {}); }, []);
  usePoll(() => call(box(sandbox, "stats")).then(setStats), 3000);
  const share = (/** @type {boolean} */ readOnly) => call(box(sandbox, "share"), { body: { read_only: readOnly, minutes: 60 } }).then((made) => setLink(made.url), fail);
  const done = (/** @type {() => void} */ run) => () => { onClose(); run(); };
  const own = snapshots.filter((s) => !s.sandbox || s.sandbox === name || s.sandbox === sandbox.id);
  return html`<${Dialog} title=${name} onClose=${onClose}>
    <div class="row"><span class="tag"><span class=${`dot ${dots[sandbox.status] || ""}`}></span>${sandbox.status}</span><span class="dim">${sandbox.id}</span></div>${sandbox.message && html`<p>${sandbox.message}</p>`}
    ${stats && html`<p class="dim">${stats.cpu_seconds >= 0 ? `${stats.cpu_seconds.toFixed(1)} s of CPU, ` : ""}${bytes(stats.memory_bytes)} of memory, ${bytes(stats.disk_bytes)} on disk, ${stats.pids} processes</p>`}
    <div class="row"><a class="button" href=${address(sandbox)} target="_blank" rel="noopener"><${Sign} of="open" />Open</a>${sandbox.status === "paused" || sandbox.status === "stopped" ? html`<button onClick=${done(() => actions.resume([sandbox]))}>Resume</button>` : html`<button onClick=${done(() => actions.pause([sandbox]))}>Pause</button>`}
      <button onClick=${done(() => actions.fork([sandbox]))}>Fork</button><button onClick=${done(() => actions.snapshot([sandbox]))}>Snapshot</button><button class="danger" onClick=${done(() => actions.delete([sandbox]))}>Delete</button></div>
    <div class="row"><button onClick=${() => share(true)}>Share to watch</button><button onClick=${() => share(false)}>Share to use</button></div>
    ${link && html`<p role="status">This link works for an hour:<code class="secret">${link}</code></p>`}
    ${own.length > 0 && html`<div class="row end"><label class="field grow"><span>Roll back to a snapshot</span><select value=${to} onChange=${(/** @type {any} */ e) => setTo(e.target.value)}><option value="">Choose…</option>${own.map((s) => html`<option value=${s.name}>${s.name}</option>`)}</select></label>
      <button class="danger" disabled=${!to} onClick=${() => onShow(html`<${Ask} title="Roll back" danger text=${`Everything in ${name} since the snapshot ${to} is lost.`} action="Roll back" onClose=${onClose} onYes=${() => act("Rolled back", [sandbox], (sb) => call(box(sb, "rollback"), { body: { snapshot: to } }))} />`)}>Roll back…</button></div>`}
  <//>`;
}

/** Create is the dialog that creates a sandbox. @param {{ onClose: () => void }} props */
export function Create({ onClose }) {
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
    const body = { keep: true };
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
