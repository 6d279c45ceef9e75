// Playwright as an external client: through the URL of info, and through a path prefix as a hub serves it.
import http from "node:http";
import { check, connect, patience, until } from "./browser.mjs";

const site = http.createServer((req, res) => {
  if (req.url === "/report") {
    res.setHeader("Content-Disposition", 'attachment; filename="report.txt"');
    return res.end("figures from " + req.headers.host);
  }
  res.setHeader("Content-Type", "text/html; charset=utf-8");
  res.end(`<!doctype html><title>shop</title><body style="background:#0a0">
    <input id="name"><button onclick="document.title = 'hello ' + document.getElementById('name').value">greet</button>
    <a id="get" href="/report">download</a>`);
});
await new Promise((resolve) => site.listen(0, "127.0.0.1", resolve));
const shop = `http://127.0.0.1:${site.address().port}/`;

async function call(base, path, body) {
  const res = await fetch(base + path, body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const reply = await res.json();
  check(res.ok && reply.success !== false, `${path}: ${res.status} ${JSON.stringify(reply)}`);
  return reply;
}

// name is the name of the file to download. The folder of downloads is a setting of the whole browser, so only one client
// may set it.
async function story(base, endpoint, name) {
  const browser = await connect(endpoint);
  try {
    const context = browser.contexts()[0];
    const page = await context.newPage();
    await page.goto(shop);
    await page.locator("#name").fill("Grüße, 世界 🎉");
    await page.getByRole("button", { name: "greet" }).click();
    check((await page.title()) === "hello Grüße, 世界 🎉", `the title is ${await page.title()}`);

    if (name) await download(base, page, name);

    const shot = await page.screenshot();
    check(shot.subarray(1, 4).toString() === "PNG" && shot.length > 500, "the screenshot is no picture");

    // A separate context has separate cookies; both work at the same time.
    const alone = await browser.newContext();
    alone.setDefaultTimeout(patience);
    const other = await alone.newPage();
    await other.goto(shop);
    check((await other.title()) === "shop", "the second context does not work");
    await alone.close();

    // The display shows what Playwright does.
    await page.bringToFront();
    const desktop = Buffer.from(await (await fetch(base + "/v1/browser/screenshot")).arrayBuffer());
    check(desktop.subarray(1, 4).toString() === "PNG", "the desktop's screenshot is no picture");
    await page.close();
  } finally {
    await browser.close();
  }
}

// download saves a file where the file operations of the sandbox can read it.
async function download(base, page, name) {
  const [file] = await Promise.all([page.waitForEvent("download"), page.click("#get")]);
  check(file.suggestedFilename() === "report.txt", `the file is called ${file.suggestedFilename()}`);
  const path = `${home}/Downloads/${name}.txt`;
  await file.saveAs(path);
  const { content } = (await call(base, "/v1/file/read", { file: path })).data;
  check(content.startsWith("figures from 127.0.0.1"), `the file holds ${content}`);
}

const home = (await call(process.env.URL, "/v1/sandbox")).home_dir;
for (const base of [process.env.URL, process.env.PREFIX_URL]) {
  const info = (await call(base, "/v1/browser/info")).data;
  check(info.cdp_url.startsWith(base.replace("http", "ws") + "/cdp/devtools/browser/"), `cdp_url is ${info.cdp_url} for ${base}`);
  await story(base, info.cdp_url, base === process.env.URL ? "plain" : "prefix");
  await story(base, base + "/cdp"); // Playwright requests json/version/ itself
}

// Two clients at once, and our own operations.
const base = process.env.URL;
const info = (await call(base, "/v1/browser/info")).data;
await Promise.all([story(base, info.cdp_url), story(base, info.cdp_url), call(base, "/v1/browser/info")]);

// Closing the last tab does not end the browser for others.
const browser = await connect(info.cdp_url);
for (const page of browser.contexts()[0].pages()) await page.close();
await until("a blank tab comes back", () => browser.contexts()[0].pages().length === 1);
await browser.close();
check((await call(base, "/v1/browser/info")).data.cdp_url === info.cdp_url, "the browser was restarted");
site.close();
site.closeAllConnections(); // Chromium keeps idle connections
console.log("Playwright works");
