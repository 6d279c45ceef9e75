// Reads operations from the OpenAPI document: their fields, the types of the fields, and an example to try.

/** @typedef {{ name: string, in: "path" | "query" | "header" | "body" | "form" | "whole", required: boolean, doc: string, schema: any }} Field */
/** @typedef {{ method: string, url: string, headers: Record<string, string>, body?: unknown, form?: [string, string | File][] }} Call */

/** Schema reads one OpenAPI document. */
export class Schema {
  /** @param {any} doc */
  constructor(doc) { this.doc = doc; }

  /** resolve follows references and removes null from the allowed types. @param {any} schema @returns {any} */
  resolve(schema) {
    if (!schema || schema === true) return {};
    if (schema.$ref) return this.resolve(this.doc.components.schemas[schema.$ref.split("/").pop()]);
    if (schema.allOf?.length === 1) return { ...this.resolve(schema.allOf[0]), ...schema, allOf: undefined };
    const options = (schema.anyOf || []).filter((/** @type {any} */ s) => s.type !== "null");
    if (options.length === 1) return { ...this.resolve(options[0]), ...schema, anyOf: undefined };
    return schema;
  }

  /** typeName returns the display name of a type. @param {any} schema @returns {string} */
  typeName(schema) {
    const s = this.resolve(schema);
    if (s.enum) return s.enum.join(" | ");
    if (s.const !== undefined) return JSON.stringify(s.const);
    if (s.type === "array") return `list of ${this.typeName(s.items)}`;
    if (s.anyOf || s.oneOf) return (s.anyOf || s.oneOf).map((/** @type {any} */ o) => this.typeName(o)).join(" | ");
    return s.format === "binary" ? "file" : s.type || "any";
  }

  /** fieldsOf lists the fields of an operation and their location in the request. @param {any} op @returns {Field[]} */
  fieldsOf(op) {
    /** @type {Field[]} */
    const fields = (op.parameters || []).map((/** @type {any} */ p) => ({ name: p.name, in: p.in, required: Boolean(p.required), doc: p.description || "", schema: p.schema }));
    for (const [media, body] of Object.entries(op.requestBody?.content || {})) {
      const schema = this.resolve(body.schema);
      const variants = schema.oneOf ? schema.oneOf.map((/** @type {any} */ o) => this.resolve(o)) : [schema];
      const seen = new Map();
      for (const variant of variants) {
        for (const [name, property] of Object.entries(variant.properties || {})) {
          const known = seen.get(name);
          if (known) {
            if (property.const !== undefined) known.schema = { enum: [...(known.schema.enum || [known.schema.const]), property.const] };
            continue;
          }
          /** @type {Field} */
          const field = { name, in: media.startsWith("multipart") ? "form" : "body", doc: property.description || "", schema: property, required: (variants.length === 1 || property.const !== undefined) && (variant.required || []).includes(name) };
          seen.set(name, field);
          fields.push(field);
        }
      }
      if (!seen.size) fields.push({ name: "(body)", in: "whole", doc: "The request body", schema, required: false });
    }
    return fields;
  }

  /** valueOf parses user input as JSON, unless the schema requires a string. @param {Field} field @param {string} text */
  valueOf(field, text) {
    const s = this.resolve(field.schema);
    if (s.type === "string" || s.enum?.every((/** @type {any} */ v) => typeof v === "string")) return text;
    try { return JSON.parse(text); } catch { return text; }
  }

  /**
   * compose creates a request from the values of the form. It omits empty fields.
   * @param {string} root @param {string} method @param {string} path @param {Field[]} fields @param {Record<string, string | File>} values @returns {Call}
   */
  compose(root, method, path, fields, values) {
    const query = new URLSearchParams();
    /** @type {Record<string, unknown>} */
    const body = {};
    /** @type {Call} */
    const call = { method: method.toUpperCase(), url: "", headers: {} };
    for (const field of fields) {
      const value = values[field.name] ?? "";
      if (field.in === "path") path = path.replace(`{${field.name}}`, encodeURIComponent(String(value)));
      if (value === "" || field.in === "path") continue;
      if (field.in === "query") query.append(field.name, String(value));
      else if (field.in === "header") call.headers[field.name] = String(value);
      else if (field.in === "form") (call.form ??= []).push([field.name, value]);
      else if (field.in === "whole") call.body = this.valueOf(field, String(value));
      else body[field.name] = this.valueOf(field, String(value));
    }
    if (!call.form && call.body === undefined && fields.some((f) => f.in === "body")) call.body = body;
    if (call.body !== undefined) call.headers["Content-Type"] = "application/json";
    call.url = root + path + (query.size ? `?${query}` : "");
    return call;
  }

  /** exampleOf returns example values for an operation: those in special and those of required fields. @param {string} id of the operation @param {Field[]} fields @returns {Record<string, string>} */
  exampleOf(id, fields) {
    /** @type {Record<string, string>} */
    const values = {};
    for (const field of fields) {
      const own = special[id]?.[field.name];
      if (own !== undefined) values[field.name] = own;
      else if (field.required) values[field.name] = this.sampleOf(field);
    }
    return values;
  }

  /** @param {Field} field @returns {string} */
  sampleOf(field) {
    const s = this.resolve(field.schema);
    if (s.enum) return String(s.enum[0]);
    if (s.const !== undefined) return String(s.const);
    if (s.type === "integer" || s.type === "number") return String(s.default ?? Math.max(1, s.minimum ?? 1));
    if (field.name in usual && s.format !== "binary") return usual[field.name];
    if (s.type === "boolean") return "true";
    if (s.type === "array") return "[]";
    if (s.type === "object") return "{}";
    return s.format === "binary" ? "" : "example";
  }
}

/** Page that the examples of browser operations use. */
const examplePage = "data:text/html,<title>Example</title><h1>Example</h1><p>Some text</p><input name=q><input type=checkbox><input type=file><select><option>one<option>two</select>";

/** Example values by name of the field, for all operations. @type {Record<string, string>} */
const usual = {
  command: "echo hello", code: "print(6 * 7)", content: "hello\n", file: "/tmp/hello.txt", path: "/etc/default", source: "/tmp/hello.txt", destination: "/tmp/copy.txt",
  pattern: "hello", glob: "*.txt", regex: "hel+o", old_str: "hello", new_str: "goodbye", mode: "644", url: examplePage, uri: "data:text/html,<h1>Hello</h1>",
  expression: "document.title", selector: "body", text: "hello", key: "Enter", keys: '["ctrl", "a"]', keyword: "Example", save_path: "/tmp/saved.json", url_pattern: "*/ads/*",
  origin: "https://example.com", headers: '{"X-Example": "1"}', server: "http://127.0.0.1:3128", username: "anna", session_id: "example", name: "example", id: "example", tenant: "anna", value: "secret",
};

/** Example values for specific operations; they take precedence. @type {Record<string, Record<string, string>>} */
const special = {
  nodejs_execute: { code: "console.log(6 * 7)" }, file_str_replace_editor: { command: "view", path: "/etc/hostname" }, file_glob: { pattern: "**/*.txt" }, file_chmod: { path: "/tmp/hello.txt" }, file_delete: { path: "/tmp/hello.txt" },
  file_mkdir: { path: "/tmp/folder" }, file_download: { path: "/etc/hostname" }, file_preview: { path: "/tmp/page.html" }, file_read: { file: "/etc/hostname" }, file_search: { file: "/etc/hostname", regex: "." }, file_replace: { file: "/tmp/hello.txt" },
  proxy_add_mapping: { source: "api.example.com", target: "http://127.0.0.1:3000" }, proxy_remove_mapping: { source: "api.example.com" }, proxy_add_exclude: { pattern: "*.example.com" }, proxy_remove_exclude: { pattern: "*.example.com" },
  sandbox_register_hook: { event: "ready", command: "echo hello" }, browser_cookies_set: { cookies: '[{"name": "a", "value": "1", "url": "https://example.com/"}]' }, browser_state_save: { path: "/tmp/state.json" }, browser_state_load: { path: "/tmp/state.json" },
  browser_actions: { action_type: "MOVE_TO", x: "100", y: "100" }, browser_drag: { selector: "h1", target: "p" }, component_install: { name: "code-server" }, mcp_add: { name: "example", command: "example-server" },
  browser_wait: { type: "load" }, browser_click: { selector: "body" }, browser_hover: { selector: "body" }, browser_fill: { selector: "input[name=q]" }, browser_type: { selector: "input[name=q]" }, browser_check: { selector: "input[type=checkbox]" }, browser_uncheck: { selector: "input[type=checkbox]" }, browser_select: { selector: "select", value: "one" }, browser_fill_form: { items: '[{"selector": "input[name=q]", "value": "hello"}]' }, browser_permission_policy: { permissions: '["geolocation"]' }, browser_upload_file: { selector: "input[type=file]", files: '["/etc/hostname"]' }, proxy_diagnose: { url: "https://example.com/" },
};
