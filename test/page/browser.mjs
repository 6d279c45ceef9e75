// What the stories share: one Chromium, a page, and checks that say what is wrong.
import { chromium } from "playwright-core";

export async function withPage(story, options = {}) {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
  try {
    const context = await browser.newContext({ viewport: { width: 1000, height: 640 }, permissions: ["clipboard-read", "clipboard-write"], ...options });
    const page = await context.newPage();
    const problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => { if (message.type() === "error" && !/WebSocket|ERR_/.test(message.text())) problems.push(message.text()); });
    await story(page, context);
    check(problems.length === 0, `the page complained: ${problems.join("; ")}`);
  } finally {
    await browser.close();
  }
}

export function check(ok, message) {
  if (!ok) throw new Error(message);
}

// until asks again and again, since a page answers in its own time.
export async function until(what, ask, seconds = 30) {
  const end = Date.now() + seconds * 1000;
  let last;
  for (;;) {
    last = await ask();
    if (last) return last;
    if (Date.now() > end) throw new Error(`${what}: did not happen within ${seconds} s`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
