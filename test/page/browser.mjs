// What the stories share: one Chromium, a page, and checks that say what is wrong.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

// ignore is what the page may complain of.
export async function withPage(story, { ignore, ...options } = {}) {
  const browser = await chromium.launch({
    timeout: patience,
    executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
  try {
    const context = await browser.newContext({ viewport: { width: 1000, height: 640 }, permissions: ["clipboard-read", "clipboard-write"], ...options });
    context.setDefaultTimeout(patience);
    const page = await context.newPage();
    const problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => { if (message.type() === "error" && !/WebSocket|ERR_/.test(message.text()) && !message.location().url.endsWith("/favicon.ico")) problems.push(`${message.text()} ${message.location().url}`); });
    await story(page, context);
    if (ignore) problems.splice(0, Infinity, ...problems.filter((problem) => !ignore.test(problem)));
    check(problems.length === 0, `the page complained: ${problems.join("; ")}`);
  } finally {
    await browser.close();
  }
}

// connect drives a browser through its DevTools address, as patiently as withPage.
export async function connect(endpoint, options = {}) {
  const browser = await chromium.connectOverCDP(endpoint, { timeout: patience, ...options });
  browser.contexts()[0].setDefaultTimeout(patience);
  return browser;
}

// audit checks a page of ours: nothing that keeps people with disabilities out, few bytes, and nothing from other hosts.
export async function audit(page, name) {
  await page.evaluate(readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8"));
  const found = await page.evaluate(() => axe.run(document, { iframes: false, resultTypes: ["violations"] }));
  const serious = found.violations.filter((v) => v.impact === "serious" || v.impact === "critical");
  check(serious.length === 0, `${name}: ${serious.map((v) => `${v.id}: ${v.help}: ${v.nodes.map((n) => `${n.html} ${n.failureSummary}`).slice(0, 3).join(" | ")}`).join("; ")}`);
  const loaded = await page.evaluate(() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource").filter((e) => e.initiatorType !== "iframe" && e.initiatorType !== "fetch" && e.initiatorType !== "xmlhttprequest")]
    .map((e) => ({ url: e.name, size: e.encodedBodySize })));
  const size = loaded.reduce((sum, e) => sum + e.size, 0);
  check(size < 300_000, `${name} has ${size} bytes: ${loaded.map((e) => `${e.url} ${e.size}`).join(", ")}`);
  const away = loaded.filter((e) => /^https?:/.test(e.url) && new URL(e.url).host !== new URL(page.url()).host);
  check(away.length === 0, `${name} loads from elsewhere: ${away.map((e) => e.url).join(", ")}`);
  console.log(`ok ${name}: ${size} bytes, ready after ${await page.evaluate(() => Math.round(performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd))} ms`);
}

export function check(ok, message) {
  if (!ok) throw new Error(message);
}

// patience is how long a page may take on a busy machine.
const patience = 60_000;

// until polls what must come by itself. It never repeats an action. got describes the state of things for the failure.
export async function until(what, ask, got) {
  const end = Date.now() + patience;
  for (;;) {
    const last = await ask();
    if (last) return last;
    if (Date.now() > end) throw new Error(`${what}: did not happen within ${patience / 1000} s; got ${got ? await got() : JSON.stringify(last)}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
