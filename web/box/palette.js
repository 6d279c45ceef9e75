// The command palette (Ctrl+K) and the list of keys (?) of a sandbox's pages.
import { Dialog, Sign, at, html, nextTheme, toast, useEffect, useRef, useState } from "../ui/ui.js";

/** @typedef {{ title: string, more: string, sign: string, run: () => void }} Command */
/** @typedef {[string, string][]} Keys keys and what they do */

export const framed = self !== top;
const maxShown = 14;

/** The pages of a sandbox. @type {[string, string, string][]} */
const places = [
  ["Overview", "", "grid"], ["Terminal", "terminal", "terminal"], ["Files", "files", "files"], ["Notebook", "notebook", "jupyter"], ["Desktop", "vnc/index.html?autoconnect=true", "browser"],
  ["Activity", "activity", "activity"], ["VS Code", "code-server/", "code"], ["JupyterLab", "jupyter/", "jupyter"], ["API documentation", "v1/docs", "docs"], ["Guide", "guide", "help"],
];

/** copyMcp copies the address of the MCP server. */
export const copyMcp = () => navigator.clipboard?.writeText(at("mcp").href).then(() => toast("Copied the address of the MCP server"), () => toast(at("mcp").href));

/** commandsOf lists the commands. doing returns the hub's page for an action. @param {string} hub @param {((action: string) => string) | null} doing @param {boolean} share @returns {Command[]} */
export function commandsOf(hub, doing, share) {
  const go = (/** @type {string} */ to) => () => location.assign(to);
  return [
    ...places.map(([title, path, sign]) => ({ title, more: "page of this sandbox", sign, run: go(at("").href + path) })),
    ...(doing ? [...(share ? ["Share"] : []), "Extend", "Pause", "Snapshot", "Fork", "Delete"].map((title) => ({ title, more: "action of the hub", sign: "right", run: go(doing(title.toLowerCase())) })) : []),
    ...(hub ? [{ title: "All sandboxes", more: "the hub", sign: "left", run: go(hub) }] : []),
    { title: "Switch theme", more: "system, light, dark", sign: "theme", run: () => { nextTheme(); } },
    { title: "Copy the address of the MCP server", more: "for agents", sign: "copy", run: copyMcp },
  ];
}

/** Palette finds a page or an action. @param {{ commands: Command[], onClose: () => void }} props */
export function Palette({ commands, onClose }) {
  const [text, setText] = useState("");
  const [chosen, choose] = useState(0);
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = commands.filter((c) => words.every((word) => `${c.title} ${c.more}`.toLowerCase().includes(word))).slice(0, maxShown);
  const current = Math.min(chosen, found.length - 1);
  useEffect(() => { list.current?.children[current]?.scrollIntoView({ block: "nearest" }); }, [current, text]);
  const take = (/** @type {Command | undefined} */ command) => { if (command) { onClose(); command.run(); } };
  const key = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter") take(found[current]);
    else if (event.key === "ArrowDown") choose(Math.min(found.length - 1, current + 1));
    else if (event.key === "ArrowUp") choose(Math.max(0, current - 1));
    else return;
    event.preventDefault();
  };
  return html`<${Dialog} title="Go to" onClose=${onClose}>
    <input type="search" role="combobox" aria-label="Page or action" placeholder="Page or action" aria-expanded="true" aria-controls="box-commands" aria-activedescendant=${found.length ? `box-command-${current}` : undefined} autofocus value=${text} onInput=${(/** @type {any} */ e) => { setText(e.target.value); choose(0); }} onKeyDown=${key} />
    <ul class="box-commands" id="box-commands" role="listbox" aria-label="Results" ref=${list}>${found.map((c, i) => html`<li key=${c.title} id=${`box-command-${i}`} role="option" aria-selected=${String(i === current)} onClick=${() => take(c)}><${Sign} of=${c.sign} /><span class="grow cut">${c.title}</span><span class="dim">${c.more}</span></li>`)}</ul>
    ${found.length === 0 && html`<p class="dim">Nothing matches.</p>`}<//>`;
}

/** @type {Keys} */
const common = [["Ctrl+K", "Go to a page or an action"], ["?", "Show these keys"], ["Esc", "Close a dialog"]];

/** KeyList lists the keys of a page. @param {{ keys: Keys, onClose: () => void }} props */
export function KeyList({ keys, onClose }) {
  return html`<${Dialog} title="Keys" onClose=${onClose}><dl class="box-keys">${[...keys, ...common].map(([key, does]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${does}</dd>`)}</dl><//>`;
}

/** useKeys calls open with "palette" or "keys" when their key is pressed, in this page or in a pane. @param {(what: string) => void} open */
export function useKeys(open) {
  const latest = useRef(open);
  latest.current = open;
  useEffect(() => {
    const show = (/** @type {string} */ what) => {
      if (framed) parent.postMessage({ cove: what }, "*"); // the page around it shows the dialog
      else if (!document.querySelector("dialog[open]")) latest.current(what);
    };
    const press = (/** @type {KeyboardEvent} */ event) => {
      const into = /** @type {HTMLElement} */ (event.composedPath()[0]);
      const command = (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k";
      if (event.defaultPrevented || (command && into.closest?.(".xterm"))) return; // programs in a terminal use Ctrl+K
      if (!command && (event.key !== "?" || event.ctrlKey || event.metaKey || event.altKey || into.closest?.("input, textarea, select, [contenteditable=true]"))) return;
      event.preventDefault();
      show(command ? "palette" : "keys");
    };
    const hear = (/** @type {MessageEvent} */ event) => {
      const ours = [...document.querySelectorAll("iframe")].some((frame) => frame.contentWindow === event.source);
      if (!framed && ours && ["palette", "keys"].includes(event.data?.cove)) show(event.data.cove);
    };
    addEventListener("keydown", press);
    addEventListener("message", hear);
    return () => { removeEventListener("keydown", press); removeEventListener("message", hear); };
  }, []);
}
