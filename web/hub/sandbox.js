// One sandbox: its addresses and its actions.
import { Failure, at, call, fail, toast } from "../ui/ui.js";

/** @typedef {Record<string, any>} Sandbox */

/** api returns a path of the hub's API. @param {string} path */
export const api = (path) => `api/v1/${path}`;

/** everybody returns the query that selects resources of all tenants, for administrators. @param {boolean} admin */
export const everybody = (admin) => (admin ? { user: "*" } : {});

/** nameRule is the attributes of a field for the name of a sandbox. Browsers ignore patterns with an unescaped dash in brackets. */
export const nameRule = { pattern: "[a-z0-9]([a-z0-9\\-]*[a-z0-9])?", maxlength: 50, title: "a to z, 0 to 9 and -, not at the start or end" };

/** box returns the API path of a sandbox. It uses the ID, because names are unique only per owner and administrators see all sandboxes. @param {Sandbox} sb */
export const box = (sb, verb = "") => api(`sandbox/${encodeURIComponent(sb.id)}${verb ? `/${verb}` : ""}`);

/** address returns the URL of the page of a sandbox. @param {Sandbox} sb */
export const address = (sb) => at(`sandbox/${encodeURIComponent(sb.id)}/`).href;

/** @type {Record<string, string>} */
export const dots = { running: "good", creating: "warn", paused: "warn", failed: "bad" };

/** link returns the address of the view of a sandbox in the dashboard. @param {Sandbox} sb */
export const link = (sb, tab = "") => `#sandbox/${encodeURIComponent(sb.id)}${tab ? `/${tab}` : ""}`;

/** sleeps reports whether a sandbox must be resumed or started before use. @param {Sandbox} sb */
export const sleeps = (sb) => sb.status === "paused" || sb.status === "stopped" || sb.status === "failed";

/** act runs an action on sandboxes, a few at a time. @param {string} what @param {Sandbox[]} list @param {(sb: Sandbox) => Promise<unknown>} run @param {{ action?: string, onAction?: () => void }} [more] */
export async function act(what, list, run, more) {
  /** @type {string[]} */
  const failed = [];
  const left = [...list];
  const work = async () => { for (let sb = left.shift(); sb; sb = left.shift()) { const { name } = sb; await run(sb).catch((error) => failed.push(`${name}: ${error.message}`)); } };
  await Promise.all([work(), work(), work(), work()]);
  if (failed.length) fail(new Failure(failed.join("; "), 0));
  else toast(`${what} ${list.length === 1 ? list[0].name : `${list.length} sandboxes`}`, more && { ...more, time: 12_000 });
  return failed.length === 0;
}

/** undoable returns the action that restores deleted sandboxes, if they are kept for a while. @param {Sandbox[]} list */
export const undoable = (list) => (list.every((sb) => sb.timeout < 0) ? { action: "Undo", onAction: () => { act("Restored", list, (sb) => call(box(sb, "undelete"), { body: {} })); } } : undefined);
