// The replay: it starts with the first step, has an axis of time with failures and shortened idle time, shows screens and plots
// large beside the terminal, and is saved as a video.
import { readFileSync } from "node:fs";
import { audit, check, until, withPage } from "./browser.mjs";

const { URL: direct, DIR: dir, SHOTS: shots } = process.env;
const post = async (path, body) => (await fetch(direct + path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();
const entries = async () => (await (await fetch(`${direct}/v1/sandbox/activity?limit=100`)).json()).entries;

const hostile = `<img src=x onerror="document.title='broken'">`;
await post("/v1/bash/exec", { command: `echo 'first ${hostile}'` });
await post("/v1/bash/exec", { command: "echo about to fail; exit 4" });
const plot = "import base64\nfrom IPython.display import Image, display\n" +
  "import struct, zlib\nchunk = lambda t, d: struct.pack('>I', len(d)) + t + d + struct.pack('>I', zlib.crc32(t + d))\n" +
  "row = b'\\0' + b'\\xd0\\x20\\x20' * 640\ndisplay(Image(b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 640, 480, 8, 2, 0, 0, 0)) + chunk(b'IDAT', zlib.compress(row * 480)) + chunk(b'IEND', b'')))";
check((await post("/v1/jupyter/execute", { code: plot, session_id: "plots", timeout: 120 })).success, "the cell did not run");
await post("/v1/file/write", { file: `${dir}/a.txt`, content: "one\n" });
await post("/v1/file/replace", { file: `${dir}/a.txt`, old_str: "one", new_str: "two" });
let moved = 0;
const screen = await until("there is a picture of the screen", async () => {
  await post("/v1/browser/actions", { action_type: "MOVE_TO", x: 10 + moved++, y: 10 });
  return (await entries()).find((e) => e.picture && e.kind !== "jupyter");
});
const cell = (await entries()).find((e) => e.op === "jupyter_execute");
check(cell.picture, `the plot is not kept: ${JSON.stringify(cell).slice(0, 500)}`);

await withPage(async (page) => {
  page.on("dialog", (dialog) => { throw new Error(`a dialog: ${dialog.message()}`); });
  await page.goto(`${direct}/activity`);
  await page.locator(".steps > li").filter({ hasText: "browser_actions" }).first().waitFor();
  await page.getByRole("button", { name: "Replay", exact: true }).click();
  const count = page.locator(".replay .count");
  await until("it starts with the first step", async () => (await count.textContent()).startsWith("1/"), () => count.textContent());
  check((await page.locator('[data-shows="terminal"]').textContent()).includes(hostile), "the first command is not shown as text");

  // The axis is time: the kernel started slowly, which is idle time that can be skipped.
  const total = async () => { const [m, s] = (await page.locator(".clock").textContent()).split(" / ")[1].split(":").map(Number); return m * 60 + s; };
  const spots = () => page.locator(".ticks i").evaluateAll((all) => all.map((one) => Number.parseFloat(one.style.left)));
  const short = await total();
  const steps = await spots();
  check(steps[0] === 0 && steps.at(-1) === 100 && steps.every((at, i) => i === 0 || at > steps[i - 1]), `the ticks are at ${steps}`);
  check((await page.locator(".ticks i.bad").count()) === 1, "the failure is not marked");
  await page.getByLabel("skip idle").uncheck();
  const real = (new Date((await entries()).at(-1).time) - new Date((await entries())[0].time)) / 1000;
  await until("the axis shows the real time", async () => Math.abs((await total()) - real) <= 2, total);
  check((await total()) >= short, "skipping idle time makes the replay longer");
  await page.getByLabel("skip idle").check();
  // A click on the axis leads to the step of that moment.
  const axis = await page.getByLabel("Moment", { exact: true }).boundingBox();
  await page.mouse.click(axis.x + axis.width - 2, axis.y + axis.height / 2);
  await until("the last step", async () => { const [n, all] = (await count.textContent()).split("/"); return n === all; }, () => count.textContent());

  // A plot and a screen are large, with the terminal and the change beside them. A link leads to the moment.
  for (const [one, name] of [[cell, "Plot"], [screen, "Screen"]]) {
    await page.evaluate((id) => { location.hash = `at=${id}`; }, one.id);
    await page.getByRole("heading", { name, exact: true }).waitFor();
    const picture = page.locator(".screen-part img");
    await until(`${name}: the picture`, () => picture.evaluate((img) => img.naturalWidth > 100));
    const box = await picture.boundingBox();
    const terminal = await page.locator('[data-shows="terminal"]').boundingBox();
    check(box.width > 500 && terminal.x >= box.x + box.width, `${name}: the picture has ${JSON.stringify(box)}, the terminal ${JSON.stringify(terminal)}`);
    await audit(page, `the replay with a ${name.toLowerCase()}`);
  }
  await page.locator(".diff").getByText("+two").waitFor();
  if (shots) await page.screenshot({ path: `${shots}/replay-screen.png` });

  // The video: real frames in a format that browsers play.
  await page.getByLabel("Speed").selectOption("16");
  const saving = page.waitForEvent("download");
  await page.getByRole("button", { name: "Save as video" }).click();
  await page.getByLabel("Video").waitFor();
  const download = await saving;
  check(/^replay\.(webm|mp4)$/.test(download.suggestedFilename()), `the video is ${download.suggestedFilename()}`);
  await download.saveAs(`${dir}/replay.webm`);
  const player = await page.context().newPage();
  const shown = await player.evaluate(async (data) => {
    const video = Object.assign(document.createElement("video"), { muted: true, src: `data:video/webm;base64,${data}` });
    await new Promise((done, failed) => { video.onloadeddata = done; video.onerror = () => failed(new Error(video.error.message)); });
    await video.play();
    await new Promise((done) => { video.ontimeupdate = () => { if (video.currentTime > 0.3 || video.ended) done(); }; });
    const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight).getContext("2d");
    canvas.drawImage(video, 0, 0);
    const colours = new Set();
    const { data: pixels } = canvas.getImageData(0, 0, video.videoWidth, video.videoHeight);
    for (let i = 0; i < pixels.length; i += 4) colours.add(pixels[i] >> 4 << 8 | pixels[i + 1] >> 4 << 4 | pixels[i + 2] >> 4);
    return [video.videoWidth, video.videoHeight, colours.size];
  }, readFileSync(`${dir}/replay.webm`).toString("base64"));
  check(shown[0] === 1280 && shown[1] === 720 && shown[2] > 8, `the video has the size ${shown[0]}x${shown[1]} and ${shown[2]} colours`);
  await player.close();
  // It can be canceled.
  await page.getByLabel("Speed").selectOption("1");
  await page.getByRole("button", { name: "Save as video" }).click();
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("button", { name: "Save as video" }).waitFor();
  check((await page.title()) !== "broken", "what the sandbox wrote has run");
});
console.log("ok the replay");
