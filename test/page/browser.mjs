// Helpers of the stories: one Chromium, a page, and checks.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

// One browser serves all pages of a story, each in a separate context, and ends with the story.
let browser;

async function launch() {
  browser ??= chromium.launch({
    timeout: patience,
    executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
  return browser;
}

// close ends the story's browser.
export async function close() {
  await (await browser)?.close();
}

// gone matches messages of noVNC about a connection that the page has closed, which may arrive late.
const gone = /Got data while disconnected|Disconnection timed out|when already disconnected/;

// withPage runs a story with a page. ignore matches console messages that are allowed.
export async function withPage(story, { ignore, ...options } = {}) {
  const context = await (await launch()).newContext({ viewport: { width: 1000, height: 640 }, permissions: ["clipboard-read", "clipboard-write"], ...options });
  try {
    context.setDefaultTimeout(patience);
    const page = await context.newPage();
    const problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => { if (message.type() === "error" && !/WebSocket|ERR_/.test(message.text()) && !gone.test(message.text()) && !message.location().url.endsWith("/favicon.ico")) problems.push(`${message.text()} ${message.location().url}`); });
    await story(page, context);
    if (ignore) problems.splice(0, Infinity, ...problems.filter((problem) => !ignore.test(problem)));
    check(problems.length === 0, `the page complained: ${problems.join("; ")}`);
  } finally {
    await context.close();
  }
}

// connect connects to a browser through its DevTools URL, with the timeouts of withPage.
export async function connect(endpoint, options = {}) {
  const browser = await chromium.connectOverCDP(endpoint, { timeout: patience, ...options });
  browser.contexts()[0].setDefaultTimeout(patience);
  return browser;
}

// axe checks the accessibility of a page. The rule about skip links takes the addresses of parts of the dashboard, which begin with #,
// for links within the page.
export async function axe(page, name) {
  if (!(await page.evaluate(() => "axe" in globalThis))) await page.evaluate(readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8"));
  const found = await page.evaluate(() => globalThis.axe.run(document, { iframes: false, resultTypes: ["violations"], rules: { "skip-link": { enabled: false } } }));
  const serious = found.violations.filter((v) => v.impact !== "minor");
  check(serious.length === 0, `${name}: ${serious.map((v) => `${v.id}: ${v.help}: ${v.nodes.map((n) => `${n.html} ${n.failureSummary}`).slice(0, 3).join(" | ")}`).join("; ")}`);
}

// audit checks one of our pages: accessibility, size, and no requests to other hosts.
export async function audit(page, name) {
  await axe(page, name);
  const loaded = await page.evaluate(() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource").filter((e) => e.initiatorType !== "iframe" && e.initiatorType !== "fetch" && e.initiatorType !== "xmlhttprequest")]
    .map((e) => ({ url: e.name, size: e.encodedBodySize })));
  const size = loaded.reduce((sum, e) => sum + e.size, 0);
  check(size < 300_000, `${name} has ${size} bytes: ${loaded.map((e) => `${e.url} ${e.size}`).join(", ")}`);
  const away = loaded.filter((e) => /^https?:/.test(e.url) && new URL(e.url).host !== new URL(page.url()).host);
  check(away.length === 0, `${name} loads from elsewhere: ${away.map((e) => e.url).join(", ")}`);
  console.log(`ok ${name}: ${size} bytes, ready after ${await page.evaluate(() => Math.round(performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd))} ms`);
}

// gate holds requests of a page whose URL contains a text, or only their responses, until it is opened. only selects a single
// request, counted from 1.
export async function gate(page, address, text, { answers = true, only = 0 } = {}) {
  const held = [];
  let seen = 0;
  let stopped;
  let open;
  const first = new Promise((done) => { stopped = done; });
  const opened = new Promise((done) => { open = done; });
  const hold = async (route) => {
    const response = answers ? await route.fetch() : null;
    if (!(response ? await response.text() : route.request().url()).includes(text) || (only && ++seen !== only)) return response ? route.fulfill({ response }) : route.continue();
    const pass = opened.then(() => (response ? route.fulfill({ response }) : route.continue())).catch(() => {}); // the page may have canceled the request
    held.push(pass);
    stopped();
    return pass;
  };
  await page.route(address, hold);
  return { stopped: () => first, open: async () => { open(); await Promise.all(held); await page.unroute(address, hold); } };
}

export const keys = { enter: { key: "Enter", code: "Enter", windowsVirtualKeyCode: 13, text: "\r" }, space: { key: " ", code: "Space", windowsVirtualKeyCode: 32, text: " " } };

// hold repeats a key in a page that was pressed on another page. With release the key is released at the end.
export async function hold(page, key, { release }) {
  const devtools = await page.context().newCDPSession(page);
  await page.bringToFront();
  for (let i = 0; i < 40; i++) await devtools.send("Input.dispatchKeyEvent", { type: "keyDown", autoRepeat: true, ...key });
  if (release) await devtools.send("Input.dispatchKeyEvent", { type: "keyUp", ...key, text: undefined });
  await devtools.detach();
}

// typeInstead runs a command in a terminal and discards the text at its prompt.
export async function typeInstead(page, command) {
  await page.locator(".xterm-helper-textarea").first().focus();
  await page.keyboard.press("Control+u"); // the terminal drops what is typed right after Control+c
  await page.keyboard.type(`${command}\n`);
}

// hurry makes the pages that a context loads from now on poll and reconnect ten times as often. Notices, which stay for longer, are
// not changed.
export const hurry = (context) => context.addInitScript(() => {
  for (const name of ["setTimeout", "setInterval"]) {
    const original = globalThis[name];
    globalThis[name] = (run, time, ...rest) => original(run, time >= 1000 && time <= 5000 ? time / 10 : time, ...rest);
  }
});

export function check(ok, message) {
  if (!ok) throw new Error(message);
}

// patience is the timeout for pages on a busy machine. PATIENCE=10000 shows sooner where a story fails.
export const patience = Number(process.env.PATIENCE) || 180_000;

// quick is set in make test, which leaves large amounts and repetitions to make test-engines.
export const quick = process.env.TEST_LANE === "test";

// until polls a condition and never repeats an action. got describes the state in case of a failure.
export async function until(what, ask, got) {
  const end = Date.now() + patience;
  for (;;) {
    const last = await ask();
    if (last) return last;
    if (Date.now() > end) throw new Error(`${what}: did not happen within ${patience / 1000} s; got ${got ? await got() : JSON.stringify(last)}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
