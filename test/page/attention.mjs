// What waits for a person, in one list for all sandboxes: connections that wait for approval, and an agent that waits for a captcha;
// and denied connections in the view of a sandbox. What a sandbox sends is hostile.
import { audit, check, hurry, until, withPage } from "./browser.mjs";

const { KEY_URL: base, KEY: key } = process.env;
const headers = { "X-API-Key": key, "Content-Type": "application/json" };
const api = async (path, body, method) => {
  const reply = await (await fetch(`${base}/api/v1/${path}`, { method: method || (body ? "POST" : "GET"), headers, body: body && JSON.stringify(body) })).json();
  check(reply.code === "0", `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
};
const run = async (path, body) => (await fetch(`${base}/sandbox/asks/v1/${path}`, { method: "POST", headers, body: JSON.stringify(body) })).json();
const connect = (host) => run("bash/exec", { command: `curl -s -m 100 -A '<img src=x onerror=attacked=1>' http://${host}/ >/dev/null; echo $?`, async_mode: true });

await api("sandbox", { name: "asks", network: { mode: "ask" } });
await withPage(async (page, context) => {
  await hurry(context);
  await page.goto(base);
  await page.getByLabel("API key or token").fill(key);
  await page.keyboard.press("Enter");
  await page.getByRole("row", { name: /Select asks / }).waitFor();

  const bell = page.getByRole("button", { name: /^Needs attention|^Nothing needs/ });
  const panel = page.getByRole("region", { name: "Needs attention" });
  const item = (text) => panel.getByRole("listitem").filter({ hasText: text });
  for (const host of ["once.example", "always.example", "never.example"]) await connect(host);
  await page.getByRole("button", { name: "Needs attention: 3" }).waitFor();
  await bell.click();
  await item("once.example:80").waitFor();
  await audit(page, "connections that wait");
  await item("always.example:80").getByRole("button", { name: "Always" }).click();
  await until("the rule is stored", async () => (await api("sandbox/asks")).network.allow.includes("always.example:80"));
  await item("never.example:80").getByRole("button", { name: "Deny" }).click();
  await until("it is denied", async () => (await api("sandbox/asks/network")).connections.some((c) => c.host === "never.example" && c.verdict === "denied"));
  await item("once.example:80").getByRole("button", { name: "Allow once" }).click();
  await until("nothing waits", async () => (await api("sandbox/asks/egress/pending")).length === 0 && (await item(".example").count()) === 0, () => panel.innerText());
  check(!(await api("sandbox/asks")).network.allow.some((rule) => rule.startsWith("once.")), "a rule was added for a connection that is allowed once");

  // An agent waits for a captcha.
  const page1 = "data:text/html,<title>shop</title><form><input name=captcha><img src=captcha.png alt=captcha></form><div class=g-recaptcha data-sitekey=k style='width:9rem;height:5rem'>captcha</div>";
  await run("browser/page/navigate", { url: page1 });
  const solved = run("browser/captcha/wait", { timeout: 60, poll_interval: 0.2 });
  await item("solved a captcha").waitFor();
  check(/panes=browser/.test(await item("solved a captcha").getByRole("link").getAttribute("href")), "the item does not lead to the browser");
  check((await api("attention")).some((n) => n.kind === "captcha" && n.name === "asks"), "the captcha is not in the list");
  await run("browser/page/navigate", { url: "data:text/html,thanks" });
  await solved;
  await until("the captcha is gone", async () => (await item("captcha").count()) === 0);
  // An agent asks a person to take over; the person does, and hands back.
  const helped = run("display/handover", { message: `Sign in <img src=x onerror=attacked=1>\u202e`, timeout: 300 });
  await item("asks you to take over: Sign in <img src=x onerror=attacked=1>\\u202e").waitFor();
  await audit(page, "a request to take over");
  const opening = context.waitForEvent("page");
  await item("asks you to take over").getByRole("link").click();
  const desktop = (await opening).frameLocator("[data-pane=browser] iframe");
  await desktop.getByRole("button", { name: "Take over" }).click();
  await desktop.getByRole("button", { name: "Hand back" }).click();
  check((await helped).data.done === true, "the agent is not told that the person has helped");
  await bell.click();
  await until("the request is gone", async () => (await item("take over").count()) === 0);
  await page.keyboard.press("Escape");

  // A denied connection, in the overview.
  await api("sandbox/asks/network", { mode: "allow", allow: ["other.example"] }, "PUT");
  await connect("denied.example");
  await page.goto(`${base}/#sandbox/${(await api("sandbox/asks")).id}`);
  await page.getByRole("button", { name: "Allow denied.example:80" }).click();
  await until("it is allowed", async () => (await api("sandbox/asks")).network.allow.includes("denied.example:80"));
  await until("it is not listed", async () => (await page.getByRole("button", { name: "Allow denied.example:80" }).count()) === 0);
  check(!(await page.evaluate(() => globalThis.attacked)), "content of a sandbox ran in the page");
}, { ignore: /status of 401/ });
console.log("ok what waits for a person");
