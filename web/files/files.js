// The files of the sandbox: a tree that follows changes, an editor and viewers, uploads, search.
// The query parameter path selects the folder or file to open.
import { Ask, Connection, Dialog, IconButton, Sign, Toasts, at, bytes, call, fail, html, quiet, recall, remember, render, toast, usePoll, useEffect, useRef, useState } from "../ui/ui.js";
import { BoxHeader } from "../box/header.js";
import { Clash, clashes, renamed } from "./conflict.js";
import { Tree, join, parent, useTree } from "./tree.js";
import { chosen, dropped, send } from "./upload.js";
import { View } from "./view.js";

const given = new URLSearchParams(location.search).get("path");

/** @type {[string, string][]} */
const keys = [["Ctrl+S", "Save the file"], ["Ctrl+F", "Find in the file"], ["F2", "Rename the selected file"], ["Delete", "Delete the selected file"], ["Arrow keys", "Move in the tree"]];

function App() {
  const [root, setRoot] = useState("");
  const [roots, setRoots] = useState(/** @type {string[]} */ ([]));
  const [hidden, setHidden] = useState(recall("files-hidden", false));
  const [open, setOpen] = useState({ path: "", line: 0 });
  const [leaving, setLeaving] = useState(""); // path that is being moved or deleted
  const [changes, setChanges] = useState(/** @type {Record<string, number>} */ ({}));
  const [dirty, setDirty] = useState(false);
  const [query, setQuery] = useState("");
  const [ask, setAsk] = useState(/** @type {any} */ (null));
  const [load, setLoad] = useState(/** @type {any} */ (null));
  const [over, setOver] = useState(""); // folder below the pointer during a drag
  const [clash, setClash] = useState(/** @type {any} */ (null));
  const [sure, setSure] = useState(/** @type {{ run: () => void } | null} */ (null)); // continues after the unsaved changes are dropped
  const tree = useTree(root, hidden);
  const picker = useRef(/** @type {any} */ (null));
  const latest = useRef(open);
  latest.current = open;

  useEffect(() => {
    (async () => {
      const where = (/** @type {string} */ path) => call("v1/file/stat", { body: { path } }).then((info) => info.path);
      const [work, home] = await Promise.all([where("."), where("~").catch(() => "/")]);
      setRoots([...new Set([work, home, "/"])]);
      if (!given) return setRoot(work);
      const info = await call("v1/file/stat", { body: { path: given } });
      if (info.is_directory) return setRoot(info.path);
      setRoot(info.path.startsWith(`${work}/`) ? work : parent(info.path));
      setOpen({ path: info.path, line: 0 });
    })().catch((error) => { fail(error); setRoot((old) => old || "/"); });
  }, []);
  useEffect(() => remember("files-hidden", hidden), [hidden]);
  useWatcher(root, (event) => {
    tree.touch(event);
    const path = event.type === "overflow" ? "" : event.path; // "": anything may have changed
    setChanges((old) => ({ ...old, [path]: (old[path] || 0) + 1 }));
  });

  /** dropping runs fn, after the person agreed to drop unsaved changes. @param {boolean} needed @param {() => void} fn */
  const dropping = (needed, fn) => (needed ? setSure({ run: fn }) : fn());
  /** @param {string} path @param {number} [line] */
  const show = (path, line = 0) => {
    if (path === open.path && line === open.line) return;
    dropping(dirty && path !== open.path, () => {
      if (path !== open.path) setDirty(false);
      setOpen({ path, line });
    });
  };
  const folder = () => (tree.selected ? (tree.isFolder(tree.selected) ? tree.selected : parent(tree.selected)) : root);

  /** upload sends files, and asks before it replaces others. @param {import("./upload.js").Entry[]} entries @param {string} to */
  const upload = async (entries, to) => {
    if (entries.length === 0) return;
    const clash = await clashes(to, entries);
    if (clash.found.length === 0) return transfer(entries, to);
    setClash({ to, found: clash.found, onReplace: () => transfer(entries, to), onBoth: () => transfer(renamed(entries, clash), to) });
  };
  /** @param {import("./upload.js").Entry[]} entries @param {string} to */
  const transfer = async (entries, to) => {
    const files = entries.filter((entry) => entry.file);
    const stop = new AbortController();
    const all = files.reduce((sum, entry) => sum + (entry.file?.size || 0), 0);
    setLoad({ text: `Uploading ${files.length} ${files.length === 1 ? "file" : "files"} (${bytes(all)})`, part: 0, stop });
    try {
      const done = await send(to, entries, (part) => setLoad((/** @type {any} */ old) => old && { ...old, part }), stop.signal);
      toast(`Uploaded ${done.files} ${done.files === 1 ? "file" : "files"}`);
      await tree.refresh(to);
    } catch (error) { fail(error); } finally { setLoad(null); }
  };
  useDrop(setOver, (data, folder) => { dropped(data).then((entries) => upload(entries, folder)).catch(fail); });

  /** within reports whether a path equals another path or is below it. @param {string} path @param {string} other */
  const within = (path, other) => path === other || path.startsWith(`${other}/`);
  /** move renames a file or folder. An open file is not read during the move, because it would be missing. Then the page shows the file at its new path if follow is set, or closes it. @param {string} path @param {string} to @param {boolean} [follow] */
  const move = async (path, to, follow) => {
    setLeaving(path);
    try {
      await call("v1/file/move", { body: { source: path, destination: to } });
      const { path: now } = latest.current;
      if (!within(now, path)) return;
      setDirty(false);
      setOpen({ path: follow ? to + now.slice(path.length) : "", line: 0 });
    } finally { setLeaving(""); }
  };

  const act = {
    rename: (/** @type {string} */ path) => dropping(dirty && within(open.path, path), () => setAsk({ title: "Rename", label: "New name", value: path.split("/").pop(), action: "Rename", run: async (/** @type {string} */ name) => {
      const to = join(parent(path), name);
      await move(path, to, true);
      await tree.refresh(parent(path));
      tree.select(to);
    } })),
    // remove renames the file and deletes it when the time for undo has expired.
    remove: async (/** @type {string} */ path) => {
      const name = path.split("/").pop() || "";
      const gone = join(parent(path), `.${name.slice(0, 200)}.deleted-${Math.random().toString(36).slice(2, 10).padEnd(8, "0")}`);
      try {
        await move(path, gone);
        await tree.refresh(parent(path));
        const purge = () => fetch(at("v1/file/delete"), { method: "POST", keepalive: true, headers: { "Content-Type": "application/json" }, body: JSON.stringify({ path: gone, recursive: true, missing_ok: true }) }).catch(() => {});
        addEventListener("pagehide", purge, { once: true });
        const timer = setTimeout(() => { removeEventListener("pagehide", purge); purge(); }, 10_000);
        toast(`Deleted ${name}`, { action: "Undo", time: 10_000, onAction: async () => {
          clearTimeout(timer);
          removeEventListener("pagehide", purge);
          await call("v1/file/move", { body: { source: gone, destination: path } }).catch(fail);
          await tree.refresh(parent(path));
          tree.select(path);
        } });
      } catch (error) { fail(error); }
    },
    create: (/** @type {boolean} */ isFolder) => setAsk({ title: isFolder ? "New folder" : "New file", label: `Name, in ${folder()}`, value: "", action: "Create", run: async (/** @type {string} */ name) => {
      const to = join(folder(), name);
      if (isFolder) await call("v1/file/mkdir", { body: { path: to } });
      else {
        if (await call("v1/file/stat", { body: { path: to } }).then(() => true, () => false)) throw new Error(`“${name}” exists already.`);
        await call("v1/file/write", { body: { file: to, content: "" } });
      }
      await tree.refresh(folder());
      tree.select(to);
      if (!isFolder) show(to);
    } }),
  };

  return html`
    <${BoxHeader} title="Files" keys=${keys} />
    <header>
      <input type="search" placeholder="Search names and contents" aria-label="Search names and contents" value=${query} onInput=${(/** @type {any} */ e) => setQuery(e.target.value)} />
      <${IconButton} sign="file" label="New file" disabled=${!root} onClick=${() => act.create(false)} />
      <${IconButton} sign="folder" label="New folder" disabled=${!root} onClick=${() => act.create(true)} />
      <${IconButton} sign="up" label="Upload files" disabled=${!root} onClick=${() => { picker.current.webkitdirectory = false; picker.current.click(); }} />
      <${Menu} items=${[["Upload a folder", () => { picker.current.webkitdirectory = true; picker.current.click(); }], [hidden ? "Hide hidden files" : "Show hidden files", () => setHidden(!hidden)],
        ["Download this folder", () => { location.assign(at("v1/file/archive", { path: folder(), format: "zip" })); }], ...roots.filter((r) => r !== root).map((r) => /** @type {[string, () => void]} */ ([`Go to ${r}`, () => setRoot(r)])),
        ...(root && root !== "/" ? [/** @type {[string, () => void]} */ (["Go to the parent folder", () => setRoot(parent(root))])] : [])]} />
      <input type="file" multiple hidden ref=${picker} aria-label="Files to upload" onChange=${(/** @type {any} */ e) => { upload(chosen(e.target.files), folder()).catch(fail); e.target.value = ""; }} />
    </header>
    <${Connection} />
    ${load && html`<div class="load" role="status"><span class="cut">${load.text}</span><progress max="1" value=${load.part} aria-label="Upload"></progress><button onClick=${() => load.stop.abort()}>Cancel</button></div>`}
    ${over && html`<div class="load" role="status">Drop to upload to ${over}</div>`}
    <main class=${`parts ${open.path ? "viewing" : ""} ${over ? "drop" : ""}`} data-folder=${open.path ? parent(open.path) : folder()}>
      <nav class="side" aria-label="Files" data-folder=${root}>
        <h2>${root}</h2>
        ${query.trim() ? html`<${Results} root=${root} query=${query.trim()} onOpen=${show} />` : html`<${Tree} tree=${tree} root=${root} shown=${open.path} onOpen=${show} over=${over} onRename=${act.rename} onDelete=${act.remove} />`}
      </nav>
      ${open.path ? html`<${View} key=${open.path} path=${open.path} line=${open.line} changed=${(changes[open.path] || 0) + (changes[""] || 0)} leaving=${Boolean(leaving) && within(open.path, leaving)} onBack=${() => show("")} onDirty=${setDirty} />`
        : html`<section class="view" aria-label="File"><div class="empty grow"><${Sign} of="files" /><div>Select a file, or drop files and folders here to upload them.</div></div></section>`}
    </main>
    ${sure && html`<${Ask} title="Discard changes?" text="You have unsaved changes." action="Discard" danger onYes=${sure.run} onClose=${() => setSure(null)} />`}
    ${clash && html`<${Clash} clash=${clash} onClose=${() => setClash(null)} />`}
    ${ask && html`<${Name} ask=${ask} onClose=${() => setAsk(null)} />`}
    <${Toasts} />`;
}

/** useDrop receives files that are dropped anywhere on the page, before other parts of it such as the editor do. @param {(folder: string) => void} tell the folder during a drag @param {(data: DataTransfer, folder: string) => void} take */
function useDrop(tell, take) {
  const latest = useRef(take);
  latest.current = take;
  useEffect(() => {
    let timer = 0;
    /** @param {DragEvent} event */
    const hear = (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return; // such as text that is moved in the editor
      const at = /** @type {HTMLElement | undefined} */ (event.composedPath().find((e) => e instanceof HTMLElement && e.dataset.folder));
      const folder = at?.dataset.folder || /** @type {HTMLElement | null} */ (document.querySelector("main[data-folder]"))?.dataset.folder || "";
      event.preventDefault();
      event.stopPropagation();
      clearTimeout(timer);
      if (event.type === "drop") { tell(""); if (folder) latest.current(event.dataTransfer, folder); return; }
      tell(folder);
      timer = window.setTimeout(() => tell(""), 400); // browsers repeat dragover while the pointer is over the page
    };
    for (const type of ["dragenter", "dragover", "drop"]) addEventListener(type, /** @type {any} */ (hear), true);
    return () => { clearTimeout(timer); for (const type of ["dragenter", "dragover", "drop"]) removeEventListener(type, /** @type {any} */ (hear), true); };
  }, []);
}

/** Menu is a button with a list of additional actions. @param {{ items: [string, () => void][] }} props */
function Menu({ items }) {
  const [open, set] = useState(false);
  if (!open) return html`<${IconButton} sign="more" label="More" aria-haspopup="dialog" onClick=${() => set(true)} />`;
  return html`<${IconButton} sign="more" label="More" /><${Dialog} title="More" onClose=${() => set(false)}>${items.map(([name, run]) => html`<button onClick=${() => { set(false); run(); }}>${name}</button>`)}<//>`;
}

/** Name asks for a name. @param {any} props */
function Name({ ask, onClose }) {
  const [error, set] = useState("");
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  useEffect(() => { field.current?.focus(); field.current?.setSelectionRange(0, Math.max(0, ask.value.lastIndexOf(".")) || ask.value.length); }, []);
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    const name = field.current?.value.trim() || "";
    if (!name || name === "." || name === ".." || name.includes("\u0000")) return set("Enter a name.");
    ask.run(name).then(onClose, (/** @type {Error} */ e) => set(e.message));
  };
  return html`<${Dialog} title=${ask.title} onClose=${onClose}><form onSubmit=${submit}><label class="field"><span>${ask.label}</span><input ref=${field} defaultValue=${ask.value} spellcheck="false" autocomplete="off" /></label>
    ${error && html`<p class="bad" role="alert">${error}</p>`}<div class="actions"><button type="button" onClick=${onClose}>Cancel</button><button class="primary">${ask.action}</button></div></form><//>`;
}

/** Results lists the files whose name or content matches the query. @param {{ root: string, query: string, onOpen: (path: string, line?: number) => void }} props */
function Results({ root, query, onOpen }) {
  const [found, set] = useState(/** @type {any} */ (null));
  useEffect(() => {
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      const { signal } = stop;
      const literal = query.replace(/[*?[\]{}\\]/g, "\\$&");
      const [names, lines] = await Promise.all([
        call("v1/file/glob", { signal, body: { path: root, pattern: `**/*${literal}*`, max_results: 50, exclude: ["node_modules", ".git", ".venv"] } }).catch(() => null),
        call("v1/file/grep", { signal, body: { path: root, pattern: query, fixed_strings: true, case_insensitive: true, max_results: 200, exclude: ["node_modules", ".git", ".venv"] } }).catch(() => null),
      ]);
      if (!signal.aborted) set({ names: names?.files || [], lines: lines?.matches || [] });
    }, 250);
    return () => { stop.abort(); clearTimeout(timer); };
  }, [root, query]);
  if (!found) return html`<div class="empty" role="status"><span class="spin"></span></div>`;
  if (found.names.length + found.lines.length === 0) return html`<div class="empty" role="status">Nothing fits “${query}”.</div>`;
  const below = (/** @type {string} */ path) => (path.startsWith(`${root}/`) ? path.slice(root.length + 1) : path);
  return html`<div class="results" role="group" aria-label="Results"><p class="unseen" role="status">${found.names.length} names, ${found.lines.length} lines</p>
    ${found.names.map((/** @type {any} */ f) => html`<button key=${f.path} onClick=${() => onOpen(f.path)}>${below(f.path)}</button>`)}
    ${found.lines.map((/** @type {any} */ m) => html`<button class="hit" key=${`${m.file}:${m.line_number}`} title=${m.line} onClick=${() => onOpen(m.file, m.line_number)}>${below(m.file)}:${m.line_number} ${m.line.trim().slice(0, 200)}</button>`)}</div>`;
}

/** useWatcher reports changes below a folder while the page is visible. @param {string} root @param {(event: any) => void} tell */
function useWatcher(root, tell) {
  const watcher = useRef({ id: "", cursor: 0, root: "" });
  const latest = useRef(tell);
  latest.current = tell;
  usePoll(async () => {
    const w = watcher.current;
    if (!root) return;
    if (w.root !== root) {
      const old = w.id;
      const made = await call("v1/file/watch", { body: { path: root, recursive: true, debounce: 100 }, query: quiet });
      watcher.current = { id: made.watcher_id, cursor: 0, root };
      if (old) call(`v1/file/watch/${old}`, { method: "DELETE" }).catch(() => {});
      latest.current({ type: "overflow", path: root }); // there may have been changes before the watch started
      return;
    }
    try {
      const out = await call(`v1/file/watch/${w.id}/poll`, { body: { cursor: w.cursor, limit: 1000 }, query: quiet });
      for (const event of out.events || []) {
        w.cursor = Math.max(w.cursor, event.seq);
        latest.current(event);
      }
    } catch (error) {
      if (/** @type {any} */ (error).status === 404) watcher.current = { id: "", cursor: 0, root: "" };
      throw error;
    }
  }, 700, [root]);
  useEffect(() => {
    const stop = () => { if (watcher.current.id) fetch(at(`v1/file/watch/${watcher.current.id}`), { method: "DELETE", keepalive: true }).catch(() => {}); watcher.current = { id: "", cursor: 0, root: "" }; };
    addEventListener("pagehide", stop);
    return () => removeEventListener("pagehide", stop);
  }, []);
}

render(html`<${App} />`, /** @type {Element} */ (document.getElementById("app")));
