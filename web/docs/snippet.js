// Code snippets of a request in several languages.

/** @typedef {import("./schema.js").Call} Call */

/** @param {string} text */
const shell = (text) => (/^[\w./:=@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);
/** @param {unknown} value */
const json = (value) => JSON.stringify(value);

/** python formats a value as a Python literal. @param {unknown} value @returns {string} */
function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(/** @type {object} */ (value)).map(([name, v]) => `${json(name)}: ${python(v)}`).join(", ")}}`;
  return json(value);
}

/** headersOf returns the headers of a request, with placeholders for credentials. @param {Call} call @param {string} credential the header that the user entered @returns {[string, string][]} */
const headersOf = (call, credential) => [...Object.entries(call.headers), ...(credential ? [/** @type {[string, string]} */ (credential === "Authorization" ? [credential, "Bearer TOKEN"] : [credential, "KEY"])] : [])];
/** @param {string | File} value */
const nameOf = (value) => (typeof value === "string" ? value : value.name);

/** The languages. Each function takes a request and the header that authenticates it, if any. @type {Record<string, (call: Call, credential: string) => string>} */
export const languages = {
  curl(call, credential) {
    const parts = ["curl", ...(call.method === "GET" || ((call.body !== undefined || call.form) && call.method === "POST") ? [] : ["-X", call.method]), shell(call.url)];
    for (const [name, value] of headersOf(call, credential)) parts.push("-H", shell(`${name}: ${value}`));
    for (const [name, value] of call.form || []) parts.push("-F", shell(`${name}=${typeof value === "string" ? "" : "@"}${nameOf(value)}`));
    if (call.body !== undefined) parts.push("-d", shell(json(call.body)));
    return parts.join(" ");
  },
  Python(call, credential) {
    const headers = Object.fromEntries(headersOf(call, credential).filter(([name]) => name !== "Content-Type"));
    const more = [Object.keys(headers).length ? `headers=${python(headers)}` : "", call.body === undefined ? "" : `json=${python(call.body)}`];
    const texts = (call.form || []).filter(([, value]) => typeof value === "string");
    const files = (call.form || []).filter(([, value]) => typeof value !== "string");
    if (texts.length) more.push(`data=${python(Object.fromEntries(texts))}`);
    if (files.length) more.push(`files={${files.map(([name, value]) => `${json(name)}: open(${json(nameOf(value))}, "rb")`).join(", ")}}`);
    return `import requests\n\nreply = requests.${call.method.toLowerCase()}(${[json(call.url), ...more].filter(Boolean).join(", ")})\nprint(reply.text)`;
  },
  TypeScript(call, credential) {
    const headers = Object.fromEntries(headersOf(call, credential));
    const parts = [call.method === "GET" ? "" : `method: ${json(call.method)}`, Object.keys(headers).length ? `headers: ${json(headers)}` : "", call.body === undefined ? "" : `body: JSON.stringify(${json(call.body)})`];
    let before = "";
    if (call.form) {
      before = `const form = new FormData();\n${call.form.map(([name, value]) => (typeof value === "string" ? `form.append(${json(name)}, ${json(value)});` : `form.append(${json(name)}, await openAsBlob(${json(value.name)}), ${json(value.name)}); // from "node:fs"`)).join("\n")}\n`;
      parts.push("body: form");
    }
    const options = parts.filter(Boolean).join(", ");
    return `${before}const reply = await fetch(${json(call.url)}${options ? `, { ${options} }` : ""});\nconsole.log(await reply.text());`;
  },
  Go(call, credential) {
    const text = json(call.body);
    const raw = call.body === undefined ? "nil" : `strings.NewReader(${text.includes("`") ? json(text) : `\`${text}\``})`;
    const lines = ["req, err := http.NewRequest(" + [json(call.method), json(call.url), call.form ? "&form" : raw].join(", ") + ")", "if err != nil {\n\treturn err\n}"];
    if (call.form) {
      lines.unshift("var form bytes.Buffer\nw := multipart.NewWriter(&form)", ...call.form.map(([name, value]) => (typeof value === "string" ? `w.WriteField(${json(name)}, ${json(value)})` : `part, _ := w.CreateFormFile(${json(name)}, ${json(value.name)})\npart.Write(content) // of ${value.name}`)), "w.Close()");
      lines.push(`req.Header.Set("Content-Type", w.FormDataContentType())`);
    }
    for (const [name, value] of headersOf(call, credential)) lines.push(`req.Header.Set(${json(name)}, ${json(value)})`);
    return [...lines, "res, err := http.DefaultClient.Do(req)", "if err != nil {\n\treturn err\n}", "defer res.Body.Close()", "_, err = io.Copy(os.Stdout, res.Body)"].join("\n");
  },
};
