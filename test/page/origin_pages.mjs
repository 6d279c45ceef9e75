// Our pages, and one of a service, with host names of sandboxes and with only an IP address.
import { check, until, withPage } from "./browser.mjs";
import { call, hubs, run, server, signIn, start, write } from "./origin.mjs";

// A typical previewed application: modules, style, data, images, a form, and storage if available.
const site = {
  "index.html": `<!doctype html><title>app</title><link rel="icon" href="data:,"><link rel="stylesheet" href="style.css"><img id="picture" src="picture.svg">
    <form method="post" action="sent"><input name="a" value="b"><button>send</button></form><script type="module" src="main.js"></script>`,
  "style.css": "body { color: rgb(1, 2, 3); }",
  "picture.svg": `<svg xmlns="http://www.w3.org/2000/svg" width="7" height="5"/>`,
  "data.json": `{"answer": 42}`,
  "part.js": "export const part = 'part';",
  "main.js": `import { part } from "./part.js";
    const data = await (await fetch("data.json")).json();
    const sent = await (await fetch("data", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" })).text();
    document.title = part + data.answer + sent;`,
};

async function prepare(hub) {
  await call(hub, "POST", "/api/v1/sandbox", { name: "a" });
  await write(hub, "a", "server.py", server);
  for (const [name, content] of Object.entries(site)) await write(hub, "a", "site/" + name, content);
  await start(hub, "a", "exec python3 ~/server.py 3000 ~/site");
  await until("the site answers", () => fetch(`${hub.url}/sandbox/a/proxy/3000/data.json`, { headers: hub.key && { "X-API-Key": hub.key } }).then((res) => res.ok));
}

// at checks the location of a page: on the host of its site, or at the hub with an opaque origin.
async function at(hub, page, label) {
  const url = new URL(page.url());
  const origin = await page.evaluate(() => self.origin);
  if (hub.named) {
    check(url.hostname === `${label}.localhost` && origin === url.origin, `got ${url} with the origin ${origin}, want the host ${label}.localhost`);
  } else {
    check(url.origin === hub.at && url.pathname.startsWith("/sandbox/a/~") && origin === "null", `got ${url} with the origin ${origin}, want a page of the hub's address without an origin`);
  }
  check(!url.search.includes("ticket"), `got ${url}, want no ticket in it`);
}

async function visit(hub) {
  await withPage(async (page) => {
    await signIn(hub, page);
    await page.goto(`${hub.at}/sandbox/a/terminal`);
    await at(hub, page, "a");
    const screen = () => page.locator(".xterm-rows").innerText();
    const shows = (what) => until(`the terminal shows ${what}`, async () => what.test(await screen()), screen);
    await shows(/\$/);
    await page.locator(".xterm-helper-textarea").focus();
    await page.keyboard.type("echo $((6*7))-answer\n");
    await shows(/42-answer/);
    await until("the URL contains the session", async () => new URL(page.url()).searchParams.get("session_id"));
    await page.reload();
    await shows(/42-answer/);
    await page.click("#theme");
    await page.click("#new");
    await until("two tabs", async () => (await page.locator(".tab").count()) === 2);
    await page.locator(".close").last().click();
    await until("one tab", async () => (await page.locator(".tab").count()) === 1);

    // A link with a command shows it and types nothing; only the user can run it.
    await page.goto(`${hub.at}/sandbox/a/terminal?command=${encodeURIComponent("touch ~/unasked\r\nid")}`);
    await until("the command is shown", async () => (await page.locator("#suggested").textContent()) === "touch ~/unasked\\r\\nid");
    await shows(/\$/);
    check(!/unasked/.test(await screen()), "a link typed a command");
    check(!(await run(hub, "a", "ls ~")).includes("unasked"), "a link ran a command");

    await page.goto(`${hub.at}/sandbox/a/v1/docs`);
    await at(hub, page, "a");
    await until("the documentation lists operations", async () => (await page.locator("body").innerText()).includes("/v1/bash/exec"));

    await page.goto(`${hub.at}/sandbox/a/vnc/index.html?autoconnect=true`);
    await at(hub, page, "a");
    await until("the desktop is seen", () => page.evaluate(() => document.querySelector("canvas")?.width >= 640 && document.body.classList.contains("connected")));

    await page.goto(`${hub.at}/sandbox/a/proxy/3000/`);
    await at(hub, page, hub.named ? "3000-a" : "a");
    await until("the application is complete", async () => (await page.title()) === "part42ok", () => page.title());
    check((await page.evaluate(() => [getComputedStyle(document.body).color, document.getElementById("picture").naturalWidth].join())) === "rgb(1, 2, 3),7", "style or picture is missing");
    await page.getByRole("button", { name: "send" }).click();
    await until("the form is sent", async () => (await page.locator("body").innerText()) === "ok", () => page.content());
    check((await run(hub, "a", "cat ~/site/posts")).includes("a=b"), "the form did not arrive");
  });
  console.log(`ok ${hub.title}`);
}

// A user without a session who opens a page at its own host receives one from the hub, if they are signed in there.
async function comeBack(hub) {
  await withPage(async (page, context) => {
    await signIn(hub, page);
    await page.goto(`${hub.at.replace("localhost", "a.localhost")}/v1/docs?x=1`);
    await at(hub, page, "a");
    await context.clearCookies();
    await page.goto(`${hub.at.replace("localhost", "a.localhost")}/v1/docs`).catch(() => {});
    if (hub.key) {
      check((await page.locator("h1").innerText()) === "Sign in" && page.url().startsWith(hub.at + "/"), `got ${page.url()}, want the sign-in of the hub`);
      await page.getByLabel("API key or token").fill(hub.key);
      await page.getByRole("button", { name: "Sign in" }).click();
      await page.waitForURL((url) => url.hostname === "a.localhost");
      await at(hub, page, "a"); // the form redirects to the host of the sandbox
    }
  }, { ignore: /401/ });
  console.log(`ok come back ${hub.title}`);
}

await Promise.all(hubs.filter((hub) => hub.named).map(prepare));
for (const hub of hubs) await visit(hub);
for (const hub of hubs.filter((hub) => hub.named)) await comeBack(hub);
