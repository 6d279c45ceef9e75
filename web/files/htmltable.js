// Tables in HTML output of cells, such as those of pandas and polars, as lists of texts. The HTML is never given to the browser.

/** @typedef {{ text: string, head: boolean, across: number, down: number }} Cell */
/** @typedef {{ rows: Cell[][], caption: string, cut: number }} Table cut: number of rows that are not shown */

const maxHTML = 2 << 20;
const maxRows = 200;
const maxColumns = 60;
const maxSpan = 60;
const maxCell = 500;
const tag = /<!--[\s\S]*?-->|<(\/?)([a-zA-Z][a-zA-Z0-9]*)((?:"[^"]*"|'[^']*'|[^>"'])*)>/g;
/** @type {Record<string, string>} */
const entities = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", times: "×" };

/** decoded replaces entities. @param {string} text */
const decoded = (text) => text.replace(/&(?:#(\d{1,7})|#x([0-9a-fA-F]{1,6})|([a-z]{2,6}));/g, (all, number, hex, name) => {
  const point = number ? Number(number) : hex ? Number.parseInt(hex, 16) : -1;
  return point < 0 ? entities[name] ?? all : point <= 0x10ffff ? String.fromCodePoint(point) : "\ufffd";
});

/** @param {string} attributes @param {string} name */
const spanOf = (attributes, name) => Math.max(1, Math.min(maxSpan, Number(new RegExp(`\\b${name}\\s*=\\s*["']?(\\d+)`, "i").exec(attributes)?.[1]) || 1));

/** tableOf returns the first table of a text, or null if there is none. @param {string} html @returns {Table | null} */
export function tableOf(html) {
  if (html.length > maxHTML) return null;
  /** @type {Table} */
  const out = { rows: [], caption: "", cut: 0 };
  /** @type {Cell | null} */
  let cell = null;
  let state = "before"; // before, inside, after
  let hidden = ""; // the element whose text is not shown
  let at = 0;
  const add = (/** @type {string} */ text) => {
    if (hidden) return;
    if (cell && cell.text.length < maxCell) cell.text += decoded(text).replace(/\s+/g, " ");
    else if (state !== "inside" && out.caption.length < maxCell) out.caption += decoded(text).replace(/\s+/g, " ");
  };
  for (const found of html.matchAll(tag)) {
    add(html.slice(at, found.index));
    at = found.index + found[0].length;
    const [, closing, named, attributes] = found;
    const name = (named || "").toLowerCase();
    if (hidden) { if (closing && name === hidden) hidden = ""; continue; }
    if (!closing && (name === "style" || name === "script" || name === "template")) hidden = name;
    else if (name === "table") state = closing ? "after" : state === "before" ? "inside" : state;
    else if (name === "tr" && !closing && state === "inside") { cell = null; if (out.rows.length < maxRows) out.rows.push([]); else out.cut++; }
    else if ((name === "td" || name === "th") && state === "inside") {
      cell = null;
      const row = out.rows[out.rows.length - 1];
      if (!closing && row && out.cut === 0 && row.length < maxColumns) row.push(cell = { text: "", head: name === "th", across: spanOf(attributes, "colspan"), down: spanOf(attributes, "rowspan") });
    } else if (name === "br") add(" ");
    if (state === "after") cell = null;
  }
  add(html.slice(at));
  out.caption = out.caption.trim();
  return out.rows.some((row) => row.length > 0) ? out : null;
}
