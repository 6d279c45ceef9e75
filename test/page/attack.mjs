// A hostile sandbox: its activity log, images, files and terminal are shown by the activity page, the replay, the export, the
// wall, the dashboard and the archive of the hub, and none of its content runs.
import { writeFileSync } from "node:fs";
import { check, until, withPage } from "./browser.mjs";

const { KEY_URL: base, KEY: key, DIR: dir } = process.env;
const headers = { "X-API-Key": key, "Content-Type": "application/json" };
const post = async (path, body, method = "POST") => {
  const reply = await (await fetch(`${base}/${path}`, { method, headers, body: body && JSON.stringify(body) })).json();
  check(reply.success === true || reply.code === "0", `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
};
const inside = async (command) => (await post("sandbox/a/v1/bash/exec", { command })).stdout;
const entries = async () => (await (await fetch(`${base}/sandbox/a/v1/sandbox/activity?limit=1000`, { headers })).json()).entries;

const attack = "globalThis.attacked=1";
const markup = `<img src=x onerror="${attack}"><script>${attack}</script><svg onload="${attack}">`;
await post("sandbox/a/v1/bash/exec", { command: `echo '${markup}'; echo '${markup}' > '${markup.replaceAll("/", "")}.html'` });
await post("sandbox/a/v1/file/write", { file: `${markup.replaceAll("/", "")}.md`, content: `${markup}\n[x](javascript:${attack})` });
await fetch(`${base}/sandbox/a/v1/file/read`, { method: "POST", headers, body: JSON.stringify({ file: `/nowhere/${markup}` }) }); // fails, with the name
await post("sandbox/a/v1/shell/exec", { command: `printf '\\033]0;${"<b>title</b>"}\\007'; echo '${markup}'`, id: "s" });
// Images, which the sandbox then replaces by other content.
const shots = async () => (await entries()).filter((e) => e.picture).map((e) => e.id);
let moved = 0;
await until("there are pictures", async () => { // not for every action: there are only a few per second
  await post("sandbox/a/v1/browser/actions", { action_type: "MOVE_TO", x: 10 + (moved++ % 200), y: 10 });
  return (await shots()).length >= 4;
});
const svg = `<svg xmlns="http://www.w3.org/2000/svg" onload="${attack}"><script>${attack}</script></svg>`;
const forged = [`printf '%s' '${svg}'`, `printf '%s' '<!doctype html><script>${attack}</script>'`, "printf '\\377\\330\\377broken'; head -c 4000 /dev/urandom", "printf '\\377\\330\\377'; head -c 20000000 /dev/zero"];
const pictures = (await shots()).slice(-4);
for (const [i, make] of forged.entries()) await inside(`(${make}) > /var/tmp/aio-1000/activity/pictures/${pictures[i]}.jpg`);
// Forged entries of equal length, and invalid entries.
await inside(`cd /var/tmp/aio-1000/activity && sed 's/"op":"bash_exec"/"op":"<i>xx<\\/i>"/; s/"kind":"bash"/"kind":"<b\\/>"/; s/"via":"rest"/"via":"<u\\/>"/' new.jsonl > /tmp/forged && cat /tmp/forged > new.jsonl`);
check((await entries()).some((e) => e.op === "<i>xx</i>"), "the record cannot be forged: this tests nothing");

const quiet = async (page, where) => {
  check(!(await page.evaluate(() => globalThis.attacked)), `${where}: what a sandbox wrote has run`);
  const foreign = await page.evaluate(() => [...document.querySelectorAll("main script, #app script, #app svg[onload], #app svg[xmlns], pre img, b img, summary img, li button b > *, td > img, .mono > img, iframe")].map((e) => e.outerHTML.slice(0, 100)));
  check(foreign.length === 0, `${where}: what a sandbox wrote became markup: ${foreign}`);
};

// steps opens every step, and every moment of the replay.
async function steps(page, where, count) {
  await until(`${where} is complete`, async () => (await page.locator(".steps > li").count()) === count, async () => `${await page.locator(".steps > li").count()} of ${count}`);
  for (let i = 0; i < count; i++) {
    await page.locator(".steps > li button.step").nth(i).click();
    await page.locator(".steps > li").nth(i).locator(".detail").waitFor();
    await quiet(page, `${where}, step ${i}`);
  }
  await page.getByRole("button", { name: "Replay" }).click();
  const range = page.getByLabel("Moment", { exact: true });
  await range.focus();
  await page.keyboard.press("Home");
  for (let i = 0; i < count; i++) {
    await quiet(page, `${where}, moment ${i}`);
    await page.keyboard.press("ArrowRight");
  }
  await page.getByRole("button", { name: "Replay" }).click();
  console.log(`ok ${where}: ${count} steps`);
}

const ignore = /status of (401|404)/; // an invalid image is not loaded, which browsers do not report as an error
await withPage(async (page) => {
  page.on("dialog", (dialog) => { throw new Error(`a dialog: ${dialog.message()}`); });
  await page.goto(base);
  await page.getByLabel("API key or token").fill(key);
  await page.keyboard.press("Enter");
  await page.getByRole("row", { name: /Select a / }).waitFor();
  await quiet(page, "the dashboard");
  await page.getByRole("button", { name: "Wall", exact: true }).click();
  await page.locator(".tile img, .tile pre").first().waitFor();
  await quiet(page, "the wall");
  const { id } = await post("api/v1/sandbox/a", undefined, "GET");
  await page.goto(`${base}/#sandbox/${id}`);
  const tabs = page.getByRole("navigation", { name: "Parts of the sandbox" });
  const hostile = { Activity: "<i>xx</i>", "Changed files": "<img src=x" };
  for (const name of ["Overview", "Processes", "Activity", "Logs", "Changed files", "Snapshots", "Links", "Settings"]) {
    await tabs.getByRole("link", { name }).click();
    await tabs.locator("[aria-current=page]").getByText(name).waitFor();
    if (hostile[name]) await page.locator("main, #app").first().getByText(hostile[name]).first().waitFor();
    await quiet(page, `the tab ${name}`);
  }
  await page.goto(`${base}/sandbox/a/activity`);
  await page.locator(".steps").getByText("<i>xx</i>").first().waitFor();
  await steps(page, "the activity", (await entries()).length);
  // An image is not a document.
  for (const id of pictures) {
    const address = new URL(`v1/sandbox/activity/${id}/picture`, page.url().replace(/activity$/, ""));
    const reply = await fetch(`${base}/sandbox/a/v1/sandbox/activity/${id}/picture`, { headers });
    if (reply.ok) check(reply.headers.get("content-type") === "image/jpeg" && reply.headers.get("x-content-type-options") === "nosniff", `the picture ${id} is ${reply.headers.get("content-type")}`);
    const other = await page.context().newPage();
    await other.goto(address.href).catch(() => {});
    check(!(await other.evaluate(() => globalThis.attacked)), `the picture ${id} has run by itself`);
    await other.close();
  }
  // The export is opened from the disk.
  const file = await (await fetch(`${base}/sandbox/a/v1/sandbox/activity/export`, { headers })).text();
  check(file.length < 40_000_000, `the export has ${file.length} bytes`);
  writeFileSync(`${dir}/export.html`, file);
  await page.goto(`file://${dir}/export.html`);
  check((await page.locator("details").count()) > 5, "the export is empty");
  await page.evaluate(() => { for (const d of document.querySelectorAll("details")) d.open = true; });
  await quiet(page, "the export");
  check((await page.locator("script, svg, b > *, code > *, dd > :not(code), pre > :not(b, span), pre span > *").count()) === 0, "what a sandbox wrote became markup of the export");
}, { ignore });

// After the end of the sandbox the hub shows what it kept.
const { id } = await post("api/v1/sandbox/a", undefined, "GET");
const kept = (await entries()).length;
await post("api/v1/sandbox/a", undefined, "DELETE");
await until("the record is kept", async () => (await post("api/v1/record", undefined, "GET")).some((r) => r.id === id));
for (const entry of pictures) {
  const reply = await fetch(`${base}/api/v1/record/${id}/picture/${entry}`, { headers });
  const bytes = new Uint8Array(await reply.arrayBuffer());
  check(reply.status === 404 || (bytes[0] === 0xff && bytes[1] === 0xd8 && bytes.length <= 256 << 10 && reply.headers.get("x-content-type-options") === "nosniff"), `the kept picture ${entry}: ${reply.status}, ${bytes.length} bytes`);
}
await withPage(async (page) => {
  await page.goto(base);
  await page.getByLabel("API key or token").fill(key);
  await page.keyboard.press("Enter");
  await page.getByRole("link", { name: "Records" }).click();
  await page.getByRole("row").filter({ hasText: id }).getByRole("button", { name: "Show the record of a" }).click();
  await page.locator(".steps").getByText("<i>xx</i>").first().waitFor();
  await steps(page, "the record that the hub kept", kept);
  await page.getByRole("button", { name: "Back to the records" }).click();
  await quiet(page, "the records");
}, { ignore });
