// The header of all pages of a sandbox: its name and state, the time left, and the way to its hub. Names are shown as text only.
import { Dialog, IconButton, Logo, Sign, at, fail, html, nextTheme, onTheme, recall, themeNow, useEffect, useState } from "../ui/ui.js";
import { resume, useLife } from "./identity.js";
import { KeyList, Palette, commandsOf, copyMcp, framed, useKeys } from "./palette.js";

const soon = 10 * 60_000; // from here on, the time left is shown as a warning
const soonUnused = 2 * 60_000; // every unused sandbox gets there, so not earlier

/** left formats the time until a moment. @param {number} ms */
export function left(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return `${s} s left`;
  if (s < 3600) return `${Math.floor(s / 60)} min left`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min left`;
  return `${Math.floor(s / 86_400)} days left`;
}

/** visible replaces characters that are invisible or change the direction of text. @param {string} text */
// eslint-disable-next-line no-control-regex
const visible = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, "\uFFFD");

/** actions of the hub on a sandbox, which its page there offers. */
const actions = ["Share", "Extend", "Pause", "Snapshot", "Fork", "Delete"];

/** BoxHeader is the header. title: what the page shows; empty on the main page. keys: keys of the page. commands: its commands in the palette. @param {{ title?: string, keys?: import("./palette.js").Keys, commands?: import("./palette.js").Command[] }} props */
export function BoxHeader({ title = "", keys = [], commands = [] }) {
  const { me, ended } = useLife();
  const [open, set] = useState("");
  useKeys(set);
  const name = visible(me?.name || "");
  useEffect(() => { if (name && !framed) document.title = [name, title].filter(Boolean).join(" · ") + " – Cove"; }, [name, title]);
  if (framed) return html`<h1 class="unseen">${title}</h1>`; // the page around it has the header
  const doing = me?.hub && me.id && !ended ? (/** @type {string} */ action) => `${me.hub}#sandbox/${encodeURIComponent(me.id)}/?do=${action}` : null;
  return html`<nav class="box-header" aria-label="Sandbox"><div class="box-where">
      ${me?.hub ? html`<a class="brand" href=${me.hub} aria-label="Cove"><${Logo} /></a><a class="box-back" href=${me.hub}><${Sign} of="left" /><span>Sandboxes</span></a><span class="dim" aria-hidden="true">/</span>` : html`<span class="brand"><${Logo} /><span class="box-wide">Cove</span></span><span class="dim" aria-hidden="true">/</span>`}
      ${title ? html`<a class="box-name cut" href=${at("").href} title=${name}>${name || "Sandbox"}</a><span class="dim" aria-hidden="true">/</span><h1 class="cut">${title}</h1>` : html`<h1 class="box-name cut" title=${name}>${name || "Sandbox"}</h1>`}
      ${me && html`<span class="box-state"><span class=${`dot ${ended ? "bad" : dots[me.state] || ""}`}></span>${ended ? "deleted" : me.state}</span>`}
      ${me?.owner && html`<span class="dim cut box-owner" title="Owner">${visible(me.owner)}</span>`}
      ${me?.expires && !ended && html`<${Left} me=${me} />`}</div>
    <span class="box-acts">${doing && html`${me?.expires && html`<a class="button" href=${doing("extend")}>Extend</a>`}${me?.share && html`<a class="button box-wide" href=${doing("share")}>Share</a>`}<${More} doing=${doing} name=${name} share=${Boolean(me?.share)} />`}
      <span class="box-links"><a class="button plain" href=${at("guide").href} target="_blank" rel="noopener">Guide</a><a class="button plain" href=${at("v1/docs").href} target="_blank" rel="noopener">Docs</a><button class="plain" title=${`Copy the address of the MCP server: ${at("mcp").href}`} onClick=${copyMcp}>MCP</button></span>
      <${IconButton} sign="search" label="Go to (Ctrl+K)" onClick=${() => set("palette")} /><${IconButton} class="box-wide" sign="help" label="Keys (?)" onClick=${() => set("keys")} /><${Theme} /></span></nav>
    <${Notice} me=${me} name=${name} ended=${ended} />
    ${open === "palette" && html`<${Palette} commands=${[...commands, ...commandsOf(me?.hub || "", doing, Boolean(me?.share))]} onClose=${() => set("")} />`}
    ${open === "keys" && html`<${KeyList} keys=${keys} onClose=${() => set("")} />`}`;
}

/** Theme switches between the system's theme, light and dark. */
function Theme() {
  const [theme, set] = useState(recall("theme", "system"));
  useEffect(() => onTheme(() => set(themeNow())), []);
  const turn = () => {
    nextTheme();
    for (const frame of document.querySelectorAll("iframe")) frame.contentWindow?.postMessage({ cove: "theme", theme: themeNow() }, "*"); // panes without storage
  };
  return html`<${IconButton} sign="theme" label=${`Theme: ${theme}`} onClick=${turn} />`;
}

/** @type {Record<string, string>} */
const dots = { running: "good", creating: "warn", paused: "warn", failed: "bad", deleting: "bad" };

/** @param {import("./identity.js").Identity | null} me */
const asleep = (me) => ["paused", "stopped", "failed"].includes(me?.state || "");

/** Left shows the time until the timeout. @param {{ me: import("./identity.js").Identity }} props */
function Left({ me }) {
  const end = new Date(me.expires || 0).getTime();
  const [now, tick] = useState(Date.now());
  const rest = end - now;
  useEffect(() => {
    const timer = setTimeout(() => tick(Date.now()), rest < 61_000 ? 1000 : 10_000);
    return () => clearTimeout(timer);
  }, [now, end]);
  return html`<time class=${`box-left ${rest < (me.if_unused ? soonUnused : soon) ? "soon" : ""}`} datetime=${me.expires} title=${`${verbs[me.on_end] || "Ends"} at ${new Date(end).toLocaleString()}`}>${me.if_unused ? `${verbs[me.on_end] || "Ends"} in ${left(rest).replace(/ left$/, "")} if idle` : left(rest)}</time>`;
}

/** @type {Record<string, string>} */
const verbs = { delete: "Is deleted", stop: "Stops", pause: "Is paused" };

/** More lists the actions of the hub. @param {{ doing: (action: string) => string, name: string, share: boolean }} props */
function More({ doing, name, share }) {
  const [open, set] = useState(false);
  return html`<${IconButton} sign="more" label="More actions" aria-haspopup="dialog" onClick=${() => set(true)} />
    ${open && html`<${Dialog} title=${name} onClose=${() => set(false)}><p class="dim">These actions open on the hub.</p>${actions.filter((action) => share || action !== "Share").map((action) => html`<a key=${action} class="button" href=${doing(action.toLowerCase())}>${action}</a>`)}<//>`}`;
}

/** Notice explains why the sandbox does not respond. @param {{ me: import("./identity.js").Identity | null, name: string, ended: string }} props */
function Notice({ me, name, ended }) {
  const [busy, set] = useState(false);
  const wake = () => { set(true); resume().catch(fail).finally(() => set(false)); };
  if (ended) {
    return html`<div class="notice bad" role="alert"><span class="grow">${visible(sentence(name, ended))}</span>${me?.hub && html`<a class="button" href=${`${me.hub}#sandbox/${encodeURIComponent(me.id)}`}>Show details</a><a class="button" href=${me.hub}>All sandboxes</a>`}</div>`;
  }
  if (!asleep(me)) return html`<div role="alert" class="unseen"></div>`;
  return html`<div class="notice" role="alert"><span class="grow">${name} is ${me?.state}${me?.message ? `: ${visible(me.message)}` : ""}. This page does not wake it.</span><button disabled=${busy} onClick=${wake}>${busy ? html`<span class="spin"></span>` : ""}${me?.state === "paused" ? "Resume" : "Start"}</button></div>`;
}

/** sentence turns the hub's error into a sentence about the sandbox. @param {string} name @param {string} error */
function sentence(name, error) {
  const [, why] = /^no sandbox "[^"]*": it (was .*)$/s.exec(error) || [];
  return why ? `${name || "The sandbox"} ${why}.` : `${name || "The sandbox"} no longer exists.`;
}
