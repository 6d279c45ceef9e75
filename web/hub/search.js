// Activity: search of what happened in all sandboxes, also in deleted ones. What sandboxes recorded is shown as text only.
import { Sign, call, html, plain, usePoll, useEffect, useRef, useState } from "../ui/ui.js";
import { exitOf, hasFailed, summaryOf } from "../activity/replay.js";
import { visible } from "../activity/ansi.js";
import { sound } from "./record.js";
import { api, dots, everybody, link } from "./sandbox.js";
import { clock } from "./state.js";

/** @typedef {import("../activity/replay.js").Entry} Entry */
/** @typedef {{ sandbox: string, name: string, user?: string, status: string, entry: Entry }} Found */

const step = 100;
const most = 500;

/** placeOf returns the address of an entry: in its sandbox, or in the record that is left. @param {Found} f */
const placeOf = (f) => (f.status === "deleted" ? `#records/${encodeURIComponent(f.sandbox)}/${f.entry.id}` : `${link({ id: f.sandbox }, "activity")}/${f.entry.id}`);

/** @param {{ admin: boolean, part: string }} props */
export function Search({ admin, part }) {
  const [text, setText] = useState(part);
  const [failed, setFailed] = useState(false);
  const [reads, setReads] = useState(false);
  const [limit, setLimit] = useState(step);
  const [found, set] = useState(/** @type {{ entries: Found[], unanswered: number, complete: boolean } | null} */ (null));
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const asked = useRef(0);
  const ask = async () => {
    const n = ++asked.current;
    setBusy(true);
    try {
      const out = await call(api("activity"), { query: { q: text.trim(), failed, reads, limit, ...everybody(admin) } });
      if (n !== asked.current) return;
      set({ ...out, entries: out.entries.map((/** @type {any} */ f) => ({ ...f, entry: sound(f.entry) })) });
      setError("");
    } catch (e) {
      if (n === asked.current) setError(/** @type {Error} */ (e).message);
    }
    if (n === asked.current) setBusy(false);
  };
  useEffect(() => {
    history.replaceState(null, "", text.trim() ? `#activity/${encodeURIComponent(text.trim())}` : "#activity");
    const timer = setTimeout(ask, 250); // while the person types
    return () => clearTimeout(timer);
  }, [text, failed, reads, limit]);
  usePoll(async () => { if (!text.trim() && asked.current > 0 && !document.querySelector(".found :focus")) await ask(); }, 10_000, [text, failed, reads, limit]);
  const list = found?.entries || [];
  return html`<div class="tools"><h2>Activity</h2><span role="status" class="dim">${busy ? html`<span class="spin"></span>` : found && `${list.length}${found.complete ? "" : "+"} ${list.length === 1 ? "entry" : "entries"}`}</span></div>
    <div class="tools" role="search"><input type="search" class="grow" aria-label="Search the activity of all sandboxes" placeholder="Search commands, output, files and errors in all sandboxes" value=${text} autofocus onInput=${(/** @type {any} */ e) => { setText(e.target.value); setLimit(step); }} />
      <label class="check"><input type="checkbox" checked=${failed} onChange=${(/** @type {any} */ e) => setFailed(e.target.checked)} />failed</label>
      <label class="check"><input type="checkbox" checked=${reads} onChange=${(/** @type {any} */ e) => setReads(e.target.checked)} />reads</label></div>
    ${error && html`<div class="notice bad" role="alert">${error}</div>`}
    ${!found ? !error && html`<div class="empty"><span class="spin"></span></div>` : list.length === 0 ? html`<div class="card empty">${text.trim() || failed ? "No entry matches, neither in running sandboxes nor in the records of others." : "Nothing has happened yet. What agents and people do in sandboxes appears here."}</div>`
      : html`<ol class="card found" aria-label="Entries, latest first">${list.map((f) => html`<${Row} key=${`${f.sandbox} ${f.entry.id} ${f.entry.time}`} f=${f} admin=${admin} />`)}</ol>`}
    ${found && !found.complete && list.length >= limit && limit < most && html`<div class="row"><button onClick=${() => setLimit(most)}>Show more</button></div>`}
    ${found && found.unanswered > 0 && html`<p class="dim">${found.unanswered} running ${found.unanswered === 1 ? "sandbox" : "sandboxes"} did not respond in time.</p>`}`;
}

/** Row is one entry, which leads to it. @param {{ f: Found, admin: boolean }} props */
function Row({ f, admin }) {
  const { entry } = f;
  const bad = hasFailed(entry);
  const exit = exitOf(entry);
  const summary = visible(summaryOf(entry));
  return html`<li><a href=${placeOf(f)}><span class=${`dot ${bad ? "bad" : "good"}`}></span>${bad && html`<span class="unseen">failed</span>`}<span class="dim when">${clock(entry.time)}</span>
    <span class="tag from"><span class=${`dot ${dots[f.status] || ""}`}></span>${plain(f.name)}${admin && f.user ? html`<span class="dim">${plain(f.user)}</span>` : ""}${f.status === "running" ? "" : html`<span class="dim">${f.status}</span>`}</span>
    <span class="cut grow mono">${summary || plain(entry.op)}</span>${exit !== 0 ? html`<span class="tag bad">exit ${exit}</span>` : entry.error && html`<span class="bad cut fault">${plain(entry.error)}</span>`}<span class="dim op">${summary ? plain(entry.op) : ""}</span><${Sign} of="right" /></a></li>`;
}
