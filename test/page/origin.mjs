// Helpers of the stories about origins: the hubs, calls of programs, and visits of users.
import { check } from "./browser.mjs";

const { KEY: key, KEY_URL: keyed, OPEN_URL: open } = process.env;

// Every hub under a domain below which sandboxes have names, and at an IP address.
export const hubs = [{ url: keyed, key }, { url: open }].flatMap(({ url, key }) => [
  { at: url.replace("127.0.0.1", "localhost"), named: true, url, key, title: `by name, ${key ? "with a key" : "open"}` },
  { at: url, named: false, url, key, title: `by address, ${key ? "with a key" : "open"}` },
]);

// call sends a request as a program.
export async function call(hub, method, path, body) {
  const headers = { ...(hub.key && { "X-API-Key": hub.key }), ...(body && { "Content-Type": "application/json" }) };
  const res = await fetch(hub.url + path, { method, headers, body: body && JSON.stringify(body) });
  const text = await res.text();
  check(res.ok, `${method} ${path}: got ${res.status} ${text}`);
  return JSON.parse(text).data;
}

export const run = async (hub, name, command) => (await call(hub, "POST", `/sandbox/${name}/v1/bash/exec`, { command })).stdout;
export const start = (hub, name, command) => call(hub, "POST", `/sandbox/${name}/v1/bash/exec`, { command, async_mode: true });
export const write = (hub, name, file, content) => call(hub, "POST", `/sandbox/${name}/v1/file/write`, { file, content });

// signIn creates a session of the browser at the hub with a ticket.
export async function signIn(hub, page) {
  let ticket = "";
  if (hub.key) {
    const res = await fetch(hub.url + "/tickets", { method: "POST", headers: { "X-API-Key": hub.key } });
    ticket = "?ticket=" + (await res.json()).ticket;
  }
  await page.goto(`${hub.at}/v1/docs${ticket}`);
  check(page.url() === `${hub.at}/v1/docs`, `got ${page.url()}, want the hub's own page`);
}

// A server with files, which responds to all requests of pages of other origins.
export const server = `
import http.server, os, socketserver, sys, urllib.parse
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript", ".sse": "text/event-stream"}
    def end_headers(self):
        self.send_header("Access-Control-Allow-Origin", self.headers.get("Origin") or "*")
        self.send_header("Access-Control-Allow-Headers", "content-type")
        self.send_header("Service-Worker-Allowed", "/")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()
    def redirected(self):
        url = urllib.parse.urlsplit(self.path)
        if url.path != "/to":
            return False
        q = urllib.parse.parse_qs(url.query)
        self.send_response(int(q["status"][0]))
        self.send_header("Location", q["url"][0])
        self.send_header("Content-Length", "0")
        self.end_headers()
        return True
    def do_GET(self):
        headers = {"/clear": [("Clear-Site-Data", '"*"')], "/cookies": [("Set-Cookie", "cove_session_000000000000=forged; Path=/" + d) for d in ("", "; Domain=localhost", "; Domain=127.0.0.1")]}
        extra = headers.get(urllib.parse.urlsplit(self.path).path)
        if extra:
            self.send_response(200)
            for name, value in extra:
                self.send_header(name, value)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")
        elif not self.redirected():
            super().do_GET()
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.redirected():
            return
        with open("posts", "ab") as f:
            f.write(body + b"\\n")
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True
os.chdir(sys.argv[2])
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
`;
