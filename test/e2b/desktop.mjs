// A program that uses the unmodified public desktop SDK, and watches its stream in a browser.
import assert from "node:assert/strict"
import { createRequire } from "node:module"

// The package to use, and whether to watch the stream.
const [name = "@e2b/desktop", watches] = process.argv.slice(2)
const { Sandbox } = await import(name)

const until = async (what, check) => {
  for (const end = Date.now() + 120000; !(await check()); await new Promise((r) => setTimeout(r, 100)))
    assert(Date.now() < end, "timed out: " + what)
}

async function use(desktop) {
  assert.deepEqual(await desktop.getScreenSize(), { width: 900, height: 600 })
  const png = Buffer.from(await desktop.screenshot())
  assert.deepEqual([png.subarray(1, 4).toString(), png.readUInt32BE(16), png.readUInt32BE(20)], ["PNG", 900, 600])
  await desktop.moveMouse(77, 88)
  assert.deepEqual(await desktop.getCursorPosition(), { x: 77, y: 88 })
  await desktop.leftClick(10, 20)
  await desktop.scroll("down", 2)
  await desktop.write("text", { delayInMs: 1 })
  await desktop.press(["ctrl", "a"])
  assert.deepEqual(await desktop.getCursorPosition(), { x: 10, y: 20 })
}

// The address is an HTTPS URL. Without host names and TLS, the same host uses HTTP.
const address = (url) => (process.env.E2B_SANDBOX_URL ? url.replace("https:", "http:") : url)

async function watch(desktop) {
  await desktop.stream.start({ requireAuth: true })
  const key = await desktop.stream.getAuthKey()
  const { chromium } = createRequire(new URL("../page/", import.meta.url))("playwright-core")
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] })
  try {
    const context = await browser.newContext({ ignoreHTTPSErrors: true })
    const page = await context.newPage()
    await page.goto(address(desktop.stream.getUrl({ authKey: key })))
    await page.waitForSelector("body.connected", { timeout: 60000 })
    // Input in the page reaches the desktop.
    const canvas = page.locator("canvas").first()
    const box = await canvas.boundingBox()
    await until("the pointer follows", async () => {
      await page.mouse.move(box.x + box.width / 3 + Math.random(), box.y + box.height / 2)
      const { x, y } = await desktop.getCursorPosition()
      return Math.abs(x - 300) < 4 && Math.abs(y - 300) < 4
    })
    // A viewer without the password sees nothing, and a view-only viewer changes nothing.
    const stranger = await context.newPage()
    await stranger.goto(address(desktop.stream.getUrl({ authKey: "wrong" })))
    await stranger.getByText("Authentication failed").waitFor({ timeout: 60000 })
    const watcher = await context.newPage()
    await watcher.goto(address(desktop.stream.getUrl({ authKey: key, viewOnly: true })))
    await watcher.waitForSelector("body.connected", { timeout: 60000 })
    const before = await desktop.getCursorPosition()
    await watcher.mouse.move(box.x + 5, box.y + 5)
    await watcher.mouse.move(box.x + 9, box.y + 9)
    assert.deepEqual(await desktop.getCursorPosition(), before)
  } finally {
    await browser.close()
  }
  await desktop.stream.stop()
}

const desktop = await Sandbox.create({ resolution: [900, 600], timeoutMs: 3_600_000 })
try {
  for (const story of watches ? [use, watch] : [use]) {
    await story(desktop)
    console.log("passed", story.name)
  }
} finally {
  await desktop.kill()
}
process.exit(0)
