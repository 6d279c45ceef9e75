// The dialog that creates a sandbox, and what an empty hub shows.
import { CopyButton, Dialog, Sign, at, call, fail, html, quantity, span, toast, useEffect, useMemo, useState } from "../ui/ui.js";
import { address, api, link, nameRule } from "./sandbox.js";

/** @typedef {{ name: string, description: string, image: string, cpu_limit?: string, memory_limit?: string, disk_limit?: string }} Environment */

/** useEnvironments returns the environments. @returns {Environment[] | null} */
function useEnvironments() {
  const [list, set] = useState(/** @type {Environment[] | null} */ (null));
  useEffect(() => { call(api("environment")).then(set, (e) => { set([]); fail(e); }); }, []);
  return list;
}

/** sizesOf describes the limits of an environment. @param {Environment} e @param {any} hub */
const sizesOf = (e, hub) => [quantity(e.cpu_limit || hub.defaults.cpu_limit, true), quantity(e.memory_limit || hub.defaults.memory_limit)].filter((t) => t !== "–").join(", ");

/** Cards lets the person choose an environment. @param {{ list: Environment[], chosen: string, onChoose: (name: string) => void, hub: any }} props */
export function Cards({ list, chosen, onChoose, hub }) {
  return html`<fieldset class="environments"><legend class="unseen">Environment</legend>${list.map((e) => html`<label key=${e.name} class="kind environment"><input type="radio" name="environment" class="unseen" value=${e.name} checked=${chosen === e.name} onChange=${() => onChoose(e.name)} />
    <${Sign} of="box" /><span class="grow"><b>${e.name}</b><span class="dim">${e.description || e.image || "Terminal, files, Python, JavaScript, browser and desktop"}</span><span class="dim small">${sizesOf(e, hub)}</span></span></label>`)}</fieldset>`;
}

// Words in errors of the hub, and the fields that they concern.
/** @type {[RegExp, string][]} */
const words = [[/\bvolume/i, "target"], [/\bimage|registry|manifest|pull\b/i, "image"], [/\bcpu/i, "cpu"], [/\bmemory/i, "memory"], [/\bdisk/i, "disk"], [/\blabel/i, "labels"], [/\ballow|egress|host\b/i, "allow"], [/\btimeout/i, "timeout"], [/\bsnapshot/i, "from_snapshot"], [/\bname|already exists/i, "name"]];

/** fieldOf returns the field that an error concerns; empty: unknown. @param {string} message */
const fieldOf = (message) => words.find(([word]) => word.test(message))?.[1] || "";

/** @type {[number, string][]} */
const times = [[-1, "never"], [60, "after 1 hour"], [480, "after 8 hours"], [1440, "after 1 day"]];

/** bodyOf returns the request for the values of the form, or the field that is invalid. @param {FormData} data @returns {{ body: Record<string, any>, count: number, fault?: [string, string] }} */
function bodyOf(data) {
  const text = (/** @type {string} */ name) => String(data.get(name) ?? "").trim();
  /** @type {Record<string, any>} */
  const body = { keep: true };
  for (const name of ["name", "environment", "image", "from_snapshot"]) if (text(name)) body[name] = text(name);
  if (body.image) delete body.environment;
  if (text("cpu")) body.cpu_limit = `${Math.round(Number(text("cpu")) * 1000)}m`;
  if (text("memory")) body.memory_limit = `${Math.round(Number(text("memory")) * 1024)}Mi`;
  if (text("disk")) body.disk_limit = `${Math.round(Number(text("disk")) * 1024)}Mi`;
  if (Number(text("timeout")) > 0) Object.assign(body, { timeout: Number(text("timeout")) });
  if (text("idle_policy")) body.idle_policy = text("idle_policy");
  if (text("idle_timeout")) body.idle_timeout = Number(text("idle_timeout"));
  if (text("mode")) body.network = { mode: text("mode"), ...(text("allow") ? { allow: text("allow").split(/[\s,]+/).filter(Boolean) } : {}) };
  if (text("volume")) body.volumes = [{ name: text("volume"), target: text("target"), read_only: Boolean(text("read_only")) }];
  if (data.getAll("secrets").length) body.secrets = data.getAll("secrets");
  if (text("labels")) {
    body.labels = {};
    for (const part of text("labels").split(/[\s,]+/).filter(Boolean)) {
      const [key, ...value] = part.split("=");
      if (!key || value.length === 0) return { body, count: 1, fault: ["labels", "Write labels as key=value, separated by commas."] };
      body.labels[key] = value.join("=");
    }
  }
  return { body, count: Math.max(1, Number(text("count")) || 1) };
}

/** Create is the dialog that creates a sandbox. @param {{ onClose: () => void, hub: any, environment?: string }} props */
export function Create({ onClose, hub, environment = "" }) {
  const environments = useEnvironments();
  const [chosen, choose] = useState(environment || hub.defaults.environment);
  const [secrets, setSecrets] = useState(/** @type {any[]} */ ([]));
  const [snapshots, setSnapshots] = useState(/** @type {any[]} */ ([]));
  const [volumes, setVolumes] = useState(/** @type {any[]} */ ([]));
  const [volume, setVolume] = useState("");
  const [mode, setMode] = useState("");
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState(["", ""]);
  const [more, setMore] = useState(false);
  useEffect(() => {
    call(api("secret")).then(setSecrets).catch(() => {});
    call(api("snapshot")).then(setSnapshots).catch(() => {});
    call(api("volume")).then(setVolumes).catch(() => {});
  }, []);
  const own = useMemo(() => environments?.find((e) => e.name === chosen), [environments, chosen]);
  const refuse = (/** @type {string} */ name, /** @type {string} */ text) => {
    setFault([name, text]);
    setBusy(false);
    if (name && name !== "name") setMore(true);
    setTimeout(() => /** @type {HTMLElement | null} */ (document.querySelector(`dialog [name="${name}"]`))?.focus());
  };
  /** @param {any} event */
  const submit = async (event) => {
    event.preventDefault();
    const { body, count, fault: wrong } = bodyOf(new FormData(event.target));
    if (wrong) { refuse(...wrong); return; }
    const opens = event.submitter?.value === "open" && count === 1;
    const tab = opens ? window.open("", "_blank") : null; // now, because the browser blocks it later
    setBusy(true);
    setFault(["", ""]);
    try {
      let made;
      for (let i = 1; i <= count; i++) made = await call(api("sandbox"), { query: { full: true }, body: count > 1 && body.name ? { ...body, name: `${body.name}-${i}` } : body });
      toast(count > 1 ? `Created ${count} sandboxes` : `Created ${made.name}`);
      onClose();
      if (tab) { tab.opener = null; tab.location.replace(address(made)); }
      if (count === 1) location.hash = opens ? link(made) : "sandboxes";
    } catch (e) {
      tab?.close();
      const { message } = /** @type {Error} */ (e);
      refuse(fieldOf(message), message);
    }
  };
  /** @param {string} name @param {string} label @param {any} props */
  const field = (name, label, props = {}) => html`<label class="field"><span>${label}</span><input name=${name} autocomplete="off" spellcheck="false" aria-invalid=${fault[0] === name ? "true" : undefined} aria-describedby=${fault[0] === name ? "fault" : undefined} ...${props} />${fault[0] === name && html`<span class="bad" id="fault" role="alert">${fault[1]}</span>`}</label>`;
  const size = (/** @type {"cpu_limit" | "memory_limit" | "disk_limit"} */ name) => quantity(own?.[name] || hub.defaults[name], name === "cpu_limit").replace(/ .*/, "").replace("–", "no limit");
  return html`<${Dialog} title="New sandbox" onClose=${onClose}><form onSubmit=${submit}>
    ${environments && environments.length > 0 && html`<${Cards} list=${environments} chosen=${chosen} onChoose=${choose} hub=${hub} />`}
    ${field("name", "Name", { placeholder: "generated if empty", autofocus: true, ...nameRule })}
    <details open=${more} onToggle=${(/** @type {any} */ e) => setMore(e.target.open)}><summary>Advanced</summary><div class="form">
      ${field("cpu", "CPU limit (cores)", { type: "number", min: 0.05, step: 0.05, placeholder: size("cpu_limit") })}
      ${field("memory", "Memory limit (GB)", { type: "number", min: 0.06, step: 0.01, placeholder: gigabytes(own?.memory_limit || hub.defaults.memory_limit) })}
      ${field("disk", "Disk limit (GB)", { type: "number", min: 0.1, step: 0.1, placeholder: gigabytes(own?.disk_limit || hub.defaults.disk_limit) })}
      <label class="field"><span>Delete</span><select name="timeout">${times.filter(([n]) => n <= hub.defaults.max_timeout).map(([n, title]) => html`<option value=${n}>${title}</option>`)}</select></label>
      <label class="field"><span>When idle</span><select name="idle_policy"><option value="">stop (default)</option><option value="pause">pause</option><option value="delete">delete</option></select></label>
      ${field("idle_timeout", "Idle timeout (minutes)", { type: "number", min: 0.1, step: "any", placeholder: hub.defaults.idle_timeout > 0 ? String(hub.defaults.idle_timeout) : "never" })}
      ${field("count", "Number of sandboxes", { type: "number", min: 1, max: 100, placeholder: "1" })}
      ${field("labels", "Labels", { placeholder: "team=growth, run=7" })}
      ${field("image", "Container image", { placeholder: own?.image || "such as python:3.13" })}
      <label class="field"><span>Snapshot</span><select name="from_snapshot"><option value="">none</option>${snapshots.map((s) => html`<option>${s.name}</option>`)}</select></label>
      <label class="field"><span>Volume</span><select name="volume" value=${volume} onChange=${(/** @type {any} */ e) => setVolume(e.target.value)}><option value="">none</option>${volumes.map((v) => html`<option>${v.name}</option>`)}</select></label>
      ${volume && html`${field("target", "Mount path", { required: true, defaultValue: `/data/${volume}` })}<label class="check"><input type="checkbox" name="read_only" />Mount read-only</label>`}
      <label class="field"><span>Network</span><select name="mode" value=${mode} onChange=${(/** @type {any} */ e) => setMode(e.target.value)}><option value="">${`default (${hub.defaults.network})`}</option><option value="open">open</option><option value="allow">allowed hosts only</option><option value="none">none</option></select></label>
      ${mode === "allow" && field("allow", "Allowed hosts", { placeholder: "example.com, *.example.org", required: true })}
      ${secrets.length > 0 && html`<fieldset class="wide row"><legend>Secrets</legend>${secrets.map((s) => html`<label class="check"><input type="checkbox" name="secrets" value=${s.name} />${s.name}</label>`)}</fieldset>`}</div>
      <p class="dim small">By default, a sandbox stops after ${span(Math.max(0, hub.defaults.idle_timeout) * 60)} without use and starts again on the next use. It is deleted after a week without use.</p></details>
    ${fault[1] && !fault[0] && html`<p class="bad" role="alert">${fault[1]}</p>`}
    <div class="actions"><button type="button" onClick=${onClose}>Cancel</button><button value="stay" disabled=${busy}>Create</button><button class="primary" value="open" disabled=${busy}>${busy ? "Creating…" : "Create and open"}</button></div></form><//>`;
}

/** gigabytes formats a quantity in GB. @param {string} text */
function gigabytes(text) {
  const shown = quantity(text);
  const [, number, unit] = /^([0-9.]+) (MB|GB)$/.exec(shown) || [];
  if (!number) return shown === "–" ? "no limit" : shown;
  return unit === "GB" ? number : String(Math.round((Number(number) / 1024) * 100) / 100);
}

/** Empty is what a hub without sandboxes shows. @param {{ hub: any, onCreate: (environment: string) => void }} props */
export function Empty({ hub, onCreate }) {
  const environments = useEnvironments() || [];
  const base = at("").href.replace(/\/$/, "");
  const [kind, setKind] = useState("curl");
  const key = hub.tenants ? ` -H "X-API-Key: $KEY"` : "";
  /** @type {Record<string, string>} */
  const snippets = {
    curl: `curl ${base}/api/v1/sandbox${key} -d '{"name":"a"}'\ncurl ${base}/sandbox/a/v1/bash/exec${key} -d '{"command":"uname -a"}'`,
    Python: `# pip install agent-sandbox\nfrom agent_sandbox import Sandbox\n\nbox = Sandbox(base_url="${base}/sandbox/a"${hub.tenants ? `, headers={"X-API-Key": KEY}` : ""})\nprint(box.bash.exec(command="uname -a").data.stdout)`,
    MCP: JSON.stringify({ mcpServers: { cove: { url: `${base}/mcp`, ...(hub.tenants ? { headers: { "X-API-Key": "KEY" } } : {}) } } }, null, 2),
  };
  return html`<div class="card welcome"><h3>Create your first sandbox</h3><p class="dim">Each sandbox is the private computer of an agent: terminal, files, Python, JavaScript, browser and desktop. It is ready in milliseconds.</p>
    <div class="environments">${environments.map((e) => html`<button key=${e.name} class="kind environment" onClick=${() => onCreate(e.name)}><${Sign} of="plus" /><span class="grow"><b>${e.name}</b><span class="dim">${e.description || e.image || "Terminal, files, Python, JavaScript, browser and desktop"}</span><span class="dim small">${sizesOf(e, hub)}</span></span></button>`)}</div>
    <h3>Or from a program</h3><div class="row"><div class="pair" role="group" aria-label="Language">${Object.keys(snippets).map((name) => html`<button key=${name} aria-pressed=${String(kind === name)} onClick=${() => setKind(name)}>${name}</button>`)}</div><span class="grow"></span><${CopyButton} text=${snippets[kind]} /></div>
    <pre class="snippet" tabindex="0" aria-label=${`Example in ${kind}`}>${snippets[kind]}</pre>
    <p class="dim">The <a href=${at("guide").href}>guide</a> has more examples.</p></div>`;
}
