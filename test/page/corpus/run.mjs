// Runs the corpus: every case with playwright-core over the DevTools URL of the sandbox, then with our operations, and compares.
// URL is the sandbox; REPEAT how often our side runs; ONLY a part of a case's name.
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import {chromium} from 'playwright-core';
import {patience} from '../browser.mjs';
import {cases, document as html, fixed} from './cases.mjs';

const base = process.env.URL;
const repeat = Number(process.env.REPEAT || 1);
const lanes = Number(process.env.LANES || 3);
const list = cases.map(([name, body, steps], i) => ({name, body, steps, path: '/case/' + i})).filter((c) => !process.env.ONLY || c.name.includes(process.env.ONLY));
const files = fs.mkdtempSync(path.join(os.tmpdir(), 'corpus-'));
const uploads = ['a.txt', 'b.txt'].map((name) => { const p = path.join(files, name); fs.writeFileSync(p, 'content of ' + name); return p; });

let origin2 = '';
const site = http.createServer((req, res) => {
  const url = new URL(req.url, 'http://x');
  const page = (text, status = 200) => { res.writeHead(status, {'Content-Type': 'text/html; charset=utf-8', 'Cache-Control': 'no-store'}); res.end(text.replaceAll('ORIGIN2', origin2)); };
  const found = list.find((c) => c.path === url.pathname);
  if (found) return page(html(found.name, found.body));
  if (fixed[url.pathname]) return page(fixed[url.pathname]);
  switch (url.pathname) {
    case '/form': return page(html('form', `<p>${req.method} ${url.search}</p>`));
    case '/redirect': res.writeHead(302, {Location: url.searchParams.get('to')}); return res.end();
    case '/slow': return setTimeout(() => page(html('slow', '<p>Slow</p>')), 700);
    case '/slow.png': return setTimeout(() => { res.writeHead(404); res.end(); }, 700);
    case '/worker.js': res.writeHead(200, {'Content-Type': 'text/javascript'}); return res.end(`oninstall = () => skipWaiting(); onactivate = (e) => e.waitUntil(clients.claim()); onfetch = (e) => { if (e.request.url.endsWith('/worked')) e.respondWith(new Response('from the worker')) }`);
    case '/broken': res.writeHead(200, {'Content-Length': '1000'}); res.write('begin'); return setTimeout(() => res.destroy(), 50);
    case '/file.txt': res.writeHead(200, {'Content-Type': 'text/plain'}); return res.end('file');
    case '/attachment': res.writeHead(200, {'Content-Type': 'text/plain', 'Content-Disposition': 'attachment; filename="attached.txt"'}); return res.end('attached');
  }
  page(html('missing', '<p>Not here</p>'), 404);
});
await new Promise((done) => site.listen(0, '0.0.0.0', done));
const origin = `http://127.0.0.1:${site.address().port}`;
origin2 = `http://localhost:${site.address().port}`;

// What the page shows and recorded, independent of the URL of the site. Waits until the page is idle.
const capture = `(async () => {
  const frames = () => [...document.querySelectorAll('iframe')];
  if (frames().length) await new Promise((done) => setTimeout(done, 150));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)));
  const all = (root) => [...root.querySelectorAll('*')].flatMap((el) => [el, ...(el.shadowRoot ? all(el.shadowRoot) : [])]);
  const fields = all(document).filter((el) => el.id && el.matches('input,select,textarea,[contenteditable],[aria-checked],details')).map((el) => [el.id, el.type === 'file' ? '' : el.value, el.checked, el.selectedOptions && [...el.selectedOptions].map((o) => o.value).join(), el.isContentEditable ? el.textContent : '', el.getAttribute('aria-checked'), el.open].join('|'));
  return JSON.stringify({at: location.pathname + location.search + location.hash, host: location.hostname, title: document.title, fields, record: (window.record || []).filter((r) => r.split(' ')[1] !== 'f'), framed: window.framed || []});
})()`;

function locator(page, selector) {
  const parts = selector.split(' >> ');
  let at = page;
  while (parts.length > 1 && /^#[fm]$/.test(parts[0])) at = at.frameLocator(parts.shift());
  return at.locator(parts.join(' >> '));
}

const titled = (want) => `document.title === ${JSON.stringify(want)}`;

const theirs = {
  click: (p, s) => locator(p, s).click(), dblclick: (p, s) => locator(p, s).dblclick(), rightclick: (p, s) => locator(p, s).click({button: 'right'}), middleclick: (p, s) => locator(p, s).click({button: 'middle'}),
  shiftclick: (p, s) => locator(p, s).click({modifiers: ['Shift']}), hover: (p, s) => locator(p, s).hover(), fill: (p, s, v) => locator(p, s).fill(v), type: (p, s, v) => locator(p, s).pressSequentially(v), press: (p, s, k) => locator(p, s).press(k),
  key: (p, s, k) => p.keyboard.press(k), select: (p, s, v) => locator(p, s).selectOption(v), check: (p, s) => locator(p, s).check(), uncheck: (p, s) => locator(p, s).uncheck(), back: (p) => p.goBack(), forward: (p) => p.goForward(), reload: (p) => p.reload(),
  url: (p, s, u) => p.waitForURL(u), title: (p, s, t) => p.waitForFunction(titled(t)), upload: (p, s, n) => locator(p, s).setInputFiles(uploads.slice(0, n)), drag: (p, s, to) => locator(p, s).dragTo(locator(p, to)), 'into-view': (p, s) => locator(p, s).scrollIntoViewIfNeeded(),
  popup: async (p, s) => { const [popup] = await Promise.all([p.waitForEvent('popup'), locator(p, s).click()]); await popup.waitForLoadState(); const at = new URL(popup.url()).pathname; await popup.close(); return at; },
  download: async (p, s) => { const [d] = await Promise.all([p.waitForEvent('download'), locator(p, s).click()]); return d.suggestedFilename(); },
};

async function call(method, where, body) {
  const res = await fetch(base + '/v1/browser' + where, {method, headers: {'Content-Type': 'application/json'}, body: body && JSON.stringify(body)});
  const reply = await res.json();
  if (!res.ok || reply.success === false) throw new Error(`${where} ${JSON.stringify(body)}: ${reply.message || JSON.stringify(reply)}`);
  return reply.data;
}
const post = (where, tab, body) => call('POST', '/page/' + where, {tab, ...body});

const ours = {
  click: (t, selector) => post('click', t, {selector}), dblclick: (t, selector) => post('click', t, {selector, click_count: 2}), rightclick: (t, selector) => post('click', t, {selector, button: 'right'}), middleclick: (t, selector) => post('click', t, {selector, button: 'middle'}),
  shiftclick: (t, selector) => post('click', t, {selector, modifiers: ['Shift']}), hover: (t, selector) => post('hover', t, {selector}), fill: (t, selector, text) => post('fill', t, {selector, text}), type: (t, selector, text) => post('type', t, {selector, text}), press: (t, selector, key) => post('press_key', t, {selector, key}),
  key: (t, s, key) => post('press_key', t, {key}), select: (t, selector, v) => post('select_option', t, Array.isArray(v) ? {selector, values: v} : {selector, ...v}), check: (t, selector) => post('check', t, {selector}), uncheck: (t, selector) => post('uncheck', t, {selector}), back: (t) => post('back', t), forward: (t) => post('forward', t), reload: (t) => post('reload', t),
  url: (t, s, url) => post('wait', t, {type: 'url', url}), title: (t, s, v) => post('wait', t, {type: 'function', expression: titled(v)}), upload: (t, selector, n) => post('upload_file', t, {selector, files: uploads.slice(0, n)}), drag: (t, selector, target) => post('drag', t, {selector, target}), 'into-view': (t, selector) => post('scroll_to_element', t, {selector}),
  popup: async (t, selector) => {
    const before = (await call('GET', '/tabs')).length;
    await post('click', t, {selector});
    for (;;) {
      const tabs = await call('GET', '/tabs');
      if (tabs.length > before) {
        await post('wait', before, {type: 'load'});
        const at = new URL((await call('GET', '/tabs'))[before].url).pathname;
        await call('DELETE', '/tabs/' + before);
        return at;
      }
    }
  },
  download: async (t, selector) => { await post('click', t, {selector}); return (await post('wait', t, {type: 'download'})).suggested_filename; },
};

const isAlone = (c) => c.steps.some(([action]) => action === 'popup' || action === 'download');

async function inLanes(work) {
  const queue = list.filter((c) => !isAlone(c));
  await Promise.all(Array.from({length: lanes}, async (_, lane) => { while (queue.length) await work(queue.shift(), lane); }));
  for (const c of list.filter(isAlone)) await work(c, 0);
}

const expected = new Map();
const faults = [], different = [];
const until = Date.now();

const info = await (await fetch(base + '/v1/browser/info')).json();
let browser = await chromium.connectOverCDP(info.data.cdp_url, {timeout: patience});
const pages = [];
for (let i = 0; i < lanes; i++) pages.push(await browser.contexts()[0].newPage());
for (const page of pages) page.setDefaultTimeout(10000);
const alone = [];
async function byPlaywright(c, lane) {
  try {
    await pages[lane].goto(origin + c.path);
    const results = [];
    for (const [action, selector, argument] of c.steps) {
      const r = await theirs[action](pages[lane], selector, argument);
      if (action === 'popup' || action === 'download') results.push(r);
    }
    const state = JSON.parse(await pages[lane].evaluate(capture));
    // Over a frame of another process Playwright may lose the click and retries it.
    if (c.steps.some(([, selector]) => selector && selector.startsWith('#f >>')) && !state.framed.length && !c.body.includes('srcdoc') && !c.again) throw new Error('no event reached the frame');
    expected.set(c.name, JSON.stringify({...state, results}));
  } catch (e) {
    if (c.again) faults.push(`${c.name}: Playwright itself fails: ${e.message.split('\n')[0]}`);
    else alone.push(Object.assign(c, {again: true}));
  }
}
await inLanes(byPlaywright);
pages[0].setDefaultTimeout(patience);
for (const c of alone) {
  await pages[0].bringToFront();
  await byPlaywright(c, 0);
}
for (const page of pages) await page.close();
await browser.close();
const theirTime = Date.now() - until;

const begin = Date.now();
let steps = 0;
for (let round = 0; round < repeat; round++) {
  const tabs = await call('GET', '/tabs');
  for (let i = tabs.length; i < lanes; i++) await call('POST', '/tabs', {});
  await inLanes(async (c, lane) => {
    if (!expected.has(c.name)) return;
    let at = 'navigate';
    try {
      await post('navigate', lane, {url: origin + c.path});
      const results = [];
      for (const [action, selector, argument] of c.steps) {
        at = `${action} ${selector}`;
        steps++;
        const r = await ours[action](lane, selector, argument);
        if (action === 'popup' || action === 'download') results.push(r);
      }
      at = 'compare';
      const state = JSON.parse((await call('POST', '/page/evaluate', {tab: lane, expression: capture})));
      const got = JSON.stringify({...state, results});
      if (got !== expected.get(c.name)) different.push({c, round, got});
    } catch (e) {
      faults.push(`round ${round}, ${c.name}, ${at}: ${e.message}`);
      if (repeat > 1) console.log(faults.at(-1));
    }
  });
  if (repeat > 1) console.log(`round ${round}: ${faults.length} faults so far, ${different.length} results to ask Playwright about`);
}
// Playwright's result can vary because of events of a canceled click, so it is repeated before a failure is reported.
if (different.length) {
  browser = await chromium.connectOverCDP(info.data.cdp_url, {timeout: patience});
  pages[0] = await browser.contexts()[0].newPage();
  pages[0].setDefaultTimeout(patience);
  for (const d of different) {
    let same = false;
    for (let i = 0; i < 3 && !same; i++) {
      await byPlaywright(d.c, 0);
      same = d.got === expected.get(d.c.name);
    }
    if (!same) faults.push(`round ${d.round}, ${d.c.name}:\n  got  ${d.got}\n  want ${expected.get(d.c.name)}`);
  }
  await browser.close();
}
console.log(`${list.length} pages, ${steps} steps in ${repeat} rounds: ${faults.length} faults; Playwright took ${theirTime} ms, we ${Math.round((Date.now() - begin) / repeat)} ms a round`);
for (const f of faults.slice(0, 40)) console.log(f);
fs.rmSync(files, {recursive: true});
process.exit(faults.length ? 1 : 0);
