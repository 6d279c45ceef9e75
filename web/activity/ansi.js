// Output of terminals as text nodes with the colours of ANSI sequences. Other control sequences are dropped; other control
// characters are shown as symbols, so that hidden text cannot mislead.
import { html } from "../ui/ui.js";

const names = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
/* eslint-disable no-control-regex */
const sequence = /\x1b\[([0-9;:]*)m|\x1b\[[0-9;?<=>]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[()][A-Z0-9]|\x1b[=>78cDEHM]/g;
const control = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** visible replaces control characters and those that hide or reorder text. @param {string} text */
export const visible = (text) => text.replace(control, (c) => (c < "\x20" ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : "\ufffd"));

/** overwritten applies carriage returns: a line shows what was written last. @param {string} text */
const overwritten = (text) => text.replace(/\r+\n/g, "\n").replace(/^.*\r(?=[^\n])/gm, "");

/** spans splits text into parts with the same style. @param {string} text @returns {{ text: string, style: string }[]} */
export function spans(text) {
  /** @type {{ text: string, style: string }[]} */
  const out = [];
  let style = { colour: "", bold: false, dim: false };
  let at = 0;
  const source = overwritten(text);
  const add = (/** @type {string} */ part) => {
    if (part) out.push({ text: visible(part), style: [style.colour && `ansi-${style.colour}`, style.bold && "ansi-bold", style.dim && "dim"].filter(Boolean).join(" ") });
  };
  for (const found of source.matchAll(sequence)) {
    add(source.slice(at, found.index));
    at = found.index + found[0].length;
    if (found[1] !== undefined) style = styled(style, found[1]);
  }
  add(source.slice(at));
  return out;
}

/** styled applies the parameters of a colour sequence. @param {{ colour: string, bold: boolean, dim: boolean }} style @param {string} list */
function styled(style, list) {
  let now = { ...style };
  const codes = list.split(/[;:]/).map(Number);
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i];
    if (code === 0) now = { colour: "", bold: false, dim: false };
    else if (code === 1) now.bold = true;
    else if (code === 2) now.dim = true;
    else if (code === 22) Object.assign(now, { bold: false, dim: false });
    else if (code === 38 || code === 48) i += codes[i + 1] === 5 ? 2 : 4; // other colours
    else if (code === 39) now.colour = "";
    else if ((code >= 30 && code < 38) || (code >= 90 && code < 98)) now.colour = names[code % 10];
  }
  return now;
}

/** Ansi shows the output of a program. @param {{ text: string }} props */
export function Ansi({ text }) {
  return html`${spans(text).map((part) => (part.style ? html`<span class=${part.style}>${part.text}</span>` : part.text))}`;
}
