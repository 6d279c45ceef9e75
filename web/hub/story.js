// The events of a sandbox. Messages contain what its programs chose: they are shown as text only.
import { html, plain } from "../ui/ui.js";
import { clock } from "./state.js";

/** @typedef {{ time: string, type: string, message: string, bad: boolean }} Moment */

/** Story lists events, newest first. @param {{ list: Moment[], children?: (m: Moment) => any }} props */
export function Story({ list, children }) {
  return html`<ul class="events" tabindex="0" aria-label="Events, newest first">${list.map((m) => html`<li key=${m.time + m.type + m.message}><span class=${`dot ${m.bad ? "bad" : m.type === "running" || m.type === "created" ? "good" : ""}`}></span><span class="dim">${clock(m.time)}</span><span class="grow"><b>${plain(m.type)}</b>${m.message && html` ${plain(m.message)}`}</span>${children?.(m)}</li>`)}</ul>`;
}
