// Links to one sandbox, for people without a key: to watch it, to use it, or to use one of its ports.
import { CopyButton, Dialog, Sign, call, fail, html, plain, span, toast, usePoll, useEffect, useState } from "../ui/ui.js";
import { api, box } from "./sandbox.js";

/** @typedef {import("./sandbox.js").Sandbox} Sandbox */

/** @type {[string, string, string, string][]} kind, sign, title, explanation */
const kinds = [["watch", "eye", "Watch", "View the screen, the terminal and the activity. Read-only."], ["use", "hand", "Use", "Full access to the terminal, the files and the browser."], ["port", "link", "One port", "Access to one web page or service in the sandbox."]];
const times = [[15, "15 minutes"], [60, "1 hour"], [480, "8 hours"], [1440, "1 day"], [10_080, "7 days"]];

/** URLs of the links that this page created, by ID. The hub shows each only once. @type {Map<string, string>} */
const urls = new Map();

/** useLinks returns the valid links of a sandbox, and a function that reads them again. @param {Sandbox} sb @returns {[any[] | null, () => Promise<void>]} */
function useLinks(sb) {
  const [list, set] = useState(/** @type {any[] | null} */ (null));
  const read = () => call(api("share")).then((all) => set(all.filter((/** @type {any} */ l) => l.sandbox === sb.id)), (e) => { set([]); fail(e); });
  usePoll(read, 10_000, [sb.id]);
  return [list, read];
}

/** kindOf returns the title of a link. @param {any} link */
const kindOf = (link) => (link.port ? `Port ${link.port}` : link.read_only ? "Watch" : "Use");

/** List shows links. @param {{ list: any[], onDone: () => void }} props */
function List({ list, onDone }) {
  const revoke = (/** @type {any} */ l) => call(api(`share/${encodeURIComponent(l.id)}`), { method: "DELETE" }).then(() => { urls.delete(l.id); toast("Revoked the link"); onDone(); }, fail);
  return html`<ul class="links">${list.map((l) => html`<li key=${l.id}><span class="tag">${kindOf(l)}</span><span class="grow dim">expires in ${span((new Date(l.expires).getTime() - Date.now()) / 1000)}${l.read_only && l.port ? ", read-only" : ""}</span>
    ${urls.has(l.id) && html`<${CopyButton} text=${urls.get(l.id)} label="Copy" />`}<button class="danger" aria-label=${`Revoke the link ${kindOf(l)} ${l.id}`} onClick=${() => revoke(l)}>Revoke</button></li>`)}</ul>`;
}

/** Share is the dialog that creates a link. @param {{ sb: Sandbox, onClose: () => void }} props */
export function Share({ sb, onClose }) {
  const [kind, setKind] = useState("watch");
  const [minutes, setMinutes] = useState(60);
  const [port, setPort] = useState("");
  const [ports, setPorts] = useState(/** @type {any[]} */ ([]));
  const [made, setMade] = useState(/** @type {any} */ (null));
  const [error, setError] = useState("");
  const [list, read] = useLinks(sb);
  useEffect(() => { if (sb.status === "running") call(box(sb, "ports")).then(setPorts, () => {}); }, [sb.id]);
  useEffect(() => setMade(null), [kind, minutes, port]);
  const create = (/** @type {any} */ event) => {
    event.preventDefault();
    setError("");
    call(box(sb, "share"), { body: { minutes, read_only: kind === "watch", ...(kind === "port" ? { port: Number(port) } : {}) } }).then((link) => { urls.set(link.id, link.url); setMade(link); read(); }, (e) => setError(e.message));
  };
  return html`<${Dialog} title=${`Share ${sb.name}`} onClose=${onClose}><form onSubmit=${create}>
    <fieldset class="kinds"><legend class="unseen">What the link allows</legend>${kinds.map(([id, sign, title, text]) => html`<label key=${id} class="kind"><input type="radio" name="kind" value=${id} checked=${kind === id} onChange=${() => setKind(id)} /><${Sign} of=${sign} /><span><b>${title}</b><span class="dim">${text}</span></span></label>`)}</fieldset>
    <div class="row end">${kind === "port" && html`<label class="field grow"><span>Port</span><input type="number" min="1" max="65535" required list="ports" value=${port} onInput=${(/** @type {any} */ e) => setPort(e.target.value)} /><datalist id="ports">${ports.map((p) => html`<option value=${Number(p.port)}>${plain(p.process)}</option>`)}</datalist></label>`}
      <label class="field grow"><span>Expires in</span><select value=${minutes} onChange=${(/** @type {any} */ e) => setMinutes(Number(e.target.value))}>${times.map(([n, title]) => html`<option value=${n}>${title}</option>`)}</select></label>
      <button class="primary">Create link</button></div>
    ${error && html`<p class="bad" role="alert">${error}</p>`}</form>
    ${made && html`<div role="status" class="made"><label class="field"><span>Copy the link now. It is not shown again.</span><input readonly value=${made.url} onFocus=${(/** @type {any} */ e) => e.target.select()} /></label><${CopyButton} class="primary" text=${made.url} label="Copy link" /></div>`}
    ${list && list.length > 0 && html`<h3>Active links</h3><${List} list=${list} onDone=${read} />`}<//>`;
}

/** Links is the tab with the links of a sandbox. @param {{ sb: Sandbox, show: (dialog: any) => void, reader: boolean }} props */
export function Links({ sb, show, reader }) {
  const [list, read] = useLinks(sb);
  return html`<div class="tools"><p class="dim grow">Anyone with a link can watch or use this sandbox until the link expires. They need no key.</p>${!reader && html`<button class="primary" onClick=${() => show(html`<${Share} sb=${sb} onClose=${() => { show(null); read(); }} />`)}><${Sign} of="share" />Share</button>`}</div>
    ${!list ? html`<div class="empty"><span class="spin"></span></div>` : list.length === 0 ? html`<div class="card empty">No active links.</div>` : html`<div class="card"><${List} list=${list} onDone=${read} /></div>`}`;
}
