// The image as its users drive it: Playwright, the desktop and the terminal in a browser, code and files, on one filesystem.
import { check, connect, until, withPage } from "../page/browser.mjs";

const base = process.env.URL;

async function call(path, body) {
  const res = await fetch(
    base + path,
    body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) },
  );
  const reply = await res.json();
  check(res.ok && reply.success, `${path}: ${res.status} ${JSON.stringify(reply)}`);
  return reply.data;
}

const home = (await (await fetch(base + "/v1/sandbox")).json()).home_dir;
await call("/v1/file/write", {
  file: `${home}/site/index.html`,
  content: `<!doctype html><meta charset="utf-8"><title>shop</title><body style="margin:0; background:#0a0">
    <p style="font-size:80px">你好 🎉</p>
    <input id="name"><button onclick="document.title = 'hello ' + document.getElementById('name').value">greet</button>`,
});
await call("/v1/file/write", { file: `${home}/site/report.txt`, content: "figures" });
await call("/v1/bash/exec", {
  command: `nohup python3 -m http.server 9000 --bind 127.0.0.1 --directory ${home}/site >/dev/null 2>&1 &
    until curl -fso /dev/null http://127.0.0.1:9000/; do sleep 0.05; done`,
});

const info = await call("/v1/browser/info");
check(info.sandbox === (process.env.SANDBOX !== "off"), `Chromium's own sandbox: got ${JSON.stringify(info)}`);
check(info.cdp_url.startsWith(base.replace("http", "ws") + "/cdp/"), `cdp_url is ${info.cdp_url}`);
for (const endpoint of [info.cdp_url, base + "/cdp"]) {
  const browser = await connect(endpoint);
  const page = await browser.contexts()[0].newPage();
  await page.goto("http://127.0.0.1:9000/");
  await page.locator("#name").fill("世界");
  await page.getByRole("button", { name: "greet" }).click();
  check((await page.title()) === "hello 世界", `the title is ${await page.title()}`);
  if (endpoint === info.cdp_url) {
    await page.bringToFront();
    await desktop();
  }
  await page.close();
  await browser.close();
}
console.log("ok Playwright");

// desktop compares what the public page of the desktop shows with what the browser in the sandbox shows.
async function desktop() {
  await withPage(async (viewer) => {
    await viewer.goto(base + "/vnc/index.html?autoconnect=true&quality=9");
    const green = () => viewer.evaluate(() => {
      const canvas = document.querySelector("#screen canvas");
      if (!canvas?.width) return 0;
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let n = 0;
      for (let i = 0; i < data.length; i += 4) if (data[i] < 40 && Math.abs(data[i + 1] - 170) < 40 && data[i + 2] < 40) n++;
      return n / (data.length / 4);
    });
    await until("the desktop shows the green page", async () => (await green()) > 0.5, green);
  });
  console.log("ok desktop");
}

await withPage(async (page) => {
  await page.goto(base + "/terminal");
  await page.locator(".screen.shown .xterm-helper-textarea").focus();
  await until("a session", () => new URL(page.url()).searchParams.get("session_id"));
  const lines = () =>
    page.evaluate(() =>
      [...document.querySelectorAll(".screen.shown .xterm-rows > div")].map((row) => row.textContent.replaceAll("\u00a0", " ").trimEnd()),
    );
  await until("a prompt", async () => (await lines()).some((line) => /[#$]$/.test(line)), lines);
  await page.keyboard.type("cat ~/site/report.txt; echo -$((6*7))-\n");
  await until("the terminal shows figures-42-", async () => (await lines()).includes("figures-42-"), lines);
});
console.log("ok terminal");

for (const [language, code, want] of [
  ["python", "import pandas, matplotlib; print(sum(range(10)))", "45"],
  ["javascript", "console.log([1, 2, 3].map((n) => n * n).join())", "1,4,9"],
]) {
  const got = await call("/v1/code/execute", { language, code });
  check(JSON.stringify(got).includes(want), `${language}: ${JSON.stringify(got)}`);
}
console.log("ok code");

// VS Code and JupyterLab are there, and start on the first visit.
const components = async () => (await (await fetch(base + "/v1/sandbox/components")).json()).data;
const visit = async (path) => (await fetch(base + path, { headers: { Accept: "text/html" } })).text();
for (const [name, path, mark] of [
  ["code-server", "/code-server/", "vscode-workbench-web-configuration"],
  ["jupyterlab", "/jupyter/lab", "jupyter-config-data"],
]) {
  const { state, why } = (await components()).find((c) => c.name === name);
  check(state === "idle", `${name} is ${state} before the first visit: ${why}`);
  await visit(path);
  await until(
    `${name} has started`,
    async () => (await components()).find((c) => c.name === name).state === "ready",
    async () => JSON.stringify(await components()),
  );
  const page = await visit(path);
  check(page.includes(mark), `${path}: ${page.slice(0, 500)}`);
}
console.log("ok VS Code, JupyterLab");
