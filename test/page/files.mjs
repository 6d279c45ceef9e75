// The page with the files of the sandbox: live tree, editor, viewers, uploads, undo, search, and hostile content.
import { mkdirSync, mkdtempSync, writeFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { audit, axe, check, gate, patience, until, withPage } from "./browser.mjs";

const { URL: direct, PREFIX_URL: prefixed, KEY_URL: guarded, KEY: key, DIR: dir } = process.env;

async function post(path, body, base = direct, headers = {}) {
  const reply = await (await fetch(base + path, { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(body) })).json();
  check(reply.success !== false, `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
}
const write = (name, content) => post("/v1/file/write", { file: `${dir}/${name}`, content });
const read = async (name) => (await post("/v1/file/read", { file: `${dir}/${name}` })).content;
const names = async () => (await post("/v1/file/list", { path: dir })).files.map((f) => f.name);
const item = (page, name) => page.getByRole("treeitem", { name, exact: true });

// Hostile content: if any of it runs, it sets a flag in the page.
const attack = "globalThis.attacked = true";
const markup = `<img src=x onerror="${attack}">`;
await write("hello.py", "print(1)\n");
await write("notes.md", `# Title\n\nSome **bold** text, ${markup} and [a link](javascript:${encodeURIComponent(attack)}) or [another](https://example.com/).\n\n- one\n- two\n\n    code\n\n| a | b |\n|---|---|\n| 1 | 2 |\n`);
await write("table.csv", `name,age\n"b, c",4\n${markup.replaceAll('"', "'")},5\n`);
await write("page.html", `<!doctype html><h1 id="h">Page</h1><style>h1 { color: rgb(1, 2, 3) }</style><script>parent.postMessage("attacked", "*"); ${attack}</script>`);
await write("pic.svg", `<svg xmlns="http://www.w3.org/2000/svg" width="30" height="20" onload="${attack.replaceAll('"', "'")}"><script>${attack}</script><rect width="30" height="20" fill="red"/></svg>`);
await write("book.ipynb", JSON.stringify({ cells: [{ cell_type: "markdown", source: ["# Book ", markup] }, { cell_type: "code", execution_count: 7, source: "1+1", outputs: [{ output_type: "execute_result", data: { "text/html": markup, "text/plain": "two" } }] }] }));
await write("paper.pdf", "%PDF-1.1\n1 0 obj<</Type/Catalog/Pages 2 0 R/OpenAction<</S/JavaScript/JS(app.alert(1))>>>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj 3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]>>endobj\ntrailer<</Root 1 0 R>>");
await write(`${markup.replaceAll("/", "∕")}.txt`, markup);

const told = (page, text) => page.waitForResponse(async (response) => /\/poll(\?|$)/.test(response.url()) && (await response.text()).includes(text));
const polled = (page) => page.waitForRequest((request) => /\/poll(\?|$)/.test(request.url()));

await withPage(async (page) => {
  // The time to undo a deletion does not expire, even on a busy machine.
  await page.addInitScript((long) => {
    const { setTimeout } = globalThis;
    globalThis.setTimeout = (run, time, ...rest) => setTimeout(run, time === 10_000 ? long : time, ...rest);
  }, patience);
  // Changes between reading the list and watching it are shown, too.
  const watch = await gate(page, /v1\/file\/watch(\?|$)/, "", { answers: false });
  await page.goto(`${direct}/files?path=${encodeURIComponent(dir)}`);
  await item(page, "hello.py").waitFor();
  await watch.stopped();
  await write("between.txt", "x");
  await watch.open();
  await item(page, "between.txt").waitFor();
  await audit(page, "the files");

  // The tree follows changes by other clients.
  await write("made/by-agent.txt", "by the agent\n");
  await item(page, "made").waitFor();
  await item(page, "made").click();
  await item(page, "by-agent.txt").click();
  await page.locator(".cm-content").getByText("by the agent").waitFor();
  await audit(page, "the editor");
  await write("made/by-agent.txt", "changed by the agent\n");
  await page.locator(".cm-content").getByText("changed by the agent").waitFor();

  // Edit by keyboard alone, save, and read by the API.
  await page.locator(".cm-content").focus();
  await page.keyboard.press("Control+End");
  await page.keyboard.type("and by a person");
  const own = told(page, "by-agent.txt");
  await page.keyboard.press("Control+s");
  await until("the file is saved", async () => (await read("made/by-agent.txt")) === "changed by the agent\nand by a person", () => read("made/by-agent.txt"));

  // Neither concurrent changes by other clients nor edits of the user are lost. A save by the user does not count as a change.
  await page.getByText("Saved").first().waitFor();
  const text = () => page.locator(".cm-content").innerText();
  await page.keyboard.type(" again");
  await own;
  await polled(page);
  check((await page.getByText("The file has changed on disk.").count()) === 0, "the page takes what a person saved for a change by others");
  check((await text()).endsWith("and by a person again"), `what a person wrote after saving is lost: ${await text()}`);
  await write("made/by-agent.txt", "third\n");
  await page.getByText("The file has changed on disk.").waitFor();
  await page.getByRole("button", { name: "Load theirs" }).click();
  await page.locator(".cm-content").getByText("third").waitFor();

  // Edits while the page reads the file again are not lost.
  const reading = await gate(page, /v1\/file\/download.*by-agent/, "fourth");
  await write("made/by-agent.txt", "fourth\n");
  await reading.stopped();
  await page.locator(".cm-content").focus();
  await page.keyboard.press("Control+Home");
  await page.keyboard.type("mine ");
  await reading.open();
  await page.getByText("The file has changed on disk.").waitFor();
  check((await text()).startsWith("mine third"), `what a person wrote meanwhile is lost: ${await text()}`);
  // Saving does not replace the changes of others. The texts can be compared, and mine kept.
  await page.keyboard.press("Control+s");
  await page.getByRole("button", { name: "Compare" }).click();
  const compared = page.getByRole("region", { name: "Your text, compared with the file on disk" });
  await until("the texts are compared", async () => (await compared.locator(".diff").textContent()) === "-fourth\n+mine third\n \n", () => compared.textContent());
  await audit(page, "a conflict");
  check((await read("made/by-agent.txt")) === "fourth\n", "saving replaced the change of others");
  await page.getByRole("button", { name: "Keep mine" }).click();
  await until("my text is saved", async () => (await read("made/by-agent.txt")) === "mine third\n", () => read("made/by-agent.txt"));
  await page.getByText("The file has changed on disk.").waitFor({ state: "hidden" });
  await write("made/by-agent.txt", "fourth\n");
  await page.locator(".cm-content").getByText("fourth").waitFor();
  // Edits at the moment when the new text is shown are not lost either.
  await page.locator(".cm-content").focus();
  await page.keyboard.press("Control+Home");
  await page.evaluate(() => {
    const { arrayBuffer } = Response.prototype;
    Response.prototype.arrayBuffer = async function read() {
      const data = await arrayBuffer.call(this);
      if (!new TextDecoder().decode(data).startsWith("fifth")) return data;
      Response.prototype.arrayBuffer = arrayBuffer;
      (async () => { for (let i = 0; i < 100; i++) await null; document.execCommand("insertText", false, "at once "); })(); // before the next frame
      return data;
    };
  });
  await write("made/by-agent.txt", "fifth\n");
  await page.getByRole("heading", { name: "● by-agent.txt" }).waitFor();
  await polled(page);
  check((await text()).startsWith("at once fifth"), `what a person wrote in that moment is lost: ${await text()}`);
  await page.keyboard.press("Control+s");
  await until("it is saved", async () => (await read("made/by-agent.txt")) === "at once fifth\n", () => read("made/by-agent.txt"));
  await page.getByRole("heading", { name: "by-agent.txt", exact: true }).waitFor();

  // Viewers.
  await item(page, "notes.md").click();
  await page.getByRole("heading", { name: "Title" }).waitFor();
  check((await page.locator(".prose td").allTextContents()).join() === "1,2", "the table of the Markdown is not shown");
  check((await page.locator(".prose a").count()) === 1, "a link of Markdown leads to a script");
  await audit(page, "Markdown");
  await item(page, "table.csv").click();
  await page.getByRole("cell", { name: "b, c" }).waitFor();
  await item(page, "book.ipynb").click();
  await page.getByText("two", { exact: true }).waitFor();
  await item(page, "pic.svg").click();
  await page.getByText("30 × 20").waitFor();
  await item(page, "paper.pdf").click();
  await until("the page of the PDF", () => page.getByAltText("Page 1 of 1").evaluate((img) => img.naturalWidth > 100));
  await item(page, "page.html").click();
  await page.getByRole("button", { name: "Preview" }).click();
  const frame = page.frameLocator(".body iframe");
  await frame.getByRole("heading", { name: "Page" }).waitFor();
  await until("the preview has styles", () => frame.locator("#h").evaluate((h) => getComputedStyle(h).color === "rgb(1, 2, 3)"));
  check((await page.locator(".body iframe").getAttribute("sandbox")) === "", "the preview is not confined");
  await page.getByRole("treeitem", { name: "<img src=x" }).click();
  await page.locator(".cm-content").getByText("onerror").waitFor();
  check(!(await page.evaluate(() => globalThis.attacked)), "what a sandbox wrote has run in the page");

  // Rename, delete, undo.
  await item(page, "hello.py").click();
  await page.locator(".cm-content").click();
  await page.keyboard.type("not saved");
  const unsaved = page.getByRole("heading", { name: "● hello.py" });
  await unsaved.waitFor();
  const question = page.getByRole("dialog", { name: "Discard changes?" });
  for (const name of ["Cancel", "Discard"]) { // a rename asks before it discards unsaved changes
    await page.getByRole("tree").focus();
    await page.keyboard.press("F2");
    await question.getByRole("button", { name }).click();
    if (name === "Cancel") check((await names()).includes("hello.py") && (await unsaved.count()) === 1, "the file was renamed, or what was written is gone");
  }
  await page.getByLabel("New name").fill("world.py");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  await item(page, "world.py").waitFor();
  await until("the file has its new name", async () => (await names()).includes("world.py"), names);
  await page.getByRole("tree").focus();
  await page.keyboard.press("Delete");
  await until("the file is gone", async () => (await item(page, "world.py").count()) === 0);
  await page.getByRole("button", { name: "Undo" }).click();
  await item(page, "world.py").waitFor();
  check((await read("world.py")) === "print(1)\n", "undo did not bring the file back");

  // A deleted file is not opened, even if its content and events arrive later.
  await write("slow.txt", "1");
  await item(page, "slow.txt").waitFor();
  const content = await gate(page, /v1\/file\/download/, "slow.txt", { answers: false });
  await item(page, "slow.txt").click();
  await content.stopped();
  const news = await gate(page, /v1\/file\/watch\/.*poll(\?|$)/, "slow.txt");
  await write("slow.txt", "2");
  await news.stopped();
  const moving = await gate(page, /v1\/file\/move(\?|$)/, "slow.txt");
  await page.getByRole("tree").focus();
  await page.keyboard.press("Delete");
  await moving.stopped();
  await content.open();
  const next = polled(page);
  await news.open();
  await next;
  await moving.open();
  await until("the slow file is gone", async () => (await item(page, "slow.txt").count()) === 0);
  await page.getByText("Select a file").waitFor();
  await page.getByRole("button", { name: "Undo" }).click();
  await item(page, "slow.txt").waitFor();

  // A late list does not replace a newer one.
  const list = await gate(page, /v1\/file\/list(\?|$)/, "early.txt", { only: 1 });
  await write("early.txt", "x");
  await list.stopped();
  const heard = told(page, "late.txt");
  await write("late.txt", "x");
  await heard;
  await polled(page);
  await polled(page);
  await list.open();
  await item(page, "early.txt").waitFor();
  await polled(page);
  await item(page, "late.txt").waitFor();

  // Search by name and content.
  await page.getByRole("searchbox").fill("by-agent");
  await page.getByRole("button", { name: "made/by-agent.txt" }).waitFor();
  await page.getByRole("searchbox").fill("fifth");
  await page.getByRole("button", { name: /by-agent.txt:1/ }).click();
  await page.locator(".cm-content").getByText("fifth").waitFor();
  await page.getByRole("searchbox").fill("");

  // A folder of 1,000 files, and drag and drop.
  const temp = mkdtempSync(join(tmpdir(), "upload-"));
  try {
    for (let i = 0; i < 10; i++) {
      mkdirSync(join(temp, "many", `Ordner-ü-${i}`), { recursive: true });
      for (let n = 0; n < 100; n++) writeFileSync(join(temp, "many", `Ordner-ü-${i}`, `${"long-name-".repeat(n === 7 ? 12 : 1)}${n}.txt`), `${i} ${n}`);
    }
    await page.evaluate(() => { document.querySelector("input[type=file]").webkitdirectory = true; });
    await page.locator("input[type=file]").setInputFiles(join(temp, "many"));
    await page.getByText("Uploaded 1000 files").waitFor();
  } finally { rmSync(temp, { recursive: true }); }
  const at = (await post("/v1/file/glob", { path: dir, pattern: "**/Ordner-ü-*/*.txt", max_results: 5000 })).files;
  check(at.length === 1000, `there are ${at.length} of 1000 files`);
  check((await post("/v1/file/read", { file: at.find((f) => f.path.includes("Ordner-ü-9/long-name-42.txt")).path })).content === "9 42", "a file has other content");
  // drop drops a file on a part of the page, as a browser does.
  const drop = (place, name, content) => page.locator(place).first().evaluate((at, [name, content]) => {
    const data = new DataTransfer();
    data.items.add(new File([content], name));
    for (const type of ["dragenter", "dragover", "drop"]) at.dispatchEvent(new DragEvent(type, { dataTransfer: data, bubbles: true, composed: true, cancelable: true }));
  }, [name, content]);
  await drop(".side", "dropped.txt", "dropped here");
  await page.getByText("Uploaded 1 file", { exact: true }).waitFor();
  await item(page, "dropped.txt").waitFor();
  check((await read("dropped.txt")) === "dropped here", "the dropped file has other content");
  // The same name again: nothing is replaced without consent. A drop on the editor is an upload, too.
  await item(page, "dropped.txt").click();
  await page.locator(".cm-content").getByText("dropped here").waitFor();
  const clash = page.getByRole("dialog", { name: "Replace the file?" });
  for (const [answer, want] of [["Cancel", "dropped here"], ["Keep both", "dropped here"], ["Replace", "dropped again"]]) {
    await drop(".cm-content", "dropped.txt", "dropped again");
    await clash.getByText("dropped.txt", { exact: true }).waitFor();
    if (answer === "Cancel") await axe(page, "a name that exists");
    await clash.getByRole("button", { name: answer }).click();
    await clash.waitFor({ state: "hidden" });
    if (answer === "Keep both") await item(page, "dropped (2).txt").waitFor();
    await until(`${answer}: the file`, async () => (await read("dropped.txt")) === want, () => read("dropped.txt"));
  }
  check((await read("dropped (2).txt")) === "dropped again", "the second file has other content");
  await page.locator(".cm-content").getByText("dropped again").waitFor();
  check((await text()) === "dropped again", `the drop was inserted into the open file: ${await text()}`);
  // In folders, too: a folder that exists is merged, and names of hostile files are text.
  const other = mkdtempSync(join(tmpdir(), "upload-"));
  try {
    mkdirSync(join(other, "made"));
    writeFileSync(join(other, "made", "by-agent.txt"), "uploaded");
    writeFileSync(join(other, "made", "<img src=x onerror=globalThis.attacked=true>"), "uploaded");
    const choose = async () => {
      await page.evaluate(() => { document.querySelector("input[type=file]").webkitdirectory = true; });
      await page.locator("input[type=file]").setInputFiles(join(other, "made"));
    };
    await page.getByRole("tree").focus();
    await page.keyboard.press("End"); // a file of the first folder
    await choose();
    await clash.getByText("made/by-agent.txt").waitFor();
    await clash.getByRole("button", { name: "Keep both" }).click();
    await until("both are there", async () => (await read("made/by-agent (2).txt").catch(() => "")) === "uploaded");
    check((await read("made/by-agent.txt")) !== "uploaded", "the upload replaced a file of a folder");
    await choose();
    await page.getByRole("dialog", { name: "Replace 2 files?" }).getByText("<img src=x onerror=globalThis.attacked=true>").waitFor();
    await page.keyboard.press("Escape");
  } finally { rmSync(other, { recursive: true }); }
  check(!(await page.evaluate(() => globalThis.attacked)), "the name of a file has run in the page");

  // A folder is downloaded completely.
  await page.getByRole("button", { name: "More" }).click();
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download this folder" }).click()]);
  check(download.suggestedFilename().endsWith(".zip"), `the download is ${download.suggestedFilename()}`);
  check((await names()).every((name) => !name.includes(".deleted-")), `what was deleted is left: ${await names()}`);

  await page.setViewportSize({ width: 390, height: 780 });
  await audit(page, "the files on a telephone");
  check(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page is wider than the telephone");
}, { ignore: /Blocked script execution|x:1/ });
console.log("ok files");

for (const [name, base] of [["below a prefix", prefixed], ["through the hub", `${guarded}/sandbox/a`]]) {
  await withPage(async (page) => {
    // The search waits until the page knows its folder.
    await page.addInitScript(() => {
      const { fetch } = globalThis;
      globalThis.fetch = async (to, options) => {
        if (String(to.url ?? to).endsWith("/v1/file/stat")) await new Promise((done) => setTimeout(done, 1000));
        return fetch(to, options);
      };
    });
    await page.goto(`${base}/files`);
    if (base.startsWith(guarded)) {
      await page.getByLabel("API key or token").fill(key);
      await page.keyboard.press("Enter");
    }
    await page.getByRole("button", { name: "New file" }).click();
    await page.getByLabel(/^Name/).fill("new.txt");
    await page.keyboard.press("Enter");
    await page.locator(".cm-content").focus();
    await page.keyboard.type(name);
    await page.getByRole("button", { name: "Save" }).click();
    await page.getByText("Saved").waitFor();
    const headers = base.startsWith(guarded) ? { "X-API-Key": key } : {};
    check((await post("/v1/file/read", { file: "new.txt" }, base, headers)).content === name, "the file has other content");
  }, { ignore: /status of 401/ });
  console.log(`ok ${name}`);
}
