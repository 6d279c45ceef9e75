// Uploads files and folders as one tar archive. The archive references the files, so it is not built in memory.
import { Failure, at } from "../ui/ui.js";

/** @typedef {{ path: string, file: File | null }} Entry a file, or a folder if file is null */

const encoder = new TextEncoder();

/** header returns the tar header of a file. @param {string} name @param {number} size @param {string} type @param {number} time */
function header(name, size, type, time) {
  const block = new Uint8Array(512);
  const put = (/** @type {number} */ at, /** @type {string | Uint8Array} */ value) => block.set(typeof value === "string" ? encoder.encode(value) : value, at);
  const octal = (/** @type {number} */ n, /** @type {number} */ digits) => Math.floor(n).toString(8).padStart(digits, "0");
  put(0, encoder.encode(name).slice(0, 100));
  put(100, type === "5" ? "0000755" : "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, octal(Math.min(size, 0o77777777777), 11));
  put(136, octal(Math.max(0, time), 11));
  put(148, "        ");
  put(156, type);
  put(257, "ustar\u000000");
  put(148, `${octal(block.reduce((sum, byte) => sum + byte, 0), 6)}\u0000 `);
  return block;
}

/** extended returns the extended header for a name or size that does not fit into the tar header. @param {Record<string, string>} fields */
function extended(fields) {
  const lines = Object.entries(fields).map(([key, value]) => {
    const rest = encoder.encode(` ${key}=${value}\n`).length;
    let length = rest + String(rest).length;
    if (String(length).length !== String(rest).length) length = rest + String(length).length;
    return `${length} ${key}=${value}\n`;
  });
  return encoder.encode(lines.join(""));
}

/** @param {number} size */
const padding = (size) => new Uint8Array((512 - (size % 512)) % 512);

/** pack creates an archive. The browser reads the files while it sends the archive. @param {Entry[]} entries */
export function pack(entries) {
  /** @type {BlobPart[]} */
  const parts = [];
  for (const { path, file } of entries) {
    const name = file ? path : `${path}/`;
    const size = file?.size || 0;
    /** @type {Record<string, string>} */
    const more = {};
    if (encoder.encode(name).length > 100 || /[^\x20-\x7e]/.test(name)) more.path = name;
    if (size > 0o77777777777) more.size = String(size);
    if (Object.keys(more).length) {
      const record = extended(more);
      parts.push(header("pax", record.length, "x", 0), record, padding(record.length));
    }
    parts.push(header(name, size, file ? "0" : "5", (file?.lastModified || Date.now()) / 1000));
    if (file) parts.push(file, padding(size));
  }
  parts.push(new Uint8Array(1024));
  return new Blob(parts);
}

/** send uploads entries into a folder and reports the progress. @param {string} folder @param {Entry[]} entries @param {(part: number) => void} tell @param {AbortSignal} signal */
export function send(folder, entries, tell, signal) {
  return new Promise((resolve, reject) => {
    const form = new FormData();
    form.append("path", folder);
    form.append("file", pack(entries), "upload.tar");
    const request = new XMLHttpRequest();
    request.open("POST", at("v1/file/unpack"));
    request.responseType = "json";
    request.upload.onprogress = (event) => tell(event.total ? event.loaded / event.total : 0);
    request.onload = () => (request.status === 200 && request.response?.success ? resolve(request.response.data) : reject(new Failure(request.response?.message || request.response?.detail || `The upload failed with status ${request.status}.`, request.status)));
    request.onerror = () => reject(new Failure("The connection was cut during the upload. Nothing else was changed; try again.", 0));
    request.onabort = () => reject(new Failure("The upload was canceled.", 0));
    signal.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}

/** dropped lists dropped files and folders, with all content of the folders. @param {DataTransfer} data @returns {Promise<Entry[]>} */
export async function dropped(data) {
  /** @type {Entry[]} */
  const out = [];
  const tops = [];
  for (const item of data.items) { // the browser clears the list after the current task
    const entry = item.webkitGetAsEntry?.();
    const file = entry ? null : item.getAsFile();
    if (entry) tops.push(entry);
    else if (file) out.push({ path: file.name, file });
  }
  /** @param {any} entry @param {string} path */
  const walk = async (entry, path) => {
    if (entry.isFile) {
      out.push({ path, file: await new Promise((resolve, reject) => entry.file(resolve, reject)) });
      return;
    }
    out.push({ path, file: null });
    const reader = entry.createReader();
    for (;;) { // returns at most 100 entries per call
      const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (some.length === 0) return;
      for (const one of some) await walk(one, `${path}/${one.name}`);
    }
  };
  for (const top of tops) await walk(top, top.name);
  return out;
}

/** chosen lists files that the user chose in a dialog. @param {FileList} list @returns {Entry[]} */
export const chosen = (list) => [...list].map((file) => ({ path: file.webkitRelativePath || file.name, file }));
