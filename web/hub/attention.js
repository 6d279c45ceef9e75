// What needs the attention of a person: sandboxes that failed, run away, or end soon. With permission, as notifications of the browser.
import { IconButton, Sign, html, recall, remember, useEffect, useRef, useState } from "../ui/ui.js";
import { link } from "./sandbox.js";
import { endOf, faultOf } from "./state.js";

/** @typedef {import("./sandbox.js").Sandbox} Sandbox */
/** @typedef {{ key: string, sb: Sandbox, text: string, bad: boolean, tab: string }} Item */

/** itemsOf lists what needs attention, problems first. @param {Sandbox[]} all @param {Map<string, any>} usage @returns {Item[]} */
function itemsOf(all, usage) {
  /** @type {Item[]} */
  const out = [];
  for (const sb of all) {
    const fault = faultOf(sb, usage.get(sb.id));
    const end = endOf(sb);
    if (fault?.bad) out.push({ key: `${sb.id} ${fault.text.replace(/[0-9].*/, "")}`, sb, text: fault.text, bad: true, tab: fault.tab });
    else if (end.soon && sb.status !== "failed") out.push({ key: `${sb.id} ends ${end.unused}`, sb, text: end.more, bad: false, tab: "" });
  }
  return out.sort((a, b) => Number(b.bad) - Number(a.bad));
}

/** useNotices shows a notification for each new item while the page is in the background. @param {Item[]} items @param {boolean} on */
function useNotices(items, on) {
  const notified = useRef(/** @type {Set<string> | null} */ (null));
  useEffect(() => {
    const before = notified.current;
    notified.current = new Set(items.map((i) => i.key));
    if (!before || !on || !document.hidden || !("Notification" in globalThis) || Notification.permission !== "granted") return;
    for (const item of items) {
      if (before.has(item.key)) continue;
      const notice = new Notification(`${item.sb.name} – Cove`, { body: item.text, tag: item.key });
      notice.onclick = () => { focus(); location.hash = link(item.sb, item.tab); notice.close(); };
    }
  }, [items.map((i) => i.key).join("\n"), on]);
}

/** Attention is a button with the number of items, and their list. @param {{ all: Sandbox[] | null, usage: Map<string, any> }} props */
export function Attention({ all, usage }) {
  const [open, set] = useState(false);
  const [on, setOn] = useState(recall("notices", false));
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const items = itemsOf(all || [], usage);
  useNotices(items, on);
  useEffect(() => remember("notices", on), [on]);
  useEffect(() => {
    if (!open) return undefined;
    const shut = (/** @type {any} */ e) => { if (e.type === "keydown" ? e.key === "Escape" : !place.current?.contains(e.target)) set(false); };
    for (const name of ["keydown", "click"]) addEventListener(name, shut);
    return () => { for (const name of ["keydown", "click"]) removeEventListener(name, shut); };
  }, [open]);
  const turn = async () => {
    if (on) { setOn(false); return; }
    setOn((await Notification.requestPermission()) === "granted");
  };
  const label = items.length ? `Needs attention: ${items.length}` : "Nothing needs attention";
  return html`<div class="attention" ref=${place}><${IconButton} sign="bell" label=${label} aria-expanded=${String(open)} onClick=${() => set(!open)} />${items.length > 0 && html`<span class=${`count ${items[0].bad ? "bad" : ""}`} aria-hidden="true">${items.length}</span>`}
    ${open && html`<div class="panel card" role="region" aria-label="Needs attention"><h2>Needs attention</h2>
      ${items.length === 0 ? html`<p class="dim">All sandboxes are fine.</p>` : html`<ul>${items.map((i) => html`<li key=${i.key}><a href=${link(i.sb, i.tab)} onClick=${() => set(false)}><span class=${i.bad ? "bad" : "warn"}><${Sign} of=${i.bad ? "alert" : "clock"} /></span><span><b>${i.sb.name}</b><span class="dim">${i.text}</span></span></a></li>`)}</ul>`}
      ${"Notification" in globalThis && isSecureContext && html`<label class="check"><input type="checkbox" checked=${on} onChange=${turn} />Notify me while this page is in the background</label>`}</div>`}</div>`;
}
