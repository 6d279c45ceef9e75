// The command palette (Ctrl+K) and the keys of the dashboard.
import { Dialog, Sign, html, nextTheme, plain, useEffect, useMemo, useRef, useState } from "../ui/ui.js";
import { address, link } from "./sandbox.js";

/** @typedef {import("./sandbox.js").Sandbox} Sandbox */
/** @typedef {{ title: string, more: string, sign: string, run: () => void }} Command */

const maxShown = 12;

/** matches reports whether the letters of a search occur in a text in this order. @param {string} text @param {string} search */
function matches(text, search) {
  let at = 0;
  for (const c of search) {
    at = text.indexOf(c, at) + 1;
    if (at === 0) return false;
  }
  return true;
}

/** commandsOf lists the commands. @param {Sandbox[]} all @param {[string, string][]} places @param {boolean} reader @returns {Command[]} */
function commandsOf(all, places, reader) {
  const go = (/** @type {string} */ to) => () => { location.hash = to; };
  return [
    ...all.map((sb) => ({ title: sb.name, more: `sandbox, ${sb.status}`, sign: "box", run: go(link(sb)) })),
    ...places.map(([id, title]) => ({ title, more: "part of the dashboard", sign: "right", run: go(id) })),
    ...(reader ? [] : [{ title: "New sandbox", more: "key n", sign: "plus", run: create }]),
    { title: "Switch theme", more: "system, light, dark", sign: "theme", run: () => { nextTheme(); } },
    ...all.filter((sb) => sb.status === "running").flatMap((sb) => [
      { title: `Open ${sb.name}`, more: "its page, in a new tab", sign: "open", run: () => { window.open(address(sb), "_blank", "noopener"); } },
      { title: `Processes of ${sb.name}`, more: "end or kill one", sign: "chart", run: go(link(sb, "processes")) },
    ]),
  ];
}

/** create opens the dialog for a new sandbox. */
function create() {
  const press = () => { const button = [...document.querySelectorAll("main .tools button")].find((b) => b.textContent?.trim() === "New sandbox"); /** @type {HTMLElement | undefined} */ (button)?.click(); return Boolean(button); };
  if (press()) return;
  location.hash = "sandboxes";
  const watch = new MutationObserver(() => { if (press()) watch.disconnect(); });
  watch.observe(document.body, { childList: true, subtree: true });
  setTimeout(() => watch.disconnect(), 5000);
}

/** Palette is the dialog that finds a sandbox, a part of the dashboard, or an action. @param {any} props */
function Palette({ all, places, reader, onClose }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const commands = useMemo(() => commandsOf(all, places, reader), [all, places, reader]);
  const shown = commands.filter((c) => matches(`${c.title} ${c.more}`.toLowerCase(), text.toLowerCase().replaceAll(" ", ""))).slice(0, maxShown);
  const chosen = Math.min(at, shown.length - 1);
  useEffect(() => { list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }); }, [chosen, text]);
  const run = (/** @type {Command | undefined} */ c) => { if (c) { onClose(); c.run(); } };
  const key = (/** @type {KeyboardEvent} */ e) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (step) { e.preventDefault(); setAt((chosen + step + shown.length) % Math.max(1, shown.length)); }
    if (e.key === "Enter") { e.preventDefault(); run(shown[chosen]); }
  };
  return html`<${Dialog} title="Go to" onClose=${onClose}><input type="search" role="combobox" aria-expanded="true" aria-controls="commands" aria-activedescendant=${shown.length ? `command-${chosen}` : undefined} aria-label="Sandbox, part of the dashboard, or action" placeholder="Sandbox, part of the dashboard, or action" autofocus value=${text} onInput=${(/** @type {any} */ e) => { setText(e.target.value); setAt(0); }} onKeyDown=${key} />
    <ul class="commands" id="commands" role="listbox" aria-label="Results" ref=${list}>${shown.map((c, i) => html`<li key=${`${c.title} ${c.more}`} id=${`command-${i}`} role="option" aria-selected=${String(i === chosen)} onClick=${() => run(c)}><${Sign} of=${c.sign} /><span class="grow cut">${plain(c.title)}</span><span class="dim">${c.more}</span></li>`)}</ul>
    ${shown.length === 0 && html`<p class="dim">Nothing matches.</p>`}<p class="dim small">Keys: <kbd>/</kbd> filter, <kbd>n</kbd> new sandbox, <kbd>Ctrl+K</kbd> this list</p><//>`;
}

/** Keys handles the keys of the dashboard. @param {{ all: Sandbox[], places: [string, string][], reader: boolean }} props */
export function Keys({ all, places, reader }) {
  const [open, set] = useState(false);
  useEffect(() => {
    const press = (/** @type {KeyboardEvent} */ e) => {
      if ((e.ctrlKey || e.metaKey) && !e.altKey && !e.shiftKey && e.key.toLowerCase() === "k") {
        e.preventDefault();
        if (!document.querySelector("dialog[open]")) set(true);
        return;
      }
      const into = /** @type {HTMLElement | null} */ (e.target);
      if (e.ctrlKey || e.metaKey || e.altKey || into?.closest("input, textarea, select, dialog, [contenteditable]")) return;
      if (e.key === "/") { const filter = document.querySelector("main input[type=search]"); if (filter) { e.preventDefault(); /** @type {HTMLElement} */ (filter).focus(); } }
      if (e.key === "n" && !reader) { e.preventDefault(); create(); }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [reader]);
  return open && html`<${Palette} all=${all} places=${places} reader=${reader} onClose=${() => set(false)} />`;
}
