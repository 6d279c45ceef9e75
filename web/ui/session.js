// The session of a page without an origin: its pass in the URL, which the hub forgets when it restarts.

/** Whether this page has no origin, and so neither storage nor cookies. */
export const opaque = self.origin === "null";

/**
 * hasExpired reports whether the server is reachable but rejects this page's pass. Such a page cannot read the refusal,
 * which looks like an unreachable server to it.
 * @param {URL} probe a URL that is valid with the pass
 */
export async function hasExpired(probe) {
  if (!opaque) return false;
  const answers = (/** @type {RequestMode} */ mode) => fetch(probe, { mode, cache: "no-store" }).then(() => true, () => false);
  // In this order: a server that stops meanwhile is not one that rejects the pass, and a reload would show the browser's error.
  return !(await answers("cors")) && (await answers("no-cors"));
}

/** isUnsaved reports whether this page would ask before it is closed. */
export const isUnsaved = () => !dispatchEvent(new Event("beforeunload", { cancelable: true }));
