// One sandbox: its address, its actions, and the dialog that creates one.
import { Dialog, Failure, at, call, fail, html, toast, useEffect, useState } from "../ui/ui.js";

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

/** link returns the address of the view of a sandbox in the dashboard. @param {Sandbox} sb */
export const link = (sb, tab = "") => `#sandbox/${encodeURIComponent(sb.id)}${tab ? `/${tab}` : ""}`;

/** sleeps reports whether a sandbox must be resumed or started before use. @param {Sandbox} sb */
export const sleeps = (sb) => sb.status === "paused" || sb.status === "stopped" || sb.status === "failed";

/** act runs an action on sandboxes, a few at a time. @param {string} what @param {Sandbox[]} list @param {(sb: Sandbox) => Promise<unknown>} run @param {{ action?: string, onAction?: () => void }} [more] */
export async function act(what, list, run, more) {
  /** @type {string[]} */
  const failed = [];
  const left = [...list];
  const work = async () => { for (let sb = left.shift(); sb; sb = left.shift()) { const { name } = sb; await run(sb).catch((error) => failed.push(`${name}: ${error.message}`)); } };
  await Promise.all([work(), work(), work(), work()]);
  if (failed.length) fail(new Failure(failed.join("; "), 0));
  else toast(`${what} ${list.length === 1 ? list[0].name : `${list.length} sandboxes`}`, more && { ...more, time: 12_000 });
  return failed.length === 0;
}

/** undoable returns the action that restores deleted sandboxes, if they are kept for a while. @param {Sandbox[]} list */
export const undoable = (list) => (list.every((sb) => sb.timeout < 0) ? { action: "Undo", onAction: () => { act("Restored", list, (sb) => call(box(sb, "undelete"), { body: {} })); } } : undefined);

/** Create is the dialog that creates a sandbox. @param {{ onClose: () => void, hub: any }} props */
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
