// Viewers of a file: editor, pictures, tables, pages. Content is not trusted: it is shown as text nodes and pictures.
// HTML is shown in a frame that runs no scripts.
import { Failure, IconButton, at, bytes, call, fail, html, toast, useEffect, useLayoutEffect, useRef, useState } from "../ui/ui.js";
import { Diff } from "../activity/entry.js";
import { difference } from "./conflict.js";
import { Markdown } from "./markdown.js";
import { Output, joined } from "./output.js";

const maxText = 4 << 20;
const maxPicture = 32 << 20;
/** @type {Record<string, string>} */
const pictures = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp", avif: "image/avif", bmp: "image/bmp", ico: "image/x-icon", svg: "image/svg+xml" };

/** @param {string} path */
const extension = (path) => /\.([^./]+)$/.exec(path.toLowerCase())?.[1] || "";

/** kindOf returns the viewers for a file, the default first. @param {string} path */
export function kindOf(path) {
  const ext = extension(path);
  if (ext === "svg") return ["picture", "text"];
  if (pictures[ext]) return ["picture"];
  if (ext === "pdf") return ["pdf"];
  if (ext === "md" || ext === "markdown") return ["markdown", "text"];
  if (ext === "csv" || ext === "tsv") return ["table", "text"];
  if (ext === "ipynb") return ["notebook", "text"];
  if (ext === "html" || ext === "htm") return ["text", "page"];
  return ["text"];
}

/** @type {Record<string, string>} */
const names = { picture: "Picture", text: "Text", markdown: "Preview", table: "Table", notebook: "Notebook", page: "Preview", pdf: "Pages" };

/** load reads a file. @param {string} path @param {number} limit @param {AbortSignal} signal */
async function load(path, limit, signal) {
  const reply = await fetch(at("v1/file/download", { path }), { signal }).catch(() => { throw new Failure("The server cannot be reached.", 0); });
  if (!reply.ok) throw new Failure((await reply.json().catch(() => null))?.detail || "The file cannot be read.", reply.status);
  const size = Number(reply.headers.get("Content-Length"));
  if (size > limit && !reply.headers.has("Content-Encoding")) {
    reply.body?.cancel();
    throw new Failure(`The file has ${bytes(size)}, too much to show here. Download it instead.`, 413);
  }
  return reply.arrayBuffer();
}

/** decode returns the text of a file, or null for a binary file. @param {ArrayBuffer} data */
function decode(data) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
    return text.includes("\u0000") ? null : text;
  } catch {
    return null;
  }
}

/** View shows one file. changed counts its changes on disk. While leaving is set, it does not read the file. @param {{ path: string, line: number, changed: number, leaving: boolean, onBack: () => void, onDirty: (dirty: boolean) => void }} props */
export function View({ path, line, changed: latest, leaving, onBack, onDirty }) {
  const kinds = kindOf(path);
  const [kind, setKind] = useState(line ? "text" : kinds[0]);
  const [state, set] = useState(/** @type {any} */ ({ loading: true }));
  const [dirty, setDirty] = useState(false);
  const [stale, setStale] = useState(false); // whether the file changed on disk while it was edited
  const [theirs, setTheirs] = useState(/** @type {string | null} */ (null)); // its text on disk, to compare
  const editor = useRef(/** @type {any} */ (null));
  const disk = useRef(""); // the text that was last read or written
  const edited = useRef(dirty);
  edited.current = dirty;
  const [saved, setSaved] = useState(0);
  const seen = useRef(latest);
  if (!leaving) seen.current = latest;
  const changed = seen.current;

  useLayoutEffect(() => onDirty(dirty), [dirty]);
  useLayoutEffect(() => { // a layout effect, so that it aborts a read before the move is sent
    if (leaving) return undefined;
    const stop = new AbortController();
    (async () => {
      try {
        if (kind === "pdf" || kind === "page") return set({});
        const data = await load(path, kind === "picture" ? maxPicture : maxText, stop.signal);
        if (stop.signal.aborted) return undefined;
        if (kind === "picture") return set({ data });
        const text = decode(data);
        if (edited.current) return setStale(text !== disk.current); // keep the edits of the user
        disk.current = text || "";
        setStale(false);
        set(text === null ? { binary: data.byteLength } : { text });
      } catch (error) {
        if (stop.signal.aborted) return undefined;
        if (edited.current) return setStale(true);
        set({ error: error instanceof Error ? error.message : String(error) });
      }
      return undefined;
    })();
    return () => stop.abort();
  }, [path, changed, kind, leaving, saved]);

  const onDisk = () => load(path, maxText, new AbortController().signal).then(decode, () => null);
  /** save writes the text. It does not replace changes of others, unless the person chose to. @param {boolean} [mine] */
  const save = async (mine = false) => {
    const text = editor.current?.text();
    if (text === undefined) return;
    try {
      const now = mine ? null : await onDisk();
      if (now !== null && now !== disk.current) return void setStale(true);
      setTheirs(null);
      await call("v1/file/write", { body: { file: path, content: text } });
      disk.current = text;
      const later = editor.current?.text();
      setDirty(later !== undefined && later !== text); // the user may have edited the text during the save
      setStale(false);
      setSaved((n) => n + 1); // replaces a read in progress, which may return the old content
      toast("Saved");
    } catch (error) { fail(error); }
  };
  const compare = () => { if (theirs === null) onDisk().then((text) => setTheirs(text ?? ""), fail); else setTheirs(null); };
  const reload = () => { setDirty(false); setStale(false); setTheirs(null); set({ loading: true }); load(path, maxText, new AbortController().signal).then((data) => { const text = decode(data) || ""; disk.current = text; editor.current?.replace(text); set({ text }); }).catch(fail); };
  useEffect(() => {
    /** @param {BeforeUnloadEvent} event */
    const warn = (event) => { if (dirty) event.preventDefault(); };
    addEventListener("beforeunload", warn);
    return () => removeEventListener("beforeunload", warn);
  }, [dirty]);

  return html`<section class="view" aria-label="File">
    <header><${IconButton} sign="left" class="back" label="Back to the list" onClick=${onBack} />
      <h2 class="cut" title=${path}>${dirty ? "● " : ""}${path.split("/").pop()}</h2>
      ${kinds.length > 1 && html`<div class="row" role="group" aria-label="Show as">${kinds.map((k) => html`<button key=${k} aria-pressed=${String(k === kind)} disabled=${dirty && k !== kind} onClick=${() => { set({ loading: true }); setKind(k); }}>${names[k]}</button>`)}</div>`}
      ${kind === "text" && state.text !== undefined && html`<button class="primary" disabled=${!dirty} onClick=${() => save()}>Save</button>`}
      <a class="button plain icon" href=${at("v1/file/download", { path }).href} download title="Download" aria-label="Download"><svg class="sign" viewBox="0 0 24 24" aria-hidden="true"><path d="M12 4v11M6 10l6 6 6-6M4 20h16" /></svg></a>
    </header>
    ${stale && html`<div class="notice" role="status"><span class="grow">The file has changed on disk.</span><button aria-expanded=${String(theirs !== null)} onClick=${compare}>Compare</button><button onClick=${() => save(true)}>Keep mine</button><button onClick=${reload}>Load theirs</button></div>`}
    ${stale && theirs !== null && html`<section class="compare" aria-label="Your text, compared with the file on disk"><${Diff} text=${difference(theirs, editor.current?.text() ?? "") || " No line differs."} /></section>`}
    <div class="body" tabindex=${kind === "text" ? undefined : "0"}><${Content} key=${path + kind} kind=${kind} path=${path} state=${state} line=${line} editor=${editor} onDirty=${() => setDirty(true)} onSave=${() => save()} changed=${changed} /></div>
  </section>`;
}

/** @param {any} props */
function Content({ kind, path, state, line, editor, onDirty, onSave, changed }) {
  if (state.error) return html`<div class="empty" role="alert">${state.error}</div>`;
  if (state.loading) return html`<div class="empty"><span class="spin"></span></div>`;
  if (state.binary !== undefined) return html`<div class="empty">This is not text (${bytes(state.binary)}). Download it to open it elsewhere.</div>`;
  if (kind === "pdf") return html`<${Pages} path=${path} changed=${changed} />`;
  if (kind === "page") return html`<iframe sandbox="" title=${`Preview of ${path}`} src=${at("v1/file/preview", { path, t: changed || undefined }).href}></iframe>`;
  if (kind === "picture") return state.data ? html`<${Picture} data=${state.data} path=${path} />` : null;
  if (state.text === undefined) return null;
  if (kind === "markdown") return html`<${Markdown} text=${state.text} />`;
  if (kind === "table") return html`<${Table} text=${state.text} tabs=${extension(path) === "tsv"} />`;
  if (kind === "notebook") return html`<${Notebook} text=${state.text} path=${path} />`;
  return html`<${Editor} path=${path} text=${state.text} line=${line} editor=${editor} onDirty=${onDirty} onSave=${onSave} />`;
}

/** Editor is CodeMirror, which is loaded on first use. @param {any} props */
function Editor({ path, text, line, editor, onDirty, onSave }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const latest = useRef({ onDirty, onSave, text });
  latest.current = { onDirty, onSave, text };
  const [ready, setReady] = useState(false);
  useEffect(() => {
    let over = false;
    import("../vendor/codemirror/codemirror.js").then(({ open }) => {
      if (over) return;
      editor.current = open({ parent: place.current, text: latest.current.text, name: path, readOnly: false, onChange: () => latest.current.onDirty(), onSave: () => latest.current.onSave() });
      if (line) editor.current.goTo(line);
      setReady(true);
    }, fail);
    return () => { over = true; editor.current?.close(); editor.current = null; };
  }, [path]);
  useLayoutEffect(() => { if (editor.current && editor.current.text() !== text) editor.current.replace(text); }, [text, ready]); // a layout effect, so that it runs before further input of the user
  useEffect(() => { if (line) editor.current?.goTo(line); }, [line]);
  return html`<div ref=${place} style="height:100%" data-ready=${String(ready)}></div>`;
}

/** @param {{ data: ArrayBuffer, path: string }} props */
function Picture({ data, path }) {
  const [url, set] = useState("");
  const [size, setSize] = useState("");
  useEffect(() => {
    // In an <img>, an SVG cannot run scripts or load resources.
    const made = URL.createObjectURL(new Blob([data], { type: pictures[extension(path)] }));
    set(made);
    return () => URL.revokeObjectURL(made);
  }, [data]);
  return html`<figure class="picture">${url && html`<img src=${url} alt=${path.split("/").pop()} onLoad=${(/** @type {any} */ e) => setSize(`${e.target.naturalWidth} × ${e.target.naturalHeight}`)} onError=${() => setSize("This picture cannot be shown.")} />`}<figcaption class="dim">${size} · ${bytes(data.byteLength)}</figcaption></figure>`;
}

/** Pages shows a PDF as pictures of its pages. @param {{ path: string, changed: number }} props */
function Pages({ path, changed }) {
  const [count, setCount] = useState(0);
  const [error, setError] = useState("");
  const url = (/** @type {number} */ page) => at("v1/file/preview", { path, page, t: changed || undefined });
  useEffect(() => {
    fetch(url(1)).then(async (reply) => {
      if (!reply.ok) throw new Failure((await reply.json().catch(() => null))?.detail || "The PDF cannot be shown.", reply.status);
      setCount(Number(reply.headers.get("X-Page-Count")) || 1);
    }).catch((e) => setError(e.message));
  }, [path, changed]);
  if (error) return html`<div class="empty" role="alert">${error}</div>`;
  return html`<div class="sheets">${count === 0 && html`<span class="spin"></span>`}${Array.from({ length: Math.min(count, 500) }, (_, i) => html`<img key=${i} loading="lazy" src=${url(i + 1).href} alt=${`Page ${i + 1} of ${count}`} />`)}</div>`;
}

/** @param {string} text @param {string} mark */
export function parseTable(text, mark) {
  /** @type {string[][]} */
  const rows = [];
  let row = [];
  let cell = "";
  let quoted = false;
  for (let i = 0; i <= text.length; i++) {
    const c = text[i];
    if (quoted) {
      if (c === '"' && text[i + 1] === '"') { cell += '"'; i++; } else if (c === '"') quoted = false; else if (c === undefined) break; else cell += c;
      continue;
    }
    if (c === '"' && cell === "") quoted = true;
    else if (c === mark) { row.push(cell); cell = ""; } else if (c === "\n" || c === undefined) {
      row.push(cell.replace(/\r$/, ""));
      if (row.length > 1 || row[0] !== "") rows.push(row);
      row = [];
      cell = "";
    } else cell += c;
  }
  if (row.length || cell) rows.push([...row, cell]);
  return rows;
}

/** @param {{ text: string, tabs: boolean }} props */
function Table({ text, tabs }) {
  const most = 2000;
  const [head = [], ...rows] = parseTable(text, tabs ? "\t" : text.split("\n", 1)[0].includes(";") && !text.split("\n", 1)[0].includes(",") ? ";" : ",");
  return html`<div class="grid"><table><thead><tr>${head.map((c) => html`<th scope="col">${c}</th>`)}</tr></thead><tbody>${rows.slice(0, most).map((r) => html`<tr>${r.map((c) => html`<td title=${c.length > 40 ? c : undefined}>${c}</td>`)}</tr>`)}</tbody></table>
    ${rows.length > most && html`<p class="dim">${most} of ${rows.length} rows are shown.</p>`}</div>`;
}

/** Notebook shows cells and their outputs without running them. @param {{ text: string, path: string }} props */
function Notebook({ text, path }) {
  let book;
  try { book = JSON.parse(text); } catch { return html`<div class="empty" role="alert">This notebook is not valid JSON. Open it as text to repair it.</div>`; }
  const cells = Array.isArray(book?.cells) ? book.cells : [];
  return html`<div><p class="run"><a class="button" href=${at("jupyter", { path }).href} target="_blank" rel="noopener">Open to run</a></p>${cells.length === 0 && html`<div class="empty">This notebook has no cells.</div>`}${cells.map((/** @type {any} */ cell) => html`<div class="cell"><div class="n">${cell.cell_type === "code" ? `[${cell.execution_count ?? " "}]` : ""}</div><div>
    ${cell.cell_type === "markdown" ? html`<${Markdown} text=${joined(cell.source)} />` : html`<pre><code>${joined(cell.source)}</code></pre>`}
    ${(Array.isArray(cell.outputs) ? cell.outputs : []).map((/** @type {any} */ out) => html`<${Output} out=${out} />`)}</div></div>`)}</div>`;
}
