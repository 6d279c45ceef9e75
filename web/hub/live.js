// The sandboxes that the caller may see, with their latest usage, updated live.
import { call, fail, follow, usePoll, useEffect, useState } from "../ui/ui.js";
import { api, everybody } from "./sandbox.js";

/** @typedef {import("./sandbox.js").Sandbox} Sandbox */
/** @typedef {{ id: string, cpu: number, cpu_limit: number, memory: number, memory_limit: number, disk: number, disk_limit: number, pids: number, busy_since: string | null, last_active_at: string, ends_at: string | null, end_action?: string, trend: number[] }} Usage */

/** useSandboxes returns all sandboxes that the caller may see. @param {boolean} admin @param {boolean} on @returns {Sandbox[] | null} */
export function useSandboxes(admin, on) {
  const [all, set] = useState(/** @type {Map<string, Sandbox> | null} */ (null));
  useEffect(() => {
    if (!on) return undefined;
    /** @type {undefined | (() => void)} */
    let stop;
    const query = everybody(admin);
    // Lists and events arrive in any order. So each list is updated with the events since its request.
    let asked = 0;
    let latest = 0; // number of the list that is shown
    /** @type {Map<number, any[]>} */
    const lists = new Map();
    /** @param {Map<string, Sandbox>} now @param {any} event */
    const change = (now, event) => {
      if (event.type === "deleted" || event.sandbox.status === "deleting") now.delete(event.sandbox.id);
      else now.set(event.sandbox.id, { ...now.get(event.sandbox.id), ...event.sandbox });
      return now;
    };
    const read = () => {
      const n = ++asked;
      /** @type {any[]} */
      const since = [];
      lists.set(n, since);
      call(api("sandbox"), { query }).then((list) => {
        if (n < latest) return;
        latest = n;
        set(since.reduce(change, new Map(list.map((/** @type {Sandbox} */ sb) => [sb.id, sb]))));
      }).catch((error) => { fail(error); set((old) => old || since.reduce(change, new Map())); }).finally(() => lists.delete(n));
    };
    const turn = () => {
      stop?.();
      stop = undefined;
      if (document.hidden) return;
      read();
      stop = follow(api("events"), query, (name, event) => {
        if (!event.sandbox?.id) return;
        for (const since of lists.values()) since.push(event);
        set((old) => old && change(new Map(old), event)); // not before the first list, because the result would be incomplete
      }, (state) => { if (state === "open") read(); });
    };
    turn();
    document.addEventListener("visibilitychange", turn);
    return () => { stop?.(); document.removeEventListener("visibilitychange", turn); };
  }, [on]);
  return all && [...all.values()].sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
}

/** fresh returns sandboxes with what use changes without an event. @param {Sandbox[] | null} all @param {Map<string, Usage>} usage */
export function fresh(all, usage) {
  return all && all.map((sb) => { const u = usage.get(sb.id); return u ? { ...sb, last_active_at: u.last_active_at, ends_at: u.ends_at, end_action: u.end_action } : sb; });
}

/** useUsage returns the latest usage of each sandbox, by ID. @param {boolean} admin @param {boolean} on @returns {Map<string, Usage>} */
export function useUsage(admin, on) {
  const [all, set] = useState(/** @type {Map<string, Usage>} */ (new Map()));
  usePoll(async () => { if (on) set(new Map((await call(api("metrics"), { query: everybody(admin) })).map((/** @type {Usage} */ u) => [u.id, u]))); }, 4000, [admin, on]);
  return all;
}
