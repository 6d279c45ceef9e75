// Outputs of cells, shown as text nodes and pictures, never as markup.
import { html } from "../ui/ui.js";

/** joined returns a text as a string. The text may be a list of lines. @param {unknown} value */
export const joined = (value) => (Array.isArray(value) ? value.join("") : String(value ?? ""));

/** Output shows one output in notebook format. @param {{ out: any }} props */
export function Output({ out }) {
  if (out?.output_type === "stream") return html`<pre class="out">${plain(joined(out.text))}</pre>`;
  if (out?.output_type === "error") return html`<pre class="out bad">${plain(joined(out.traceback) || `${out.ename}: ${out.evalue}`)}</pre>`;
  for (const type of ["image/png", "image/jpeg"]) {
    if (out?.data?.[type]) return html`<img src=${`data:${type};base64,${joined(out.data[type]).replace(/[^A-Za-z0-9+/=]/g, "")}`} alt="Output of the cell" />`;
  }
  if (out?.data?.["text/plain"]) return html`<pre class="out">${plain(joined(out.data["text/plain"]))}</pre>`;
  return out?.data ? html`<p class="dim">Output of type ${Object.keys(out.data).join(", ")}</p>` : null;
}

/** plain removes ANSI colour codes. @param {string} text */
// eslint-disable-next-line no-control-regex
const plain = (text) => text.replace(/\u001b\[[0-9;]*[A-Za-z]/g, "");
