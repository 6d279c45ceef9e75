// A notebook that shares kernels with the code operations of the API. Users can choose a session that an agent created, and both
// see the same variables. Output of kernels is shown as text nodes and pictures, never as markup.
import { Ask, Connection, Dialog, IconButton, Sign, Toasts, at, call, fail, follow, html, readEvents, recall, remember, render, toast, useEffect, usePoll, useRef, useState } from "../ui/ui.js";
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
  const names = [...new Set([...Object.keys(sessions), session || "notebook"])].sort();

  return html`
    <${BoxHeader} title="Notebook" />
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
    <main tabindex="-1">${loaded !== path || session === "" ? !error && html`<div class="empty"><span class="spin"></span></div>` : book.cells.map((c, i) => html`<${CellView} key=${c.key} cell=${c} busy=${running.includes(c.key)} last=${i === book.cells.length - 1}
        onChange=${(/** @type {string} */ source) => change(c.key, () => ({ source }))} onType=${() => change(c.key, (o) => ({ type: o.type === "code" ? "markdown" : "code" }))}
        onRun=${() => { if (c.type === "code") run(c.key); if (i === book.cells.length - 1) arrange((cells) => [...cells, newCell()]); }}
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

/** CellView shows one cell. Shift+Enter runs it. @param {any} props */
function CellView({ cell, busy, onChange, onType, onRun, onDelete, onUp, onAdd }) {
  const [editing, setEditing] = useState(cell.type === "code" || cell.source === "");
  const code = cell.type === "code";
  /** @param {KeyboardEvent} e */
  const key = (e) => {
    if (e.key === "Enter" && (e.shiftKey || e.ctrlKey)) { e.preventDefault(); if (!code) setEditing(false); onRun(); }
  };
  const show = !code && !editing && cell.source !== "";
  return html`<section class="cell" aria-label=${code ? "Code cell" : "Text cell"} aria-busy=${String(busy)}><div class="n mono">${code ? `[${busy ? "*" : cell.count ?? " "}]` : ""}</div><div class="inner">
    ${show ? html`<div class="shown" onDblClick=${() => setEditing(true)}><${Markdown} text=${cell.source} /></div>`
      : html`<textarea class="mono" aria-label=${code ? "Code" : "Text"} spellcheck=${String(!code)} autocapitalize="off" rows=${Math.min(40, cell.source.split("\n").length + (code ? 0 : 1))} value=${cell.source} onInput=${(/** @type {any} */ e) => onChange(e.target.value)} onKeyDown=${key}></textarea>`}
    ${code && cell.outputs.length > 0 && html`<div class="outputs" role="log" aria-label="Output">${cell.outputs.map((/** @type {any} */ out) => html`<${Output} out=${out} />`)}</div>`}</div>
    <div class="tools">${code ? html`<${IconButton} sign="play" label="Run cell" disabled=${busy} onClick=${onRun} />` : html`<${IconButton} sign=${show ? "pen" : "eye"} label=${show ? "Edit text" : "Show text"} onClick=${() => setEditing(show)} />`}
      <${IconButton} sign="plus" label="Add cell below" onClick=${onAdd} /><${IconButton} sign="up" label="Move cell up" onClick=${onUp} /><${IconButton} sign=${code ? "docs" : "code"} label=${code ? "Make it text" : "Make it code"} onClick=${onType} /><${IconButton} sign="trash" label="Delete cell" onClick=${onDelete} /></div></section>`;
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
