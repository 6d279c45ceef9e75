// Notebook files in nbformat 4. Unknown fields are preserved.

/** @typedef {{ key: number, type: string, source: string, outputs: any[], count: number | null, raw: any }} Cell */
/** @typedef {{ raw: any, cells: Cell[] }} Book */

let keys = 0;

/** newCell creates a cell. @param {string} [type] @param {string} [source] @returns {Cell} */
export function newCell(type = "code", source = "") {
  return { key: ++keys, type, source, outputs: [], count: null, raw: { id: crypto.getRandomValues(new Uint32Array(1))[0].toString(16), metadata: {} } };
}

/** newBook creates an empty notebook. @returns {Book} */
export function newBook() {
  return { raw: { metadata: { kernelspec: { display_name: "Python 3", language: "python", name: "python3" } }, nbformat: 4, nbformat_minor: 5 }, cells: [newCell()] };
}

/** @param {unknown} value */
const joined = (value) => (Array.isArray(value) ? value.join("") : String(value ?? ""));

/** parseBook parses a notebook file. It throws if the text is not a notebook. @param {string} text @returns {Book} */
export function parseBook(text) {
  if (text.trim() === "") return newBook();
  let raw;
  try { raw = JSON.parse(text); } catch { throw new Error("This notebook is not valid JSON. Open it in Files to repair it."); }
  if (!Array.isArray(raw?.cells)) throw new Error("This file is not a notebook of format 4: it has no list of cells.");
  const cells = raw.cells.filter((/** @type {any} */ c) => c && typeof c === "object").map((/** @type {any} */ c) => ({
    key: ++keys, type: String(c.cell_type), source: joined(c.source), outputs: Array.isArray(c.outputs) ? c.outputs : [], count: Number.isInteger(c.execution_count) ? c.execution_count : null, raw: c,
  }));
  return { raw, cells: cells.length ? cells : [newCell()] };
}

/** @param {string} text */
const lines = (text) => text.split(/(?<=\n)/);

/** printBook returns the text of a notebook file. @param {Book} book */
export function printBook(book) {
  const cells = book.cells.map((c) => {
    const out = { ...c.raw, cell_type: c.type, metadata: c.raw.metadata ?? {}, source: lines(c.source) };
    if (c.type === "code") Object.assign(out, { execution_count: c.count, outputs: c.outputs });
    else { delete out.outputs; delete out.execution_count; }
    return out;
  });
  return `${JSON.stringify({ ...book.raw, cells }, null, 1)}\n`;
}

/** addOutput returns the outputs with an additional one, merged as notebooks do. @param {any[]} outputs @param {any} next */
export function addOutput(outputs, next) {
  const last = outputs[outputs.length - 1];
  if (next.output_type === "clear_output") return [];
  if (next.output_type === "stream" && last?.output_type === "stream" && last.name === next.name) return [...outputs.slice(0, -1), { ...last, text: joined(last.text) + joined(next.text) }];
  if (next.output_type === "update_display_data") {
    const id = next.transient?.display_id;
    return outputs.map((o) => (id && o.transient?.display_id === id ? { ...o, data: next.data, metadata: next.metadata } : o));
  }
  return [...outputs, next];
}
