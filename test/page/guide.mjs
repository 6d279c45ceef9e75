// The guide: chapters, languages, search and links; standalone, below a prefix and of a hub.
import { audit, check, until, withPage } from "./browser.mjs";

const { URL: direct, PREFIX_URL: prefixed, KEY_URL: guarded, KEY: key } = process.env;
const shown = (page) => page.locator(".chapter:visible h2").allTextContents();

await withPage(async (page) => {
  await page.goto(`${direct}/guide`);
  await until("one chapter is shown", async () => (await shown(page)).join() === "Start", () => shown(page));
  await audit(page, "the guide");

  // Each link of the table of contents has a target.
  const lost = await page.evaluate(() => [...document.querySelectorAll('a[href^="#"]')].map((a) => a.getAttribute("href").slice(1)).filter((id) => !document.getElementById(id)));
  check(lost.length === 0, `links that lead nowhere: ${lost.join(", ")}`);

  // One language for all examples.
  await page.getByRole("tab", { name: "TypeScript" }).first().click();
  check(await page.getByText("// sandbox.ts").isVisible(), "the example in TypeScript is not shown");
  check(!(await page.getByText("pip install agent-sandbox").isVisible()), "two languages are shown at once");
  await page.getByRole("navigation").getByRole("link", { name: "Files", exact: true }).click();
  await until("the chapter on files", async () => (await shown(page)).join() === "Files", () => shown(page));
  check((await page.locator(".block.shown:visible").first().textContent()).includes("import { call }"), "the language was forgotten");
  check((await page.title()) === "Files · Guide – Cove", `title: ${await page.title()}`);

  // Search in headings and text; a result opens its section, and the back button works.
  const search = page.getByLabel("Search the guide");
  await page.keyboard.press("/");
  check(await search.evaluate((node) => node === document.activeElement), "/ does not lead to the search");
  await search.fill("warm pool");
  await page.getByRole("status").getByText(/^Found in \d+ places$/).waitFor();
  check((await shown(page)).length === 0, "a chapter is shown beside what was found");
  check((await page.locator("#found mark").count()) > 0, "nothing is marked");
  await audit(page, "the guide's search");
  await search.fill("fork");
  check((await page.locator("#found li a").first().textContent()).includes("Snapshots, forks"), "a title does not come first");
  await search.fill("<img src=x onerror=alert(1)>");
  await page.getByRole("status").getByText("Nothing found").waitFor();
  await search.fill("undo_edit");
  await page.getByRole("status").getByRole("link", { name: "Edit" }).click();
  await until("the section on edits", async () => (await shown(page)).join() === "Files" && page.url().endsWith("#files-edit"), () => page.url());
  await page.goBack();
  await search.fill("x");
  await search.press("Escape");
  await until("the chapter is back", async () => (await shown(page)).join() === "Files", () => shown(page));

  // The URL of a chapter works directly, also for generated chapters.
  await page.goto(`${prefixed}/guide#errors`);
  await until("the codes below a prefix", async () => (await shown(page)).join() === "Error codes", () => shown(page));
  check(await page.getByRole("cell", { name: "unauthenticated" }).isVisible(), "the codes are missing");
  await page.goto(`${direct}/guide#%E0%A4%A`).catch(() => {});
  await until("a broken address shows the start", async () => (await shown(page)).join() === "Start", () => shown(page));
}, { reducedMotion: "reduce" });

// The guide of a hub requires authentication, like its other pages.
const refused = await fetch(`${guarded}/guide`, { redirect: "manual" });
check(refused.status === 401, `without a key: got ${refused.status}, want 401`);
for (const at of ["/guide", "/sandbox/a/guide"]) {
  const reply = await fetch(guarded + at, { headers: { "X-API-Key": key } });
  const policy = reply.headers.get("Content-Security-Policy") || "";
  check(reply.status === 200 && (await reply.text()).includes("<title>Guide – Cove</title>"), `${at}: got ${reply.status}, want the guide`);
  check(policy.includes("default-src 'self'") && !policy.includes("unsafe"), `${at}: the policy is ${policy}`);
}
const outside = await fetch(`${guarded}/guide/..%2f..%2fhub/index.html`, { headers: { "X-API-Key": key } });
check(outside.status === 404, `a path that leaves the guide: got ${outside.status}, want 404`);
