// The page of the desktop in a real browser: display, mouse and keyboard, two viewers, resizing, a prefix.
import http from "node:http";
import { axe, check, connect, until, withPage } from "./browser.mjs";

const base = process.env.URL;

const site = http.createServer((req, res) => {
  res.setHeader("Content-Type", "text/html; charset=utf-8");
  res.end(`<!doctype html><title>target</title>
    <body style="margin:0; background: linear-gradient(90deg, #c00 0 25%, #0a0 25% 50%, #00c 50% 75%, #cc0 75%)">
    <input id="text" style="position:absolute; left:40px; top:40px; width:300px; height:40px">
    <script>window.clicks = []; addEventListener("mousedown", (e) => clicks.push([e.screenX, e.screenY]));</script>`);
});
await new Promise((resolve) => site.listen(0, "127.0.0.1", resolve));

async function post(path, body) {
  const res = await fetch(base + path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const reply = await res.json();
  check(reply.success, `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
}

// Share of pixels of the viewer that differ from a screenshot, with a tolerance for the pointer and lossy images.
async function difference(viewer) {
  return viewer.evaluate(async () => {
    const canvas = document.querySelector("#screen canvas");
    if (!canvas) return 1; // it is connecting again
    const bitmap = await createImageBitmap(await (await fetch("../v1/browser/screenshot")).blob());
    if (bitmap.width !== canvas.width || bitmap.height !== canvas.height) return 1;
    const copy = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
    copy.drawImage(bitmap, 0, 0);
    const want = copy.getImageData(0, 0, bitmap.width, bitmap.height).data;
    const got = canvas.getContext("2d").getImageData(0, 0, bitmap.width, bitmap.height).data;
    let wrong = 0;
    for (let i = 0; i < want.length; i += 4)
      if (Math.abs(want[i] - got[i]) + Math.abs(want[i + 1] - got[i + 1]) + Math.abs(want[i + 2] - got[i + 2]) > 90) wrong++;
    return wrong / (want.length / 4);
  });
}

const shows = (viewer) => until("the viewer shows the desktop", async () => (await difference(viewer)) < 0.01,
  async () => `a difference of ${await difference(viewer)}`);
const connected = (viewer) => until("the viewer is connected", () => viewer.evaluate(() => document.body.classList.contains("connected")), () => viewer.locator("header").innerText());
const size = (viewer) => viewer.evaluate(() => { const c = document.querySelector("#screen canvas"); return `${c?.width}x${c?.height}`; });

// at returns the position of a point of the desktop on the page of the viewer.
async function at(viewer, [x, y]) {
  const box = await viewer.locator("#screen canvas").boundingBox();
  const [w, h] = (await size(viewer)).split("x").map(Number);
  return [box.x + (x / w) * box.width, box.y + (y / h) * box.height];
}

const info = (await (await fetch(base + "/v1/browser/info")).json()).data;
const sandbox = await connect(info.cdp_url);
const target = await sandbox.contexts()[0].newPage();
await target.goto(`http://127.0.0.1:${site.address().port}/`);
await target.bringToFront();
const middle = await target.evaluate(() => [screenX + innerWidth / 2, screenY + outerHeight - innerHeight / 2].map(Math.round));
const field = await target.evaluate(() => [screenX + 150, screenY + outerHeight - innerHeight + 60].map(Math.round));

await withPage(async (viewer, context) => {
  await viewer.goto(base + "/vnc/index.html?autoconnect=true&quality=9");
  await connected(viewer);
  await shows(viewer);

  // A click arrives at its position.
  await viewer.mouse.click(...(await at(viewer, middle)));
  const clicks = await until("the click arrives", () => target.evaluate(() => (clicks.length ? clicks : null)));
  check(Math.abs(clicks[0][0] - middle[0]) <= 2 && Math.abs(clicks[0][1] - middle[1]) <= 2, `the click arrived at ${clicks[0]}, not at ${middle}`);

  // Keys arrive, too.
  await viewer.mouse.click(...(await at(viewer, field)));
  await until("the field has the focus", () => target.evaluate(() => document.hasFocus() && document.activeElement.id === "text"));
  await viewer.keyboard.type("Hello, World 42");
  const text = () => target.evaluate(() => document.getElementById("text").value);
  await until('the field holds "Hello, World 42"', async () => (await text()) === "Hello, World 42", text);

  // Two viewers see the same; a read-only viewer changes nothing.
  const second = await context.newPage();
  await second.goto(base + "/vnc/index.html?autoconnect=true&view_only=true&quality=9");
  await connected(second);
  await shows(second);
  await shows(viewer);
  await target.evaluate(() => void (clicks.length = 0));
  await second.mouse.click(...(await at(second, middle)));
  await viewer.bringToFront();
  await viewer.mouse.click(...(await at(viewer, [middle[0] + 60, middle[1]])));
  const seen = await until("the click of the one who may arrives", () => target.evaluate(() => (clicks.length ? clicks : null)));
  check(seen.length === 1 && seen[0][0] > middle[0] + 50, `clicks arrived at ${JSON.stringify(seen)}`);

  // The clipboard is shared in both directions.
  await viewer.click("#clipboard");
  await viewer.fill("#text", "from the viewer");
  await until("the viewer's text is in the clipboard", async () => (await (await fetch(base + "/v1/display/clipboard")).json()).data.text === "from the viewer");
  await post("/v1/display/clipboard", { text: "from the sandbox ü" });
  await until("the sandbox's text is with the viewer", () => viewer.evaluate(() => document.getElementById("text").value === "from the sandbox ü"));

  // Both follow a resize without reconnecting.
  for (const v of [viewer, second]) await v.evaluate(() => void (window.before = document.querySelector("#screen canvas")));
  await post("/v1/browser/config", { resolution: { width: 900, height: 700 } });
  for (const v of [viewer, second]) {
    await v.bringToFront();
    await until("the viewer is 900x700", async () => (await size(v)) === "900x700", () => size(v));
    await shows(v);
    check(await v.evaluate(() => before === document.querySelector("#screen canvas")), "the viewer lost its connection");
  }
  await second.close();

  // The display can follow the viewer instead.
  await viewer.goto(base + "/vnc/index.html?autoconnect=1&resize=remote&bar=0&quality=9");
  await connected(viewer);
  await until("the display is 1000x640", async () => (await size(viewer)) === "1000x640", () => size(viewer));
  await shows(viewer);

  // The same below a path prefix.
  await viewer.goto(process.env.PREFIX_URL + "/vnc?autoconnect=true&quality=9");
  await connected(viewer);
  await shows(viewer);
});

// On a telephone: a button opens the soft keyboard, whose text arrives; a row has the keys that it lacks. A person who has taken
// over sees it by a frame.
await withPage(async (viewer) => {
  await viewer.goto(base + "/vnc/index.html?autoconnect=true&control=auto");
  await connected(viewer);
  check(await viewer.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page is wider than the telephone");
  await axe(viewer, "the desktop on a telephone");
  await viewer.getByRole("button", { name: "Take over" }).tap();
  await viewer.locator("body.taken.connected").waitFor();
  const frame = await viewer.locator("main").evaluate((main) => [getComputedStyle(main).padding, getComputedStyle(main).backgroundColor]);
  check(frame[0] === "4px" && frame[1] !== "rgba(0, 0, 0, 0)", `the frame is ${frame}`);
  await target.evaluate(() => { const field = document.getElementById("text"); field.value = ""; field.focus(); });
  await viewer.getByRole("button", { name: "Keyboard" }).tap();
  check((await viewer.evaluate(() => document.activeElement.id)) === "typing", "the soft keyboard is not opened");
  const text = () => target.evaluate(() => document.getElementById("text").value);
  await viewer.keyboard.insertText("Grüße, yx");
  await until("the text arrives", async () => (await text()) === "Grüße, yx", text);
  await viewer.keyboard.press("Backspace");
  await until("Backspace arrives", async () => (await text()) === "Grüße, y", text);
  const tools = viewer.getByRole("toolbar", { name: "Keys" });
  await tools.getByRole("button", { name: "Home" }).tap();
  await viewer.keyboard.insertText("1");
  await until("a key of the row arrives", async () => (await text()) === "1Grüße, y", text);
  await tools.getByRole("button", { name: "Ctrl" }).tap();
  await viewer.keyboard.insertText("a"); // selects all
  await viewer.keyboard.insertText("2");
  await until("Ctrl applies to the next key", async () => (await text()) === "2", text);
  await viewer.getByRole("button", { name: "Hand back" }).tap();
  await until("the frame is gone", async () => (await viewer.locator("body.taken").count()) === 0);
}, { viewport: { width: 390, height: 780 }, hasTouch: true, isMobile: true });
await target.close();
await sandbox.close();
site.close();
site.closeAllConnections(); // Chromium keeps idle connections
console.log("the viewer works");
