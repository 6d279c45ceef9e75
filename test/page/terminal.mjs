// The web terminal as a person uses it.
import { check, until, withPage } from "./browser.mjs";

const { URL: direct, PREFIX_URL: prefixed, CUT_URL: cuttable, CUT_CONTROL: control } = process.env;

// What the shown terminal displays, as lines.
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
  await prompt(page); // what is typed while vim leaves is lost on any terminal
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
  await page.mouse.dblclick(box.x + 10, box.y + 6); // a layer for the pointer lies above the rows
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
  await prompt(page); // what is typed before the new session is connected is lost
  await type(page, "echo new life");
  await shows(page, "new life");
});

await story("a cut connection is taken up again", async (page) => {
  await page.goto(cuttable + "/terminal");
  await ready(page);
  await type(page, "held=on; echo before the cut");
  await shows(page, "before the cut");
  // The page has yet to find out: what is typed before is lost with the old connection.
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
