// The sandbox on one page: its tools side by side in panes, and a status bar.
// Query parameters: panes (a list such as terminal,files), layout (grid, columns, rows, single) and max (a pane).
import { Connection, IconButton, Sign, Toasts, at, bytes, call, html, plain, recall, remember, render, toast, usePoll, useEffect, useMemo, useRef, useState } from "../ui/ui.js";
import { BoxHeader } from "../box/header.js";
import { useLife } from "../box/identity.js";
import { opaque } from "../ui/session.js";
import { arrange, isSound, kinds, place, resize } from "./layout.js";

/** @type {{ id: string, name: string, path: string, component?: string, otherwise?: string }[]} otherwise: the path to show if the component is not installed */
const panes = [
  { id: "code", name: "Code", path: "code-server/", component: "code-server", otherwise: "code-server/" },
  { id: "browser", name: "Browser", path: "vnc/index.html?autoconnect=true&control=auto&bar=true&start=false", component: "browser" },
  { id: "terminal", name: "Terminal", path: "terminal" },
  { id: "jupyter", name: "Jupyter", path: "jupyter/", component: "jupyterlab", otherwise: "notebook" },
  { id: "files", name: "Files", path: "files" },
  { id: "activity", name: "Activity", path: "activity" },
];
/** The sessions of the terminal, in the address of this page: a page without storage would lose them. */
const kept = () => { const tabs = new URLSearchParams(location.hash.slice(1)).get("tabs") || ""; return /^[\w.,-]{1,2000}$/.test(tabs) ? tabs : ""; };
const known = panes.map((pane) => pane.id);
const given = new URLSearchParams(location.search);

/** Panes without a choice of the user. Those of components that run are added to them. */
const usual = ["terminal", "files", "activity"];
const chosen = given.has("panes") || recall("home", null) !== null;

/** begin returns the initial state: from the query parameters, else the stored state. */
function begin() {
  const kept = recall("home", { open: usual, kind: "grid", rows: null, max: "" });
  const wanted = given.get("panes");
  const open = (wanted === null ? kept.open : wanted.split(",")).filter((id) => known.includes(id));
  const kind = given.get("layout") || kept.kind;
  const sound = kinds.includes(kind) ? kind : "grid";
  const same = wanted === null && !given.has("layout") && isSound(kept.rows, open);
  const max = given.get("max") || (wanted === null ? kept.max : "");
  return { open, kind: sound, rows: same && kept.rows ? kept.rows : arrange(sound, open), max: open.includes(max) ? max : "" };
}

function App() {
  const [state, set] = useState(begin);
  const [front, setFront] = useState(state.max || state.open[0] || "");
  const [reloads, setReloads] = useState(/** @type {Record<string, number>} */ ({}));
  const [held, setHeld] = useState(false);
  const narrow = useNarrow();
  const stage = useRef(/** @type {HTMLElement | null} */ (null));
  const components = useComponents();
  /** exists reports whether a pane is available. The server does not list disabled components. @param {{ component?: string }} pane */
  const exists = (pane) => !components || !pane.component || pane.component in components;
  const paths = useRef(/** @type {Record<string, string>} */ ({}));
  /** pathOf returns the path that a pane shows, empty until the server has listed the components. It does not change while the pane is open. @param {any} pane */
  const pathOf = (pane) => {
    if (!pane.otherwise) return pane.path;
    if (components && !paths.current[pane.id]) paths.current[pane.id] = components[pane.component] === "absent" ? pane.otherwise : pane.path;
    return paths.current[pane.id] || "";
  };
  const single = state.kind === "single" || narrow;
  const { boxes, handles } = useMemo(() => place(state.rows), [state.rows]);
  const first = useRef(state);
  useEffect(() => { if (chosen || state !== first.current) remember("home", state); }, [state]);
  const listed = components !== null;
  useEffect(() => { // once: what is in use
    if (chosen || !components || state !== first.current) return;
    const open = panes.filter((pane) => state.open.includes(pane.id) || (pane.component && ["ready", "starting"].includes(components[pane.component]))).map((pane) => pane.id);
    if (open.length === state.open.length) return;
    first.current = { ...state, open, rows: arrange(state.kind, open) };
    set(first.current);
  }, [listed]);

  /** @param {string[]} open @param {string} [kind] */
  const show = (open, kind = state.kind) => set((old) => ({ ...old, kind, open, max: open.includes(old.max) ? old.max : "", rows: arrange(kind, open) }));
  /** @param {string} id */
  const toggle = (id) => {
    if (single && state.open.includes(id) && (front !== id || narrow)) return setFront(id);
    const open = state.open.includes(id) ? state.open.filter((o) => o !== id) : known.filter((o) => o === id || state.open.includes(o));
    show(open);
    setFront(open.includes(id) ? id : open[0] || "");
  };
  /** @param {string} id */
  const enlarge = (id) => set((old) => ({ ...old, max: old.max === id ? "" : id }));
  const shown = state.max || (single ? front || state.open[0] : "");

  useEffect(() => {
    /** @param {KeyboardEvent} event */
    const key = (event) => { if (event.key === "Escape") set((old) => (old.max ? { ...old, max: "" } : old)); };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);

  useEffect(() => {
    if (!opaque) return undefined;
    /** @param {MessageEvent} event */
    const hear = (event) => {
      const frame = /** @type {HTMLIFrameElement | null} */ (document.querySelector("[data-pane=terminal] iframe"));
      if (frame?.contentWindow !== event.source || event.data?.cove !== "tabs" || !/^[\w.,-]{0,2000}$/.test(event.data.tabs)) return;
      const url = new URL(location.href);
      url.hash = event.data.tabs && `tabs=${event.data.tabs}`;
      history.replaceState(null, "", url);
    };
    addEventListener("message", hear);
    return () => removeEventListener("message", hear);
  }, []);

  const { ended } = useLife();
  const nav = html`<nav aria-label="Panes" class=${narrow ? "bottom" : ""}>${panes.filter(exists).map((pane) => html`<button key=${pane.id} type="button" class="plain" title=${pane.name} aria-pressed=${String(single ? shown === pane.id : state.open.includes(pane.id))} onClick=${() => toggle(pane.id)}>
        <${Sign} of=${pane.id} /><span class="name">${pane.name}</span>${pane.component && html`<span class=${`dot ${dotOf(ended ? "" : components?.[pane.component])}`} title=${components?.[pane.component] || "not started"}></span>`}</button>`)}</nav>`;
  return html`
    <${BoxHeader} keys=${keys} />
    ${!narrow && html`<header>${nav}
      <span class="gap"></span>
      <label><span class="unseen">Layout</span><select value=${state.kind} onChange=${(/** @type {any} */ e) => { set((old) => ({ ...old, max: "" })); show(state.open, e.target.value); }}>
        ${kinds.map((kind) => html`<option value=${kind}>${kind[0].toUpperCase() + kind.slice(1)}</option>`)}</select></label>
    </header>`}
    <${Connection} />
    <main id="stage" ref=${stage} class=${held ? "dragging" : ""}>
      ${panes.filter((pane) => state.open.includes(pane.id) && exists(pane)).map((pane) => html`<${Pane} key=${pane.id} pane=${pane} path=${pathOf(pane)} box=${shown === pane.id ? whole : boxes[pane.id]} behind=${shown !== "" && shown !== pane.id}
        big=${state.max === pane.id} reloads=${reloads[pane.id] || 0} onReload=${() => setReloads((old) => ({ ...old, [pane.id]: (old[pane.id] || 0) + 1 }))} onEnlarge=${() => enlarge(pane.id)} onClose=${() => toggle(pane.id)} />`)}
      ${!shown && handles.map((handle) => html`<${Handle} key=${`${handle.axis}${handle.row}.${handle.cell}`} handle=${handle} stage=${stage} onHold=${setHeld}
        onMove=${(/** @type {number} */ part) => set((old) => ({ ...old, rows: resize(old.rows, handle, part) }))} />`)}
      ${state.open.length === 0 && html`<div class="empty">No pane is open. Choose one above.</div>`}
    </main>
    ${!ended && html`<${Bar} />`}
    ${narrow && nav}
    <${Toasts} />`;
}

/** @type {[string, string][]} */
const keys = [["Esc", "Restore the enlarged pane"], ["Double click", "Enlarge a pane by its title"], ["Arrow keys", "Resize panes, on a separator"]];
const whole = { left: 0, top: 0, width: 100, height: 100 };

/** @param {any} props */
function Pane({ pane, path, box, behind, big, reloads, onReload, onEnlarge, onClose }) {
  const style = box && { left: `${box.left}%`, top: `${box.top}%`, width: `${box.width}%`, height: `${box.height}%` };
  const [tabs] = useState(opaque && pane.id === "terminal" ? kept() : "");
  const href = at("").href + (path || pane.path) + (tabs && `#tabs=${tabs}`); // a path with a query
  return html`<section class=${`pane ${behind ? "behind" : ""}`} style=${style} data-pane=${pane.id} aria-label=${pane.name}><div>
    <div class="bar" onDblClick=${onEnlarge}>
      <h2><${Sign} of=${pane.id} />${pane.name}</h2>
      <a class="button plain icon" href=${href} target="_blank" rel="noopener" title="Open in a new window" aria-label=${`Open ${pane.name} in a new window`}><${Sign} of="open" /></a>
      <${IconButton} sign="reload" label=${`Reload ${pane.name}`} onClick=${onReload} />
      <${IconButton} sign=${big ? "min" : "max"} label=${big ? `Restore ${pane.name}` : `Enlarge ${pane.name}`} onClick=${onEnlarge} />
      <${IconButton} sign="close" label=${`Close ${pane.name}`} onClick=${onClose} />
    </div>
    ${path && html`<iframe key=${reloads} src=${href} title=${pane.name} allow="clipboard-read *; clipboard-write *; fullscreen *"></iframe>`}
  </div></section>`;
}

/** Handle is the separator between panes. The pointer and the arrow keys move it. @param {any} props */
function Handle({ handle, stage, onMove, onHold }) {
  const [held, hold] = useState(false);
  const last = useRef(0);
  const across = handle.axis === "x";
  const { box } = handle;
  const size = () => (across ? stage.current.clientWidth : stage.current.clientHeight);
  const style = { left: `${box.left}%`, top: `${box.top}%`, ...(across ? { height: `${box.height}%` } : { width: `${box.width}%` }) };
  /** @param {boolean} on */
  const turn = (on) => { hold(on); onHold(on); };
  return html`<div class=${`split ${handle.axis} ${held ? "held" : ""}`} style=${style} role="separator" tabindex="0" aria-orientation=${across ? "vertical" : "horizontal"} aria-label="Resize panes" aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(handle.at)}
    onPointerDown=${(/** @type {PointerEvent} */ e) => { /** @type {Element} */ (e.currentTarget).setPointerCapture(e.pointerId); last.current = across ? e.clientX : e.clientY; turn(true); }}
    onPointerMove=${(/** @type {PointerEvent} */ e) => { if (!held) return; const now = across ? e.clientX : e.clientY; onMove((now - last.current) / size()); last.current = now; }}
    onPointerUp=${() => turn(false)} onPointerCancel=${() => turn(false)}
    onKeyDown=${(/** @type {KeyboardEvent} */ e) => { const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[e.key]; if (!step) return; e.preventDefault(); onMove(step * 0.03); }}></div>`;
}

/** useComponents returns the states of the components, or null until they are known. */
function useComponents() {
  const [list, set] = useState(/** @type {Record<string, string> | null} */ (null));
  usePoll(async () => {
    const [ready, programs] = await Promise.all([call("readyz"), call("v1/sandbox/components")]);
    set(Object.fromEntries([...(ready.components || []), ...programs].map((/** @type {any} */ c) => [c.name, c.state])));
  }, 3000);
  return list;
}

/** @param {string | undefined} state */
const dotOf = (state) => ({ ready: "good", starting: "warn", failed: "bad" }[state || ""] || "");

function useNarrow() {
  const query = useMemo(() => matchMedia("(max-width: 700px)"), []);
  const [narrow, set] = useState(query.matches);
  useEffect(() => {
    const change = () => set(query.matches);
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, []);
  return narrow;
}

/** Bar shows the status of the sandbox. */
function Bar() {
  const [live, setLive] = useState(/** @type {any} */ (null));
  const [work, setWork] = useState(/** @type {any} */ (null));
  const [ports, setPorts] = useState(/** @type {any[]} */ ([]));
  usePoll(async () => {
    const [l, w, p] = await Promise.all([call("v1/sandbox/observe/live").catch(() => null), call("v1/sandbox/activity", { query: { limit: 0 } }), call("v1/sandbox/ports").catch(() => [])]);
    setLive(l);
    setWork(w);
    setPorts(p);
  }, 2500);
  const group = live?.cgroup;
  const disk = live?.disk?.[0];
  const limit = group?.mem_max_bytes;
  const numbers = [...new Map(ports.filter((p) => !p.internal).map((p) => [p.port, p])).values()];
  const running = Object.entries(work?.by || {}).map(([name, n]) => `${name} ${n}`).join(", ");
  return html`<footer aria-label="State of the sandbox">
    <span class="runs measure" role="status"><span class=${`dot ${work?.busy ? "good" : ""}`}></span>${work?.busy ? `running: ${running}` : "idle"}</span>
    ${group && html`<span class="measure" title="CPU, in percent of one core">CPU <meter aria-label="CPU" min="0" max="100" value=${Math.min(100, group.cpu_usage_pct || 0)}></meter> ${Math.round(group.cpu_usage_pct || 0)} %</span>
    <span class="measure" title="Memory">Memory ${limit && html`<meter aria-label="Memory" min="0" max=${limit} value=${group.mem_current_bytes}></meter>`} ${bytes(group.mem_current_bytes)}${limit ? ` of ${bytes(limit)}` : ""}</span>`}
    ${disk && html`<span class="measure" title=${`Disk of ${disk.path}`}>Disk <meter aria-label="Disk" min="0" max="100" value=${disk.usage_pct}></meter> ${Math.round(disk.usage_pct)} %</span>`}
    <span class="ports" role="group" aria-label="Listening ports">${numbers.slice(0, 12).map((p) => html`<${PortLink} key=${p.port} port=${p} />`)}${numbers.length > 12 && html`<span class="dim">and ${numbers.length - 12} more</span>`}</span>
  </footer>`;
}

/** PortLink leads to the preview of a port, and copies its address. @param {{ port: any }} props */
function PortLink({ port }) {
  const to = at(port.preview).href;
  const name = plain(port.process || "").slice(0, 24);
  const label = `Copy the address of port ${port.port}`;
  const copy = () => navigator.clipboard?.writeText(to).then(() => toast(`Copied the address of port ${port.port}`), () => toast(to, { time: 10_000 }));
  return html`<span class="port"><a class="button" href=${to} target="_blank" rel="noopener" title=${`Preview: ${plain(port.command || port.process || "a service")}`}>:${port.port}${name && html` <span class="dim">${name}</span>`}</a><${IconButton} sign="copy" label=${label} onClick=${copy} /></span>`;
}

render(html`<${App} />`, /** @type {Element} */ (document.getElementById("app")));
