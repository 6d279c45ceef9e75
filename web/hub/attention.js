// What needs the attention of a person: connections and agents that wait for one, and sandboxes that failed, run away, or end soon.
// With permission, as notifications of the browser. Names of hosts and programs come from sandboxes: they are shown as text only.
import { IconButton, Sign, call, fail, html, plain, recall, remember, toast, usePoll, useEffect, useRef, useState } from "../ui/ui.js";
import { address, api, box, everybody, link } from "./sandbox.js";
import { endOf, faultOf } from "./state.js";

/** @typedef {import("./sandbox.js").Sandbox} Sandbox */
/** @typedef {{ kind: string, sandbox: string, name: string, user?: string, since: string, until: string | null, host?: string, port?: number, program?: string, message?: string }} Need */
/** @typedef {{ key: string, sb: Sandbox, text: string, bad: boolean, tab: string, need?: Need }} Item */

const waiting = 3000; // between two requests for what waits
const behind = 15_000; // while the page is in the background

/** target returns the destination of a connection as a rule. @param {{ host?: string, port?: number }} c */
export const target = (c) => (c.host?.includes(":") ? `[${c.host}]:${c.port}` : `${c.host}:${c.port}`);

/** agents have the kinds of requests of agents, which lead to the browser of the sandbox. */
const agents = ["captcha", "takeover"];

/** textOf describes what waits. @param {Need} n */
const textOf = (n) => (n.kind === "takeover" ? `An agent asks you to take over: ${plain(n.message)}` : n.kind === "captcha" ? "An agent waits until a person has solved a captcha." : `${n.program ? `${plain(n.program)} wants` : "A program wants"} to connect to ${plain(target(n))}.`);

/** itemsOf lists what needs attention, what waits first, then problems. @param {Sandbox[]} all @param {Map<string, any>} usage @param {Need[]} needs @returns {Item[]} */
function itemsOf(all, usage, needs) {
  /** @type {Item[]} */
  const out = [];
  for (const sb of all) {
    const fault = faultOf(sb, usage.get(sb.id));
    const end = endOf(sb);
    if (fault?.bad) out.push({ key: `${sb.id} ${fault.text.replace(/[0-9].*/, "")}`, sb, text: fault.text, bad: true, tab: fault.tab });
    else if (end.soon && sb.status !== "failed") out.push({ key: `${sb.id} ends ${end.unused}`, sb, text: end.more, bad: false, tab: "" });
  }
  const asked = needs.map((need) => ({ key: `${need.sandbox} ${need.kind} ${need.host || ""} ${need.port || ""} ${need.since}`, sb: { id: need.sandbox, name: need.name }, text: textOf(need), bad: true, tab: "", need }));
  return [...asked, ...out.sort((a, b) => Number(b.bad) - Number(a.bad))];
}

/** useNeeds returns what waits for a person, and the sandboxes while the page is in the background and on is set. Then there are no events. @param {boolean} admin @param {boolean} reader @param {boolean} on @returns {[Need[], Sandbox[] | null, () => Promise<void>]} */
function useNeeds(admin, reader, on) {
  const [needs, set] = useState(/** @type {Need[]} */ ([]));
  const [all, setAll] = useState(/** @type {Sandbox[] | null} */ (null));
  const read = async () => { if (!reader) set(await call(api("attention"), { query: everybody(admin) })); };
  usePoll(read, waiting, [admin, reader]);
  useEffect(() => {
    if (!on) return undefined;
    const turn = () => {
      if (!document.hidden) { setAll(null); return; }
      read().catch(() => {});
      call(api("sandbox"), { query: everybody(admin) }).then(setAll, () => {});
    };
    const timer = setInterval(turn, behind);
    document.addEventListener("visibilitychange", turn);
    return () => { clearInterval(timer); document.removeEventListener("visibilitychange", turn); };
  }, [admin, reader, on]);
  return [needs, all, read];
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

/** Answers are the buttons of a connection that waits. @param {{ need: Need, onDone: () => void }} props */
function Answers({ need, onDone }) {
  const [busy, set] = useState(false);
  const answer = (/** @type {string} */ verb, /** @type {any} */ body, /** @type {string} */ done) => {
    set(true);
    call(box({ id: need.sandbox }, `egress/${verb}`), { body }).then(() => { toast(done); onDone(); }, (e) => { set(false); fail(e); });
  };
  const host = target(need);
  const shown = plain(host);
  return html`<span class="row answers"><button disabled=${busy} class="primary" onClick=${() => answer("allow", { rules: [host], once: true }, `Allowed ${shown} for five minutes`)}>Allow once</button>
    <button disabled=${busy} onClick=${() => answer("allow", { rules: [host] }, `Allowed ${shown}`)}>Always</button><button disabled=${busy} class="danger" onClick=${() => answer("deny", { hosts: [host] }, `Denied ${shown} for ten minutes`)}>Deny</button></span>`;
}

/** Attention is a button with the number of items, and their list. @param {{ all: Sandbox[] | null, usage: Map<string, any>, admin: boolean, reader: boolean }} props */
export function Attention({ all, usage, admin, reader }) {
  const [open, set] = useState(false);
  const [on, setOn] = useState(recall("notices", false));
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const [needs, background, read] = useNeeds(admin, reader, on);
  const items = itemsOf(background || all || [], usage, needs);
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
      ${items.length === 0 ? html`<p class="dim">All sandboxes are fine.</p>` : html`<ul>${items.map((i) => html`<li key=${i.key}><a href=${agents.includes(i.need?.kind || "") ? `${address(i.sb)}?panes=browser` : link(i.sb, i.tab)} target=${agents.includes(i.need?.kind || "") ? "_blank" : undefined} rel="noopener" onClick=${() => set(false)}><span class=${i.bad ? "bad" : "warn"}><${Sign} of=${i.need ? "hand" : i.bad ? "alert" : "clock"} /></span><span><b>${i.sb.name}</b><span class="dim">${i.text}</span></span></a>
        ${i.need?.kind === "approval" && !reader && html`<${Answers} need=${i.need} onDone=${() => { read().catch(() => {}); }} />`}</li>`)}</ul>`}
      ${"Notification" in globalThis && isSecureContext && html`<label class="check"><input type="checkbox" checked=${on} onChange=${turn} />Notify me while this page is in the background</label>`}</div>`}</div>`;
}
