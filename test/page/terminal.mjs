// The web terminal, used as a user would.
import { createServer } from "node:http";
import { axe, check, quick, until, withPage } from "./browser.mjs";

const { URL: direct, PREFIX_URL: prefixed, CUT_URL: cuttable, CUT_CONTROL: control } = process.env;

// Lines of the visible terminal.
const lines = (page) => page.evaluate(() => {
  const rows = document.querySelectorAll(".screen.shown .xterm-rows > div");
  return [...rows].map((row) => row.textContent.replaceAll("\u00a0", " ").trimEnd());
});
const shows = (page, text, what = text) => until(`the terminal shows ${JSON.stringify(String(what))}`,
  async () => (await lines(page)).some((line) => (text instanceof RegExp ? text.test(line) : line === text)),
  async () => (await lines(page)).join("\n").trimEnd());
const type = async (page, text) => { await page.locator(".screen.shown .xterm-helper-textarea").focus(); await page.keyboard.type(text); await page.keyboard.press("Enter"); };
const ready = async (page) => { await until("a session", async () => new URL(page.url()).searchParams.get("session_id")); await prompt(page); };
const prompt = (page) => until("a prompt", async () => /[#$]$/.test((await lines(page)).filter((line) => line !== "").pop() ?? ""),
  async () => (await lines(page)).join("\n").trimEnd());

async function story(name, run, options) {
  await withPage(run, options);
  console.log(`ok ${name}`);
}

await story("type, run vim and quit, resize, reload", async (page) => {
  await page.goto(direct + "/terminal");
  await ready(page);
  const session = new URL(page.url()).searchParams.get("session_id");
  await type(page, "echo $((6*7))-answer");
  await shows(page, "42-answer");

  await type(page, "vi /tmp/page-test-$$.txt");
  await shows(page, /^~$/, "vim");
  await page.keyboard.type("ihello from vim");
  await shows(page, "hello from vim");
  await page.keyboard.press("Escape");
  await type(page, ":q!");
  await prompt(page); // input while vim exits is lost on any terminal
  await type(page, "echo back again");
  await shows(page, "back again");

  await type(page, "stty size");
  await shows(page, /^\d+ \d+$/, "a size");
  const before = (await lines(page)).find((line) => /^\d+ \d+$/.test(line));
  await page.setViewportSize({ width: 700, height: 400 });
  // The new size reaches the shell later than the next command.
  await type(page, `clear; while [ "$(stty size)" = "${before}" ]; do sleep 0.05; done; echo re''sized`);
  await shows(page, "resized");

  await type(page, "clear; kept=yes-it-is; echo set-$?");
  await shows(page, "set-0"); // before the connection ends
  await page.reload();
  await ready(page);
  check(new URL(page.url()).searchParams.get("session_id") === session, "the reload found another session");
  await type(page, "echo $kept");
  await shows(page, "yes-it-is");
});

await story("copy, paste, links", async (page) => {
  await page.goto(direct + "/terminal");
  await ready(page);
  await page.evaluate(() => navigator.clipboard.writeText("echo pasted-$((1+1))"));
  await page.locator(".screen.shown .xterm-helper-textarea").focus();
  await page.keyboard.press("Control+Shift+V");
  await page.keyboard.press("Enter");
  await shows(page, "pasted-2");
  const row = page.locator(".screen.shown .xterm-rows > div", { hasText: /^pasted-2/ }).last();
  const box = await row.boundingBox();
  await page.mouse.dblclick(box.x + 10, box.y + 6); // a layer for the pointer covers the rows
  await page.keyboard.press("Control+Shift+C");
  await until("the copy", async () => (await page.evaluate(() => navigator.clipboard.readText())).includes("pasted"));
}, { colorScheme: "dark" });

await story("several tabs, an ended session", async (page) => {
  await page.goto(direct + "/terminal");
  await ready(page);
  await type(page, "echo first tab");
  await shows(page, "first tab");
  await page.click("#new");
  await ready(page);
  await type(page, "echo second tab");
  await shows(page, "second tab");
  check((await page.locator(".tab").count()) === 2, "there are not two tabs");
  await page.reload();
  await shows(page, "second tab");
  await page.locator(".tab").first().click();
  await shows(page, "first tab");
  await type(page, "exit 3");
  await shows(page, /exited with code 3/);
  await page.keyboard.press("Enter");
  await prompt(page); // input before the new session is connected is lost
  await type(page, "echo new life");
  await shows(page, "new life");
});

await story("a cut connection is taken up again", async (page) => {
  await page.goto(cuttable + "/terminal");
  await ready(page);
  await type(page, "held=on; echo before the cut");
  await shows(page, "before the cut");
  // Input before the page detects the loss is lost with the old connection.
  let heard = false;
  page.once("websocket", (socket) => socket.once("framereceived", () => { heard = true; }));
  await fetch(control, { method: "POST" });
  await until("the new connection speaks", () => heard);
  await until("the notice goes away", async () => (await page.locator("#notice").textContent()) === "");
  await type(page, "echo still-$held");
  await shows(page, "still-on");
});

await story("below a path prefix", async (page) => {
  await page.goto(prefixed + "/terminal");
  await ready(page);
  await type(page, "echo behind a prefix");
  await shows(page, "behind a prefix");
});

// exec runs a command through the API.
const exec = async (command) => {
  const headers = { "Content-Type": "application/json" };
  const res = await fetch(direct + "/v1/bash/exec", { method: "POST", headers, body: JSON.stringify({ command }) });
  return (await res.json()).data;
};
const exists = async (file) => (await exec(`test -e ${file}`)).exit_code === 0;
const suggesting = (command) => `${direct}/terminal?command=${encodeURIComponent(command)}`;
const enter = { key: "Enter", code: "Enter", text: "\r", windowsVirtualKeyCode: 13 };
const space = { key: " ", code: "Space", text: " ", windowsVirtualKeyCode: 32 };
// repeat is a key that was pressed before and is still down.
const repeat = (devtools, key) => devtools.send("Input.dispatchKeyEvent", { type: "keyDown", autoRepeat: true, ...key });
const release = (devtools, key) => devtools.send("Input.dispatchKeyEvent", { type: "keyUp", ...key, text: undefined });
// typed collects what the page sends to its shells.
const typed = (page) => {
  const inputs = [];
  page.on("websocket", (socket) => socket.on("framesent", ({ payload }) => {
    const { type, data } = JSON.parse(payload);
    if (type === "input") inputs.push(data);
  }));
  return inputs;
};

// A website that navigates to an address as soon as a key is pressed.
async function foreign(address) {
  const server = createServer((_req, res) => {
    res.setHeader("Content-Type", "text/html");
    res.end(`<!doctype html><title>game</title><link rel="icon" href="data:,"><script>
      addEventListener("keydown", () => { location = ${JSON.stringify(address)}; }, { once: true });</script>`);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return { url: `http://localhost:${server.address().port}/`, close: () => server.close() };
}

await story("a website has Enter held and runs nothing", async (page, context) => {
  const { stdout } = await exec("mktemp -d");
  const file = stdout.trim() + "/ran";
  const site = await foreign(suggesting(`touch ${file}`));
  const inputs = typed(page);
  const devtools = await context.newCDPSession(page);
  try {
    await page.goto(site.url);
    await devtools.send("Input.dispatchKeyEvent", { type: "keyDown", ...enter });
    await until("the terminal is shown while Enter is held", async () => {
      await repeat(devtools, enter).catch(() => {}); // between two pages there is no receiver
      return page.url().includes("session_id=");
    });
    await prompt(page);
    for (let i = 0; i < 100; i++) await repeat(devtools, enter);
    await release(devtools, enter);
    const sent = JSON.stringify(inputs);
    await type(page, "echo $((6*7))-typed");
    await shows(page, "42-typed");
    check(!(await exists(file)), "a held Enter ran the command of a link");
    check(!sent.includes("touch") && !sent.includes("\\r"), `a link or a held Enter typed ${sent}`);
    check((await page.locator("#suggested").textContent()) === `touch ${file}`, "the command is not shown");
    await page.locator("#run").click();
    await until("Run runs the command", () => exists(file));
    await until("the suggestion is gone", () => page.locator("#suggestion").isHidden());
  } finally {
    site.close();
    await exec(`rm -r ${stdout}`);
  }
});

await story("only a press on the page activates Run", async (page, context) => {
  const { stdout } = await exec("mktemp -d");
  const file = stdout.trim() + "/ran";
  const inputs = typed(page);
  const devtools = await context.newCDPSession(page);
  await page.goto(suggesting(`touch ${file}`));
  await ready(page);
  const button = page.locator("#run");
  check(await button.evaluate((b) => b !== document.activeElement), "Run has the focus");
  await axe(page, "a suggested command");
  await until("Run is enabled", () => button.isEnabled());
  // The second click of a double click hits a page that has just appeared.
  const early = await button.evaluate((b) => { dispatchEvent(new Event("focus")); return !b.disabled; });
  check(!early, "Run is enabled as soon as the page has the focus");
  await until("Run is enabled again", () => button.isEnabled());
  await button.evaluate((b) => {
    b.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
    b.click();
  });
  await button.focus();
  for (const key of [enter, space]) {
    for (let i = 0; i < 20; i++) await repeat(devtools, key);
    await release(devtools, key);
  }
  check(await page.locator("#suggestion").isVisible(), "the suggestion was accepted");
  check(inputs.every((text) => !text.includes("touch")), `the command was run: ${JSON.stringify(inputs)}`);
  await page.locator("#dismiss").click();
  check(await page.locator("#suggestion").isHidden() && !(await exists(file)), "Dismiss does not dismiss");

  await page.goto(suggesting(`touch ${file}\r\n`));
  await ready(page);
  await until("Run is enabled", () => button.isEnabled());
  await page.locator(".screen.shown .xterm-helper-textarea").focus();
  await page.keyboard.type("echo begun ");
  await button.focus();
  await page.keyboard.press("Enter");
  await until("Enter on Run runs the command", () => exists(file));
  check((await page.locator(".tab").count()) === 2, "the command was added to a line that a person had begun");
  await exec(`rm -r ${stdout}`);
});

await story("a suggested command is shown as it is", async (page) => {
  for (const [command, shown] of [
    ["echo a\u202eb", "echo a\\u202eb"],
    ["echo \x1b[2Ka", "echo \\x1b[2Ka"],
    ["echo a\nid", "echo a\\nid"],
    ["echo a\u200bb\u00a0c\u3164", "echo a\\u200bb\\xa0c\\u3164"],
    ["echo <b>a</b>\u{e0041}", "echo <b>a</b>\\u{e0041}"],
  ]) {
    await page.goto(suggesting(command));
    await ready(page);
    const got = await page.locator("#suggested").textContent();
    check(got === shown, `got ${got}, want ${shown}`);
    check(await page.locator("#unrunnable").isVisible() && await page.locator("#run").isDisabled(), `${shown} can be run`);
  }
  // The user has to scroll through text that hides the end.
  await page.goto(suggesting(`echo${" ".repeat(6000)}; id`));
  await ready(page);
  check(await page.locator("#run").isDisabled(), "Run is enabled although the end of the command is out of sight");
  await page.locator("#suggested").evaluate((box) => { box.scrollTop = box.scrollHeight; });
  await until("Run is enabled at the end of the command", () => page.locator("#run").isEnabled());
  // A link of the sandbox itself is treated the same way.
  await page.goto(suggesting("codex"));
  await ready(page);
  check(await page.locator("#suggestion").isVisible(), "codex is not suggested");
});

const sessions = async () => (await (await fetch(`${direct}/v1/shell/sessions`)).json()).data.sessions;
const inShell = (command, id) => fetch(`${direct}/v1/shell/exec`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ command, id, async_mode: true }) });

await story("sessions of agents are listed and attached; a busy one ends only after a question", async (page) => {
  await inShell("marker=from-an-agent; echo attached-$marker", "agent-one");
  await inShell("sleep 1000 # <img src=x onerror=alert(1)>\u202e", "agent-two");
  await until("the second session works", async () => (await sessions())["agent-two"]?.status === "active", sessions);
  page.on("dialog", (dialog) => { throw new Error(`a dialog: ${dialog.message()}`); });
  await page.goto(direct + "/terminal");
  await ready(page);
  await page.getByRole("button", { name: /^Sessions \(\d+\)$/ }).click();
  const list = page.getByRole("dialog", { name: "Other shell sessions" });
  await list.getByText("<img src=x onerror=alert(1)>\\u202e").waitFor(); // as text, without characters that reorder it
  check((await list.locator("img").count()) === 0, "a command became markup");
  await axe(page, "the list of sessions");
  await list.getByRole("button").filter({ hasText: "agent-one" }).click();
  await shows(page, "attached-from-an-agent");
  await type(page, "echo again-$marker");
  await shows(page, "again-from-an-agent");

  // A program runs in a tab of the user: closing asks.
  await page.click("#new");
  await prompt(page);
  const mine = new URL(page.url()).searchParams.get("session_id");
  await type(page, "sleep 1001");
  await until("the command runs", async () => (await sessions())[mine]?.status === "active", sessions);
  const close = () => page.locator(".tab[aria-selected=true] .close").click();
  await close();
  const question = page.getByRole("dialog", { name: "End this session?" });
  await question.getByText("sleep 1001").waitFor();
  await question.getByRole("button", { name: "Cancel" }).click();
  check((await page.locator(".tab").count()) === 3 && (await sessions())[mine]?.status === "active", "the session has ended without consent");
  await close();
  await question.getByRole("button", { name: "End the session" }).click();
  await until("it has ended", async () => !(await sessions())[mine], sessions);
  // A tab of the session of an agent is closed without its session.
  await page.locator(".tab").last().click();
  await close();
  await question.getByRole("button", { name: "Close the tab only" }).click();
  await until("one tab is left", async () => (await page.locator(".tab").count()) === 1);
  check(Boolean((await sessions())["agent-one"]), "the session of the agent has ended");
});

await story("a paste does not scroll the page; find; much output", async (page) => {
  await page.goto(direct + "/terminal");
  await ready(page);
  await type(page, "for i in $(seq 60); do echo line-$i; done");
  await shows(page, "line-60");
  await page.evaluate(() => navigator.clipboard.writeText(Array.from({ length: 40 }, (_, i) => `echo pasted-$((${i}+1))`).join("\n")));
  await page.locator(".screen.shown .xterm-helper-textarea").focus();
  await page.keyboard.press("Control+Shift+V");
  await page.keyboard.press("Enter");
  await shows(page, "pasted-40");
  const scrolled = await page.evaluate(() => [scrollY, document.documentElement.scrollTop, document.body.scrollTop, document.getElementById("tabs").scrollTop]);
  check(scrolled.every((n) => n === 0), `the page has scrolled: ${scrolled}`);
  const cut = await page.evaluate(() => { const tab = document.querySelector(".tab").getBoundingClientRect(); const bar = document.getElementById("tabs").getBoundingClientRect(); return tab.top < bar.top - 1 || tab.bottom > bar.bottom + 1; });
  check(!cut, "the bar of tabs is cut");

  await page.keyboard.press("Control+Shift+F");
  await page.getByLabel("Find in the terminal").fill("line-5");
  const status = page.locator(".find [role=status]");
  await until("the matches are counted", async () => /^\d+ of 1[12]$/.test(await status.textContent()), () => status.textContent()); // line-5, line-50 to line-59, and perhaps the prompt
  const first = await status.textContent();
  await page.keyboard.press("Enter");
  await until("the next match", async () => (await status.textContent()) !== first, () => status.textContent());
  await axe(page, "find");
  await page.keyboard.press("Escape");
  check(await page.evaluate(() => document.activeElement.classList.contains("xterm-helper-textarea")), "the terminal does not have the focus back");

  const began = performance.now();
  const count = quick ? 20_000 : 200_000;
  await type(page, `seq ${count}; echo drawn-$((6*7))`);
  await shows(page, "drawn-42");
  console.log(`${count} lines are drawn after ${Math.round(performance.now() - began)} ms`);
});

await story("the theme of the other pages", async (page, context) => {
  await page.goto(direct + "/terminal");
  await ready(page);
  const ground = () => page.locator(".xterm-scrollable-element, .xterm-viewport").first().evaluate((e) => getComputedStyle(e.closest(".xterm").querySelector(".xterm-scrollable-element") || e).backgroundColor);
  check((await ground()) === "rgb(22, 27, 34)", `the terminal is ${await ground()}, want dark`);
  const other = await context.newPage();
  await other.goto(direct + "/files");
  await other.getByRole("button", { name: /^Theme/ }).click(); // light
  await until("the terminal is light", async () => (await ground()) === "rgb(255, 255, 255)", ground);
}, { colorScheme: "dark" });

// On a telephone there is a row of keys above the soft keyboard, whose Ctrl applies to the next key.
await story("keys on a telephone", async (page) => {
  await page.goto(direct + "/terminal");
  await ready(page);
  const tools = page.getByRole("toolbar", { name: "Keys" });
  await tools.waitFor();
  check(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page is wider than the telephone");
  await axe(page, "the terminal on a telephone");
  await type(page, "sleep 1002");
  const mine = new URL(page.url()).searchParams.get("session_id");
  await until("the command runs", async () => (await sessions())[mine]?.status === "active", sessions);
  await tools.getByRole("button", { name: "Ctrl" }).tap();
  check((await tools.getByRole("button", { name: "Ctrl" }).getAttribute("aria-pressed")) === "true", "Ctrl is not held");
  check(await page.evaluate(() => document.activeElement.classList.contains("xterm-helper-textarea")), "the key took the focus, which closes the soft keyboard");
  await page.keyboard.insertText("c");
  await until("Ctrl and c interrupt the command", async () => (await sessions())[mine]?.status === "idle", sessions);
  check((await tools.getByRole("button", { name: "Ctrl" }).getAttribute("aria-pressed")) === "false", "Ctrl is still held");
  await prompt(page);
  await type(page, "echo recalled-$((40+2))");
  await shows(page, "recalled-42");
  await type(page, "clear");
  await until("the screen is clear", async () => !(await lines(page)).includes("recalled-42"));
  for (let i = 0; i < 2; i++) await tools.getByRole("button", { name: "Up" }).tap();
  await page.keyboard.press("Enter");
  await shows(page, "recalled-42");
}, { viewport: { width: 390, height: 780 }, hasTouch: true, isMobile: true });
