// What the dashboard says about a sandbox: when it ends, how much of its limits it uses, and what is wrong with it.
import { ago, bytes, html, plain, span } from "../ui/ui.js";

/** @typedef {import("./sandbox.js").Sandbox} Sandbox */
/** @typedef {import("./live.js").Usage} Usage */

/** @type {Record<string, string>} */
const verbs = { delete: "deleted", stop: "stopped", pause: "paused" };

/** endOf describes when a sandbox ends. @param {Sandbox} sb @returns {{ text: string, more: string, soon: boolean, at: number }} */
export function endOf(sb) {
  const at = sb.expires_at || sb.ends_at;
  if (!at) return { text: "no end", more: "It has no timeout.", soon: false, at: Infinity };
  const time = new Date(at).getTime();
  const left = (time - Date.now()) / 1000;
  const action = verbs[sb.expires_at ? sb.timeout_policy : sb.end_action] || "ended";
  const when = `${action} at ${new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}`;
  if (sb.expires_at) return { text: `${span(left)} left`, more: `It is ${when}.`, soon: left < 600, at: time };
  return { text: `${action} after ${span(left)} unused`, more: `It is ${when} if it is not used.`, soon: false, at: time };
}

/** share returns the part of a limit that is in use, in percent; NaN without a limit. @param {number} used @param {number} limit */
export const share = (used, limit) => (limit > 0 && used >= 0 ? Math.min(100, (100 * used) / limit) : NaN);

/** cores formats a number of processors. @param {number} n */
export const cores = (n) => (n < 0 ? "–" : String(Number(n.toFixed(n < 0.995 ? 2 : 1))));

/** faultOf describes what is wrong with a sandbox; empty: nothing. @param {Sandbox} sb @param {Usage} [usage] @returns {{ text: string, bad: boolean, tab: string } | null} */
export function faultOf(sb, usage) {
  if (sb.status === "failed") return { text: plain(sb.message || "It has failed."), bad: true, tab: "" };
  if (sb.status !== "running") return sb.message ? { text: plain(sb.message), bad: false, tab: "" } : null;
  if (sb.message) return { text: plain(sb.message), bad: true, tab: "" };
  if (!usage) return null;
  if (share(usage.memory, usage.memory_limit) >= 95) return { text: "Its memory is nearly full.", bad: true, tab: "processes" };
  if (share(usage.disk, usage.disk_limit) >= 95) return { text: "Its disk is nearly full.", bad: true, tab: "files" };
  const busy = usage.busy_since ? (Date.now() - new Date(usage.busy_since).getTime()) / 1000 : 0;
  if (busy >= 30) return { text: `CPU at its limit for ${span(busy)}`, bad: true, tab: "processes" };
  return null;
}

/** Bar shows the use of a limit. @param {{ label: string, used: number, limit: number, text: string }} props */
export function Bar({ label, used, limit, text }) {
  const part = share(used, limit);
  if (Number.isNaN(part)) return html`<span class="barred"><span class="dim">${text}</span></span>`;
  return html`<span class="barred"><span class=${`bar ${part >= 95 ? "full" : part >= 80 ? "high" : ""}`} role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(part)} aria-valuetext=${text}><span style=${{ width: `${part}%` }}></span></span><span>${text}</span></span>`;
}

/** useOf formats an amount of memory with its limit. @param {number} used @param {number} limit */
export const useOf = (used, limit) => (used < 0 ? "–" : limit > 0 ? `${bytes(used)} of ${bytes(limit)}` : bytes(used));

/** coresOf formats the use of processors with its limit. @param {number} used @param {number} limit */
export const coresOf = (used, limit) => (used < 0 ? "–" : limit > 0 ? `${cores(used)} of ${cores(limit)} CPU` : `${cores(used)} CPU`);

/** clock shows a time. @param {string} time */
export function clock(time) {
  const at = new Date(time);
  return html`<time datetime=${time} title=${`${at.toLocaleString()}, ${ago(time)} ago`}>${at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString()} `}${at.toLocaleTimeString()}</time>`;
}
