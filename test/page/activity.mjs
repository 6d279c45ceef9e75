// The activity page: live updates, replay of a session of 200 steps, export, and hostile content shown as text. Standalone,
// below a prefix and through a hub.
import { audit, check, typeInstead, until, withPage } from "./browser.mjs";

const { URL: direct, PREFIX_URL: prefixed, KEY_URL: guarded, KEY: key, DIR: dir, SHOTS: shots } = process.env;
const poster = (root, headers = {}) => async (path, body) => {
  const reply = await (await fetch(root + path, { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(body) })).json();
  check(reply.success === true, `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
};
const post = poster(direct);
const listed = async (query) => (await (await fetch(`${direct}/v1/sandbox/activity?${query}`)).json()).entries;

// A session of 200 steps: commands that count, and a file that grows, with the expected state after each step.
const truth = [];
let content = "";
let output = "";
for (let i = 0; i < 200; i++) {
  if (i % 2 === 0) {
    output = `line ${i} of <b>${i}</b>`;
    await post("/v1/bash/exec", { command: `echo '${output}'` });
  } else {
    content = `${content.slice(-1500)}step ${i} <img src=x onerror=alert(1)>\n`;
    await post("/v1/file/write", { file: `${dir}/notes.txt`, content });
  }
  truth.push({ output, content });
}
const entries = await listed("limit=1000");
check(entries.length === 200, `got ${entries.length} entries, want 200`);
check(entries[199].change.diff.includes("+step 199"), `the last change: ${JSON.stringify(entries[199].change)}`);

await withPage(async (page) => {
  page.on("dialog", (dialog) => { throw new Error(`markup of the sandbox ran: ${dialog.message()}`); });
  await page.goto(`${direct}/activity`);
  await page.locator(".steps li").nth(199).waitFor();
  await audit(page, "the activity page");

  // Live updates; hostile names and outputs are shown as text.
  const hostile = `<img src=x onerror="document.title='broken'">`;
  await post("/v1/bash/exec", { command: `echo '${hostile}'; (exit 3) # live` });
  await page.locator(".steps li").nth(200).waitFor();
  await page.locator(".steps li").first().getByRole("button").click();
  await page.locator(".detail pre").filter({ hasText: "onerror" }).first().waitFor();
  await page.locator(".steps li").first().getByText("exit 3", { exact: true }).waitFor();
  await post("/v1/file/write", { file: `${dir}/${hostile.replaceAll("/", "")}`, content: "x" });
  await page.locator(".steps li").nth(201).waitFor();
  check((await page.locator(".steps img, .detail img").count()) === 0 && (await page.title()).endsWith(" · Activity – Cove"), "what the sandbox wrote became markup");

  // A command by its output: colours, no control characters, and the raw data folded. A cell that raised is a failure.
  await post("/v1/bash/exec", { command: "printf '\\033[31mred\\033[0m\\n\\033]0;title\\007\\342\\200\\256over\\rwritten \\001 end'" });
  await post("/v1/code/execute", { language: "javascript", code: "throw new Error('raised here')" });
  const newest = page.locator(".steps > li").first();
  await newest.getByText("raised here").waitFor();
  await newest.getByText("failed", { exact: true }).waitFor();
  await newest.getByRole("button").click();
  await newest.locator(".detail pre.bad").getByText("raised here").first().waitFor();
  check(!(await newest.locator(".raw pre").first().isVisible()), "the raw data is not folded");
  const colours = page.locator(".steps > li").nth(1);
  await colours.getByRole("button").click();
  await colours.locator(".ansi-red").getByText("red", { exact: true }).waitFor();
  check((await colours.locator(".console").textContent()).endsWith("written \u2401 end"), `the output is shown as ${JSON.stringify(await colours.locator(".console").textContent())}`);
  await audit(page, "the detail of a cell");
  if (shots) await page.screenshot({ path: `${shots}/activity.png` });
  await page.getByLabel("failed").check();
  await until("only failures are shown", async () => (await page.locator(".steps > li").count()) === 2, () => page.locator(".steps > li").count());
  await page.getByLabel("failed").uncheck();

  // What people type in a terminal is recorded; reading is hidden until it is requested.
  const terminal = await page.context().newPage();
  await terminal.goto(`${direct}/terminal`);
  await terminal.locator(".xterm-rows").getByText(/[#$]/).first().waitFor();
  await typeInstead(terminal, `echo typed-by-a-person > typed.txt; false`);
  await page.getByLabel("Who").selectOption("people");
  const typed = page.locator(".steps > li").filter({ hasText: "typed-by-a-person" });
  await typed.getByText("exit 1", { exact: true }).waitFor();
  await typed.getByText("1 file", { exact: true }).waitFor();
  await terminal.close();
  check((await page.locator(".steps > li").count()) === 1, "a connection of the terminal is listed as an action");
  await page.getByLabel("Who").selectOption("everyone");
  await page.getByLabel("reads").check();
  await page.locator(".steps > li").filter({ hasText: "shell_ws" }).first().waitFor();
  await page.getByLabel("reads").uncheck();

  // Filters.
  await page.getByLabel("Search the activity").fill("# live");
  await until("the search finds one", async () => (await page.locator(".steps > li").count()) === 1, () => page.locator(".steps > li").count());
  await page.getByLabel("Search the activity").fill("");
  await page.getByLabel("Kind").selectOption("file");
  await until("only files are shown", async () => (await page.locator(".steps > li").count()) === 101, () => page.locator(".steps > li").count());

  // Replay: ten points, compared with the expected state.
  await page.getByRole("button", { name: "Replay" }).click();
  const range = page.getByLabel("Moment", { exact: true });
  const shows = (what) => page.locator(`[data-shows=${what}]`).textContent();
  await page.getByText("1/205", { exact: true }).waitFor(); // it starts with the first step
  for (let point = 0; point < 10; point++) {
    const n = 19 + point * 20;
    await page.evaluate((id) => { location.hash = `at=${id}`; }, entries[n].id);
    await page.getByText(`${n + 1}/205`, { exact: true }).waitFor();
    const terminal = await shows("terminal");
    check(terminal.trimEnd() === `$ echo '${truth[n].output}'\n${truth[n].output}`, `step ${n}: the terminal shows ${JSON.stringify(terminal)}, want ${truth[n].output}`);
    const file = await shows("file");
    check(file === truth[n].content, `step ${n}: the file shows ${JSON.stringify(file)}, want ${JSON.stringify(truth[n].content)}`);
  }
  check((await page.locator(".diff").textContent()).includes("\n+step 199"), `the change is shown as ${JSON.stringify(await page.locator(".diff").textContent())}`);
  await audit(page, "the replay");
  await range.focus();
  await page.keyboard.press("Home");
  await page.getByText("1/205", { exact: true }).waitFor();
  // It plays: by keyboard, at a speed, from one failure to the next, and a link leads to a moment.
  await page.getByLabel("Speed").selectOption("16");
  await page.getByRole("region", { name: "The sandbox at this moment" }).focus();
  await page.keyboard.press("Space");
  await until("it plays", async () => Number((await page.locator(".replay .count").textContent()).split("/")[0]) > 5);
  await page.keyboard.press("Space");
  await page.getByRole("button", { name: "Play", exact: true }).waitFor();
  const stopped = await page.locator(".replay .count").textContent();
  await page.keyboard.press("ArrowRight");
  await until("one step on", async () => Number((await page.locator(".replay .count").textContent()).split("/")[0]) === Number(stopped.split("/")[0]) + 1);
  check((await page.locator(".ticks i.bad").count()) === 3, "the failures are not marked");
  await page.getByRole("button", { name: "Next failure" }).click();
  await page.getByText("201/205", { exact: true }).waitFor();
  await page.getByText("Exit code 3").waitFor();
  if (shots) await page.screenshot({ path: `${shots}/replay.png` });
  await page.getByRole("button", { name: "Copy link" }).click();
  const link = await page.evaluate(() => navigator.clipboard.readText());
  const moment = await page.context().newPage();
  await moment.goto(link);
  await moment.getByText("201/205", { exact: true }).waitFor();
  await moment.close();
  await page.setViewportSize({ width: 390, height: 780 });
  check(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page is wider than the telephone");

  // The export is self-contained and contains no scripts.
  const saving = page.waitForEvent("download");
  await page.getByRole("link", { name: "Export" }).click();
  await (await saving).saveAs(`${dir}/activity.html`);
  await page.goto(`file://${dir}/activity.html`);
  check((await page.locator(".step").count()) === 206 && (await page.locator(".step.failed").count()) === 3, `the export has ${await page.locator(".step").count()} entries, ${await page.locator(".step.failed").count()} of them failed`);
  await page.getByLabel("only failures").check();
  check((await page.locator(".step:visible").count()) === 3, "the export does not show only failures");
  await page.locator(".step:visible").filter({ hasText: "# live" }).locator("summary").first().click();
  await page.getByText("Exit code 3").waitFor();
  check((await page.locator("img").count()) === 0 && (await page.title()) === "Activity of a sandbox", "what the sandbox wrote became markup of the export");
});

await withPage(async (page) => {
  await page.goto(`${prefixed}/activity`);
  await page.locator(".steps li").nth(201).waitFor();
});
console.log("ok below a prefix");

// Through a hub: the record contains the caller and key of each call, and the file changes of commands. A program in the
// sandbox cannot impersonate a caller.
const hub = async (path, body, secret) => (await (await fetch(`${guarded}/api/v1/${path}`, { method: "POST", headers: { "Content-Type": "application/json", "X-API-Key": secret }, body: JSON.stringify(body) })).json()).data;
const tenant = await hub("key", { tenant: "anna" }, key);
await hub("sandbox", { name: "hers" }, tenant.secret);
await withPage(async (page) => {
  const ask = poster(`${guarded}/sandbox/hers`, { "X-API-Key": tenant.secret, "X-Aio-Caller": "subject=boss" });
  await ask("/v1/bash/exec", { command: "echo through-the-hub > made.txt" });
  await ask("/v1/bash/exec", { command: `curl -s -H 'X-Aio-Caller: subject=boss' -H 'Content-Type: application/json' -d '{"command":"echo from-inside"}' 127.0.0.1:8080/v1/bash/exec` });
  await page.goto(`${guarded}/sandbox/hers/activity`);
  await page.getByLabel("API key or token").fill(tenant.secret);
  await page.keyboard.press("Enter");
  const step = page.locator(".steps > li").filter({ hasText: "through-the-hub" });
  await step.getByText("1 file", { exact: true }).waitFor();
  await step.getByRole("button").click();
  await step.getByText(`rest, anna, key ${tenant.id}`).waitFor();
  await step.locator(".diff").getByText("+through-the-hub").waitFor();
  await page.getByLabel("Search the activity").fill("from-inside");
  await until("what ran inside is listed", async () => (await page.locator(".steps > li").count()) === 2, () => page.locator(".steps > li").count());
  check(!(await page.content()).includes("boss,") && !(await (await fetch(`${guarded}/sandbox/hers/v1/sandbox/activity?limit=1000`, { headers: { "X-API-Key": tenant.secret } })).json()).entries.some((e) => e.caller === "boss"), "somebody spoke for the boss");
}, { ignore: /status of 401/ });
await fetch(`${guarded}/api/v1/sandbox/hers`, { method: "DELETE", headers: { "X-API-Key": tenant.secret } });
console.log("ok through the hub");
