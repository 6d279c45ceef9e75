// A HAR file with many kinds of requests passes a common validator and matches what the server received.
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import zlib from 'node:zlib';
import { har } from 'har-validator/lib/promise.js';

const check = (ok, what) => { if (!ok) { console.error('failed: ' + what); process.exit(1); } };
const site = http.createServer((req, res) => {
  const at = new URL(req.url, 'http://x').pathname;
  if (at === '/') {
    res.setHeader('Set-Cookie', ['plain=1', 'full=a b; Path=/; HttpOnly; SameSite=Lax; Expires=Fri, 01 Jan 2100 00:00:00 GMT']);
    res.setHeader('Content-Type', 'text/html; charset=utf-8');
    res.end(`<!doctype html><title>Requests</title><link rel="icon" href="data:,"><img src="/pixel.png"><script>
      const all = [
        fetch('/moved?a=1&b=%C3%BC&b=2&empty='), fetch('/json', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{"n":1}'}),
        fetch('/form', {method: 'POST', body: new URLSearchParams({name: 'ann', text: 'ü & ='})}), fetch('/empty'), fetch('/packed'), fetch('/missing'),
        fetch('/cut').catch(() => 0), fetch('http://127.0.0.1:1/').catch(() => 0), fetch('/packed', {cache: 'force-cache'}), fetch('data:text/plain,hello'), fetch('/multi', {method: 'PUT', body: (() => { const f = new FormData(); f.append('a', new Blob(['x']), 'a.bin'); return f; })()}),
      ];
      // A response counts when it is complete.
      Promise.allSettled([...all.map(async (reply) => (await reply).arrayBuffer()), document.images[0].decode()]).then(() => document.title = 'done')</script>`);
  } else if (at === '/pixel.png') {
    res.setHeader('Content-Type', 'image/png');
    res.end(Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==', 'base64'));
  } else if (at === '/moved') {
    res.writeHead(302, { Location: '/json' }).end();
  } else if (at === '/empty') {
    res.writeHead(204).end();
  } else if (at === '/packed') {
    res.writeHead(200, { 'Content-Type': 'text/plain', 'Content-Encoding': 'gzip', 'Cache-Control': 'max-age=60' }).end(zlib.gzipSync('packed '.repeat(1000)));
  } else if (at === '/missing') {
    res.writeHead(404, 'No Such Page').end('missing');
  } else if (at === '/cut') {
    req.socket.destroy();
  } else {
    res.setHeader('Content-Type', 'application/json');
    res.end('{"ok":true}');
  }
});
await new Promise((done) => site.listen(0, '127.0.0.1', done));
const base = `http://127.0.0.1:${site.address().port}`;

async function call(route, body) {
  const res = await fetch(process.env.URL + route, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });
  const reply = await res.json();
  check(reply.success, `${route}: ${JSON.stringify(reply)}`);
  return reply.data;
}
await call('/v1/browser/page/navigate', { url: base + '/' });
await call('/v1/browser/page/wait', { type: 'function', expression: "document.title === 'done'", timeout: 60 });

const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'har-'));
try {
  for (const bodies of [true, false]) {
    const file = path.join(dir, `bodies-${bodies}.har`);
    const out = await call('/v1/browser/network/export_har', { save_path: file, bodies });
    const log = JSON.parse(fs.readFileSync(file, 'utf8'));
    await har(log).catch((err) => check(false, `the HAR is not valid: ${JSON.stringify(err.errors, null, 1)}`));
    check(log.log.version === '1.2' && log.log.entries.length === out.entries, `version and entries: ${log.log.version}, ${log.log.entries.length}, ${out.entries}`);
    const find = (at, method = 'GET') => log.log.entries.find((e) => new URL(e.request.url).pathname === at && e.request.method === method && e.request.url.startsWith(base));
    check(JSON.stringify(find('/moved').request.queryString) === JSON.stringify([{ name: 'a', value: '1' }, { name: 'b', value: 'ü' }, { name: 'b', value: '2' }, { name: 'empty', value: '' }]), 'the query: ' + JSON.stringify(find('/moved').request.queryString));
    check(find('/moved').response.status === 302 && find('/moved').response.redirectURL.endsWith('/json'), 'the redirect: ' + JSON.stringify(find('/moved').response));
    check(find('/json', 'POST').request.postData.text === '{"n":1}', 'the body of a request: ' + JSON.stringify(find('/json', 'POST').request));
    check(find('/form', 'POST').request.postData.mimeType.startsWith('application/x-www-form-urlencoded'), 'the form: ' + JSON.stringify(find('/form', 'POST').request.postData));
    check(find('/').response.cookies.some((c) => c.name === 'full' && c.httpOnly), 'cookies: ' + JSON.stringify(find('/').response.cookies));
    check(find('/missing').response.status === 404 && find('/empty').response.status === 204, 'statuses');
    check(find('/cut').response.status === 0, 'a cut reply: ' + JSON.stringify(find('/cut').response));
    if (bodies) {
      check(find('/packed').response.content.text === 'packed '.repeat(1000) && find('/packed').response.content.size === 7000, 'a packed body: ' + JSON.stringify(find('/packed').response.content).slice(0, 300));
      check(find('/pixel.png').response.content.encoding === 'base64', 'a picture: ' + JSON.stringify(find('/pixel.png').response.content));
    } else {
      check(find('/packed').response.content.text === undefined, 'a body that was not wanted');
    }
    console.log(`${out.entries} entries are valid`);
  }
} finally {
  fs.rmSync(dir, { recursive: true });
}
process.exit(0);
