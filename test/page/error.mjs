// Pages of errors: a stopped sandbox does not start until a person says so, a page of a closed port waits for its program, and an
// unknown address leads back.
import { audit, check, gate, until, withPage } from "./browser.mjs";

const { KEY_URL: base, KEY: key } = process.env;
const headers = { "X-API-Key": key, "Content-Type": "application/json" };
const api = async (path, body, method) => {
  const reply = await (await fetch(`${base}/api/v1/${path}`, { method: method || (body ? "POST" : "GET"), headers, body: body && JSON.stringify(body) })).json();
  check(reply.code === "0", `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
};
const run = async (command) => {
  const reply = await (await fetch(`${base}/sandbox/a/v1/bash/exec`, { method: "POST", headers, body: JSON.stringify({ command, async_mode: true }) })).json();
  check(reply.success === true, JSON.stringify(reply));
};

await withPage(async (page) => {
  await page.goto(base);
  await page.getByLabel("API key or token").fill(key);
  await page.keyboard.press("Enter");
  await page.getByRole("row", { name: /Select a / }).waitFor();

  // Nothing listens on the port; the page opens the program as soon as it does.
  await run("python3 -m http.server 9100");
  await until("the other port is open", async () => (await api("sandbox/a/ports")).some((p) => p.port === 9100));
  const again = await gate(page, /proxy\/9200/, "", { answers: false, only: 2 }); // the page loads again and again
  await page.goto(`${base}/sandbox/a/proxy/9200/`);
  await page.getByRole("heading", { name: "Nothing runs on port 9200" }).waitFor();
  check(/9100/.test(await page.getByRole("link", { name: "9100" }).getAttribute("href")), "the open port is not linked");
  await audit(page, "a closed port");
  await again.open();
  await run("mkdir -p /tmp/web && echo 'it runs' > /tmp/web/index.html && cd /tmp/web && python3 -m http.server 9200");
  await page.getByText("it runs").waitFor();
  await page.goto(`${base}/sandbox/a/proxy/9201/`);
  await page.getByRole("link", { name: "9100" }).click();
  await page.getByText(/Directory listing/).first().waitFor();

  // A stopped sandbox.
  await api("sandbox/a/stop", {});
  await page.goto(`${base}/sandbox/a/terminal`);
  await page.getByRole("heading", { name: "a is stopped" }).waitFor();
  await audit(page, "a stopped sandbox");
  await page.reload();
  check((await api("sandbox/a")).status === "stopped", "looking started the sandbox");
  await page.getByRole("link", { name: "Start" }).click();
  await page.locator(".xterm-rows").getByText(/[#$]/).first().waitFor();
  check(!page.url().includes("wake=") && page.url().includes("/terminal"), `the address is ${page.url()}`);
  check((await api("sandbox/a")).status === "running", "the button did not start it");

  await page.goto(`${base}/nowhere`);
  await page.getByRole("heading", { name: "Not Found" }).waitFor();
  check((await page.title()) === "Not Found – Cove", `the title is ${await page.title()}`);
  await audit(page, "an unknown address");
  await page.getByRole("link", { name: "Home" }).click();
  await page.getByRole("heading", { name: /^Sandboxes/ }).waitFor();
}, { ignore: /status of (401|404|409|502)/ });
console.log("ok pages of errors");
