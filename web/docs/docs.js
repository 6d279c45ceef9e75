// A page to read and try every operation, made from the OpenAPI document.
const base = new URL(".", location.href);
const doc = await (await fetch(new URL("openapi.json", base))).json();
const $ = (id) => document.getElementById(id);
const el = (tag, attributes = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), attributes);
  node.append(...children);
  return node;
};
document.title = doc.info.title;
$("title").textContent = `${doc.info.title} ${doc.info.version}`;

function resolve(schema) {
  if (!schema) return {};
  if (schema.$ref) return resolve(doc.components.schemas[schema.$ref.split("/").pop()]);
  if (schema.allOf?.length === 1) return { ...resolve(schema.allOf[0]), ...schema, allOf: undefined };
  const options = (schema.anyOf || []).filter((s) => s.type !== "null");
  if (options.length === 1) return { ...resolve(options[0]), ...schema, anyOf: undefined, nullable: true };
  return schema;
}

function typeName(schema) {
  const s = resolve(schema);
  if (s.enum) return s.enum.join(" | ");
  if (s.const !== undefined) return JSON.stringify(s.const);
  if (s.type === "array") return `list of ${typeName(s.items)}`;
  if (s.anyOf || s.oneOf) return (s.anyOf || s.oneOf).map(typeName).join(" | ");
  return s.format === "binary" ? "file" : s.type || "any";
}

// Fields of an operation, each with where it goes.
function fieldsOf(op) {
  const fields = (op.parameters || []).map((p) => ({ name: p.name, in: p.in, required: p.required, doc: p.description, schema: p.schema }));
  const content = op.requestBody?.content || {};
  for (const [media, body] of Object.entries(content)) {
    const schema = resolve(body.schema);
    const variants = schema.oneOf ? schema.oneOf.map(resolve) : [schema];
    const seen = new Map();
    for (const variant of variants) {
      for (const [name, property] of Object.entries(variant.properties || {})) {
        if (seen.has(name)) {
          const known = seen.get(name);
          if (property.const !== undefined) known.schema = { enum: [...(known.schema.enum || [known.schema.const]), property.const] };
          continue;
        }
        const field = { name, in: media.startsWith("multipart") ? "form" : "body", doc: property.description, schema: property, required: variants.length === 1 && (variant.required || []).includes(name) };
        seen.set(name, field);
        fields.push(field);
      }
    }
    if (!seen.size) fields.push({ name: "(body)", in: "whole", doc: "The request body", schema, required: false });
  }
  return fields;
}

function inputFor(field) {
  const s = resolve(field.schema);
  let input;
  if (s.enum) {
    input = el("select", {}, el("option", { value: "", textContent: "" }), ...s.enum.map((v) => el("option", { value: v, textContent: v })));
  } else if (s.format === "binary") {
    input = el("input", { type: "file" });
  } else if (s.type === "boolean") {
    input = el("select", {}, ...["", "true", "false"].map((v) => el("option", { value: v, textContent: v })));
  } else if (s.type === "string") {
    input = el("textarea", { rows: 1 });
  } else {
    input = el("input", { type: "text" });
  }
  const preset = s.default ?? s.const;
  if (preset !== undefined && preset !== null) input.placeholder = String(typeof preset === "object" ? JSON.stringify(preset) : preset);
  input.setAttribute("aria-label", field.name);
  return input;
}

// A value as JSON: text stays text where the schema says so.
function valueOf(field, text) {
  const s = resolve(field.schema);
  if (s.type === "string" || s.enum?.every((v) => typeof v === "string")) return text;
  try { return JSON.parse(text); } catch { return text; }
}

async function send(method, path, fields, inputs, reply) {
  const url = new URL(base);
  const query = new URLSearchParams();
  const headers = {};
  let body = {}, form = null, whole, any = false;
  for (const field of fields) {
    const input = inputs.get(field);
    const file = input.files?.[0];
    const text = input.value;
    if (!file && text === "" && field.in !== "path") continue;
    if (field.in === "path") path = path.replace(`{${field.name}}`, encodeURIComponent(text));
    else if (field.in === "query") query.append(field.name, text);
    else if (field.in === "form") (form ??= new FormData()).append(field.name, file || text);
    else if (field.in === "whole") whole = valueOf(field, text);
    else { body[field.name] = valueOf(field, text); any = true; }
  }
  const options = { method: method.toUpperCase(), headers };
  if (form) options.body = form;
  else if (whole !== undefined || any || fields.some((f) => f.in === "body")) {
    headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(whole ?? body);
  }
  if ($("token").value) headers.Authorization = `Bearer ${$("token").value}`;
  if ($("key").value) headers["X-API-Key"] = $("key").value;
  // The page lives at <prefix>/v1/docs; every route hangs below <prefix>.
  url.pathname = url.pathname.replace(/\/v1\/$/, "") + path;
  url.search = query;
  reply.replaceChildren(el("p", { textContent: "…" }));
  const start = performance.now();
  try {
    const res = await fetch(url, options);
    const took = Math.round(performance.now() - start);
    const media = res.headers.get("Content-Type") || "";
    const head = el("p", { textContent: `${res.status} ${res.statusText} · ${took} ms · ${media}` });
    if (media.startsWith("image/")) {
      reply.replaceChildren(head, el("img", { src: URL.createObjectURL(await res.blob()), alt: "reply" }));
      return;
    }
    let text = await res.text();
    try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: shown as it is */ }
    reply.replaceChildren(head, el("pre", { textContent: text.length > 200000 ? text.slice(0, 200000) + "\n…" : text }));
  } catch (error) {
    reply.replaceChildren(el("p", { textContent: `No answer: ${error.message}` }));
  }
}

function operation(method, path, op) {
  const details = el("details", { className: "op", id: op.operationId });
  details.append(el("summary", {}, el("span", { className: "method", textContent: method.toUpperCase() }), el("code", { textContent: path }), el("span", { textContent: op.summary })));
  details.dataset.text = `${method} ${path} ${op.operationId} ${op.description}`.toLowerCase();
  details.addEventListener("toggle", () => {
    if (details.childElementCount === 1) details.append(formFor(method, path, op));
  }, { once: true });
  return details;
}

function formFor(method, path, op) {
  const fields = fieldsOf(op);
  const inputs = new Map();
  const body = el("div", { className: "body" }, el("p", { textContent: op.description }));
  if (fields.length) {
    const table = el("table", {}, el("tr", {}, ...["Field", "Type", "Meaning", "Value"].map((t) => el("th", { textContent: t }))));
    for (const field of fields) {
      const input = inputFor(field);
      inputs.set(field, input);
      table.append(el("tr", {}, el("td", {}, el("code", { textContent: field.name, className: field.required ? "required" : "" })),
        el("td", { className: "type", textContent: typeName(field.schema) }), el("td", { textContent: field.doc || "" }), el("td", {}, input)));
    }
    body.append(table);
  }
  const reply = el("div", { className: "reply" });
  const button = el("button", { textContent: "Try it" });
  button.addEventListener("click", () => send(method, path, fields, inputs, reply));
  body.append(el("p", {}, button), reply);
  return body;
}

const groups = new Map();
for (const [path, item] of Object.entries(doc.paths)) {
  for (const [method, op] of Object.entries(item)) {
    const tag = op.tags?.[0] || "other";
    if (!groups.has(tag)) groups.set(tag, []);
    groups.get(tag).push(operation(method, path, op));
  }
}
$("main").replaceChildren();
for (const [tag, list] of [...groups].sort()) {
  $("nav").append(el("a", { href: `#group-${tag}`, textContent: `${tag} (${list.length})` }));
  $("main").append(el("section", { id: `group-${tag}` }, el("h2", { textContent: tag }), ...list));
}
$("search").addEventListener("input", () => {
  const words = $("search").value.toLowerCase().split(/\s+/);
  for (const node of document.querySelectorAll("details.op")) node.hidden = !words.every((w) => node.dataset.text.includes(w));
  for (const node of document.querySelectorAll("section")) node.hidden = !node.querySelector("details.op:not([hidden])");
});
if (location.hash) document.querySelector(`details${CSS.escape(location.hash).replace("\\#", "#")}`)?.setAttribute("open", "");
