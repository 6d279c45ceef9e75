// State of the sandbox after a step, reconstructed from its activity record.

/** @typedef {{ path: string, diff: string, content: string, deleted: boolean }} Change */
/** @typedef {{ id: number, time: string, op: string, kind: string, via: string, caller: string, input: string, output: string, error: string, took_ms: number, picture: boolean, change: Change | null, changes?: Change[], key?: string, missed: number, reads?: boolean, failed?: boolean }} Entry */
/** @typedef {{ command: string, output: string, file: string, content: string, deleted: boolean, files: string[], page: string, picture: number, plot: boolean, diff: string }} State */

const maxFiles = 100;

/** parse parses recorded JSON. Truncated JSON yields an empty object. @param {string} text @returns {any} */
export function parse(text) {
  try { return JSON.parse(text || "null") ?? {}; } catch { return {}; }
}

/** outputOf returns the output of an entry. The last event of a stream contains its output. @param {Entry} e */
export function outputOf(e) {
  const output = parse(e.output);
  return output.result ?? output;
}

/** exitOf returns the exit code of a command, 0 if it has none. @param {Entry} e */
export function exitOf(e) {
  const code = outputOf(e).exit_code;
  return Number.isInteger(code) ? code : 0;
}

/** hasFailed reports whether an operation failed, a command exited with a code other than 0, or code raised. @param {Entry} e */
export const hasFailed = (e) => Boolean(e.failed || e.error) || exitOf(e) !== 0 || outputOf(e).status === "error";

/** isCell reports whether an entry ran code in a kernel. @param {Entry} e */
export const isCell = (e) => typeof parse(e.input).code === "string";

/** byPerson reports whether a person used one of the pages. @param {Entry} e */
export const byPerson = (e) => e.via === "page";

/** changesOf returns the files that an entry changed. @param {Entry} e @returns {Change[]} */
export const changesOf = (e) => [...(e.change ? [e.change] : []), ...(e.changes || [])];

/** summaryOf returns a summary of an entry in one line. @param {Entry} e */
export function summaryOf(e) {
  const input = parse(e.input);
  return String(input.code ?? (e.kind === "file" ? undefined : input.command) ?? input.file ?? input.path ?? input.url ?? input.action_type ?? input.selector ?? input.command ?? "").split("\n")[0].slice(0, 200);
}

/** stateAt returns the state after step n. @param {Entry[]} all @param {number} n @returns {State} */
export function stateAt(all, n) {
  /** @type {State} */
  const state = { command: "", output: "", file: "", content: "", deleted: false, files: [], page: "", picture: 0, plot: false, diff: "" };
  const files = new Set();
  for (const e of all.slice(0, n + 1)) {
    const input = e.kind === "file" ? {} : parse(e.input);
    const command = input.command ?? input.code;
    if (typeof command === "string" && command !== "") {
      state.command = command;
      state.output = e.error || printed(outputOf(e));
    }
    for (const change of changesOf(e)) {
      Object.assign(state, { file: change.path, content: change.content, deleted: change.deleted });
      if (change.diff) state.diff = change.diff;
      files.delete(change.path);
      if (!change.deleted) files.add(change.path);
    }
    if (e.kind === "browser" && !e.error && typeof input.url === "string") state.page = input.url;
    if (e.picture) Object.assign(state, { picture: e.id, plot: isCell(e) });
  }
  state.files = [...files].slice(-maxFiles);
  return state;
}

/** printed returns the text that a command or a cell printed. @param {any} output */
export function printed(output) {
  if (typeof output.output === "string") return output.output;
  if (typeof output.stdout === "string" || typeof output.stderr === "string") return `${output.stdout ?? ""}${output.stderr ?? ""}`;
  if (Array.isArray(output.outputs)) return output.outputs.map((/** @type {any} */ o) => o.text ?? o.data?.["text/plain"] ?? (o.ename ? `${o.ename}: ${o.evalue}\n` : "")).join("");
  return "";
}
