// Volumes: folders that outlive sandboxes.
import { Dialog, Sign, ago, bytes, call, fail, html, plain, toast, usePoll, useState } from "../ui/ui.js";
import { Board, Remove, useList } from "./rest.js";
import { api, everybody, link, nameRule } from "./sandbox.js";

/** @param {{ admin: boolean, all: any[] | null, who: any, reader: boolean }} props */
export function Volumes({ admin, all, who, reader }) {
  const [list, error, read] = useList("volume", everybody(admin));
  usePoll(async () => read(), 5000); // sandboxes mount volumes at any time
  const [adding, setAdding] = useState(false);
  /** @param {any} event */
  const add = (event) => {
    event.preventDefault();
    const name = String(new FormData(event.target).get("name")).trim();
    call(api("volume"), { body: { name } }).then(() => { setAdding(false); toast(`Created the volume ${name}`); read(); }, fail);
  };
  const users = (/** @type {any} */ v) => v.sandboxes.map((/** @type {string} */ id, /** @type {number} */ i) => html`${i > 0 ? ", " : ""}<a href=${link({ id })}>${all?.find((sb) => sb.id === id)?.name || id}</a>`);
  return html`<${Board} title="Volumes" error=${error} empty="No volumes. A volume is a folder that outlives sandboxes. Several sandboxes can mount it." columns=${["Name", ...(admin ? ["Owner"] : []), "Size", "Age", "Mounted by", ""]}
    rows=${list?.map((v) => html`<tr key=${`${v.user}/${v.name}`}><td>${plain(v.name)}</td>${admin && html`<td>${v.user || "–"}</td>`}<td>${bytes(v.size)}${v.limit ? ` of ${bytes(v.limit)}` : ""}</td><td>${ago(v.created)}</td><td>${v.sandboxes.length ? users(v) : "–"}</td>
      <td class="acts">${!reader && (v.user || "") === (who.subject || "") && html`<${Remove} what=${`the volume ${v.name}`} path=${`volume/${encodeURIComponent(v.name)}`} onDone=${read} />`}</td></tr>`)}>${!reader && html`<button class="primary" onClick=${() => setAdding(true)}><${Sign} of="plus" />New volume</button>`}<//>
    ${adding && html`<${Dialog} title="New volume" onClose=${() => setAdding(false)}><form onSubmit=${add}><label class="field"><span>Name</span><input name="name" required autofocus autocomplete="off" ...${nameRule} /></label><div class="actions"><button type="button" onClick=${() => setAdding(false)}>Cancel</button><button class="primary">Create</button></div></form><//>`}`;
}
