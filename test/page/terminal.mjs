// The web terminal, used as a user would.
import { createServer } from "node:http";
import { axe, check, until, withPage } from "./browser.mjs";

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

await story("copy, paste, links, themes", async (page) => {
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
  const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
  const first = await theme();
  await page.click("#theme");
  check((await theme()) !== first, "the theme did not change");
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
