// The view of one sandbox in the dashboard: usage against limits, a runaway process that is killed with three clicks from the table,
// activity, logs, files, snapshots, settings, and why a sandbox ended.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { audit, check, hurry, until, withPage } from "./browser.mjs";

const { KEY_URL: base, KEY: key } = process.env;
const headers = { "X-API-Key": key, "Content-Type": "application/json" };
const api = async (path, body, method) => {
  const reply = await (await fetch(`${base}/api/v1/${path}`, { method: method || (body ? "POST" : "GET"), headers, body: body && JSON.stringify(body) })).json();
  check(reply.code === "0", `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
};
const inside = async (name, path, body) => {
  const reply = await (await fetch(`${base}/sandbox/${name}/${path}`, { method: "POST", headers, body: JSON.stringify(body) })).json();
  check(reply.success === true, `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
};
const row = (page, name) => page.getByRole("row", { name: new RegExp(`Select ${name} `) });
const hostile = `<img src=x onerror="attacked=1">`;
const trick = `${hostile}\u202etxt.exe\u001b[2J`;

await api("sandbox", { name: "runaway", cpu_limit: "100m", memory_limit: "256Mi", timeout: 30, idle_timeout: -1 });
await api("sandbox", { name: "worker", cpu_limit: "300m", memory_limit: "256Mi", timeout: 30, idle_timeout: -1, labels: { team: "growth" }, env: { NOTE: trick, MARKUP: hostile } });
const brief = await api("sandbox?full=true", { name: "brief", timeout: 0.05 });
await inside("runaway", "v1/bash/exec", { command: `exec -a '${hostile}' bash -c 'while :; do :; done'`, async_mode: true });
await inside("worker", "v1/bash/exec", { command: `printf '%s' 'changed' > "$HOME/report-${"x".repeat(3)}.txt"; echo '${hostile}' > "$HOME/a'b&c.txt"` });

await withPage(async (page, context) => {
  await hurry(context);
  await page.goto(base);
  await page.getByLabel("API key or token").fill(key);
  await page.keyboard.press("Enter");
  await row(page, "runaway").waitFor();

  // Overview: charts, ports, and what happened.
  await inside("worker", "v1/bash/exec", { command: "python3 -m http.server 9000 --bind 127.0.0.1", async_mode: true });
  await page.getByRole("link", { name: "worker", exact: true }).click();
  check((await page.title()) === "worker – Cove", `the title is ${await page.title()}`);
  await page.getByRole("img", { name: /^CPU during the last .*: now .*limit 0.3 cores$/ }).waitFor();
  for (const title of ["Memory", "Disk", "Network"]) await page.getByRole("img", { name: new RegExp(`^${title} during the last`) }).waitFor();
  await page.getByRole("link", { name: "9000" }).waitFor();
  await page.locator(".events").getByText("created", { exact: true }).waitFor();
  await audit(page, "the overview");
  const id = (await api("sandbox/worker")).id;
  const before = Date.parse((await api("sandbox/worker")).expires_at);
  await api("sandbox/worker/extend", { timeout: 5 });
  await page.locator(".tag.warn").getByText(/[1-5] min left/).waitFor();
  await page.getByRole("button", { name: "Extend" }).click();
  await until("it is extended", async () => Date.parse((await api("sandbox/worker")).expires_at) > before);

  // The other tabs. What the sandbox says is text.
  await page.getByRole("main").getByRole("link", { name: "Activity" }).click();
  const steps = page.locator(".steps > li");
  await steps.getByText("bash_exec").first().waitFor();

  // Reads are hidden until requested, and a command with an exit code other than 0 is a failure.
  await inside("worker", "v1/file/read", { file: "/etc/hostname" });
  await inside("worker", "v1/bash/exec", { command: "exit 3" });
  await steps.filter({ hasText: "exit 3" }).getByText("failed", { exact: true }).waitFor();
  check((await steps.getByText("file_read").count()) === 0, "reads are shown");
  await page.getByLabel("reads").check();
  await steps.getByText("file_read").first().waitFor();
  await page.getByLabel("reads").uncheck();
  await page.getByRole("link", { name: "Logs" }).click();
  await page.getByLabel("Logs").waitFor();
  await page.getByRole("link", { name: "Changed files" }).click();
  const saving = page.waitForEvent("download");
  await page.getByRole("button", { name: /^Download .*report-xxx.txt$/ }).click();
  check(readFileSync(await (await saving).path(), "utf8") === "changed", "the download differs from the file");
  const packing = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download all" }).click();
  const archive = await (await packing).path();
  const packed = execFileSync("python3", ["-c", "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); print(z.testzip()); [print(n, z.read(n)) for n in z.namelist()]", archive]).toString();
  check(packed.startsWith("None\n") && /report-xxx\.txt b'changed'/.test(packed) && packed.includes("a'b&c.txt"), `the archive contains ${packed}`);
  await audit(page, "changed files");
  await page.getByRole("link", { name: "Settings" }).click();
  await page.getByText(hostile).first().waitFor();
  check((await page.locator("dd").filter({ hasText: "txt.exe" }).innerText()).includes("\\u202e"), "a direction character is not shown as a code");
  await page.getByLabel("Idle timeout (minutes)").fill("7");
  await page.getByLabel("Timeout (minutes)", { exact: true }).fill("");
  await page.locator("select[name=idle_policy]").selectOption("pause");
  await page.getByRole("button", { name: "Save lifetime" }).click();
  await until("the lifetime is changed", async () => { const sb = await api("sandbox/worker"); return sb.idle_timeout === 7 && sb.idle_policy === "pause" && sb.expires_at === null; }, async () => JSON.stringify(await api("sandbox/worker")));
  await page.getByLabel("Connections to other hosts").selectOption("none");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await until("the network is closed", async () => (await api("sandbox/worker")).network.mode === "none");
  await audit(page, "settings");
  await page.getByRole("main").getByRole("link", { name: "Snapshots" }).click();
  await page.getByRole("button", { name: "New snapshot" }).click();
  await page.getByLabel("Name", { exact: true }).fill("good");
  await page.getByRole("button", { name: "Take snapshot" }).click();
  await page.getByRole("button", { name: "New sandbox from good" }).click();
  await until("the other sandbox is shown", async () => !page.url().includes(id));
  await page.getByRole("heading", { level: 2 }).first().waitFor();
  const [copy] = (await api("sandbox")).filter((sb) => sb.from_snapshot === "good");
  check(page.url().includes(copy.id), `the page shows ${page.url()}, want ${copy.id}`);

  // A link with an action opens its dialog, once, and changes nothing without a click.
  for (const [action, title] of [["share", "Share worker"], ["pause", "Pause"], ["fork", "Fork"], ["delete", "Delete"]]) {
    await page.goto(`${base}/#sandbox/${id}/?do=${action}`);
    await page.getByRole("dialog", { name: title }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "hidden" });
    check(page.url().endsWith(`#sandbox/${id}`), `the address is ${page.url()}`);
  }
  check((await api("sandbox/worker")).status === "running", "a link acted without a click");

  // A paused sandbox is not woken by any tab.
  await api("sandbox/worker/pause", {});
  for (const tab of ["", "/processes", "/activity", "/logs", "/files", "/snapshots", "/settings"]) {
    await page.goto(`${base}/#sandbox/${id}${tab}`);
    await page.locator(".subject").getByText("paused", { exact: true }).waitFor();
    await page.locator(".tabs [aria-current]").waitFor();
  }
  check((await api("sandbox/worker")).status === "paused", "a tab woke the sandbox");

  // Why a sandbox ended: the open page says so, and the list of deleted ones with one click.
  await api("sandbox/worker", undefined, "DELETE");
  await page.getByText(/worker was deleted/).waitFor();
  await page.getByText("its owner requested it").waitFor();
  await audit(page, "a sandbox that ended");
  await page.getByRole("link", { name: "Show its record" }).click();
  await page.locator(".steps > li").first().waitFor();
  await page.goto(`${base}/#sandboxes`);
  await page.getByRole("button", { name: "Deleted", exact: true }).click();
  await page.getByRole("row", { name: /worker/ }).getByText("its owner requested it").waitFor();
  await audit(page, "deleted sandboxes");

  // Why sandboxes died, with one click: no memory, and its timeout.
  await api("sandbox", { name: "greedy", memory_limit: "128Mi", timeout: 60 });
  await inside("greedy", "v1/bash/exec", { command: "python3 -c 'x = bytearray(1 << 30)'" });
  const greedy = await api("sandbox/greedy");
  await until("it ran out of memory", async () => (await api("sandbox/greedy/history")).some((m) => m.bad), async () => JSON.stringify(await api("sandbox/greedy/history")));
  await api("sandbox/greedy", undefined, "DELETE");
  await until("the timeout is reached", async () => (await api("deleted")).some((d) => d.name === "brief"));
  await page.reload();
  await page.getByRole("button", { name: "Deleted", exact: true }).click();
  await page.getByRole("row", { name: /brief/ }).getByText("its timeout was reached").waitFor();
  await page.getByRole("row", { name: /greedy/ }).getByText(/memory/).waitFor();
  await page.getByRole("link", { name: "greedy" }).click();
  await page.locator(".ended .events li").filter({ hasText: /memory/ }).first().waitFor();
  await audit(page, "why a sandbox died");
  for (const [sb, why] of [[greedy, "its owner requested it"], [brief, "its timeout was reached"]]) {
    await page.goto(`${base}/#sandbox/${sb.id}`);
    await page.locator(".ended").getByText(why).waitFor();
  }

  // The runaway is visible in the table: its bar is full, and after half a minute the row says so. It runs since the story began.
  await page.goto(`${base}/#sandboxes`);
  check(!(await page.evaluate(() => globalThis.attacked)), "content of a sandbox ran in the page");
  await page.getByRole("button", { name: "Table", exact: true }).click();
  const meter = page.getByRole("meter", { name: "CPU of runaway" });
  await until("the bar of the runaway is full", async () => (await meter.count()) === 1 && Number(await meter.getAttribute("aria-valuenow")) >= 80, () => row(page, "runaway").innerText());
  check((await row(page, "runaway").innerText()).includes("of 0.1 cores"), `the limit is missing: ${await row(page, "runaway").innerText()}`);
  await row(page, "runaway").getByText("min left").waitFor();
  await row(page, "runaway").getByText(/CPU at its limit for/).waitFor();
  await page.getByRole("button", { name: "CPU", exact: true }).click();
  await until("the busiest is first", async () => (await page.locator("tbody tr").first().innerText()).includes("runaway"));
  await audit(page, "the table with a runaway");

  // Three clicks: its CPU, Kill, and the confirmation.
  await page.getByRole("link", { name: /^Processes of runaway/ }).click();
  const kill = page.getByRole("row").filter({ hasText: "while :;" }).getByRole("button", { name: /^Kill/ });
  await until("the runaway is the busiest process", async () => (await page.locator("tbody tr").first().innerText()).includes("while :;"));
  await audit(page, "processes");
  await kill.click();
  await page.getByRole("dialog").getByRole("button", { name: "Kill" }).click();
  await until("it is killed", async () => (await page.getByRole("row").filter({ hasText: "while :;" }).count()) === 0);
  const server = page.getByRole("row").filter({ hasText: "system process" });
  check((await server.count()) >= 1 && (await server.getByRole("button").count()) === 0, "the server of the sandbox can be ended");

  // On a phone: cards, and the navigation at the bottom.
  await page.setViewportSize({ width: 390, height: 844 });
  await page.goto(`${base}/#sandboxes`);
  await page.getByRole("link", { name: copy.name, exact: true }).waitFor();
  check(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the cards are wider than the phone");
  await page.getByRole("button", { name: "More" }).click();
  await page.getByRole("navigation", { name: "Main parts" }).getByRole("link", { name: "Machine" }).click();
  await page.getByRole("heading", { name: "This machine" }).waitFor();

  // The page of an error leads back.
  await page.goto(`${base}/sandbox/nobody/`);
  await page.getByRole("heading", { name: "Not Found" }).waitFor();
  check((await page.title()) === "Not Found – Cove", `the title is ${await page.title()}`);
  await audit(page, "the page of an error");
  await page.getByRole("link", { name: "Try again" }).click();
  await page.getByRole("link", { name: "All sandboxes" }).click();
  await page.getByRole("heading", { name: /^Sandboxes/ }).waitFor();
}, { ignore: /status of 40[14]/ });
console.log("ok the view of one sandbox");
