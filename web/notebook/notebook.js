// A notebook that shares kernels with the code operations of the API. Users can choose a session that an agent created, and both
// see the same variables. Output of kernels is shown as text nodes and pictures, never as markup.
import { Ask, Connection, Dialog, IconButton, Sign, Toasts, at, call, fail, follow, html, readEvents, recall, remember, render, toast, useEffect, useLayoutEffect, usePoll, useRef, useState } from "../ui/ui.js";
import { BoxHeader } from "../box/header.js";
import { Markdown } from "../files/markdown.js";
import { Output } from "../files/output.js";
import { addOutput, newBook, newCell, parseBook, printBook } from "./book.js";

/** @typedef {import("./book.js").Cell} Cell */

const given = new URLSearchParams(location.search);
const maxText = 16 << 20;
const cellTime = 300; // seconds, the maximum of the operation
const maxRuns = 50;

/** read returns the text of a file, or null if it does not exist. @param {string} path */
async function read(path) {
  const stat = await (await fetch(at("v1/file/stat"), { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ path }) })).json().catch(() => null);
  if (stat?.success === false && stat.data?.errno_name === "ENOENT") return null;
  if (stat?.success === false) throw new Error(stat.message);
  const reply = await fetch(at("v1/file/download", { path }));
  if (!reply.ok) throw new Error((await reply.json().catch(() => null))?.detail || "The notebook cannot be read.");
  if (Number(reply.headers.get("Content-Length")) > maxText) throw new Error("The notebook is too large to open here.");
  return reply.text();
}

function App() {
  const [path, setPath] = useState(given.get("path") || recall("notebook", { path: "notebook.ipynb" }).path);
  const [book, set] = useState(newBook);
  const [error, setError] = useState("");
  const [loaded, setLoaded] = useState(""); // path of the current notebook
  const [dirty, setDirty] = useState(false);
  const [sessions, setSessions] = useState(/** @type {Record<string, any>} */ ({}));
  const [session, setSession] = useState(given.get("session") || "");
  const [running, setRunning] = useState(/** @type {number[]} */ ([]));
  const [focus, setFocus] = useState({ key: 0, turn: 0 }); // the cell that gets the focus
  const [asking, setAsking] = useState("");
  const [runs, setRuns] = useState(/** @type {any[]} */ ([]));
  const disk = useRef(/** @type {string | null} */ (null)); // the content that was last read or written
  const stops = useRef(/** @type {Map<number, AbortController>} */ (new Map()));
  const queue = useRef(/** @type {Promise<unknown>} */ (Promise.resolve()));
  const latest = useRef({ book, session });
  latest.current = { book, session };

  useEffect(() => {
    remember("notebook", { path });
    let over = false;
    read(path).then((text) => {
      if (over) return;
      set(text === null ? newBook() : parseBook(text));
      disk.current = text;
      setDirty(false);
      setError("");
      setLoaded(path);
    }).catch((e) => { if (!over) setError(e.message); });
    return () => { over = true; };
  }, [path]);
  usePoll(async () => {
    const list = (await call("v1/jupyter/sessions")).sessions || {};
    setSessions(list);
    // The most recently used kernel is probably the one of the agent.
    if (!latest.current.session) setSession(Object.keys(list).sort((a, b) => list[b].last_used - list[a].last_used)[0] || "notebook");
  }, 3000);
  useEffect(() => {
    setRuns([]);
    if (!session) return undefined;
    return follow("v1/sandbox/activity", { stream: true, limit: maxRuns, q: session }, (name, e) => {
      if (name !== "entry" || !["jupyter_execute", "code_execute"].includes(e.op)) return;
      const input = parse(e.input);
      if (input.session_id !== session) return;
      setRuns((old) => (old.some((o) => o.id === e.id) ? old : [{ id: e.id, time: e.time, code: String(input.code ?? ""), failed: Boolean(e.error) }, ...old].slice(0, maxRuns)));
    });
  }, [session]);
  useEffect(() => {
    /** @param {BeforeUnloadEvent} event */
    const warn = (event) => { if (dirty) event.preventDefault(); };
    addEventListener("beforeunload", warn);
    return () => removeEventListener("beforeunload", warn);
  }, [dirty]);

  const saving = useRef(() => {});
  saving.current = () => { if (dirty) save(); };
  useEffect(() => {
    /** @param {KeyboardEvent} event */
    const press = (event) => {
      if (event.key.toLowerCase() !== "s" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
      event.preventDefault();
      saving.current();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);

  /** @param {number} key @param {(c: Cell) => Partial<Cell>} change */
  const change = (key, change) => { setDirty(true); set((old) => ({ ...old, cells: old.cells.map((c) => (c.key === key ? { ...c, ...change(c) } : c)) })); };
  /** @param {(cells: Cell[]) => Cell[]} change */
  const arrange = (change) => { setDirty(true); set((old) => { const cells = change(old.cells); return { ...old, cells: cells.length ? cells : [newCell()] }; }); };

  /** run queues a cell after the cells that were started before. @param {number} key */
  const run = (key) => {
    const cell = latest.current.book.cells.find((c) => c.key === key);
    if (!cell || cell.type !== "code" || cell.source.trim() === "" || stops.current.has(key)) return queue.current;
    const stop = new AbortController();
    stops.current.set(key, stop);
    setRunning((old) => [...old, key]);
    queue.current = queue.current.then(() => execute(key, stop.signal)).catch((e) => { if (!stop.signal.aborted) fail(e); }).finally(() => {
      stops.current.delete(key);
      setRunning((old) => old.filter((k) => k !== key));
    });
    return queue.current;
  };
  /** @param {number} key @param {AbortSignal} signal */
  const execute = async (key, signal) => {
    if (signal.aborted) return;
    const code = latest.current.book.cells.find((c) => c.key === key)?.source ?? "";
    change(key, () => ({ outputs: [], count: null }));
    const reply = await fetch(at("v1/jupyter/execute", { stream: true }), {
      method: "POST", signal, headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
      body: JSON.stringify({ code, session_id: latest.current.session || "notebook", timeout: cellTime }),
    });
    if (!reply.ok || !reply.body || !(reply.headers.get("Content-Type") || "").includes("event-stream")) {
      const said = await reply.json().catch(() => null);
      throw new Error(said?.message || said?.detail || `The server replied with status ${reply.status}.`);
    }
    let ended = false;
    await readEvents(reply.body, (name, data) => {
      if (name === "output" && data.output) change(key, (c) => ({ outputs: addOutput(c.outputs, data.output) }));
      if (name === "result" && data.result) { ended = true; change(key, () => ({ outputs: data.result.outputs, count: data.result.execution_count })); }
      if (name === "error") { ended = true; toast(data.message || data.error || "The cell could not be run.", { time: 10_000 }); }
    });
    if (!ended && !signal.aborted) toast("The connection was cut while the cell ran. Run it again.", { time: 10_000 });
  };
  const runAll = () => { for (const c of latest.current.book.cells) run(c.key); };
  const stopAll = () => { for (const stop of stops.current.values()) stop.abort(); };
  const restart = () => { stopAll(); call(`v1/jupyter/sessions/${encodeURIComponent(session)}`, { method: "DELETE" }).then(() => toast("The kernel was restarted: its variables are gone"), fail); };

  /** save writes the file. @param {boolean} [replace] even if it has changed on disk */
  const save = async (replace = false) => {
    try {
      if (!replace && (await read(path)) !== disk.current) { setAsking("replace"); return; }
      const text = printBook(latest.current.book);
      await call("v1/file/write", { body: { file: path, content: text } });
      disk.current = text;
      setDirty(printBook(latest.current.book) !== text); // the user may have edited the notebook during the save
      toast("Saved");
    } catch (e) { fail(e); }
  };
  const select = (/** @type {number} */ key) => setFocus((old) => ({ key, turn: old.turn + 1 }));
  /** leave runs a cell and then moves on: to the next cell, to a new one below, or nowhere. @param {number} i @param {"next" | "below" | "stay"} how */
  const leave = (i, how) => {
    const { cells } = latest.current.book;
    const at = cells[i];
    if (at.type === "code") run(at.key);
    if (how === "stay") return;
    if (how === "next" && i < cells.length - 1) return select(cells[i + 1].key);
    const fresh = newCell();
    arrange((old) => [...old.slice(0, i + 1), fresh, ...old.slice(i + 1)]);
    select(fresh.key);
  };
  const names = [...new Set([...Object.keys(sessions), session || "notebook"])].sort();

  return html`
    <${BoxHeader} title="Notebook" keys=${keys} />
    <header><h2 class="cut" title=${path}>${dirty ? "● " : ""}${path.split("/").pop()}</h2>
      <button onClick=${() => setAsking("open")}><${Sign} of="folder" />Open</button>
      <button class="primary" disabled=${!dirty} onClick=${() => save()}>Save</button>
      <span class="gap"></span>
      <label><span class="unseen">Kernel session</span><select value=${session} onChange=${(/** @type {any} */ e) => (e.target.value === "" ? setAsking("session") : setSession(e.target.value))}>
        ${names.map((n) => html`<option value=${n}>${n}${sessions[n] ? ` (${sessions[n].kernel_name}, ${sessions[n].state})` : " (new)"}</option>`)}<option value="">Other session…</option></select></label>
      <button onClick=${runAll}><${Sign} of="play" />Run all</button>
      <button disabled=${running.length === 0} onClick=${stopAll}>Interrupt</button>
      <button disabled=${!sessions[session]} onClick=${() => setAsking("restart")}><${Sign} of="reload" />Restart</button></header>
    <${Connection} />
    ${error && html`<div class="notice bad" role="alert">${error} <button onClick=${() => setPath(`notebook-${Date.now()}.ipynb`)}>Start a new notebook</button></div>`}
    <main tabindex="-1">${loaded !== path || session === "" ? !error && html`<div class="empty"><span class="spin"></span></div>` : book.cells.map((c, i) => html`<${CellView} key=${c.key} cell=${c} number=${i + 1} busy=${running.includes(c.key)} focus=${focus.key === c.key ? focus.turn : 0}
        onChange=${(/** @type {string} */ source) => change(c.key, () => ({ source }))} onType=${() => change(c.key, (o) => ({ type: o.type === "code" ? "markdown" : "code" }))}
        onRun=${(/** @type {"next" | "below" | "stay"} */ how) => leave(i, how)}
        onDelete=${() => arrange((cells) => cells.filter((o) => o.key !== c.key))} onUp=${() => arrange((cells) => moved(cells, i, -1))} onAdd=${() => arrange((cells) => [...cells.slice(0, i + 1), newCell(), ...cells.slice(i + 1)])} />`)}
      ${runs.length > 0 && html`<details class="runs"><summary>Ran in this kernel, by agents and people (${runs.length})</summary><ul>${runs.map((r) => html`<li key=${r.id}><time datetime=${r.time}>${new Date(r.time).toLocaleTimeString()}</time><pre tabindex="0">${r.code}</pre>
        <button onClick=${() => arrange((cells) => [...cells, newCell("code", r.code)])}>Add as a cell</button></li>`)}</ul></details>`}</main>
    ${asking === "open" && html`<${Prompt} title="Open or create a notebook" label="Path of the notebook" value=${path} action="Open" onClose=${() => setAsking("")} onTake=${(/** @type {string} */ p) => setPath(p.endsWith(".ipynb") ? p : `${p}.ipynb`)} />`}
    ${asking === "session" && html`<${Prompt} title="Choose a session" label="Session ID; it is created by the first cell" value="" action="Use" onClose=${() => setAsking("")} onTake=${setSession} />`}
    ${asking === "restart" && html`<${Ask} title="Restart the kernel?" text=${`The variables of session ${session} are lost, for agents too.`} action="Restart" danger onYes=${restart} onClose=${() => setAsking("")} />`}
    ${asking === "replace" && html`<${Ask} title="Replace the file?" text="The notebook has changed on disk since you opened it." action="Replace it" danger onYes=${() => save(true)} onClose=${() => setAsking("")} />`}
    <${Toasts} />`;
}

/** parse parses recorded JSON, which may be truncated. @param {string} text @returns {any} */
function parse(text) {
  try { return JSON.parse(text || "null") ?? {}; } catch { return {}; }
}

/** @param {Cell[]} cells @param {number} i @param {number} by */
function moved(cells, i, by) {
  const to = i + by;
  if (to < 0 || to >= cells.length) return cells;
  const out = [...cells];
  [out[i], out[to]] = [out[to], out[i]];
  return out;
}

/** @type {[string, string][]} */
const keys = [["Shift+Enter", "Run the cell and go to the next one"], ["Ctrl+Enter", "Run the cell"], ["Alt+Enter", "Run the cell and add one below"], ["Ctrl+S", "Save the notebook"], ["Esc, Tab", "Leave the editor of a cell"]];

/** CellView shows one cell. @param {any} props */
function CellView({ cell, number, busy, focus, onChange, onType, onRun, onDelete, onUp, onAdd }) {
  const [editing, setEditing] = useState(cell.type === "code" || cell.source === "");
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const code = cell.type === "code";
  const show = !code && !editing && cell.source !== "";
  useEffect(() => { if (focus && show) box.current?.focus(); }, [focus]);
  /** @param {"next" | "below" | "stay"} how */
  const leave = (how) => { if (!code) setEditing(false); onRun(how); };
  /** @param {KeyboardEvent} e */
  const key = (e) => { if (e.key === "Enter" && e.target === box.current) { e.preventDefault(); if (e.shiftKey) onRun("next"); else setEditing(true); } };
  return html`<section class="cell" aria-label=${`${code ? "Code" : "Text"} cell ${number}`} aria-busy=${String(busy)}><div class="n mono">${code ? `[${busy ? "*" : cell.count ?? " "}]` : ""}</div><div class="inner">
    ${show ? html`<div class="shown" ref=${box} tabindex="0" onKeyDown=${key} onDblClick=${() => setEditing(true)}><${Markdown} text=${cell.source} /></div>`
      : html`<${Editor} key=${cell.type} text=${cell.source} code=${code} focus=${focus} onChange=${onChange} onLeave=${leave} />`}
    ${code && cell.outputs.length > 0 && html`<div class="outputs" role="log" aria-label="Output" tabindex="0">${cell.outputs.map((/** @type {any} */ out) => html`<${Output} out=${out} />`)}</div>`}</div>
    <div class="tools">${code ? html`<${IconButton} sign="play" label="Run cell" disabled=${busy} onClick=${() => onRun("stay")} />` : html`<${IconButton} sign=${show ? "pen" : "eye"} label=${show ? "Edit text" : "Show text"} onClick=${() => setEditing(show)} />`}
      <${IconButton} sign="plus" label="Add cell below" onClick=${onAdd} /><${IconButton} sign="up" label="Move cell up" onClick=${onUp} /><${IconButton} sign=${code ? "docs" : "code"} label=${code ? "Make it text" : "Make it code"} onClick=${onType} /><${IconButton} sign="trash" label="Delete cell" onClick=${onDelete} /></div></section>`;
}

/** Editor is the editor of a cell: CodeMirror, as on the page of the files. Until it is loaded, the text is shown. @param {any} props */
function Editor({ text, code, focus, onChange, onLeave }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const editor = useRef(/** @type {any} */ (null));
  const latest = useRef({ onChange, onLeave, text });
  latest.current = { onChange, onLeave, text };
  const [ready, setReady] = useState(false);
  useEffect(() => {
    let over = false;
    import("../vendor/codemirror/codemirror.js").then(({ open }) => {
      if (over) return;
      const leave = (/** @type {string} */ how) => () => latest.current.onLeave(how);
      editor.current = open({
        parent: place.current, text: latest.current.text, name: code ? "cell.py" : "cell.md", readOnly: false, onSave: () => {},
        onChange: () => latest.current.onChange(editor.current.text()),
        cell: { label: code ? "Code" : "Text", keys: { "Shift-Enter": leave("next"), "Mod-Enter": leave("stay"), "Alt-Enter": leave("below") } },
      });
      setReady(true);
    }, fail);
    return () => { over = true; editor.current?.close(); editor.current = null; };
  }, []);
  useLayoutEffect(() => { if (editor.current && editor.current.text() !== text) editor.current.replace(text); }, [text, ready]);
  useEffect(() => { if (focus && ready) { editor.current?.focus(); place.current?.scrollIntoView({ block: "nearest" }); } }, [focus, ready]);
  return html`<div class="editor">${!ready && html`<pre class="mono">${text || " "}</pre>`}<div ref=${place} hidden=${!ready}></div></div>`;
}

/** Prompt asks for one line. @param {any} props */
function Prompt({ title, label, value, action, onTake, onClose }) {
  const [text, set] = useState(value);
  /** @param {Event} e */
  const submit = (e) => { e.preventDefault(); if (text.trim() !== "") { onTake(text.trim()); onClose(); } };
  return html`<${Dialog} title=${title} onClose=${onClose}><form onSubmit=${submit}><label class="field"><span>${label}</span><input autofocus value=${text} spellcheck="false" autocomplete="off" onInput=${(/** @type {any} */ e) => set(e.target.value)} /></label>
    <div class="actions"><button type="button" onClick=${onClose}>Cancel</button><button class="primary">${action}</button></div></form><//>`;
}

render(html`<${App} />`, /** @type {Element} */ (document.getElementById("app")));
