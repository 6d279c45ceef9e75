// The tree of files. It reads a folder when the user opens it, and again when an item in it changes.
import { IconButton, Sign, bytes, call, fail, html, useEffect, useRef, useState } from "../ui/ui.js";

/** @typedef {{ name: string, path: string, is_directory: boolean, is_symlink: boolean, size: number | null }} Item */

/** @param {string} path */
export const parent = (path) => path.replace(/\/[^/]*$/, "") || "/";
/** @param {string} folder @param {string} name */
export const join = (folder, name) => `${folder === "/" ? "" : folder}/${name}`;
const isDeleted = (/** @type {string} */ name) => /^\..*\.deleted-[0-9a-z]{8}$/.test(name);
const mostShown = 2000;

/** useTree keeps the state of the tree. @param {string} root @param {boolean} hidden */
export function useTree(root, hidden) {
  const [folders, setFolders] = useState(/** @type {Record<string, Item[]>} */ ({}));
  const [opened, setOpened] = useState(/** @type {Record<string, boolean>} */ ({}));
  const [selected, select] = useState("");
  const waiting = useRef(/** @type {Record<string, number>} */ ({}));
  const reads = useRef(/** @type {Record<string, { started: boolean, done: Promise<void> }>} */ ({}));
  const known = useRef(folders);
  known.current = folders;
  const shown = useRef({ root, hidden });
  shown.current = { root, hidden };

  /** @param {string} folder */
  const read = async (folder) => {
    try {
      const out = await call("v1/file/list", { body: { path: folder, show_hidden: shown.current.hidden } });
      /** @type {Item[]} */
      const list = out.files.filter((/** @type {Item} */ f) => !isDeleted(f.name));
      list.sort((a, b) => Number(b.is_directory) - Number(a.is_directory) || a.name.localeCompare(b.name, undefined, { numeric: true }));
      setFolders((old) => ({ ...old, [folder]: list }));
    } catch (error) {
      if (folder === shown.current.root) fail(error);
      setFolders(({ [folder]: _, ...rest }) => rest);
    }
  };
  /** refresh reads a folder. Reads of the same folder never overlap, so a response never replaces a newer one. @param {string} folder */
  const refresh = (folder) => {
    const last = reads.current[folder];
    if (last && !last.started) return last.done;
    const next = { started: false, done: Promise.resolve() };
    reads.current[folder] = next;
    next.done = (async () => {
      await last?.done;
      next.started = true;
      await read(folder);
      if (reads.current[folder] === next) delete reads.current[folder];
    })();
    return next.done;
  };
  useEffect(() => {
    if (!root) return;
    for (const folder of [root, ...Object.keys(known.current).filter((f) => f !== root && f.startsWith(root) && opened[f])]) refresh(folder);
  }, [root, hidden]);

  /** touch schedules a read of the affected folders. Changes in quick succession cause one read. @param {{ type: string, path: string, old_path?: string | null }} event */
  const touch = (event) => {
    const stale = event.type === "overflow" ? [root, ...Object.keys(known.current)] : [parent(event.path), event.old_path ? parent(event.old_path) : ""];
    for (const folder of stale) {
      if ((!known.current[folder] && folder !== root) || waiting.current[folder]) continue;
      waiting.current[folder] = window.setTimeout(() => { delete waiting.current[folder]; refresh(folder); }, 150);
    }
  };
  /** @param {string} path @param {boolean} open */
  const turn = (path, open) => {
    setOpened((old) => ({ ...old, [path]: open }));
    if (open) refresh(path);
  };
  /** @type {{ item: Item, depth: number }[]} */
  const rows = [];
  /** @param {string} folder @param {number} depth */
  const walk = (folder, depth) => {
    for (const item of folders[folder] || []) {
      if (rows.length >= mostShown) return;
      rows.push({ item, depth });
      if (item.is_directory && opened[item.path] && depth < 40) walk(item.path, depth + 1);
    }
  };
  if (root) walk(root, 0);
  const isFolder = (/** @type {string} */ path) => rows.some((row) => row.item.path === path && row.item.is_directory);
  return { rows, opened, turn, refresh, touch, selected, select, isFolder, loaded: Boolean(folders[root]), cut: rows.length >= mostShown };
}

/** Tree shows the files; arrow keys move, Enter opens, F2 renames, Delete deletes. @param {any} props */
export function Tree({ tree, root, shown, over, onOpen, onRename, onDelete }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  /** @type {{ item: Item, depth: number }[]} */
  const rows = tree.rows;
  const index = rows.findIndex((row) => row.item.path === tree.selected);
  /** @param {number} i */
  const go = (i) => {
    const row = rows[Math.max(0, Math.min(rows.length - 1, i))];
    if (!row) return;
    tree.select(row.item.path);
    box.current?.querySelector(`[data-index="${rows.indexOf(row)}"]`)?.scrollIntoView({ block: "nearest" });
  };
  /** @param {Item} item */
  const open = (item) => { tree.select(item.path); if (item.is_directory) tree.turn(item.path, !tree.opened[item.path]); else onOpen(item.path); };
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    const item = rows[index]?.item;
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowDown: () => go(index + 1), ArrowUp: () => go(index < 0 ? 0 : index - 1), Home: () => go(0), End: () => go(rows.length - 1),
      ArrowRight: () => { if (item?.is_directory && !tree.opened[item.path]) tree.turn(item.path, true); else go(index + 1); },
      ArrowLeft: () => { if (item?.is_directory && tree.opened[item.path]) tree.turn(item.path, false); else if (item && parent(item.path) !== root) go(rows.findIndex((row) => row.item.path === parent(item.path))); },
      Enter: () => item && open(item), " ": () => item && open(item), F2: () => item && onRename(item.path), Delete: () => item && onDelete(item.path),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  };
  if (!tree.loaded) return html`<div class="empty"><span class="spin"></span></div>`;
  if (rows.length === 0) return html`<div class="empty">This folder is empty.</div>`;
  return html`<div role="tree" aria-label="Files" tabindex="0" ref=${box} onKeyDown=${key} aria-activedescendant=${index >= 0 ? `item-${index}` : undefined}>
    ${rows.map(({ item, depth }, i) => html`<div key=${item.path} id=${`item-${i}`} data-index=${i} role="treeitem" aria-level=${depth + 1} aria-selected=${String(item.path === shown)} aria-expanded=${item.is_directory ? String(Boolean(tree.opened[item.path])) : undefined}
      aria-label=${item.name} class=${`${i === index ? "at" : ""} ${item.is_directory && over === item.path ? "drop" : ""}`} data-folder=${item.is_directory ? item.path : undefined} style=${{ paddingLeft: `${0.5 + depth * 0.9}rem` }} title=${item.path} onClick=${() => open(item)}>
      <span class=${`turn ${tree.opened[item.path] ? "open" : ""}`}>${item.is_directory && html`<${Sign} of="right" />`}</span><${Sign} of=${item.is_directory ? "folder" : "file"} /><span class="cut">${item.name}</span>
      ${i === index ? html`<small class="row" onClick=${(/** @type {Event} */ e) => e.stopPropagation()}><${IconButton} sign="pen" tabindex="-1" label=${`Rename ${item.name}`} onClick=${() => onRename(item.path)} /><${IconButton} sign="trash" tabindex="-1" label=${`Delete ${item.name}`} onClick=${() => onDelete(item.path)} /></small>` : !item.is_directory && html`<small data-size=${bytes(item.size)}></small>`}
    </div>`)}
    ${tree.cut && html`<p class="dim">The first ${mostShown} entries are shown. Search to find others.</p>`}
  </div>`;
}
