// Conflicts: uploads whose names exist already, and a file that changed on disk while it was edited.
import { Dialog, call, html } from "../ui/ui.js";

/** @typedef {import("./upload.js").Entry} Entry */

const maxListed = 8;
const maxCells = 4_000_000; // of the table that compares two texts
const around = 3; // unchanged lines around a change

/** folderOf returns the folder of a relative path, "" for the top. @param {string} path */
const folderOf = (path) => path.slice(0, Math.max(0, path.lastIndexOf("/")));

/** existing returns the names in the folders of an upload, by relative folder. @param {string} to @param {Entry[]} entries @returns {Promise<Map<string, Set<string>>>} */
async function existing(to, entries) {
  /** @type {Map<string, Set<string>>} */
  const names = new Map();
  const folders = [...new Set(entries.filter((e) => e.file).map((e) => folderOf(e.path)))].sort();
  for (const folder of folders) {
    // A folder below a missing one is missing, too.
    const above = folder.split("/").map((_, i, parts) => parts.slice(0, i).join("/"));
    if (above.some((f, i) => names.has(f) && !names.get(f)?.has(folder.split("/")[i]))) { names.set(folder, new Set()); continue; }
    const list = await call("v1/file/list", { body: { path: folder ? `${to}/${folder}` : to, include_size: false } }).then((out) => out.files, () => []);
    names.set(folder, new Set(list.map((/** @type {any} */ f) => f.name)));
  }
  return names;
}

/** clashes lists the files of an upload that exist already. @param {string} to @param {Entry[]} entries */
export async function clashes(to, entries) {
  const names = await existing(to, entries);
  const found = entries.filter((e) => e.file && names.get(folderOf(e.path))?.has(e.path.slice(folderOf(e.path).length).replace(/^\//, "")));
  return { found, names };
}

/** renamed returns the entries with other names for those that exist already. @param {Entry[]} entries @param {{ found: Entry[], names: Map<string, Set<string>> }} clash @returns {Entry[]} */
export function renamed(entries, { found, names }) {
  const taken = new Set(entries.map((e) => e.path));
  return entries.map((e) => {
    if (!found.includes(e)) return e;
    const folder = folderOf(e.path);
    const name = e.path.slice(folder ? folder.length + 1 : 0);
    const dot = name.lastIndexOf(".") > 0 ? name.lastIndexOf(".") : name.length;
    for (let n = 2; ; n++) {
      const next = `${name.slice(0, dot)} (${n})${name.slice(dot)}`;
      const path = folder ? `${folder}/${next}` : next;
      if (names.get(folder)?.has(next) || taken.has(path)) continue;
      taken.add(path);
      return { ...e, path };
    }
  });
}

/** Clash asks what to do with files that exist already. @param {{ clash: { to: string, found: Entry[], onReplace: () => void, onBoth: () => void }, onClose: () => void }} props */
export function Clash({ clash, onClose }) {
  const { found, to } = clash;
  const one = found.length === 1;
  return html`<${Dialog} title=${one ? "Replace the file?" : `Replace ${found.length} files?`} onClose=${onClose}>
    <p>${one ? "This file exists" : "These files exist"} already in ${to}:</p>
    <ul class="mono clash">${found.slice(0, maxListed).map((e) => html`<li key=${e.path}>${e.path}</li>`)}${found.length > maxListed && html`<li class="dim">and ${found.length - maxListed} more</li>`}</ul>
    <div class="actions"><button onClick=${onClose}>Cancel</button><button class="danger" onClick=${() => { onClose(); clash.onReplace(); }}>Replace</button><button class="primary" autofocus onClick=${() => { onClose(); clash.onBoth(); }}>Keep both</button></div><//>`;
}

/** difference returns the changes from one text to another, as a unified diff. Texts that are too large to compare line by line become one change. @param {string} from @param {string} to */
export function difference(from, to) {
  const a = from.split("\n");
  const b = to.split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const lines = [...a.slice(0, head).map((l) => ` ${l}`), ...compare(a.slice(head, a.length - tail), b.slice(head, b.length - tail)), ...a.slice(a.length - tail).map((l) => ` ${l}`)];
  const near = lines.map(() => false);
  lines.forEach((line, i) => { if (line[0] !== " ") near.fill(true, Math.max(0, i - around), i + around + 1); });
  let number = 0;
  return lines.flatMap((line, i) => {
    if (line[0] !== "-") number++;
    return near[i] ? [...(i > 0 && !near[i - 1] ? [`@@ line ${number} @@`] : []), line] : [];
  }).join("\n");
}

/** compare returns the lines of two lists, marked with -, + or a space. @param {string[]} a @param {string[]} b */
function compare(a, b) {
  const all = [...a.map((l) => `-${l}`), ...b.map((l) => `+${l}`)];
  if (a.length === 0 || b.length === 0 || a.length * b.length > maxCells) return all;
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width); // length of the longest common part after each pair of lines
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) common[i * width + j] = a[i] === b[j] ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
  }
  const out = [];
  let i = 0;
  let j = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) { out.push(` ${a[i]}`); i++; j++; } else if (common[(i + 1) * width + j] >= common[i * width + j + 1]) out.push(`-${a[i++]}`);
    else out.push(`+${b[j++]}`);
  }
  return [...out, ...a.slice(i).map((l) => `-${l}`), ...b.slice(j).map((l) => `+${l}`)];
}
