// Pages of a sandbox at an IP address, which have no origin, when their hub restarts: its new process knows none of their passes.
import { spawn } from "node:child_process";
import { check, until, withPage } from "./browser.mjs";

const { COVE: cove, STATE: state } = process.env;

// start starts the hub and returns its address, and a function that ends it.
async function start(listen) {
  const hub = spawn(cove, ["hub", "--listen", listen, "--log-level", "warn", "--state", state], { stdio: ["ignore", "pipe", "pipe"] });
  let log = "";
  for (const stream of [hub.stdout, hub.stderr]) stream.on("data", (data) => { log += data; });
  const ended = new Promise((done) => { hub.on("exit", done); });
  await until("the hub serves", () => /serving on \S+\n/.test(log) || hub.exitCode !== null, () => log);
  const address = /serving on (\S+)\n/.exec(log)?.[1];
  check(address, `the hub ended: ${log}`);
  return { address, stop: () => { hub.kill(); return ended; } };
}

async function send(address, method, path, body) {
  const res = await fetch(address + path, { method, headers: { "Content-Type": "application/json" }, body: body && JSON.stringify(body) });
  check(res.ok, `${method} ${path}: got ${res.status} ${await res.text()}`);
}

const rows = (page) => page.locator(".screen.shown .xterm-rows").innerText();
const pass = (page) => new URL(page.url()).pathname.split("/").find((part) => part.startsWith("~"));

let hub = await start("127.0.0.1:0");
try {
  const { address } = hub;
  await send(address, "POST", "/api/v1/sandbox", { name: "a" });
  await send(address, "POST", "/sandbox/a/v1/file/write", { file: "notes.txt", content: "first" });
  await withPage(async (terminal, context) => {
    await terminal.goto(`${address}/sandbox/a/terminal`);
    await until("a prompt", async () => /[$#]/.test(await rows(terminal)));
    await terminal.click("#new");
    const tabs = () => new URLSearchParams(new URL(terminal.url()).hash.slice(1)).get("tabs");
    await until("two sessions", async () => tabs()?.split(",").length === 2);
    await terminal.locator(".screen.shown .xterm-helper-textarea").focus();
    await terminal.keyboard.type("kept=be''fore; echo set-$?\n");
    await until("the command ran", async () => /set-0/.test(await rows(terminal)), () => rows(terminal));
    const activity = await context.newPage();
    await activity.goto(`${address}/sandbox/a/activity`);
    await activity.locator(".steps > li").first().waitFor();
    const files = await context.newPage();
    await files.goto(`${address}/sandbox/a/files?path=notes.txt`);
    await files.getByRole("treeitem", { name: "notes.txt" }).click();
    await files.locator(".cm-content").getByText("first").click();
    await files.keyboard.type("unsaved ");
    const old = pass(terminal);
    check(old && pass(files) && pass(activity), "the pages have no pass");

    await hub.stop();
    await files.getByText("Connection lost").waitFor();
    hub = await start(new URL(address).host);

    await until("the terminal has a new pass", () => pass(terminal) !== old, () => terminal.url());
    await until("both sessions", async () => (await terminal.locator(".tab").count()) === 2);
    await until("a prompt after the restart", async () => /[$#]/.test(await rows(terminal)));
    await terminal.locator(".screen.shown .xterm-helper-textarea").focus();
    await terminal.keyboard.type("clear; echo $kept-is-kept\n");
    await until("the session is the same", async () => /before-is-kept/.test(await rows(terminal)), () => rows(terminal));
    await until("the activity has a new pass", () => pass(activity) && pass(activity) !== old, () => activity.url());
    await activity.locator(".steps > li").first().waitFor();
    // A page with unsaved text does not reload.
    await files.getByRole("button", { name: "Reload the page" }).waitFor();
    check(/unsaved/.test(await files.locator(".cm-content").innerText()), "the unsaved text is gone");
  }, { ignore: /CORS|40[13]|null/ });
  console.log("ok pages reconnect after a restart of the hub");
  await send(address, "DELETE", "/api/v1/sandbox/a");
} finally {
  await hub.stop();
}
