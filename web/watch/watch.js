// The page for people who watch a sandbox and cannot act: its screen, its latest terminal, and the actions of its agent. The server
// only sends events. What the sandbox shows is inserted as text and pictures, never as HTML.
import { IconButton, Logo, Sign, at, html, nextTheme, plain, readEvents, recall, render, span, useEffect, useLayoutEffect, useRef, useState } from "../ui/ui.js";
import { hasExpired } from "../ui/session.js";

/** @typedef {{ id: number, time: string, op: string, kind: string, text: string, failed: boolean, took_ms: number }} Step */

const maxSteps = 200;

/** @type {Record<string, [string, string]>} title, explanation */
const ends = {
  over: ["This link has ended", "It has expired, was revoked, or its sandbox was deleted. Ask its owner for a new one."],
  refused: ["You may not watch this sandbox", "Your key is read-only. Ask the owner of the sandbox for a link to watch."],
};

/** useMirror follows what the sandbox shows. */
function useMirror() {
  const [state, set] = useState({ now: "connecting", name: "", until: 0, picture: "", text: "", steps: /** @type {Step[]} */ ([]) });
  useEffect(() => {
    const stop = new AbortController();
    /** @param {Partial<typeof state>} part */
    const change = (part) => set((old) => ({ ...old, ...part }));
    /** @param {string} name @param {any} data */
    const take = (name, data) => {
      if (name === "hello") change({ now: "live", name: plain(data.name || ""), until: data.until ? new Date(data.until).getTime() : 0, steps: [] });
      if (name === "screen") change({ picture: data.picture || "" });
      if (name === "terminal") change({ text: data.text || "" });
      if (name === "step") set((old) => ({ ...old, steps: [data.step, ...old.steps.filter((s) => s.id !== data.step.id)].slice(0, maxSteps) }));
    };
    const attempt = async () => {
      const reply = await fetch(at("v1/sandbox/mirror"), { headers: { Accept: "text/event-stream" }, signal: stop.signal });
      if (reply.status === 401 || reply.status === 404) return "over";
      if (reply.status === 403) return "refused";
      if (reply.status === 409) return "asleep";
      if (!reply.ok || !reply.body) return "lost";
      await readEvents(reply.body, take);
      return "lost";
    };
    const run = async () => {
      while (!stop.signal.aborted) {
        let now = await attempt().catch(() => "lost");
        if (stop.signal.aborted) return;
        if (now === "lost" && await hasExpired(at("v1/sandbox/mirror"))) now = "over";
        change({ now });
        if (ends[now]) return;
        await new Promise((go) => setTimeout(go, now === "asleep" ? 5000 : 1500));
      }
    };
    run();
    return () => stop.abort();
  }, []);
  return state;
}

function App() {
  const state = useMirror();
  const [theme, setTheme] = useState(recall("theme", "system"));
  const [, tick] = useState(0);
  useEffect(() => { const timer = setInterval(() => tick((n) => n + 1), 1000); return () => clearInterval(timer); }, []);
  const name = state.name || "Sandbox";
  useEffect(() => { document.title = `${name} – Cove`; }, [name]);
  const left = state.until ? (state.until - Date.now()) / 1000 : 0;
  const end = ends[left < 0 && state.until && state.now !== "live" ? "over" : state.now];
  return html`<header><span class="brand"><${Logo} />Cove</span><h1>${name}</h1>
      <span class="tag watching"><${Sign} of="eye" />Watching</span>
      ${state.until > 0 && !end && html`<span class=${left < 300 ? "warn" : "dim"}>ends in ${span(left)}</span>`}<span class="grow"></span>
      ${!end && state.now !== "live" && html`<span class="dim" role="status"><span class="dot warn"></span> ${state.now === "asleep" ? "The sandbox is paused or stopped. Waiting…" : "Connecting…"}</span>`}
      <${IconButton} sign="theme" label=${`Theme: ${theme}`} onClick=${() => setTheme(nextTheme())} /></header>
    ${end ? html`<main class="single"><div class="card over" role="status"><h2>${end[0]}</h2><p>${end[1]}</p></div></main>` : html`<${Scene} ...${state} />`}`;
}

/** Scene shows the screen, the terminal and the steps. @param {{ picture: string, text: string, steps: Step[], name: string }} props */
function Scene({ picture, text, steps, name }) {
  const terminal = useRef(/** @type {HTMLElement | null} */ (null));
  const shown = plain(text);
  useLayoutEffect(() => { const pre = terminal.current; if (pre) pre.scrollTop = pre.scrollHeight; }, [shown]);
  return html`<main class=${picture ? "" : "blind"}>
    <section class="screen" aria-label="Screen"><h2>Screen</h2><div class="picture">${picture && html`<img alt=${`Screen of ${name || "the sandbox"}`} src=${`data:image/jpeg;base64,${picture}`} />`}</div></section>
    <section class="terminal" aria-label="Terminal"><h2>Terminal</h2><pre ref=${terminal} tabindex="0" aria-label="Latest terminal">${shown || "No terminal is in use."}</pre></section>
    <section aria-label="Activity"><h2>Activity</h2>${steps.length === 0 ? html`<div class="empty">What the agent does appears here.</div>` : html`<ol class="steps" tabindex="0" aria-label="Steps, latest first">${steps.map((s) => html`<li key=${s.id}><span class=${`dot ${s.failed ? "bad" : "good"}`}></span>${s.failed && html`<span class="unseen">failed</span>`}<time datetime=${s.time}>${new Date(s.time).toLocaleTimeString()}</time><b>${plain(s.op)}</b><span class="cut grow mono dim" title=${plain(s.text)}>${plain(s.text)}</span></li>`)}</ol>`}</section></main>`;
}

render(html`<${App} />`, /** @type {Element} */ (document.getElementById("app")));
