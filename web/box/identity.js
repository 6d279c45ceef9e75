// What the sandbox of this page is: its name, state and end. The hub answers, without waking the sandbox. A page that learns that
// its sandbox sleeps or has ended sends no automatic requests, because these would wake it, or fail again and again.
import { at, setGate, useEffect, useState } from "../ui/ui.js";

/** @typedef {{ name: string, id: string, owner: string, state: string, message: string, expires: string | null, on_end: string, if_unused: boolean, hub: string, share: boolean }} Identity */
/** @typedef {{ me: Identity | null, ended: string }} Life ended: why the sandbox no longer exists; empty while it does */

const interval = 5000;
const fresh = 2000; // how long an answer is valid for automatic requests

/** @type {Life} */
let life = { me: null, ended: "" };
let asked = 0;
/** @type {Promise<void> | null} */
let asking = null;
/** @type {Set<(life: Life) => void>} */
const listeners = new Set();

/** @param {Partial<Life>} change */
function become(change) {
  life = { ...life, ...change };
  for (const tell of listeners) tell(life);
}

/** ask updates what is known. It changes nothing if the server is unreachable, which Connection shows. */
async function ask() {
  try {
    const reply = await fetch(at("v1/sandbox/identity"), { headers: { Accept: "application/json" }, cache: "no-store" });
    const data = await reply.json();
    if (reply.ok && data.data) become({ me: data.data });
    // The hub replies with this code. A server without the operation has another form.
    else if (reply.status === 404 && data.code === "404") become({ ended: String(data.error) });
  } catch { /* unreachable */ }
  asked = performance.now();
}

/** refresh asks, or joins the current request. */
function refresh() {
  if (life.ended) return Promise.resolve();
  asking ??= ask().finally(() => { asking = null; });
  return asking;
}

const sleeps = () => ["paused", "stopped", "failed"].includes(life.me?.state || "");

setGate(async () => {
  if (performance.now() - asked > fresh || asked === 0) await refresh();
  return !life.ended && !sleeps();
});

/** mayConnect reports whether the page may connect again after a lost connection. */
export async function mayConnect() {
  await refresh();
  return !life.ended && !sleeps();
}

/** resume wakes the sandbox, at the request of a person. */
export async function resume() {
  const reply = await fetch(at("readyz"), { cache: "no-store" });
  if (!reply.ok) throw new Error((await reply.json().catch(() => null))?.error || `The server replied with status ${reply.status}.`);
  await refresh();
}

/** useLife returns what the sandbox is, and follows it. @returns {Life} */
export function useLife() {
  const [now, set] = useState(life);
  useEffect(() => {
    listeners.add(set);
    set(life);
    const turn = () => { if (!document.hidden) refresh(); };
    turn();
    const timer = setInterval(turn, interval);
    document.addEventListener("visibilitychange", turn);
    return () => { listeners.delete(set); clearInterval(timer); document.removeEventListener("visibilitychange", turn); };
  }, []);
  return now;
}
