// Search of the activity of all sandboxes: yesterday's command in a deleted sandbox, failures, and content that is hostile. The hub
// has its default settings.
import { audit, check, until, withPage } from "./browser.mjs";

const { KEY_URL: base, KEY: key } = process.env;
const caller = (secret) => async (path, body, method) => {
  const reply = await (await fetch(`${base}/api/v1/${path}`, { method: method || (body ? "POST" : "GET"), headers: { "X-API-Key": secret, "Content-Type": "application/json" }, body: body && JSON.stringify(body) })).json();
  check(reply.code === "0", `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
};
const api = caller(key);
const inside = async (name, path, body) => {
  const reply = await (await fetch(`${base}/sandbox/${name}/${path}`, { method: "POST", headers: { "X-API-Key": key, "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();
  check(reply.success === true, `${path}: ${JSON.stringify(reply)}`);
};
const hostile = `<img src=x onerror="attacked=1">`;

await api("sandbox", { name: "report" });
await inside("report", "v1/bash/exec", { command: `echo "quarterly figures" > figures.txt && echo '${hostile}' && wc -w figures.txt` });
await inside("report", "v1/bash/exec", { command: "cat no-such-file-of-report" });
const report = await api("sandbox/report");
await api("sandbox/report", undefined, "DELETE");
await api("sandbox", { name: "asleep" });
await inside("asleep", "v1/bash/exec", { command: "echo figures of asleep" });
await api("sandbox/asleep/pause", {});
await inside("a", "v1/bash/exec", { command: "echo figures of a" });
const { secret: others } = await api("key", { tenant: "anna", role: "user" });

await withPage(async (page) => {
  await page.goto(base);
  await page.getByLabel("API key or token").fill(key);
  await page.keyboard.press("Enter");
  await page.getByRole("row", { name: /Select a / }).waitFor();
  await page.getByRole("navigation", { name: "Parts", exact: true }).getByRole("link", { name: "Activity" }).click();
  const found = page.getByRole("list", { name: "Entries, latest first" }).getByRole("listitem");
  await found.filter({ hasText: "asleep" }).first().waitFor(); // without a search: the latest
  await audit(page, "the activity of all sandboxes");

  // The command in a deleted sandbox, with its output, in three steps: Activity, a word with quotes, the entry.
  const field = page.getByRole("searchbox", { name: "Search the activity of all sandboxes" });
  await field.fill(`"quarterly figures"`);
  await until("one entry is left", async () => (await found.count()) === 1 && (await found.innerText()).includes("report"), () => page.locator("main").innerText());
  await page.getByRole("link", { name: /quarterly figures/ }).click();
  await page.getByRole("heading", { name: /^report/ }).waitFor();
  await page.locator(".moment").getByText("2 figures.txt").waitFor();
  check(page.url().includes(`#records/${report.id}/`), `the link leads to ${page.url()}`);
  await page.goBack();
  check((await field.inputValue()) === `"quarterly figures"`, "the search is lost on the way back");

  await field.fill("report");
  await page.getByLabel("failed").check();
  await until("only the failure is left", async () => (await found.count()) === 1 && (await found.innerText()).includes("no-such-file"), () => page.locator("main").innerText());
  await found.getByText("exit 1").waitFor();
  await page.getByLabel("failed").uncheck();

  // The other sandboxes: one that is paused stays paused, and the entry of one that runs leads to its page.
  await field.fill("figures of");
  await found.filter({ hasText: "figures of asleep" }).waitFor();
  await page.getByRole("link", { name: /figures of a$|figures of a / }).click();
  await page.getByRole("heading", { level: 2, name: "a", exact: true }).waitFor();
  await page.locator(".moment").getByText("figures of a").first().waitFor();
  check((await api("sandbox/asleep")).status === "paused", "the search woke a sandbox");
  await page.goto(`${base}/#activity/${encodeURIComponent("no such text anywhere")}`);
  await page.getByText("No entry matches").waitFor();
  await page.setViewportSize({ width: 390, height: 844 });
  await page.getByRole("navigation", { name: "Main parts" }).getByRole("link", { name: "Activity" }).waitFor();
  await field.fill("figures");
  await found.first().waitFor();
  check(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the list is wider than the phone");
  check(!(await page.evaluate(() => globalThis.attacked)), "content of a sandbox ran in the page");
}, { ignore: /status of 401/ });

const anna = await (await fetch(`${base}/api/v1/activity?q=figures`, { headers: { "X-API-Key": others } })).json();
check(anna.data.entries.length === 0, `another tenant finds ${JSON.stringify(anna.data.entries)}`);
console.log("ok search of activity");
