// The dashboard of the hub: sign-in, sandboxes as a table and a wall, bulk actions, keys, audit log, doctor, use by keyboard
// alone, and a tenant that sees only its own sandboxes.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { audit, check, gate, until, withPage } from "./browser.mjs";

const { KEY_URL: base, KEY: key, STATE: state } = process.env;
const caller = (secret) => async (path, body, method) => {
  const reply = await (await fetch(`${base}/api/v1/${path}`, { method: method || (body ? "POST" : "GET"), headers: { "X-API-Key": secret, "Content-Type": "application/json" }, body: body && JSON.stringify(body) })).json();
  check(reply.code === "0", `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
};
const api = caller(key);
const names = async () => (await api("sandbox")).map((sb) => sb.name).sort();
const signIn = async (page, secret) => {
  await page.goto(base);
  await page.getByLabel("API key or token").fill(secret);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: /^Sandboxes/ }).waitFor();
};
// tabTo moves the focus by keyboard until it is on the control of that name.
const tabTo = async (page, name) => {
  for (let i = 0; i < 200; i++) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => document.activeElement?.getAttribute("aria-label") || document.activeElement?.textContent?.trim() || "");
    if (at === name) return;
  }
  throw new Error(`the keyboard does not reach ${name}`);
};
const row = (page, name) => page.getByRole("row", { name: new RegExp(`Select ${name} `) });

// Programs that request / are redirected to the documentation.
const program = await fetch(`${base}/`, { redirect: "manual", headers: { "X-API-Key": key } });
check(program.status === 307 && program.headers.get("location") === "v1/docs", `GET / of a program: ${program.status}`);

let tenantKey = "";
let typed;
await withPage(async (page, context) => {
  // The page requests the list again when it follows the events. A late list must not undo events.
  const second = await gate(page, /\/api\/v1\/sandbox\?/, "", { only: 2 });
  await signIn(page, key);
  await row(page, "a").waitFor();
  await second.stopped();
  await api("sandbox", { name: "early" });
  await row(page, "early").waitFor();
  await second.open();
  await api("sandbox", { name: "later" });
  await row(page, "later").waitFor();
  check((await row(page, "early").count()) === 1, "a late list has removed a sandbox");
  for (const name of ["early", "later"]) await api(`sandbox/${name}`, undefined, "DELETE");
  await until("both disappear", async () => (await page.getByRole("row").count()) === 2);
  await audit(page, "the dashboard");

  // Create several sandboxes, one of them without network.
  await page.getByRole("button", { name: "New sandbox" }).click();
  await page.getByLabel("Name", { exact: true }).fill("crew");
  await page.getByText("Advanced", { exact: true }).click();
  await page.getByLabel("Number of sandboxes").fill("3");
  await page.getByLabel("Network").selectOption("none");
  await audit(page, "the form of a new sandbox");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await row(page, "crew-3").waitFor();
  const made = (await api("sandbox")).find((sb) => sb.name === "crew-2");
  check(made.network.mode === "none", `the network is ${made.network.mode}`);

  // Changes by other clients appear automatically.
  await api("sandbox", { name: "by-api" });
  await row(page, "by-api").waitFor();
  await api("sandbox/by-api", undefined, "DELETE");
  await until("the deleted one disappears", async () => (await row(page, "by-api").count()) === 0);

  // Pause one, resume it, delete several.
  await page.getByRole("button", { name: "Pause crew-1" }).click();
  await row(page, "crew-1").getByText("paused").waitFor();
  await page.getByRole("button", { name: "Resume crew-1" }).click();
  await row(page, "crew-1").getByText("running").waitFor();
  for (const name of ["crew-2", "crew-3"]) await page.getByLabel(`Select ${name}`).check();
  await page.getByRole("group", { name: "Selected sandboxes" }).getByRole("button", { name: "Snapshot" }).click();
  await until("there are two snapshots", async () => (await api("snapshot")).length === 2);
  await page.getByRole("group", { name: "Selected sandboxes" }).getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await until("two are deleted", async () => (await names()).join() === "a,crew-1", names);

  // The wall shows activities as text: a hostile sandbox cannot insert markup.
  await fetch(`${base}/sandbox/a/v1/shell/exec`, { method: "POST", headers: { "X-API-Key": key, "Content-Type": "application/json" }, body: JSON.stringify({ command: `echo '<img src=x onerror="attacked=1">'-$((40+2))`, id: "s" }) });
  await page.getByRole("button", { name: "Wall", exact: true }).click();
  await page.locator(".tile pre").getByText("-42").waitFor();
  check(!(await page.evaluate(() => globalThis.attacked)), "content of a sandbox ran in the page");
  await api("sandbox/crew-1/pause", {});
  await page.locator(".tile.asleep").getByText("paused").first().waitFor();
  await audit(page, "the wall");
  check((await api("sandbox")).find((sb) => sb.name === "crew-1").status === "paused", "the wall woke a sandbox");

  // By keyboard alone: create one, choose it, take a snapshot, roll it back from its view.
  await page.getByRole("button", { name: "Table" }).click();
  await tabTo(page, "New sandbox");
  await page.keyboard.press("Enter");
  await page.keyboard.type("typed");
  await page.keyboard.press("Enter");
  await row(page, "typed").waitFor();
  await page.getByRole("dialog").waitFor({ state: "hidden" }); // the row may be there before the reply
  typed = await api("sandbox/typed");
  await tabTo(page, "Select typed");
  await page.keyboard.press("Space");
  await tabTo(page, "Clear"); // in a round through the page
  for (const back of ["Delete", "Fork", "Snapshot"]) { await page.keyboard.press("Shift+Tab"); check(await page.evaluate((name) => document.activeElement.textContent === name, back), `Shift+Tab does not reach ${back}`); }
  await page.keyboard.press("Enter");
  const snapshot = await until("the snapshot", async () => (await api("snapshot")).find((s) => s.name.startsWith("typed-")));
  await fetch(`${base}/sandbox/typed/v1/file/write`, { method: "POST", headers: { "X-API-Key": key, "Content-Type": "application/json" }, body: JSON.stringify({ file: "/tmp/later", content: "x" }) });
  await tabTo(page, "typed");
  await page.keyboard.press("Enter");
  await page.getByRole("navigation", { name: "Parts of the sandbox" }).waitFor();
  await tabTo(page, "Settings"); // the last tab: the other Snapshots is a part of the dashboard
  for (const back of ["Links", "Snapshots"]) { await page.keyboard.press("Shift+Tab"); check(await page.evaluate((name) => document.activeElement.textContent === name, back), `Shift+Tab does not reach ${back}`); }
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: `Roll back to ${snapshot.name}` }).waitFor();
  await tabTo(page, `Roll back to ${snapshot.name}`);
  await page.keyboard.press("Enter");
  await page.getByRole("dialog", { name: "Roll back" }).waitFor();
  await page.keyboard.press("Enter"); // the focus is on its action
  await page.getByText("Rolled back typed").waitFor();
  const later = await (await fetch(`${base}/sandbox/typed/v1/file/read`, { method: "POST", headers: { "X-API-Key": key, "Content-Type": "application/json" }, body: JSON.stringify({ file: "/tmp/later" }) })).json();
  check(later.success === false, `after the roll back the file is ${JSON.stringify(later)}`);
  await api("sandbox/typed", undefined, "DELETE");

  // The other pages of the dashboard.
  for (const [name, text] of [["Snapshots", /crew-2-/], ["Volumes", "No volumes."], ["Records", "typed"], ["Secrets", "New secret"], ["Usage", /Memory in use/], ["Events", "existing"], ["Machine", "1 of 1 ready"], ["Machine", "state folder, closed to other users"]]) {
    await page.getByRole("navigation", { name: "Parts", exact: true }).getByRole("link", { name }).click();
    await page.getByText(text).first().waitFor();
    await audit(page, name);
  }
  await page.getByRole("link", { name: "Records" }).click();
  const saving = page.waitForEvent("download");
  await page.getByRole("link", { name: "Download the record of typed" }).click();
  check(readFileSync(await (await saving).path(), "utf8").includes("/tmp/later"), "the record of a deleted sandbox lacks its actions");
  await page.getByRole("link", { name: "Keys" }).click();
  await page.getByRole("button", { name: "New key" }).click();
  await page.getByRole("textbox", { name: "Tenant" }).fill("anna");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  tenantKey = await page.locator("code.secret").innerText();
  await page.getByRole("dialog").getByRole("button", { name: "Copy" }).first().click();
  await until("the key is copied", async () => (await page.evaluate(() => navigator.clipboard.readText())) === tenantKey);
  await page.getByRole("button", { name: "Done" }).click();
  await page.getByRole("cell", { name: "anna", exact: true }).waitFor();

  // An administrator sees the sandboxes of all tenants. Actions apply to the selected one, because names are unique only per owner.
  const anna = caller(tenantKey);
  await anna("sandbox", { name: "a" });
  const [hers] = await anna("sandbox");
  await page.getByRole("link", { name: "Sandboxes" }).click();
  const herRow = page.getByRole("row", { name: /Select a a running anna/ });
  await herRow.getByRole("button", { name: "Pause a" }).click();
  await page.getByRole("row", { name: /Select a a paused anna/ }).waitFor();
  check((await api("sandbox/a")).status === "running" && (await anna("sandbox/a")).status === "paused", "another sandbox than the chosen one was paused");
  await anna(`sandbox/${hers.id}/snapshot`, { snapshot: "of-anna" });
  await page.getByRole("link", { name: "Snapshots" }).click();
  await page.getByRole("row", { name: /of-anna anna/ }).waitFor();
  await page.getByRole("link", { name: "Usage" }).click();
  await page.getByRole("cell", { name: "anna", exact: true }).getByRole("link").click();
  await page.getByRole("heading", { level: 2, name: "anna" }).waitFor();
  await page.getByRole("region", { name: "Sandboxes" }).getByRole("link", { name: "a", exact: true }).waitFor();
  await page.getByRole("region", { name: "Keys" }).getByRole("cell", { name: "user", exact: true }).waitFor();
  await audit(page, "a tenant");
  await page.getByRole("link", { name: "Events" }).click();
  await page.getByRole("cell", { name: "anna", exact: true }).first().waitFor();
  await page.getByLabel("Events of").selectOption({ label: "crew-1" });
  await until("only events of crew-1 are left, also those before", async () => { const rows = await page.locator("tbody tr").allInnerTexts(); return rows.every((text) => text.includes("crew-1")) && rows.some((text) => text.includes("created")) && rows.some((text) => text.includes("paused")); }, () => page.locator("tbody").innerText());

  await page.getByRole("link", { name: "Audit" }).click();
  await page.getByLabel("Search the audit log").fill("key_add");
  await page.getByRole("cell", { name: "key_add" }).waitFor();
  await page.getByLabel("Search the audit log").fill("");
  await page.getByLabel("Only this tenant").fill("anna");
  await page.getByLabel("Period").selectOption({ label: "last hour" });
  await until("only lines of anna are left", async () => (await page.locator("tbody tr").count()) > 0 && (await page.locator("tbody tr").allInnerTexts()).every((text) => text.includes("anna")));
  const exporting = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download" }).click();
  const lines = readFileSync(await (await exporting).path(), "utf8").trim().split("\n").map((line) => JSON.parse(line));
  check(lines.length > 0 && lines.every((line) => line.tenant === "anna" && line.hash), "the download has other lines than the filter");
  await page.getByLabel("Only this tenant").fill("");
  await page.getByRole("button", { name: "Verify" }).click();
  await page.getByText(/complete and unchanged/).waitFor();
  await audit(page, "the audit log");

  await page.getByRole("row", { name: /admin.*key_add/ }).waitFor();
  const [log] = readdirSync(`${state}/audit`).filter((name) => name.endsWith(".jsonl")); // tamper with a line
  writeFileSync(`${state}/audit/${log}`, readFileSync(`${state}/audit/${log}`, "utf8").replace("key_add", "key_bad"));
  await page.getByRole("button", { name: "Verify" }).click();
  await page.locator(".verdict.bad").filter({ hasText: log }).waitFor();

  await page.setViewportSize({ width: 390, height: 780 });
  for (const name of ["Sandboxes", "Snapshots", "Usage", "Keys", "Machine"]) {
    await page.goto(`${base}/#${name.toLowerCase()}`);
    await page.getByRole("heading", { level: 2 }).first().waitFor();
    check(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${name} is wider than the phone`);
  }
  await audit(page, "the dashboard on a telephone");

  // After sign-out, the cookie of the session is invalid.
  const kept = await context.cookies();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("API key or token").waitFor();
  check((await context.cookies()).length === 0, "the browser keeps the session");
  const reply = await fetch(`${base}/api/v1/sandbox`, { headers: { Cookie: kept.map((c) => `${c.name}=${c.value}`).join("; ") } });
  check(reply.status === 401, `the old session still works: ${reply.status}`);
}, { ignore: /status of 401/ });
console.log("ok administrator");

// A tenant sees no data of others, neither in the dashboard nor with direct requests.
const [operators] = await api("sandbox");
await api(`sandbox/${operators.id}/snapshot`, { snapshot: "of-operator" });
await withPage(async (page) => {
  await signIn(page, tenantKey);
  await page.getByRole("row", { name: /Select a a paused/ }).waitFor();
  check((await page.getByRole("row").count()) === 2, "a tenant sees more than its own sandbox");
  check((await page.getByRole("link", { name: /Audit|Keys/ }).count()) === 0, "a tenant sees pages for administrators");
  await page.getByText("anna (user)").waitFor();
  await page.getByRole("button", { name: "Wall", exact: true }).click();
  await page.locator(".tile.asleep").waitFor();
  check((await page.locator(".tile").count()) === 1, "a tenant's wall shows others");
  for (const [name, own, others] of [["Snapshots", "of-anna", "of-operator"], ["Records", "No records yet", "typed"], ["Events", "existing", operators.id], ["Machine", "Isolation", "cove doctor"], ["Usage", "anna", "operator"]]) {
    await page.getByRole("link", { name }).click();
    await page.getByText(own).first().waitFor();
    check(!(await page.locator("main").innerText()).includes(others), `${name}: a tenant sees ${others}`);
  }
  for (const path of ["hub/doctor", `sandbox/${operators.id}/glance`, `sandbox/${operators.id}`, "sandbox?user=*", "snapshot?user=*", "usage?user=*", `record/${typed.id}`, "audit", "audit/verify", "key"]) {
    const [status, text] = await page.evaluate(async (to) => { const reply = await fetch(to); return [reply.status, await reply.text()]; }, `${base}/api/v1/${path}`);
    check(status === 403 || status === 404 || text === '{"code":"0","data":[]}', `a tenant gets ${path}: ${status} ${text}`);
  }
  const info = await page.evaluate(async (to) => (await fetch(to)).json(), `${base}/api/v1/hub`);
  check(!info.data.pools, "a tenant sees the warm pools");
}, { ignore: /status of 40[134]/ });
await caller(tenantKey)("sandbox/a", undefined, "DELETE");
console.log("ok tenant");
