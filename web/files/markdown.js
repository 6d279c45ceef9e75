// Renders Markdown as elements and text nodes, never as markup from the text. Only links with http, https and mailto work.
import { html } from "../ui/ui.js";

/** @param {string} href */
const isSafe = (href) => /^(https?:|mailto:)/i.test(href);

/** inline renders the text of a line. @param {string} text @returns {any[]} */
export function inline(text) {
  const out = [];
  const form = /(`+)([^`].*?)\1|\*\*([^*]+)\*\*|__([^_]+)__|\*([^*\s][^*]*)\*|~~([^~]+)~~|!\[([^\]]*)\]\(([^)\s]+)[^)]*\)|\[([^\]]+)\]\(([^)\s]+)[^)]*\)|<(https?:[^>\s]+)>/;
  for (let rest = text; rest; ) {
    const m = form.exec(rest);
    if (!m) { out.push(rest); break; }
    if (m.index) out.push(rest.slice(0, m.index));
    if (m[2] !== undefined) out.push(html`<code>${m[2]}</code>`);
    else if (m[3] ?? m[4]) out.push(html`<strong>${inline(m[3] ?? m[4])}</strong>`);
    else if (m[5]) out.push(html`<em>${inline(m[5])}</em>`);
    else if (m[6]) out.push(html`<del>${inline(m[6])}</del>`);
    else if (m[8]) out.push(html`<span class="dim">[${m[7] || "image"}]</span>`);
    else if (m[10] ?? m[11]) {
      const href = m[10] ?? m[11];
      out.push(isSafe(href) ? html`<a href=${href} target="_blank" rel="noopener noreferrer nofollow">${inline(m[9] ?? href)}</a>` : html`<span title=${href}>${inline(m[9])}</span>`);
    }
    rest = rest.slice(m.index + m[0].length);
  }
  return out;
}

const starts = /^(#{1,6} |```|~~~|>|[-*+] |\d+[.)] |\|)/;

/** Markdown shows a text. @param {{ text: string }} props */
export function Markdown({ text }) {
  return html`<div class="prose">${blocks(text.replace(/\r/g, "").split("\n"), 0)}</div>`;
}

/** @param {string[]} lines @param {number} depth @returns {any[]} */
function blocks(lines, depth) {
  const out = [];
  for (let i = 0; i < lines.length; ) {
    const line = lines[i];
    const fence = /^\s*(```+|~~~+)/.exec(line);
    const head = /^(#{1,6}) +(.*?) *#*$/.exec(line);
    if (!line.trim()) { i++; continue; }
    if (fence) {
      const end = lines.findIndex((l, n) => n > i && l.trim().startsWith(fence[1]));
      out.push(html`<pre><code>${lines.slice(i + 1, end < 0 ? undefined : end).join("\n")}</code></pre>`);
      i = end < 0 ? lines.length : end + 1;
    } else if (/^( {4}|\t)/.test(line)) {
      const n = count(lines, i, (l) => /^( {4}|\t)/.test(l) || !l.trim());
      out.push(html`<pre><code>${lines.slice(i, i + n).map((l) => l.replace(/^( {4}|\t)/, "")).join("\n").trimEnd()}</code></pre>`);
      i += n;
    } else if (head) {
      out.push(html`<${`h${head[1].length}`}>${inline(head[2])}<//>`);
      i++;
    } else if (/^ {0,3}([-*_])( *\1){2,} *$/.test(line)) {
      out.push(html`<hr />`);
      i++;
    } else if (/^\s*>/.test(line) && depth < 8) {
      const n = count(lines, i, (l) => /^\s*>/.test(l));
      out.push(html`<blockquote>${blocks(lines.slice(i, i + n).map((l) => l.replace(/^\s*> ?/, "")), depth + 1)}</blockquote>`);
      i += n;
    } else if (/^\s*([-*+]|\d+[.)]) /.test(line) && depth < 8) {
      const n = count(lines, i, (l) => /^\s*([-*+]|\d+[.)]) /.test(l) || /^\s{2,}\S/.test(l));
      out.push(list(lines.slice(i, i + n), depth));
      i += n;
    } else if (line.includes("|") && /^\s*\|?[\s:|-]*-[\s:|-]*\|[\s:|-]*$/.test(lines[i + 1] || "")) {
      const n = count(lines, i, (l) => l.includes("|"));
      const cells = (/** @type {string} */ l) => l.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());
      out.push(html`<table><thead><tr>${cells(line).map((c) => html`<th>${inline(c)}</th>`)}</tr></thead><tbody>${lines.slice(i + 2, i + n).map((l) => html`<tr>${cells(l).map((c) => html`<td>${inline(c)}</td>`)}</tr>`)}</tbody></table>`);
      i += n;
    } else {
      const n = Math.max(1, count(lines, i, (l, at) => Boolean(l.trim()) && (at === i || !starts.test(l.trim()))));
      out.push(html`<p>${inline(lines.slice(i, i + n).join(" "))}</p>`);
      i += n;
    }
  }
  return out;
}

/** @param {string[]} lines @param {number} depth */
function list(lines, depth) {
  const indent = lines[0].search(/\S/);
  /** @type {string[][]} */
  const items = [];
  for (const line of lines) {
    const m = /^(\s*)([-*+]|\d+[.)]) +(.*)$/.exec(line);
    if (m && m[1].length <= indent) items.push([m[3]]);
    else items[items.length - 1]?.push(line.slice(Math.min(line.search(/\S/), indent + 2)));
  }
  const rows = items.map(([first, ...more]) => {
    const task = /^\[([ xX])\] +(.*)$/.exec(first);
    return html`<li>${task ? html`<input type="checkbox" disabled aria-label="Done" checked=${task[1] !== " "} /> ${inline(task[2])}` : inline(first)}${more.length ? blocks(more, depth + 1) : null}</li>`;
  });
  return /^\s*\d/.test(lines[0]) ? html`<ol>${rows}</ol>` : html`<ul>${rows}</ul>`;
}

/** count returns the number of consecutive lines from i that match. @param {string[]} lines @param {number} i @param {(line: string, at: number) => boolean} fits */
function count(lines, i, fits) {
  let n = 0;
  while (i + n < lines.length && fits(lines[i + n], i + n)) n++;
  return n;
}
