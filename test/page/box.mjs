// The header of a sandbox's pages, by host name and by IP address: which sandbox it is, when it ends, the way back to the hub, and
// what the pages show when it is paused or deleted. HUBS are the hubs to visit.
import { check, axe, hurry, quick, until, withPage } from "./browser.mjs";
import { call, hubs, signIn } from "./origin.mjs";

const { HUBS: visited, SHOTS: shots } = process.env;
const titles = { "": "timed – Cove", "files": "timed · Files – Cove", "activity": "timed · Activity – Cove", "notebook": "timed · Notebook – Cove", "terminal": "timed · Terminal – Cove", "vnc/index.html": "timed · Desktop – Cove" };
const stateOf = async (hub) => (await call(hub, "GET", "/api/v1/sandbox/timed")).status;

async function visit(hub) {
  await call(hub, "POST", "/api/v1/sandbox", { name: "timed", timeout: 9 });
  await withPage(async (page, context) => {
    await signIn(hub, page);
    const identities = [];
    page.on("response", (reply) => { if (reply.url().endsWith("/v1/sandbox/identity")) identities.push(reply.status()); });
    const later = async (n) => { const from = identities.length; await until(`${n} more questions`, () => identities.length >= from + n); };

    for (const [path, title] of Object.entries(titles)) {
      if (quick && !hub.named && path !== "" && path !== "terminal") continue; // in make test-engines
      await page.goto(`${hub.at}/sandbox/timed/${path}`);
      await until(`the title of ${path || "the page"}`, async () => (await page.title()) === title, () => page.title());
      const header = page.locator(".box-header");
      await header.getByRole("heading", { level: 1 }).waitFor();
      await header.getByText("running", { exact: true }).waitFor();
      await header.locator(".box-left.soon").getByText(/^[1-8] min left$/).waitFor(); // less than ten minutes: a warning
      check((await header.getByRole("link", { name: "Sandboxes" }).getAttribute("href")) === `${hub.at}/`, "the way back leads elsewhere");
      check((await page.locator("h1").count()) === 1, `${path}: got ${await page.locator("h1").count()} main headings`);
      if (!hub.named) continue;
      await axe(page, `${path}, ${hub.title}`); // axe cannot load the styles of a page without an origin
      for (const width of [390, 640, 1000]) {
        await page.setViewportSize({ width, height: 640 });
        await until(`${path} fits into ${width} pixels`, () => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
      }
    }

    // Links lead to the page of the hub.
    await page.goto(`${hub.at}/sandbox/timed/`);
    await page.locator(".box-header").getByRole("link", { name: "Extend" }).waitFor();
    if (shots) await page.screenshot({ path: `${shots}/box-${hub.named}.png` });
    const { id } = await call(hub, "GET", "/api/v1/sandbox/timed");
    await page.getByRole("button", { name: "More actions" }).click();
    check((await page.getByRole("link", { name: "Share" }).count()) === 0, "Share is offered by a hub without links");
    for (const name of ["Extend", "Pause", "Snapshot", "Fork", "Delete"]) {
      const to = await page.getByRole("dialog").getByRole("link", { name }).getAttribute("href");
      check(to === `${hub.at}/#sandbox/${id}/?do=${name.toLowerCase()}`, `${name} leads to ${to}`);
    }
    await page.keyboard.press("Escape");
    // The palette leads to pages and actions, and opens from a pane, too. ? lists the keys.
    await page.frameLocator("[data-pane=files] iframe").getByRole("treeitem").first().click();
    await page.keyboard.press("Control+k");
    await page.getByRole("combobox", { name: "Page or action" }).fill("snap");
    await page.getByRole("option", { name: /^Snapshot/ }).waitFor();
    if (hub.named) await axe(page, `the palette, ${hub.title}`);
    await page.getByRole("combobox", { name: "Page or action" }).fill("activity page");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { level: 1, name: "Activity" }).waitFor();
    await page.locator(".steps, .empty").first().click();
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keys" }).getByText("Play or pause the replay").waitFor();
    await page.keyboard.press("Escape");
    // A theme reaches the panes, also those without storage.
    await page.goto(`${hub.at}/sandbox/timed/?panes=terminal,files`);
    await page.emulateMedia({ colorScheme: "dark" });
    const ground = (id) => page.frameLocator(`[data-pane=${id}] iframe`).locator("body").evaluate((body) => getComputedStyle(body).colorScheme + getComputedStyle(body).backgroundColor);
    await page.frameLocator("[data-pane=files] iframe").getByRole("tree").waitFor();
    const before = await ground("files");
    await page.getByRole("button", { name: /^Theme/ }).click(); // light
    await until("the pane is light", async () => (await ground("files")) !== before, () => ground("files"));
    for (let i = 0; i < 2; i++) await page.getByRole("button", { name: /^Theme/ }).click(); // dark, and the system's again
    // All tabs of the terminal survive a reload of the page around it, also without storage.
    const shell = page.frameLocator("[data-pane=terminal] iframe");
    const prompt = () => shell.locator(".screen.shown .xterm-rows").getByText(/[#$]/).first().waitFor();
    await prompt();
    await shell.getByRole("button", { name: "New session" }).click();
    await prompt();
    await until("two tabs", async () => (await shell.locator(".tab").count()) === 2);
    await until("both sessions are kept", async () => hub.named || new URL(page.url()).hash.split(",").length === 2, () => page.url());
    await page.reload();
    await prompt();
    await until("two tabs again", async () => (await shell.locator(".tab").count()) === 2, () => shell.locator(".tab").count());
    await page.emulateMedia({ colorScheme: "light" });
    await page.goto(`${hub.at}/sandbox/timed/`);
    await page.locator(".box-header").getByRole("link", { name: "Sandboxes" }).click();
    await page.getByRole("heading", { name: /^Sandboxes/ }).waitFor();
    check(new URL(page.url()).origin === new URL(hub.at).origin, `the way back leads to ${page.url()}`);

    // An open page does not wake a sandbox that its owner has paused.
    await hurry(context);
    await page.goto(`${hub.at}/sandbox/timed/?panes=files,activity,terminal`);
    const pane = (id) => page.locator(`.pane[data-pane=${id}]`).frameLocator("iframe");
    await page.locator("footer").getByText("CPU").waitFor();
    await pane("terminal").locator(".screen.shown .xterm-rows").getByText(/[#$]/).first().waitFor();
    await pane("files").getByRole("treeitem").first().waitFor();
    await pane("activity").locator(".steps > li, .empty").filter({ hasText: /./ }).first().waitFor();
    await later(5); // what people open does wake it
    await call(hub, "POST", "/api/v1/sandbox/timed/pause", {});
    await page.getByText("timed is paused").waitFor();
    await later(10);
    check((await stateOf(hub)) === "paused", "the page woke a paused sandbox");
    if (shots) await page.screenshot({ path: `${shots}/box-paused-${hub.named}.png` });
    if (hub.named) await axe(page, `paused, ${hub.title}`);
    await page.getByRole("button", { name: "Resume" }).click();
    await page.getByText("timed is paused").waitFor({ state: "hidden" });
    await until("it runs", async () => (await stateOf(hub)) === "running", () => stateOf(hub));

    // The end: a reason, a way to the record, and no more requests.
    await call(hub, "DELETE", "/api/v1/sandbox/timed");
    await page.getByText(/^timed was deleted on .* UTC, because /).waitFor();
    check((await page.getByRole("link", { name: "Show details" }).getAttribute("href")).startsWith(`${hub.at}/#sandbox/sb-`), "the hub's page is elsewhere");
    check((await page.locator("footer").count()) === 0, "old measurements are shown");
    if (shots) await page.screenshot({ path: `${shots}/box-ended-${hub.named}.png` });
    if (hub.named) await axe(page, `deleted, ${hub.title}`);
    // Every part of the page asks once more, and then none does.
    const parts = page.frames().filter((frame) => frame.url().includes("/sandbox/timed") || frame.url().includes("//timed."));
    check(parts.length === 4, `got ${parts.map((f) => f.url())}`);
    await until("all parts have heard of the end", () => identities.filter((status) => status === 404).length >= parts.length, () => identities.join());
    const asked = [];
    page.on("request", (request) => asked.push(request.url()));
    await page.evaluate(() => document.dispatchEvent(new Event("visibilitychange"))); // would poll at once
    await page.evaluate(() => new Promise((done) => requestIdleCallback(done)));
    check(asked.length === 0, `the page still asks: ${asked}`);
  }, { ignore: /status of (404|409|502|503)|CORS/ });
  console.log(`ok ${hub.title}`);
}

const chosen = hubs.filter((hub) => visited.includes(hub.title));
check(chosen.length > 0, `no hub is called ${visited}`);
for (const hub of chosen) await visit(hub);
