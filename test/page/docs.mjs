// The documentation: every operation has a complete example, and code to copy that does the same.
import { execFileSync } from "node:child_process";
import { check, until, withPage } from "./browser.mjs";
import { Schema } from "../../web/docs/schema.js";
import { languages } from "../../web/docs/snippet.js";

const { URL: direct, PREFIX_URL: prefixed, KEY_URL: guarded, KEY: key, PYTHON: python } = process.env;

// Examples are complete: no operation rejects their input. Examples that would stop the sandbox, access other hosts or never end
// are only composed.
const left = new Set(["sandbox_tunnel", "sandbox_listen", "sandbox_accept", "shell_ws", "vnc_socket", "component_install", "browser_page_record", "display_record", "browser_restart", "proxy_diagnose", "browser_config", "proxy_set_upstream", "watch_wait", "browser_captcha_wait", "display_handover", "sandbox_mirror"]);
const schema = new Schema(await (await fetch(`${direct}/v1/openapi.json`)).json());
const operations = Object.entries(schema.doc.paths).flatMap(([path, item]) => Object.entries(item).map(([method, op]) => ({ path, method, op })));
let tried = 0;
const wrong = [];
// Examples of the browser use the page of the example of browser_navigate, those of files use files of previous examples. So
// they run in order.
const { path: navigate, op: opened } = operations.find(({ op }) => op.operationId === "browser_navigate");
const example = JSON.stringify(schema.exampleOf(opened.operationId, schema.fieldsOf(opened)));
for (const { path, method, op } of operations) {
  const fields = schema.fieldsOf(op);
  const values = schema.exampleOf(op.operationId, fields);
  for (const field of fields) if (field.required && schema.resolve(field.schema).format === "binary") values[field.name] = new File(["hello\n"], "hello.txt");
  const call = schema.compose(direct, method, path, fields, values);
  check(!/[{}]/.test(call.url), `${op.operationId}: ${call.url} is not complete`);
  for (const [name, write] of Object.entries(languages)) check(write(call, "X-API-Key").includes(op.operationId === "docs_llms" ? "llms" : "http"), `${op.operationId} in ${name}`);
  if (left.has(op.operationId) || fields.some((f) => f.name === "stream" && values.stream)) continue;
  if (values.selector) await fetch(direct + navigate, { method: "POST", headers: { "Content-Type": "application/json" }, body: example });
  const form = call.form && call.form.reduce((all, [name, value]) => { all.append(name, value); return all; }, new FormData());
  const failed = (error) => { throw new Error(`${op.operationId}: ${error}`); };
  const reply = await fetch(call.url, { method: call.method, headers: call.headers, body: form ?? (call.body === undefined ? undefined : JSON.stringify(call.body)), signal: AbortSignal.timeout(120_000) }).catch(failed);
  const text = await reply.text().catch(failed);
  tried++;
  if (/"timed? ?out|did not appear|no element matches|Timeout/i.test(text) && op.tags[0] === "browser") wrong.push(`${op.operationId}: ${text.slice(0, 300)}`);
  if (reply.status === 422 || reply.status === 405 || reply.status === 415) wrong.push(`${op.operationId}: ${reply.status} ${text.slice(0, 300)} for ${JSON.stringify(call.body)}`);
}
check(wrong.length === 0, `rejected examples:\n${wrong.join("\n")}`);
check(tried > 150, `only ${tried} examples were tried`);
console.log(`ok ${tried} examples`);

// The code has the same effect as the page.
const exec = operations.find(({ op }) => op.operationId === "bash_exec");
const hard = { command: `printf '%s' "it's \\"quoted\\" \`and\` $((6*7)) ü"` };
const call = schema.compose(direct, exec.method, exec.path, schema.fieldsOf(exec.op), hard);
const said = (text) => check(/^it's "quoted" .*42 ü$/.test(JSON.parse(text).data?.stdout), `the code got ${text}`);
said(execFileSync("bash", ["-c", `${languages.curl(call, "")} -s`]).toString());
said(execFileSync("node", ["--input-type=module", "-e", languages.TypeScript(call, "")]).toString());
said(execFileSync(python, ["-c", languages.Python(call, "")]).toString());
check(languages.Go(call, "X-API-Key").includes('req.Header.Set("X-API-Key", "KEY")'), "the Go code lacks the key");
console.log("ok code in curl, TypeScript and Python");

const open = (page, id) => page.locator(`#${id} > summary`).click();
await withPage(async (page) => {
  await page.goto(`${direct}/v1/docs`);
  await page.getByLabel("Search operations").fill("bash exec");
  await until("the search finds one", async () => (await page.locator(".op").count()) === 1, () => page.locator(".op").count());
  await open(page, "bash_exec");
  await page.getByLabel("command", { exact: true }).fill("echo from-$((40+2))-docs");
  await page.getByText("'echo from").or(page.getByText("echo from-$((40+2))-docs")).first().waitFor();
  await page.getByRole("button", { name: "Try it" }).click();
  await page.locator(".reply pre").getByText("from-42-docs\\n").waitFor();
  for (const name of Object.keys(languages)) {
    await page.getByRole("button", { name, exact: true }).click();
    await page.getByRole("button", { name: "Copy" }).click();
    const copied = () => page.evaluate(() => navigator.clipboard.readText());
    await until(`${name} is copied`, async () => (await copied()) === (await page.getByLabel("Code", { exact: true }).innerText()), copied);
  }
  // A stream is shown while it arrives and can be stopped.
  await page.getByLabel("Search operations").fill("sandbox/ports");
  await open(page, "sandbox_list_ports");
  await page.locator("#sandbox_list_ports").getByLabel("stream").selectOption("true");
  await page.getByRole("button", { name: "Try it" }).click();
  await page.locator(".reply pre").getByText("event:").or(page.locator(".reply pre").getByText("data:")).first().waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await until("it has stopped", async () => (await page.getByRole("button", { name: "Stop" }).count()) === 0);
  // Replies of a sandbox are shown as text.
  await page.getByLabel("Search operations").fill("bash exec");
  await page.goto(`${direct}/v1/docs#bash_exec`);
  await page.reload();
  await page.getByLabel("command", { exact: true }).fill(`echo '<img src=x onerror="attacked=1">'`);
  await page.getByRole("button", { name: "Try it" }).click();
  await page.locator(".reply pre").getByText("onerror").waitFor();
  check(!(await page.evaluate(() => globalThis.attacked)) && (await page.locator(".op img").count()) === 0, "a reply of a sandbox became markup");
});
console.log("ok the page");

await withPage(async (page) => {
  await page.goto(`${prefixed}/v1/docs#bash_exec`);
  await page.getByRole("button", { name: "Try it" }).click();
  await page.getByText(/^200 OK/).waitFor();
  await page.getByText(`${prefixed}/v1/bash/exec`).waitFor();
  // The documentation of the hub, with a key that is never shown.
  await page.goto(guarded);
  await page.getByLabel("API key or token").fill(key);
  await page.keyboard.press("Enter");
  await page.getByRole("row", { name: /Select a / }).waitFor();
  await page.goto(`${guarded}/v1/docs#sandbox_list`);
  await page.getByRole("button", { name: "Credentials" }).click();
  await page.getByLabel("API key").fill(key);
  await page.getByRole("button", { name: "Done" }).click();
  await page.getByRole("button", { name: "Try it" }).click();
  await page.getByText(/^200 OK/).waitFor();
  check(!(await page.locator("body").innerText()).includes(key), "the page shows the key");
}, { ignore: /status of 401/ });
console.log("ok below a prefix and of a hub");
