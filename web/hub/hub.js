// The dashboard of the hub: all sandboxes, each of them in detail, and its administration. The API decides what each caller sees.
import { Connection, IconButton, Logo, Sign, Toasts, at, call, fail, html, nextTheme, recall, render, toast, useEffect, useMemo, useState } from "../ui/ui.js";
import { Attention } from "./attention.js";
import { Sandboxes } from "./list.js";
import { fresh, useSandboxes, useUsage } from "./live.js";
import { One } from "./one.js";
import { Keys as Shortcuts } from "./palette.js";
import { Records } from "./record.js";
import { Search } from "./search.js";
import { Audit, Events, Keys, Machine, Secrets, Snapshots } from "./rest.js";
import { Usage } from "./tenant.js";
import { Volumes } from "./volume.js";

/** @type {[string, string, any, boolean?][]} id, name, component, whether it requires keys and an administrator */
const places = [["sandboxes", "Sandboxes", Sandboxes], ["activity", "Activity", Search], ["snapshots", "Snapshots", Snapshots], ["volumes", "Volumes", Volumes], ["records", "Records", Records], ["secrets", "Secrets", Secrets], ["usage", "Usage", Usage], ["keys", "Keys", Keys, true], ["events", "Events", Events], ["audit", "Audit", Audit], ["machine", "Machine", Machine]];
const adminOnly = ["keys", "audit"];
const notForReaders = ["activity", "records"];

/** route returns the parts of the address: place, item, tab. */
const route = () => location.hash.slice(1).split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });

function App() {
  const [who, setWho] = useState(/** @type {any} */ (null));
  const [hub, setHub] = useState(/** @type {any} */ (null));
  const [[place, item = "", tab = "", entry = ""], setRoute] = useState(route());
  useEffect(() => {
    call("auth").then(setWho).catch(fail);
    call("api/v1/hub").then(setHub).catch(fail);
    const turn = () => { setRoute(route()); scrollTo(0, 0); };
    addEventListener("hashchange", turn);
    return () => removeEventListener("hashchange", turn);
  }, []);
  const ready = Boolean(who && hub);
  const admin = who?.role === "admin";
  const reader = who?.role === "viewer";
  const listed = useSandboxes(admin, ready);
  const usage = useUsage(admin, ready);
  const all = useMemo(() => fresh(listed, usage), [listed, usage]);
  const shown = places.filter(([id, , , keys]) => (admin || !adminOnly.includes(id)) && !(reader && notForReaders.includes(id)) && (!keys || hub?.tenants));
  const one = place === "sandbox" && item;
  const [id, name, Shown] = shown.find(([p]) => p === (one ? "sandboxes" : place)) || shown[0];
  useEffect(() => {
    if (!one) document.title = `${name} – Cove`;
    document.querySelector("header nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [name, one]);
  return html`
    <${Header} shown=${shown} name=${name} who=${who} hub=${hub} all=${all} usage=${usage} />
    <${Connection} />
    <main>${ready && (one ? html`<${One} key=${item} id=${item} tab=${tab} entry=${Number(entry) || 0} admin=${admin} all=${all} usage=${usage} hub=${hub} reader=${reader} />`
      : html`<${Shown} key=${id} admin=${admin} who=${who} hub=${hub} all=${all} usage=${usage} part=${item} entry=${Number(tab) || 0} reader=${reader} />`)}</main>
    <${Bottom} shown=${shown} name=${name} />
    ${ready && html`<${Shortcuts} all=${all || []} places=${shown} reader=${reader} />`}
    <${Toasts} />`;
}

/** Header has the parts of the dashboard and what concerns the caller. @param {any} props */
function Header({ shown, name, who, hub, all, usage }) {
  const [theme, setTheme] = useState(recall("theme", "system"));
  const out = async () => {
    await fetch(at("sign-out"), { method: "POST", redirect: "manual" }).catch(() => {});
    location.replace(at(""));
  };
  const dress = () => { const next = nextTheme(); setTheme(next); toast(`Theme: ${next}`, { time: 2000 }); };
  return html`<header><h1><a class="brand" href="#sandboxes"><${Logo} />Cove</a></h1>
      <nav aria-label="Parts">${shown.map((/** @type {any} */ [id, title]) => html`<a key=${id} href=${`#${id}`} aria-current=${title === name ? "page" : undefined}>${title}</a>`)}</nav>
      ${who && hub?.tenants && html`<span class="who dim">${who.subject || (who.role === "admin" ? "administrator" : "")}${who.subject && who.role ? ` (${who.role})` : ""}</span>`}
      ${who && hub && html`<${Attention} all=${all} usage=${usage} admin=${who.role === "admin"} reader=${who.role === "viewer"} />`}
      <${IconButton} sign="theme" label=${`Theme: ${theme}`} onClick=${dress} />
      <a class="button plain" href=${at("guide").href}>Guide</a>
      <a class="button plain" href=${at("v1/docs").href}>Docs</a>
      ${hub?.tenants && html`<button onClick=${out}>Sign out</button>`}
    </header>`;
}

/** Bottom is the navigation of a phone. @param {any} props */
function Bottom({ shown, name }) {
  const [open, set] = useState(false);
  const first = [["sandboxes", "box"], ["activity", "activity"], ["snapshots", "camera"]].filter(([id]) => shown.some((/** @type {any} */ p) => p[0] === id));
  useEffect(() => set(false), [name]);
  useEffect(() => {
    if (!open) return undefined;
    const shut = (/** @type {KeyboardEvent} */ e) => { if (e.key === "Escape") set(false); };
    addEventListener("keydown", shut);
    return () => removeEventListener("keydown", shut);
  }, [open]);
  const rest = shown.filter((/** @type {any} */ [id]) => !first.some(([f]) => f === id));
  const current = (/** @type {string} */ title) => (title === name ? "page" : undefined);
  return html`<nav class="bottom" aria-label="Main parts">
    ${open && html`<div class="more" id="more">${rest.map((/** @type {any} */ [id, title]) => html`<a key=${id} href=${`#${id}`} aria-current=${current(title)} onClick=${() => set(false)}>${title}</a>`)}</div>`}
    ${first.map(([id, sign]) => { const [, title] = shown.find((/** @type {any} */ p) => p[0] === id); return html`<a key=${id} href=${`#${id}`} aria-current=${current(title)}><${Sign} of=${sign} />${title}</a>`; })}
    <button class="plain" aria-expanded=${String(open)} aria-controls="more" onClick=${() => set(!open)}><${Sign} of="more" />More</button></nav>`;
}

render(html`<${App} />`, /** @type {Element} */ (document.getElementById("app")));
