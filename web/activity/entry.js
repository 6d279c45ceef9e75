// One entry of the activity, by its kind: a command with its output, a cell with its plot, a changed file, a page, a picture.
// Recorded text is not trusted: it is shown as text nodes.
import { html } from "../ui/ui.js";
import { Ansi, visible } from "./ansi.js";
import { changesOf, exitOf, isCell, outputOf, parse, printed } from "./replay.js";

/** @typedef {import("./replay.js").Entry} Entry */

/** Body shows an entry. @param {{ e: Entry, pictureOf: (id: number) => string }} props */
export function Body({ e, pictureOf }) {
  const input = parse(e.input);
  const output = outputOf(e);
  const command = e.kind === "file" ? undefined : input.command;
  return html`<div class="detail"><div class="dim">${[e.op, e.via, e.caller, e.key && `key ${e.key}`].map((part) => visible(part || "")).filter(Boolean).join(", ")}${e.missed > 0 ? ` · ${e.missed} entries before this one were lost` : ""}</div>
    ${typeof command === "string" ? html`<${Console} command=${command} output=${printed(output)} exit=${exitOf(e)} />`
      : isCell(e) ? html`<${Cell} code=${input.code} output=${output} picture=${e.picture} />` : html`<${Facts} input=${input} />`}
    ${e.error && html`<pre class="bad" tabindex="0">${visible(e.error)}</pre>`}
    ${changesOf(e).map((c) => html`<div class="mono">${visible(c.path)}${c.deleted ? " (deleted)" : ""}</div>${c.diff && html`<${Diff} text=${c.diff} />`}`)}
    ${e.picture && html`<img alt=${isCell(e) ? "Plot of the cell" : "Screen afterwards"} loading="lazy" src=${pictureOf(e.id)} />`}
    <details class="raw"><summary>Raw data</summary>${[e.input, e.output].filter(Boolean).map((t) => html`<pre tabindex="0">${visible(pretty(t))}</pre>`)}</details></div>`;
}

/** pretty indents JSON. Truncated JSON stays as it is. @param {string} text */
function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

/** Console shows a command and its output. @param {{ command: string, output: string, exit: number }} props */
export function Console({ command, output, exit }) {
  return html`<pre class="console" tabindex="0" aria-label="Command and output"><b>$ ${visible(command)}</b>${"\n"}<${Ansi} text=${output} /></pre>${exit !== 0 && html`<div class="bad">Exit code ${exit}</div>`}`;
}

/** Cell shows code and its outputs. A picture of the outputs is shown by the entry. @param {{ code: string, output: any, picture: boolean }} props */
function Cell({ code, output, picture }) {
  const outputs = Array.isArray(output.outputs) ? output.outputs : [];
  return html`<pre class="code" tabindex="0" aria-label="Code">${visible(code)}</pre>
    ${outputs.map((/** @type {any} */ out) => {
      if (out?.output_type === "error" || out?.ename) return html`<pre class="bad" tabindex="0"><${Ansi} text=${lines(out.traceback) || `${out.ename}: ${out.evalue}`} /></pre>`;
      if (picture && out?.data?.["image/png"]) return null;
      const text = lines(out?.text) || lines(out?.data?.["text/plain"]);
      return text && html`<pre tabindex="0"><${Ansi} text=${text} /></pre>`;
    })}
    ${outputs.length === 0 && printed(output) && html`<pre tabindex="0"><${Ansi} text=${printed(output)} /></pre>`}`;
}

/** lines returns a text that may be a list of lines. @param {unknown} value */
const lines = (value) => (Array.isArray(value) ? value.map((line) => String(line).replace(/\n$/, "")).join("\n") : typeof value === "string" ? value : "");

/** Facts shows the short values of an input. @param {{ input: any }} props */
function Facts({ input }) {
  const shown = Object.entries(input).filter(([, value]) => ["string", "number", "boolean"].includes(typeof value) && value !== "");
  if (shown.length === 0) return null;
  return html`<dl class="facts">${shown.slice(0, 12).map(([name, value]) => html`<dt>${visible(name)}</dt><dd class="mono">${visible(String(value)).slice(0, 2000)}</dd>`)}</dl>`;
}

/** Diff shows a change line by line. @param {{ text: string }} props */
export function Diff({ text }) {
  /** @type {Record<string, string>} */
  const classes = { "+": "added", "-": "gone", "@": "dim" };
  return html`<pre class="diff" tabindex="0" aria-label="Change">${text.replace(/\n$/, "").split("\n").map((line) => html`<span class=${classes[line[0]] || ""}>${`${visible(line)}\n`}</span>`)}</pre>`;
}
