// What the dashboard says about a sandbox: when it ends, how much of its limits it uses, and what is wrong with it.
import { ago, bytes, html, plain, span } from "../ui/ui.js";

/** @typedef {import("./sandbox.js").Sandbox} Sandbox */
/** @typedef {import("./live.js").Usage} Usage */

/** @type {Record<string, string>} */
export const verbs = { delete: "deleted", stop: "stopped", pause: "paused" };
/** @type {Record<string, string>} */
const next = { delete: "deleted", stop: "stops", pause: "pauses" };
const soonAtTimeout = 600;
const soonUnused = 120; // every unused sandbox gets there, so not earlier

/** hourOf formats the time of day of a moment. @param {number} at */
const hourOf = (at) => new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

/** endOf describes the first deadline of a sandbox: its timeout, or its idle timeout, which use postpones. @param {Sandbox} sb @returns {{ text: string, more: string, soon: boolean, at: number, unused: boolean }} */
export function endOf(sb) {
  const timeout = sb.expires_at ? new Date(sb.expires_at).getTime() : Infinity;
  const at = Math.min(timeout, sb.ends_at ? new Date(sb.ends_at).getTime() : Infinity);
  if (at === Infinity) return { text: "no end", more: "It has no timeout.", soon: false, at, unused: false };
  const left = (at - Date.now()) / 1000;
  const last = `${verbs[sb.timeout_policy] || "ended"} at ${hourOf(timeout)}`;
  if (at === timeout) return { text: `${span(left)} left`, more: `It is ${last}.`, soon: left < soonAtTimeout, at, unused: false };
  const action = verbs[sb.end_action] || "ended";
  return { text: `${next[sb.end_action] || "ends"} in ${span(left)} if idle`, more: `It is ${action} at ${hourOf(at)} if it is not used${timeout < Infinity ? `, and ${last} in any case` : ""}.`,
    soon: left < soonUnused && sb.end_action === "delete", at, unused: true };
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
export const coresOf = (used, limit) => (used < 0 ? "–" : limit > 0 ? `${cores(used)} of ${cores(limit)} ${limit === 1 ? "core" : "cores"}` : `${cores(used)} ${used === 1 ? "core" : "cores"}`);

/** clock shows a time. @param {string} time */
export function clock(time) {
  const at = new Date(time);
  return html`<time datetime=${time} title=${`${at.toLocaleString()}, ${ago(time)} ago`}>${at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString()} `}${at.toLocaleTimeString()}</time>`;
}
