// Prints how long page operations take through our API and through playwright-core over the same browser, in turns, and
// compares the length of snapshots of the pages of the corpus with those of Playwright's MCP server.
import http from 'node:http';
import {chromium} from 'playwright-core';
import {cases, document as html, fixed} from './cases.mjs';

const base = process.env.URL;
const site = http.createServer((req, res) => {
  const i = Number(req.url.slice(6));
  res.writeHead(200, {'Content-Type': 'text/html; charset=utf-8'});
  res.end((req.url.startsWith('/case/') ? html(cases[i][0], cases[i][1]) : fixed[req.url] || html('bench', '<h1>Bench</h1><button id="b" onclick="this.dataset.n = 1">Go</button><input id="i">' + '<p>Some text in a paragraph</p>'.repeat(50))).replaceAll('ORIGIN2', origin));
});
await new Promise((done) => site.listen(0, '127.0.0.1', done));
const origin = `http://127.0.0.1:${site.address().port}`;

const call = async (method, where, body) => {
  const res = await fetch(base + '/v1/browser' + where, {method, headers: {'Content-Type': 'application/json'}, body: body && JSON.stringify(body)});
  const reply = await res.json();
  if (!reply.success) throw new Error(where + ': ' + reply.message);
  return reply.data;
};
const info = await (await fetch(base + '/v1/browser/info')).json();
const browser = await chromium.connectOverCDP(info.data.cdp_url);
const page = await browser.contexts()[0].newPage();
await page.goto(origin + '/bench');
const tab = (await call('GET', '/tabs')).findIndex((t) => t.url === origin + '/bench');

const pairs = {
  click: [() => call('POST', '/page/click', {tab, selector: '#b'}), () => page.locator('#b').click()],
  fill: [() => call('POST', '/page/fill', {tab, selector: '#i', text: 'some text'}), () => page.locator('#i').fill('some text')],
  evaluate: [() => call('POST', '/page/evaluate', {tab, expression: 'document.title'}), () => page.evaluate('document.title')],
  text: [() => call('GET', '/page/text?tab=' + tab), () => page.locator('body').innerText()],
};
for (const [name, sides] of Object.entries(pairs)) {
  const times = [[], []];
  for (let i = 0; i < 60; i++) {
    for (const side of i % 2 ? [0, 1] : [1, 0]) {
      const begin = performance.now();
      await sides[side]();
      if (i >= 10) times[side].push(performance.now() - begin);
    }
  }
  const [ours, theirs] = times.map((list) => list.sort((a, b) => a - b)[list.length >> 1]);
  console.log(`${name.padEnd(8)} p50 ${ours.toFixed(2)} ms, playwright-core ${theirs.toFixed(2)} ms: ${(ours / theirs).toFixed(2)} x (target 1.5)`);
}

// Language models cut text at about these places.
const tokens = (text) => (text.match(/[A-Za-z]{1,8}|\d{1,3}|[^\sA-Za-z\d]|\n\s*/g) || []).length;
let ours = 0, theirs = 0, pages = 0;
for (let i = 0; i < cases.length; i += 3) {
  await page.goto(origin + '/case/' + i, {waitUntil: 'load'});
  theirs += tokens(page._snapshotForAI ? JSON.stringify((await page._snapshotForAI()).full || '').replaceAll('\\n', '\n') : await page.ariaSnapshot({mode: 'ai'}));
  ours += tokens((await call('GET', '/page/snapshot?tab=' + tab)).snapshot);
  pages++;
}
console.log(`snapshot ${ours} tokens for ${pages} pages, Playwright's ${theirs}: ${(ours / theirs).toFixed(2)} x (target 0.7)`);
await page.close();
process.exit(0);
