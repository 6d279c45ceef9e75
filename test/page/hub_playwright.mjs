// A sandbox of a hub, used through the port of the hub: its browser with Playwright, its desktop and terminal as pages.
import { check, connect, until, withPage } from "./browser.mjs";

const base = process.env.URL;

async function call(path, body) {
  const res = await fetch(base + path, body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const reply = await res.json();
  check(res.ok && reply.success !== false, `${path}: ${res.status} ${JSON.stringify(reply)}`);
  return reply.data;
}

// The site runs inside, where the browser finds it on loopback.
await call("/v1/file/write", { file: "site/index.html", content: `<!doctype html><title>shop</title><input id="name">
  <button onclick="document.title = 'hello ' + document.getElementById('name').value">greet</button><a id="get" href="report.txt" download>download</a>` });
await call("/v1/file/write", { file: "site/report.txt", content: "figures" });
await call("/v1/bash/exec", { command: "cd site && exec python3 -m http.server 9000 --bind 127.0.0.1", async_mode: true });
await until("the site answers through the hub", async () => (await fetch(base + "/proxy/9000/report.txt")).ok);

const info = await call("/v1/browser/info");
check(info.sandbox === true, "the browser runs without its own sandbox");
check(info.cdp_url.startsWith(base.replace("http", "ws")), `cdp_url is ${info.cdp_url}`);
for (const endpoint of [info.cdp_url, base + "/cdp"]) {
  const browser = await connect(endpoint);
  const page = await browser.contexts()[0].newPage();
  await page.goto("http://127.0.0.1:9000/");
  await page.locator("#name").fill("Grüße, 世界 🎉");
  await page.getByRole("button", { name: "greet" }).click();
  check((await page.title()) === "hello Grüße, 世界 🎉", `the title is ${await page.title()}`);
  check((await page.screenshot()).subarray(1, 4).toString() === "PNG", "the screenshot is no picture");
  await page.close();
  await browser.close();
}

await withPage(async (page) => {
  await page.goto(`${base}/vnc/index.html?autoconnect=true`);
  await until("the desktop is seen", () => page.evaluate(() => {
    const canvas = document.querySelector("canvas");
    return canvas && canvas.width >= 640;
  }));
  await page.goto(`${base}/terminal`);
  const screen = () => page.locator(".xterm-rows").innerText();
  await until("the terminal's prompt", async () => (await screen()).includes("$"), screen);
  await page.locator(".xterm-helper-textarea").focus();
  await page.keyboard.type("echo $((6*7)); hostname\n");
  await until("the command's output", async () => /42\s+a\s/.test(await screen()), screen);
});
console.log("the sandbox works behind the hub");
