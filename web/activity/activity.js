// The activity of the sandbox, updated live.
import { Connection, Sign, Toasts, at, call, fail, follow, html, render, useEffect, useState } from "../ui/ui.js";
import { BoxHeader } from "../box/header.js";
import { Timeline } from "./view.js";

/** @typedef {import("./replay.js").Entry} Entry */

const maxEntries = 2000;

/** given returns the moment in the address. */
const given = () => Number(new URLSearchParams(location.hash.slice(1)).get("at")) || 0;
/** linkOf returns the link to a moment. @param {number} id */
const linkOf = (id) => { const url = new URL(location.href); url.hash = `at=${id}`; return url.href; };

/** @type {[string, string][]} */
const keys = [["Space", "Play or pause the replay"], ["← →", "Previous or next step"], ["Home, End", "First or last step, on the time axis"]];

function App() {
  const [all, set] = useState(/** @type {Entry[]} */ ([]));
  const [ready, setReady] = useState(false);
  const [start, setStart] = useState(given);
  useEffect(() => {
    const turn = () => setStart(given());
    addEventListener("hashchange", turn);
    return () => removeEventListener("hashchange", turn);
  }, []);
  useEffect(() => {
    call("v1/sandbox/activity", { query: { limit: 1 } }).then(() => setReady(true), fail);
    /** @type {undefined | (() => void)} */
    let stop;
    let last = 0;
    /** @type {Entry[]} */
    let fresh = [];
    let timer = 0;
    // Entries arrive in bursts; each burst is rendered once.
    const draw = () => { const more = fresh; fresh = []; timer = 0; set((old) => [...old, ...more].slice(-maxEntries)); };
    const turn = () => {
      stop?.();
      stop = document.hidden ? undefined : follow("v1/sandbox/activity", { stream: true, limit: 1000, after: last }, (name, e) => {
        if (name !== "entry" || e.id <= last) return;
        last = e.id;
        fresh.push(e);
        timer ||= window.setTimeout(draw, 50);
      });
    };
    turn();
    document.addEventListener("visibilitychange", turn);
    return () => { stop?.(); clearTimeout(timer); document.removeEventListener("visibilitychange", turn); };
  }, []);
  return html`<${BoxHeader} title="Activity" keys=${keys} /><${Connection} />
    <main><${Timeline} all=${all} ready=${ready} start=${start} linkOf=${linkOf} pictureOf=${(/** @type {number} */ id) => at(`v1/sandbox/activity/${id}/picture`).href}>
      <a class="button" href=${at("v1/sandbox/activity/export").href} download="activity.html"><${Sign} of="down" />Export</a><//></main>
    <${Toasts} />`;
}

render(html`<${App} />`, /** @type {Element} */ (document.getElementById("app")));
