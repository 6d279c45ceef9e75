// The pass in the address of a sandbox's page, at an address without host names: it works only for the person who signed in, and
// ends when they sign out.
import { check, until, withPage } from "./browser.mjs";
import { call, hubs, signIn } from "./origin.mjs";

const hub = hubs.find((one) => !one.named && one.key);
await call(hub, "POST", "/api/v1/sandbox", { name: "held" });
const exec = (base) => fetch(`${base}v1/bash/exec`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ command: "echo still-here" }) });

await withPage(async (page, context) => {
  await signIn(hub, page);
  await page.goto(`${hub.at}/sandbox/held/?panes=terminal`);
  await page.frameLocator("[data-pane=terminal] iframe").locator(".xterm-rows").getByText(/[#$]/).first().waitFor();
  const address = new URL(page.url());
  check(/\/~[^/]+\/$/.test(address.pathname), `the page has no pass: ${address.pathname}`);
  const base = address.origin + address.pathname;

  // Code to copy in the documentation works elsewhere: it has a place for a key, and no pass.
  await page.goto(`${base}v1/docs#bash_exec`);
  const code = await page.getByLabel("Code", { exact: true }).innerText();
  check(code.includes(`${hub.url}/sandbox/held/v1/bash/exec`) && code.includes("X-API-Key: KEY") && !code.includes("~"), `the code is ${code}`);
  await page.getByRole("button", { name: "Try it" }).click();
  await page.getByText(/^200 OK/).waitFor();
  await page.goto(base);

  // A copy of the address in another browser leads to the sign-in, on every page.
  const stranger = await context.browser().newContext();
  const other = await stranger.newPage();
  for (const path of ["", "terminal", "files", "activity"]) {
    await other.goto(base + path);
    await other.getByLabel("API key or token").waitFor();
    check((await other.locator("iframe, .xterm").count()) === 0, `${path} is shown to a stranger`);
  }
  await stranger.close();

  // Sign out: the pass ends, for programs and for the open page.
  const before = await exec(base);
  check(before.status === 200 || before.status === 401 || before.status === 403, `before: ${before.status}`);
  const own = await page.evaluate(async () => (await fetch("v1/bash/exec", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ command: "echo mine" }) })).status);
  check(own === 200, `the page of the person who signed in gets ${own}`);
  const hall = await context.newPage();
  await hall.goto(`${hub.at}/v1/docs`);
  await hall.evaluate(() => fetch("/sign-out", { method: "POST", redirect: "manual" })); // as the button of the dashboard does
  await hall.goto(`${hub.at}/`);
  await hall.getByLabel("API key or token").waitFor();
  const after = await exec(base);
  check(after.status === 401, `a command with the pass after signing out: ${after.status}, want 401`);
  await until("the open page cannot act", async () => (await page.evaluate(async () => (await fetch("v1/bash/exec", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ command: "echo mine" }) }).catch(() => ({ status: 0 }))).status).catch(() => 401)) !== 200);
}, { ignore: /status of 401|CORS|Failed to load/ });
await call(hub, "DELETE", "/api/v1/sandbox/held");
console.log("ok a pass ends with its session");
