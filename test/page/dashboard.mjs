// The hub's dashboard: sign-in, sandboxes as a table and a wall, several at once, keys, audit, and a tenant who sees only its own.
import { audit, check, until, withPage } from "./browser.mjs";

const { KEY_URL: base, KEY: key } = process.env;
const api = async (path, body, method) => {
  const reply = await (await fetch(`${base}/api/v1/${path}`, { method: method || (body ? "POST" : "GET"), headers: { "X-API-Key": key, "Content-Type": "application/json" }, body: body && JSON.stringify(body) })).json();
  check(reply.code === "0", `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
};
const names = async () => (await api("sandbox")).map((sb) => sb.name).sort();
const signIn = async (page, secret) => {
  await page.goto(base);
  await page.getByLabel("API key or token").fill(secret);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: /^Sandboxes/ }).waitFor();
};
const row = (page, name) => page.getByRole("row", { name: new RegExp(`Choose ${name} `) });

// Programs that ask for / are served as before.
const program = await fetch(`${base}/`, { redirect: "manual", headers: { "X-API-Key": key } });
check(program.status === 307 && program.headers.get("location") === "v1/docs", `GET / of a program: ${program.status}`);

let tenantKey = "";
await withPage(async (page, context) => {
  await signIn(page, key);
  await row(page, "a").waitFor();
  await audit(page, "the dashboard");

  // Create several, of which one has no way out.
  await page.getByRole("button", { name: "New sandbox" }).click();
  await page.getByLabel("Name", { exact: true }).fill("crew");
  await page.getByLabel("How many").fill("3");
  await page.getByLabel("Network").selectOption("none");
  await audit(page, "the form of a new sandbox");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await row(page, "crew-3").waitFor();
  const made = (await api("sandbox")).find((sb) => sb.name === "crew-2");
  check(made.network.mode === "none", `the network is ${made.network.mode}`);

  // Others' changes appear by themselves.
  await api("sandbox", { name: "by-api" });
  await row(page, "by-api").waitFor();
  await api("sandbox/by-api", undefined, "DELETE");
  await until("the deleted one disappears", async () => (await row(page, "by-api").count()) === 0);

  // Pause one, resume it, delete several.
  await page.getByRole("button", { name: "Pause crew-1" }).click();
  await row(page, "crew-1").getByText("paused").waitFor();
  await page.getByRole("button", { name: "Resume crew-1" }).click();
  await row(page, "crew-1").getByText("running").waitFor();
  for (const name of ["crew-2", "crew-3"]) await page.getByLabel(`Choose ${name}`).check();
  await page.getByRole("group", { name: "Chosen sandboxes" }).getByRole("button", { name: "Snapshot" }).click();
  await until("there are two snapshots", async () => (await api("snapshot")).length === 2);
  await page.getByRole("group", { name: "Chosen sandboxes" }).getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await until("two are deleted", async () => (await names()).join() === "a,crew-1", names);

  // The wall shows what each does, as text: a hostile sandbox puts no markup into the page.
  await fetch(`${base}/sandbox/a/v1/shell/exec`, { method: "POST", headers: { "X-API-Key": key, "Content-Type": "application/json" }, body: JSON.stringify({ command: `echo '<img src=x onerror="attacked=1">'-$((40+2))`, id: "s" }) });
  await page.getByRole("button", { name: "Wall" }).click();
  await page.locator(".tile pre").getByText("-42").waitFor();
  check(!(await page.evaluate(() => globalThis.attacked)), "what a sandbox said has run in the page");
  await api("sandbox/crew-1/pause", {});
  await page.locator(".tile.asleep").getByText("paused").first().waitFor();
  await audit(page, "the wall");
  check((await api("sandbox")).find((sb) => sb.name === "crew-1").status === "paused", "the wall woke a sandbox");
  await page.getByRole("button", { name: "More about a", exact: true }).click();
  await page.getByRole("button", { name: "Share to watch" }).click();
  await page.getByText(/^http.*token=/).waitFor();
  await page.keyboard.press("Escape");

  // What surrounds the sandboxes.
  for (const [name, text] of [["Snapshots", /crew-2-/], ["Secrets", "New secret"], ["Usage", /Memory in use/], ["Events", "existing"], ["Machine", "Kept warm"], ["Machine", "Isolation"]]) {
    await page.getByRole("link", { name }).click();
    await page.getByText(text).first().waitFor();
    await audit(page, name);
  }
  await page.getByRole("link", { name: "Keys" }).click();
  await page.getByRole("button", { name: "New key" }).click();
  await page.getByRole("textbox", { name: "Tenant" }).fill("anna");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  tenantKey = await page.locator("code.secret").innerText();
  await page.getByRole("button", { name: "Done" }).click();
  await page.getByRole("cell", { name: "anna", exact: true }).waitFor();
  await page.getByRole("link", { name: "Audit" }).click();
  await page.getByLabel("Search the audit log").fill("key_add");
  await page.getByRole("cell", { name: "key_add" }).waitFor();
  await page.getByRole("button", { name: "Verify" }).click();
  await page.getByText(/complete and unchanged/).waitFor();
  await audit(page, "the audit log");

  await page.setViewportSize({ width: 390, height: 780 });
  await page.getByRole("link", { name: "Sandboxes" }).click();
  check(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page is wider than the telephone");
  await audit(page, "the dashboard on a telephone");

  // Signed out, the session is of no use even to who kept its cookie.
  const kept = await context.cookies();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("API key or token").waitFor();
  check((await context.cookies()).length === 0, "the browser keeps the session");
  const reply = await fetch(`${base}/api/v1/sandbox`, { headers: { Cookie: kept.map((c) => `${c.name}=${c.value}`).join("; ") } });
  check(reply.status === 401, `the old session still works: ${reply.status}`);
}, { ignore: /status of 401/ });
console.log("ok administrator");

await withPage(async (page) => {
  await signIn(page, tenantKey);
  await page.getByText("There are no sandboxes yet").waitFor();
  check((await page.getByRole("link", { name: /Audit|Keys/ }).count()) === 0, "a tenant sees what is for administrators");
  await page.getByText("anna (user)").waitFor();
}, { ignore: /status of 401/ });
console.log("ok tenant");
