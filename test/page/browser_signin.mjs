// Callers that sign in with a ticket receive URLs with a ticket: for Playwright, and for the page that shows the desktop.
import { check, connect, until, withPage } from "./browser.mjs";

const base = process.env.URL;
const bearer = { headers: { Authorization: `Bearer ${process.env.TOKEN}` } };

async function info() {
  const { ticket } = await (await fetch(base + "/tickets", { method: "POST", ...bearer })).json();
  return (await (await fetch(`${base}/v1/browser/info?ticket=${ticket}`)).json()).data;
}

for (const path of ["/json/version", "/cdp/json/version", "/devtools/browser/x", "/vnc/index.html", "/websockify", "/v1/browser/screenshot"]) {
  const res = await fetch(base + path);
  check(res.status === 401, `${path} without signing in: ${res.status}`);
}
const known = (await (await fetch(base + "/v1/browser/info", bearer)).json()).data;
check(!known.cdp_url.includes("ticket"), `URL with a ticket for a caller with a token: ${known.cdp_url}`);
await (await connect(known.cdp_url, bearer)).close();

const { cdp_url: address } = await info();
const browser = await connect(address);
check(browser.contexts()[0].pages().length > 0, "there is no page");
await browser.close();
check(await connect(address).then(() => false, () => true), "a ticket can be used twice");

await withPage(async (viewer) => {
  await viewer.goto((await info()).vnc_url);
  await until("the viewer is connected", () => viewer.evaluate(() => document.body.classList.contains("connected")));
  check(!viewer.url().includes("ticket"), `the URL still contains the ticket: ${viewer.url()}`);
});
console.log("signing in works");
