// A wall of 50 sandboxes through a hub with sign-in: images load and update, only visible sandboxes are requested, paused ones
// are grey, and content of a hostile sandbox is shown as image or text. With HOLD it shows and hides the whole wall on commands
// from its input, for a benchmark.
import { createInterface } from "node:readline";
import { audit, check, until, withPage } from "./browser.mjs";

const { KEY_URL: base, KEY: key, HOLD: hold } = process.env;
const count = 50;
const headers = { "Content-Type": "application/json", ...(key ? { "X-API-Key": key } : {}) };
const post = async (path, body) => (await fetch(`${base}/${path}`, { method: "POST", headers, body: JSON.stringify(body) })).json();
const name = (i) => `wall-${i}`;
const tile = (page, i) => page.getByRole("listitem", { name: name(i), exact: true });
const open = async (page) => {
  await page.goto(base);
  if (key) {
    await page.getByLabel("API key or token").fill(key);
    await page.keyboard.press("Enter");
  }
  await page.getByRole("button", { name: "Wall", exact: true }).click();
};

if (hold) {
  await withPage(async (page) => {
    for await (const what of createInterface({ input: process.stdin })) {
      if (what === "show") {
        await open(page);
        await until("all tiles show something", async () => (await page.locator(".tile img, .tile pre").count()) === count, () => page.locator(".tile img, .tile pre").count());
      } else await page.goto("about:blank");
      console.log(what);
    }
  }, { viewport: { width: 2600, height: 2000 } });
  process.exit(0);
}

// 50 sandboxes, each with a terminal that shows its number, one of them with a display.
const hostile = `<img src=x onerror="attacked=1">`;
let next = 1;
await Promise.all([1, 2, 3, 4].map(async () => {
  for (let i = next++; i <= count; i = next++) {
    const made = await post("api/v1/sandbox", { name: name(i) });
    check(made.code === "0", `create ${name(i)}: ${JSON.stringify(made)}`);
    const said = await post(`sandbox/${name(i)}/v1/shell/exec`, { command: `echo '${hostile}' this-is-$((${i}+1000))`, id: "s" });
    check(said.success === true, `${name(i)} says ${JSON.stringify(said)}`);
  }
}));
check((await fetch(`${base}/sandbox/${name(2)}/v1/browser/screenshot`, { headers })).ok, "the display does not start");
await post(`api/v1/sandbox/${name(3)}/pause`, {});

await withPage(async (page) => {
  const asked = new Set();
  let under = 0;
  let most = 0;
  page.on("request", (request) => { if (request.url().includes("/glance")) { asked.add(request.url().split("/").at(-2)); most = Math.max(most, ++under); } });
  for (const event of ["requestfinished", "requestfailed"]) page.on(event, (request) => { if (request.url().includes("/glance")) under--; });
  await open(page);
  await tile(page, 1).getByText("this-is-1001").waitFor();
  await tile(page, 2).getByRole("img", { name: "Screen of wall-2" }).waitFor();
  await until("the image of a display loads", () => tile(page, 2).getByRole("img").evaluate((img) => img.complete && img.naturalWidth > 80));
  await tile(page, 3).getByText("paused").first().waitFor(); // paused ones are last
  check((await tile(page, 3).locator(".scene").evaluate((scene) => getComputedStyle(scene).filter)) === "grayscale(1)", "a paused sandbox is not grey");
  await tile(page, 4).getByText("this-is-1004").waitFor();
  await audit(page, "the wall of 50");

  // Only visible sandboxes are requested.
  check((await page.locator(".tile").count()) === count + 1, `${await page.locator(".tile").count()} tiles, want ${count + 1}`); // and the sandbox a
  const ids = new Map((await (await fetch(`${base}/api/v1/sandbox`, { headers })).json()).data.map((sb) => [sb.name, sb.id]));
  check(asked.has(ids.get(name(1))) && !asked.has(ids.get(name(count))) && asked.size < 30, `${asked.size} sandboxes were asked, also invisible ones`);
  check(!asked.has(ids.get(name(3))), "a paused sandbox was asked");
  await tile(page, count).scrollIntoViewIfNeeded();
  await tile(page, count).getByText(`this-is-${1000 + count}`).waitFor();
  await page.evaluate(() => scrollTo(0, 0));

  // Visible sandboxes update.
  await post(`sandbox/${name(4)}/v1/shell/exec`, { command: "echo then-$((2000+4))", id: "s" });
  await tile(page, 4).getByText("then-2004").waitFor();
  await post(`api/v1/sandbox/${name(4)}/pause`, {});
  await until("a tile that falls asleep is grey and keeps its last picture", async () => (await page.locator(".tile.asleep pre").filter({ hasText: "then-2004" }).count()) === 1);
  check(most <= 4, `${most} glances were in progress at the same time`);
  check(!(await page.evaluate(() => globalThis.attacked)) && (await page.locator(".tile pre img").count()) === 0, "what a sandbox said became markup");

  // A tile shows what changed last, its end at the bottom: the latest lines of a terminal, then an operation, with its failure.
  const show = (i) => tile(page, i).scrollIntoViewIfNeeded(); // those that are not visible are not requested
  await show(8);
  await post(`sandbox/${name(8)}/v1/shell/exec`, { command: "seq 500; echo LAST-LINE", id: "s" });
  await tile(page, 8).getByText("LAST-LINE").waitFor();
  const [last, scene] = await tile(page, 8).evaluate((li) => [li.querySelector("pre").getBoundingClientRect().bottom, li.querySelector(".scene").getBoundingClientRect().bottom]);
  check(Math.abs(last - scene) < 2, `the end of the terminal is at ${last}, that of the tile at ${scene}`);
  await show(9);
  await post(`sandbox/${name(9)}/v1/bash/exec`, { command: `cat '/${hostile}'` });
  await tile(page, 9).locator(".did").getByText("onerror").waitFor();
  await tile(page, 9).getByText("bash_exec failed").waitFor();
  await tile(page, 9).getByText("bash_exec", { exact: true }).waitFor();
  await show(10);
  await tile(page, 10).getByText(/^active .* ago$/).waitFor();
  await tile(page, 10).getByRole("img", { name: /^CPU of wall-10/ }).waitFor();

  // The display of a sandbox that is not in use does not hide its work.
  await show(2);
  await post(`sandbox/${name(2)}/v1/bash/exec`, { command: "echo work" });
  await tile(page, 2).locator(".did").getByText("echo work").waitFor();

  // Several at once, from the wall.
  for (const i of [5, 6, 7]) await page.getByLabel(`Select ${name(i)}`, { exact: true }).check();
  await page.getByRole("group", { name: "Selected sandboxes" }).getByRole("button", { name: "Pause" }).click();
  for (const i of [5, 6, 7]) await tile(page, i).getByText("paused").first().waitFor();
  check((await (await fetch(`${base}/api/v1/sandbox/${name(3)}`, { headers })).json()).data.status === "paused", "the wall woke a sandbox");
}, { ignore: /status of 401/ });
console.log("ok the wall of 50");
