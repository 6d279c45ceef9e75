// The wall: a live thumbnail of each sandbox.
import { ago, bytes, call, html, plain, useEffect, useRef, useState } from "../ui/ui.js";
import { Spark } from "./chart.js";
import { box, dots, link } from "./sandbox.js";
import { coresOf, faultOf } from "./state.js";

/** @typedef {import("./sandbox.js").Sandbox} Sandbox */
/** @typedef {{ sandbox: Sandbox, due: number, wait: number, last: string, busy: boolean, show: (scene: any) => void }} Watch */

// A glance costs its sandbox a few milliseconds. The wall requests at most perSecond glances, independent of the number of visible
// tiles. The first glance of each tile does not count. The interval of a tile grows while its sandbox does not change.
const perSecond = 5;
const fresh = 2000;
const stale = 10_000;
const atOnce = 3;

/** Watcher requests glances of the visible sandboxes, the most overdue one first. */
class Watcher {
  constructor() {
    /** @type {Set<Watch>} */
    this.all = new Set();
    this.timer = 0;
    this.next = 0; // earliest time of the next request
    this.under = 0; // number of requests in flight
  }

  /** add watches a sandbox until the function that it returns is called. @param {Sandbox} sandbox @param {(scene: any) => void} show */
  add(sandbox, show) {
    /** @type {Watch} */
    const one = { sandbox, due: 0, wait: fresh, last: "", busy: false, show };
    this.all.add(one);
    this.plan();
    return () => { this.all.delete(one); };
  }

  /** plan schedules the next request. There are no requests while the page is hidden. */
  plan() {
    clearTimeout(this.timer);
    if (document.hidden || this.under >= atOnce) return;
    const one = [...this.all].filter((w) => !w.busy).sort((a, b) => a.due - b.due)[0];
    if (!one) return;
    const now = performance.now();
    this.timer = window.setTimeout(() => { this.look(one); this.plan(); }, Math.max(0, one.due && Math.max(one.due, this.next) - now));
  }

  /** look requests a glance. @param {Watch} one */
  async look(one) {
    if (!this.all.has(one)) return;
    if (one.due) this.next = performance.now() + 1000 / perSecond;
    one.busy = true;
    this.under++;
    const scene = await call(box(one.sandbox, "glance"), { query: { width: 320 } }).catch(() => null);
    this.under--;
    one.busy = false;
    const key = scene ? `${scene.picture || scene.text || scene.kind} ${scene.step?.time}` : "failed";
    one.wait = key === one.last ? Math.min(stale, one.wait * 1.4) : fresh;
    one.last = key;
    one.due = performance.now() + one.wait;
    if (scene && this.all.has(one)) one.show(scene);
    this.plan();
  }
}

const watcher = new Watcher();
document.addEventListener("visibilitychange", () => watcher.plan());

/** Wall shows sandboxes as tiles, the most active first. @param {any} props */
export function Wall({ list, usage, picked, onPick, admin }) {
  // In steps of 5, 15, 35 minutes and so on, so that tiles of sandboxes in use do not jump.
  const age = (/** @type {Sandbox} */ sb) => (sb.status === "running" ? Math.floor(Math.log2(1 + Math.max(0, Date.now() - new Date(sb.last_active_at).getTime()) / 300_000)) : Infinity);
  const tiles = [...list].sort((a, b) => { const [x, y] = [age(a), age(b)]; return x === y ? a.name.localeCompare(b.name, undefined, { numeric: true }) : x - y; });
  return html`<ul class="wall">${tiles.map((/** @type {Sandbox} */ sb) => html`<${Tile} key=${sb.id} sandbox=${sb} usage=${usage.get(sb.id)} picked=${Boolean(picked[sb.id])} onPick=${onPick} admin=${admin} />`)}</ul>`;
}

/** Scene shows what changed last in a sandbox: its screen, its terminal, or its latest operation. @param {{ scene: any, name: string }} props */
function Scene({ scene, name }) {
  if (!scene) return html`<span class="quiet"><span class="spin"></span></span>`;
  if (scene.kind === "screen") return html`<img alt=${`Screen of ${name}`} src=${`data:image/jpeg;base64,${scene.picture}`} />`;
  if (scene.kind === "terminal") return html`<pre aria-hidden="true">${plain(scene.text)}</pre>`;
  if (scene.kind === "step") return html`<div class="did"><b>${plain(scene.step.op)}</b><code>${plain(scene.step.text)}</code></div>`;
  return html`<span class="quiet">nothing yet</span>`;
}

/** Tile shows a sandbox. It is updated while it is visible and its sandbox is running. @param {{ sandbox: Sandbox, usage?: import("./live.js").Usage, picked: boolean, admin: boolean, onPick: any }} props */
function Tile({ sandbox, usage, picked, admin, onPick }) {
  const place = useRef(/** @type {Element | null} */ (null));
  const [seen, setSeen] = useState(false);
  const [scene, set] = useState(/** @type {any} */ (null));
  useEffect(() => {
    const watch = new IntersectionObserver((entries) => setSeen(entries[entries.length - 1].isIntersecting), { rootMargin: "100px" });
    if (place.current) watch.observe(place.current);
    return () => watch.disconnect();
  }, []);
  const awake = sandbox.status === "running";
  useEffect(() => (seen && awake ? watcher.add(sandbox, set) : undefined), [seen, awake, sandbox.id]);
  const { name } = sandbox;
  const failed = scene?.step?.failed ? `${scene.step.op} failed` : "";
  const fault = faultOf(sandbox, usage)?.text || plain(failed);
  const at = scene?.step?.op ? scene.step.time : sandbox.last_active_at;
  return html`<li class=${`tile ${awake ? "" : "asleep"} ${fault ? "faulty" : ""}`} aria-label=${name} ref=${place}>
    <div class="scene">${awake || scene ? html`<${Scene} scene=${scene} name=${name} />` : html`<span class="quiet">${sandbox.status}</span>`}</div>
    <div class="line"><input type="checkbox" aria-label=${`Select ${name}`} checked=${picked} onChange=${(/** @type {any} */ e) => onPick([sandbox], e.target.checked)} /><span class=${`dot ${dots[sandbox.status] || ""}`}></span>
      <b class="cut grow"><a href=${link(sandbox)}>${name}</a></b>${admin && sandbox.user && html`<span class="dim cut">${sandbox.user}</span>`}${awake && usage && usage.trend.length > 1 && html`<${Spark} values=${usage.trend} limit=${usage.cpu_limit} label=${`CPU of ${name}: ${coresOf(usage.cpu, usage.cpu_limit)}`} />`}</div>
    <div class="line about">${fault ? html`<span class="bad cut grow" title=${fault}>${fault}</span>` : html`<span class="dim cut grow">${awake ? `active ${ago(at)} ago` : sandbox.status}</span>`}${awake && usage && html`<span class="dim">${bytes(Math.max(0, usage.memory))}</span>`}</div></li>`;
}
