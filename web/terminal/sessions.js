// The shell sessions of the sandbox that have no tab, such as those of agents.
import { Dialog, Sign, ago, call, html, plain, usePoll, useState } from "../ui/ui.js";

const interval = 5000;

/** Sessions is a button with a list. shown returns the sessions that have a tab. */
export function Sessions({ shown, onAttach }) {
  const [list, set] = useState({});
  const [open, setOpen] = useState(false);
  const read = () => call("v1/shell/sessions").then((data) => set(data.sessions || {}));
  usePoll(read, interval);
  const mine = shown();
  const others = Object.entries(list).filter(([id]) => !mine.includes(id)).sort(([, a], [, b]) => (a.last_used_at < b.last_used_at ? 1 : -1));
  const attach = (id) => { setOpen(false); onAttach(id); };
  return html`<button type="button" class="plain" title="Shell sessions of agents and of other pages" aria-haspopup="dialog" onClick=${() => { read().catch(() => {}); setOpen(true); }}><${Sign} of="list" />Sessions${others.length > 0 && ` (${others.length})`}</button>
    ${open && html`<${Dialog} title="Other shell sessions" onClose=${() => setOpen(false)}>
      ${others.length === 0 ? html`<p class="dim">No other session is open. Sessions of agents appear here.</p>`
        : html`<ul class="sessions">${others.map(([id, one]) => html`<li key=${id}><button onClick=${() => attach(id)}><span class=${`dot ${one.status === "active" ? "good" : ""}`}></span><span class="mono">${plain(id)}</span><span class="grow cut dim">${plain(one.current_command || one.working_dir)}</span><span class="dim">${one.status === "active" ? "running" : `used ${ago(one.last_used_at)} ago`}</span></button></li>`)}</ul>`}<//>`}`;
}
