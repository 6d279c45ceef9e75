// The dashboard by keys: the command palette, the filter, a new sandbox, the theme; and the list of what needs attention, with a
// notification while the page is in the background.
import { audit, check, until, withPage } from "./browser.mjs";

const { URL: base } = process.env;
const post = async (path, body) => (await (await fetch(`${base}/api/v1/${path}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).json()).data;
for (const name of ["alpha", "beta"]) await post("sandbox", { name });

await withPage(async (page) => {
  await page.addInitScript(() => {
    globalThis.notices = [];
    globalThis.Notification = class { constructor(title, more) { globalThis.notices.push([title, more.body]); } static permission = "granted"; static requestPermission = async () => "granted"; close() {} };
  });
  await page.goto(base);
  await page.getByRole("row", { name: /alpha/ }).waitFor();

  await page.keyboard.press("Control+k");
  const palette = page.getByRole("dialog", { name: "Go to" });
  await palette.getByRole("option", { name: /^beta/ }).waitFor();
  await audit(page, "the command palette");
  await page.keyboard.type("bta");
  await until("beta is found by some of its letters", async () => /^beta/.test(await palette.getByRole("option", { selected: true }).innerText()));
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 2, name: "beta" }).waitFor();
  await page.keyboard.press("Control+k");
  await page.keyboard.type("machine");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "This machine" }).waitFor();

  await page.keyboard.press("n"); // from another part of the dashboard
  await page.getByRole("dialog", { name: "New sandbox" }).waitFor();
  await page.keyboard.type("n/"); // into the field
  check((await page.getByLabel("Name", { exact: true }).inputValue()) === "n/", "a key of the dashboard acts in a field");
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  await page.keyboard.press("/");
  await until("the filter has the focus", () => page.getByRole("searchbox", { name: "Filter sandboxes" }).evaluate((e) => e === document.activeElement));
  await page.keyboard.type("alp");
  await until("the filter selects alpha", async () => (await page.locator("tbody tr").count()) === 1);
  await page.getByRole("searchbox", { name: "Filter sandboxes" }).fill("");

  // The theme is remembered.
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.emulateMedia({ colorScheme: "light" });
  const light = await background();
  await page.getByRole("button", { name: "Theme: system" }).click();
  await page.getByRole("button", { name: "Theme: light" }).click();
  await until("the page is dark", async () => (await background()) !== light);
  await page.reload();
  await page.getByRole("button", { name: "Theme: dark" }).click();
  await until("the page is light again", async () => (await background()) === light);

  // A sandbox that ends soon needs attention; in the background, as a notification.
  await page.getByRole("button", { name: "Nothing needs attention" }).click();
  await page.getByText("All sandboxes are fine.").waitFor();
  await page.getByLabel("Notify me while this page is in the background").click();
  await until("notifications are on", () => page.getByLabel("Notify me while this page is in the background").isChecked());
  // The page is hidden before: what a person sees in the open page is no notification.
  await page.evaluate(() => Object.defineProperty(document, "hidden", { value: true, configurable: true }));
  await post("sandbox/alpha/extend", { timeout: 5 });
  await page.evaluate(() => document.dispatchEvent(new Event("visibilitychange")));
  await page.getByRole("region", { name: "Needs attention" }).getByRole("link", { name: /alpha/ }).waitFor();
  await until("there is a notification", async () => (await page.evaluate(() => globalThis.notices)).some(([title, body]) => title === "alpha – Cove" && body.startsWith("It is deleted at")), () => page.evaluate(() => JSON.stringify(globalThis.notices)));
  await audit(page, "what needs attention");
  await page.getByRole("region", { name: "Needs attention" }).getByRole("link", { name: /alpha/ }).click();
  await page.getByRole("heading", { level: 2, name: "alpha" }).waitFor();
});
console.log("ok keys and attention");
