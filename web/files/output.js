// Outputs of cells, shown as text nodes, tables of texts and pictures, never as markup.
import { html } from "../ui/ui.js";
import { Ansi, visible } from "../activity/ansi.js";
import { tableOf } from "./htmltable.js";

/** joined returns a text as a string. The text may be a list of lines. @param {unknown} value */
export const joined = (value) => (Array.isArray(value) ? value.join("") : String(value ?? ""));

/** traceOf returns a traceback, whose lines have no newlines. @param {unknown} value */
const traceOf = (value) => (Array.isArray(value) ? value.map((line) => String(line).replace(/\n$/, "")).join("\n") : String(value ?? ""));

/** Output shows one output in notebook format. @param {{ out: any }} props */
export function Output({ out }) {
  if (out?.output_type === "stream") return html`<pre class="out"><${Ansi} text=${joined(out.text)} /></pre>`;
  if (out?.output_type === "error") return html`<pre class="out trace"><${Ansi} text=${traceOf(out.traceback) || `${out.ename}: ${out.evalue}`} /></pre>`;
  for (const type of ["image/png", "image/jpeg"]) {
    if (out?.data?.[type]) return html`<img src=${`data:${type};base64,${joined(out.data[type]).replace(/[^A-Za-z0-9+/=]/g, "")}`} alt="Output of the cell" />`;
  }
  const table = out?.data?.["text/html"] ? tableOf(joined(out.data["text/html"])) : null;
  if (table) return html`<${Table} table=${table} />`;
  if (out?.data?.["text/plain"]) return html`<pre class="out"><${Ansi} text=${joined(out.data["text/plain"])} /></pre>`;
  return out?.data ? html`<p class="dim">Output of type ${Object.keys(out.data).map(visible).join(", ")}</p>` : null;
}

/** Table shows a table such as a DataFrame. @param {{ table: import("./htmltable.js").Table }} props */
function Table({ table }) {
  const headed = table.rows.filter((row) => row.length > 0 && row.every((c) => c.head)).length;
  const row = (/** @type {import("./htmltable.js").Cell[]} */ cells) => html`<tr>${cells.map((c) => html`<${c.head ? "th" : "td"} colspan=${c.across > 1 ? c.across : undefined} rowspan=${c.down > 1 ? c.down : undefined}>${visible(c.text)}<//>`)}</tr>`;
  return html`<div class="frame" tabindex="0" role="group" aria-label="Table"><table><thead>${table.rows.slice(0, headed).map(row)}</thead><tbody>${table.rows.slice(headed).map(row)}</tbody></table>
    ${table.cut > 0 && html`<p class="dim">${table.cut} more rows are not shown.</p>`}${table.caption && html`<p class="dim">${visible(table.caption)}</p>`}</div>`;
}
