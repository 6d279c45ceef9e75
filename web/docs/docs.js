// The API reference: documents every operation and lets users try it. Generated from the OpenAPI document.
import { Connection, Dialog, Logo, Sign, Toasts, fail, html, recall, remember, render, root, toast, useEffect, useMemo, useRef, useState } from "../../ui/ui.js";
import { Schema } from "./schema.js";
import { languages } from "./snippet.js";

/** @typedef {import("./schema.js").Field} Field */
/** @typedef {{ method: string, path: string, op: any, text: string }} Operation */

const maxShown = 200_000; // characters of a response
const base = root.href.replace(/\/$/, "");
/** The URL in code to copy lacks the pass of this page, which works only in this browser. */
const shared = base.replace(/\/~[^/]+/, "");
/** Credentials that the user entered. They are never stored. */
const credentials = { token: "", key: "" };
const credential = () => (credentials.token ? "Authorization" : credentials.key ? "X-API-Key" : "");

function App() {
  const [doc, setDoc] = useState(/** @type {any} */ (null));
  const [search, setSearch] = useState("");
  const [signing, setSigning] = useState(false);
  useEffect(() => {
    fetch(new URL("v1/openapi.json", root)).then((reply) => (reply.ok ? reply.json() : Promise.reject(new Error(`The server replied with status ${reply.status}.`)))).then(setDoc).catch(fail);
  }, []);
  const groups = useMemo(() => groupsOf(doc), [doc]);
  const schema = useMemo(() => new Schema(doc), [doc]);
  useEffect(() => { if (doc) document.title = doc.info.title; }, [doc]);
  const words = search.toLowerCase().split(/\s+/);
  const shown = groups.map(([tag, list]) => /** @type {[string, Operation[]]} */ ([tag, list.filter((o) => words.every((w) => o.text.includes(w)))])).filter(([, list]) => list.length > 0);
  return html`
    <header><a class="brand" href=${base + "/"} aria-label="Cove"><${Logo} />Cove</a><h1>API ${doc && html`<span class="tag">${doc.info.version}</span>`}</h1>
      <input type="search" placeholder="Search operations" aria-label="Search operations" value=${search} onInput=${(/** @type {any} */ e) => setSearch(e.target.value)} />
      <span class="links"><button class="plain" onClick=${() => setSigning(true)}><${Sign} of="key" />Credentials</button>
        <a class="button plain" href=${new URL("guide", root).href}>Guide</a><a class="button plain" href=${new URL("v1/openapi.json", root).href}>openapi.json</a></span></header>
    <${Connection} />
    <div id="frame"><nav aria-label="Groups">${shown.map(([tag, list]) => html`<a key=${tag} href=${`#group-${tag}`}><span>${tag}</span><span class="dim">${list.length}</span></a>`)}</nav>
      <main>${!doc ? html`<div class="empty"><span class="spin"></span></div>` : shown.length === 0 ? html`<div class="empty">No matching operations.</div>`
        : shown.map(([tag, list]) => html`<section key=${tag} id=${`group-${tag}`}><h2>${tag}</h2>${list.map((o) => html`<${Row} key=${o.op.operationId} o=${o} schema=${schema} />`)}</section>`)}</main></div>
    ${signing && html`<${Credentials} onClose=${() => setSigning(false)} />`}
    <${Toasts} />`;
}

/** groupsOf groups the operations by tag. @param {any} doc @returns {[string, Operation[]][]} */
function groupsOf(doc) {
  const groups = new Map();
  for (const [path, item] of Object.entries(doc?.paths || {})) {
    for (const [method, op] of Object.entries(item)) {
      const tag = op.tags?.[0] || "other";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push({ method: method.toUpperCase(), path, op, text: `${method} ${path} ${op.operationId} ${op.description}`.toLowerCase() });
    }
  }
  return [...groups].sort(([a], [b]) => (a < b ? -1 : 1));
}

/** Credentials asks for the credentials that this page sends with its requests. @param {{ onClose: () => void }} props */
function Credentials({ onClose }) {
  const field = (/** @type {"token" | "key"} */ name, /** @type {string} */ label) => html`<label class="field"><span>${label}</span>
    <input type="password" autocomplete="off" value=${credentials[name]} onInput=${(/** @type {any} */ e) => { credentials[name] = e.target.value; }} /></label>`;
  return html`<${Dialog} title="Credentials" onClose=${onClose}><p class="dim">Optional if you are signed in. Credentials stay on this page and are not stored.</p>
    ${field("key", "API key")}${field("token", "Bearer token")}<div class="actions"><button class="primary" onClick=${onClose}>Done</button></div><//>`;
}

/** Row shows one operation. Its content is rendered when it is opened. @param {{ o: Operation, schema: Schema }} props */
function Row({ o, schema }) {
  const place = useRef(/** @type {HTMLDetailsElement | null} */ (null));
  const [open, setOpen] = useState(location.hash === `#${o.op.operationId}`);
  useEffect(() => { if (open) place.current?.scrollIntoView(); }, []);
  return html`<details class="op" id=${o.op.operationId} open=${open} ref=${place} onToggle=${(/** @type {any} */ e) => setOpen(e.target.open)}>
    <summary><span class=${`method ${o.method}`}>${o.method}</span><code>${o.path}</code><span class="dim">${o.op.summary}</span></summary>
    ${open && html`<${Form} o=${o} schema=${schema} />`}</details>`;
}

/** Form lets the user try an operation. @param {{ o: Operation, schema: Schema }} props */
function Form({ o, schema }) {
  const fields = useMemo(() => schema.fieldsOf(o.op), [o]);
  const [values, setValues] = useState(/** @type {() => Record<string, string | File>} */ (() => schema.exampleOf(o.op.operationId, fields)));
  const [reply, setReply] = useState(/** @type {any} */ (null));
  const running = useRef(/** @type {AbortController | null} */ (null));
  useEffect(() => () => running.current?.abort(), []);
  const call = schema.compose(base, o.method, o.path, fields, values);
  const stop = () => { running.current?.abort(); running.current = null; setReply((/** @type {any} */ r) => r && { ...r, busy: false }); };
  const send = async () => {
    stop();
    const mine = new AbortController();
    running.current = mine;
    const show = (/** @type {any} */ r) => { if (running.current === mine) setReply(r); };
    show({ head: "Waiting for the reply…", busy: true });
    await receive(call, mine.signal, show).catch((error) => show({ head: mine.signal.aborted ? "Stopped." : `No reply: ${error.message}` }));
  };
  const needed = useMemo(() => new Set(fields.filter((f) => f.required || f.name in values).map((f) => f.name)), [o]);
  const few = fields.length <= 4;
  const [first, rest] = [fields.filter((f) => few || needed.has(f.name)), fields.filter((f) => !few && !needed.has(f.name))];
  const list = (/** @type {Field[]} */ some) => html`<ul class="fields">${some.map((field) => html`<li key=${field.name}><div class="about"><code>${field.name}</code>${field.required && html` <span class="tag">required</span>`} <span class="kind">${schema.typeName(field.schema)}</span><br />${field.doc}</div>
    <${Input} field=${field} schema=${schema} value=${values[field.name] ?? ""} onValue=${(/** @type {any} */ v) => setValues((old) => ({ ...old, [field.name]: v }))} /></li>`)}</ul>`;
  return html`<div class="inside"><p>${o.op.description}</p>
    ${first.length > 0 && list(first)}
    ${rest.length > 0 && html`<details class="rest"><summary>${rest.length} optional ${rest.length === 1 ? "field" : "fields"}: <span class="dim">${rest.map((f) => f.name).join(", ")}</span></summary>${list(rest)}</details>`}
    <${Code} call=${schema.compose(shared, o.method, o.path, fields, values)} />
    <div class="row"><button class="primary" onClick=${send}><${Sign} of="play" />Try it</button>${reply?.busy && html`<button onClick=${stop}>Stop</button>`}</div>
    ${reply && html`<div class="reply" role="status"><span class="dim">${reply.head}</span>${reply.picture ? html`<img src=${reply.picture} alt="Reply" />` : reply.text && html`<pre tabindex="0">${reply.text}</pre>`}</div>`}</div>`;
}

/** receive sends a request and shows its response while it arrives. @param {import("./schema.js").Call} call @param {AbortSignal} signal @param {(reply: any) => void} show */
async function receive(call, signal, show) {
  const headers = { ...call.headers };
  if (credentials.token) headers.Authorization = `Bearer ${credentials.token}`;
  if (credentials.key) headers["X-API-Key"] = credentials.key;
  let body = call.body === undefined ? undefined : /** @type {BodyInit} */ (JSON.stringify(call.body));
  if (call.form) {
    const form = new FormData();
    for (const [name, value] of call.form) form.append(name, value);
    body = form;
  }
  const start = performance.now();
  const reply = await fetch(call.url, { method: call.method, headers, body, signal });
  const media = reply.headers.get("Content-Type") || "";
  const head = () => `${reply.status} ${reply.statusText} · ${Math.round(performance.now() - start)} ms${media ? ` · ${media}` : ""}`;
  if (/^image\/(png|jpeg|webp|gif)/.test(media)) return show({ head: head(), picture: URL.createObjectURL(await reply.blob()) });
  let text = "";
  const reader = reply.body?.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
  for (let part = await reader?.read(); part && !part.done && text.length < maxShown; part = await reader?.read()) {
    text += part.value;
    show({ head: head(), text, busy: true });
  }
  await reader?.cancel();
  if (text.length >= maxShown) text = `${text.slice(0, maxShown)}\n…`;
  try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: shown unmodified */ }
  return show({ head: head(), text });
}

/** Input is the form control of a field. @param {{ field: Field, schema: Schema, value: string | File, onValue: (value: string | File) => void }} props */
function Input({ field, schema, value, onValue }) {
  const s = schema.resolve(field.schema);
  const take = (/** @type {any} */ e) => onValue(e.target.value);
  if (s.format === "binary") return html`<input type="file" aria-label=${field.name} onChange=${(/** @type {any} */ e) => onValue(e.target.files[0] || "")} />`;
  const choices = s.enum || (s.type === "boolean" ? ["true", "false"] : null);
  if (choices) return html`<select aria-label=${field.name} value=${value} onChange=${take}><option value=""></option>${choices.map((/** @type {any} */ v) => html`<option value=${String(v)}>${String(v)}</option>`)}</select>`;
  const preset = s.default ?? s.const;
  const hint = preset === undefined || preset === null ? "" : typeof preset === "object" ? JSON.stringify(preset) : String(preset);
  return s.type === "integer" || s.type === "number" ? html`<input aria-label=${field.name} placeholder=${hint} value=${value} onInput=${take} />`
    : html`<textarea rows="1" aria-label=${field.name} placeholder=${hint} value=${value} onInput=${take}></textarea>`;
}

/** Code shows the request in several languages. @param {{ call: import("./schema.js").Call }} props */
function Code({ call }) {
  const [kept, choose] = useState(recall("docs-language", "curl"));
  const language = kept in languages ? kept : "curl";
  const text = languages[language](call, credential() || (shared === base ? "" : "X-API-Key"));
  const copy = () => (navigator.clipboard ? navigator.clipboard.writeText(text) : Promise.reject(new Error("no clipboard"))).then(() => toast("Copied."), () => toast("Cannot access the clipboard. Select the text and copy it."));
  return html`<div class="code"><div class="row"><div class="pair" role="group" aria-label="Language">${Object.keys(languages).map((name) => html`<button key=${name} class="plain" aria-pressed=${String(name === language)} onClick=${() => { choose(name); remember("docs-language", name); }}>${name}</button>`)}</div>
    <button class="plain" onClick=${copy}><${Sign} of="copy" />Copy</button></div><pre tabindex="0" aria-label="Code">${text}</pre></div>`;
}

render(html`<${App} />`, /** @type {Element} */ (document.getElementById("app")));
