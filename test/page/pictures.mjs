// Pictures of the main pages for the README and the guide, with sandboxes at work. PICTURES is the folder.
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { check, until, withPage } from "./browser.mjs";

const { URL: base, PICTURES: folder } = process.env;
mkdirSync(folder, { recursive: true });
const temp = mkdtempSync(join(tmpdir(), "pictures-"));
const json = { "Content-Type": "application/json" };
const api = async (path, body, method) => {
  const reply = await (await fetch(`${base}/api/v1/${path}`, { method: method || (body ? "POST" : "GET"), headers: json, body: body && JSON.stringify(body) })).json();
  check(reply.code === "0", `${path}: ${JSON.stringify(reply)}`);
  return reply.data;
};
const inside = async (name, path, body) => {
  const reply = await (await fetch(`${base}/sandbox/${name}/v1/${path}`, { method: "POST", headers: json, body: JSON.stringify(body) })).json();
  check(reply.success === true, `${name} ${path}: ${JSON.stringify(reply).slice(0, 500)}`);
  return reply.data;
};
const run = (name, command, more = {}) => inside(name, "bash/exec", { command, ...more });

const shell = (name, command) => inside(name, "shell/exec", { command, id: "main" });

// A team's hub in the middle of a working day.
const boxes = {
  "data-analysis": { labels: { team: "growth" }, cpu_limit: "2", memory_limit: "2Gi", timeout: 240 },
  "checkout-tests": { labels: { team: "shop", ci: "4711" }, cpu_limit: "1", memory_limit: "1Gi", timeout: 45 },
  "docs-writer": { labels: { team: "docs" }, cpu_limit: "1", memory_limit: "1Gi", keep: true },
  "price-monitor": { labels: { team: "growth" }, cpu_limit: "500m", memory_limit: "512Mi", keep: true },
  "log-triage": { labels: { team: "platform" }, cpu_limit: "1", memory_limit: "1Gi", timeout: 90 },
  "release-notes": { labels: { team: "docs" }, cpu_limit: "500m", memory_limit: "512Mi", keep: true },
};
for (const [name, more] of Object.entries(boxes)) await api("sandbox", { name, idle_timeout: 60, idle_policy: "stop", ...more });
// Work in progress: a load that follows a curve.
const load = (peak) => `import math, time
blocks, began = [], time.time()
while time.time() - began < 900:
    share, now = ${peak} * (0.55 + 0.45 * math.sin((time.time() - began) / 7)), time.time()
    while time.time() - now < 0.1 * share: pass
    if len(blocks) < 60: blocks.append(bytearray(2 << 20))
    time.sleep(max(0, 0.1 - (time.time() - now)))
`;
for (const [name, peak, file] of [["data-analysis", 0.6, "forecast.py"], ["checkout-tests", 0.35, "browser_tests.py"], ["log-triage", 0.2, "cluster.py"]]) {
  await inside(name, "file/write", { file: `/home/gem/${file}`, content: load(peak) });
  await run(name, `python3 ~/${file}`, { async_mode: true });
}
const chart = `import random
random.seed(7)
visits = [round(420 + 6 * d + (120 if d % 7 in (5, 6) else 0) + random.gauss(0, 30)) for d in range(60)]
print('days', len(visits), '· mean', round(sum(visits) / len(visits)), '· best', max(visits))`;
await inside("data-analysis", "file/write", { file: "/home/gem/analysis/visits.py", content: `${chart}\n` });
await run("data-analysis", "mkdir -p ~/analysis && cd ~/analysis && printf 'day,visits,orders\\n' > visits.csv && for d in $(seq 1 60); do echo \"$d,$((420 + d * 6 + RANDOM % 90)),$((18 + d / 3 + RANDOM % 6))\"; done >> visits.csv && wc -l visits.csv && head -4 visits.csv");
await run("data-analysis", "cd ~/analysis && python3 -c \"import csv; rows = list(csv.DictReader(open('visits.csv'))); v = [int(r['visits']) for r in rows]; o = [int(r['orders']) for r in rows]; print(f'{len(rows)} days, {sum(v):,} visits, conversion {100 * sum(o) / sum(v):.2f} %')\"");
await run("data-analysis", "cd ~/analysis && python3 report.py");
await run("data-analysis", "cd ~/analysis && printf '# Visits, last 60 days\\n\\nVisits grew by 84 %%; weekends are 27 %% stronger.\\n' > report.md && cat report.md");
await shell("checkout-tests", "for t in cart address shipping payment refund; do printf 'PASS  checkout/%s.test.js (%d.%ds)\\n' $t $((RANDOM % 3 + 1)) $((RANDOM % 9)); done; echo 'FAIL  checkout/voucher.test.js'; echo '  expected 90.00, received 100.00'; echo; echo 'Tests: 1 failed, 41 passed, 42 total'; false");
await shell("log-triage", "seq 400 | awk '{print \"2026-11-19T09:\" int($1/60) \":\" $1%60 \" level=\" ($1%37 ? \"info\" : \"error\") \" path=/api/orders\"}' > app.log; grep -c level=error app.log");
await run("release-notes", "git --version && printf '## 2.4.0\\n\\n- Faster exports\\n- Sign in with SSO\\n' > NOTES.md && cat NOTES.md");
await shell("price-monitor", "for i in 1 2 3 4 5 6; do echo \"shop-$i  $(( 40 + RANDOM % 9 )).99 EUR\"; done");
// The page of the agent's work, which its browser shows.
await inside("data-analysis", "file/write", { file: "/home/gem/analysis/index.html", content: `<!doctype html><meta charset="utf-8"><title>Visits</title>
<style>body { font: 18px/1.5 system-ui, sans-serif; margin: 3rem 4rem; color: #17202b; background: #fff } h1 { margin: 0; font-size: 2.4rem } p { color: #55606e; margin: .2rem 0 2rem }
.row { display: flex; gap: 1.5rem; margin-bottom: 2rem } .row div { flex: 1; border: 1px solid #d5dbe3; border-radius: 12px; padding: 1rem 1.4rem } b { display: block; font-size: 2rem } rect { fill: #0a62bd } rect.weekend { fill: #6cb2ff }</style>
<h1>Visits</h1><p>Last 60 days. Weekends are lighter.</p><div class="row"><div>Visits<b id="visits"></b></div><div>Orders<b id="orders"></b></div><div>Conversion<b id="rate"></b></div></div>
<svg viewBox="0 0 1200 360" width="100%" id="chart"></svg>
<script>fetch("visits.csv").then((r) => r.text()).then((text) => {
  const rows = text.trim().split("\\n").slice(1).map((line) => line.split(",").map(Number));
  const sum = (i) => rows.reduce((all, row) => all + row[i], 0);
  visits.textContent = sum(1).toLocaleString("en"); orders.textContent = Math.round(sum(2)).toLocaleString("en"); rate.textContent = (100 * sum(2) / sum(1)).toFixed(1) + " %";
  const top = Math.max(...rows.map((row) => row[1]));
  chart.innerHTML = rows.map((row, i) => '<rect' + (i % 7 > 4 ? ' class="weekend"' : '') + ' x="' + i * 20 + '" y="' + (360 - 340 * row[1] / top) + '" width="15" height="' + 340 * row[1] / top + '" rx="3" />').join("");
});</script>` });
await run("data-analysis", "cd ~/analysis && python3 -m http.server 8000", { async_mode: true });
await inside("data-analysis", "file/write", { file: "/home/gem/analysis/visits.py", content: `${chart.replace("120 if", "140 if")}\nprint('weekends', sum(visits[5::7]) + sum(visits[6::7]))\n` });
await run("data-analysis", "cd ~/analysis && python3 visits.py");
await inside("data-analysis", "browser/page/navigate", { url: "http://localhost:8000/" });
await until("the page is shown", async () => /\d %/.test(await (await fetch(`${base}/sandbox/data-analysis/v1/browser/page/text`)).text()));
await inside("data-analysis", "browser/page/evaluate", { expression: "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))" });
await inside("data-analysis", "browser/actions", { action_type: "MOVE_TO", x: 900, y: 700 });
await api("sandbox/release-notes/stop", {});
await inside("docs-writer", "shell/exec", { command: "ls; echo 'docs: 14 pages, 0 broken links'", id: "main" });
await api("sandbox/docs-writer/snapshot", { snapshot: "docs-before-rewrite" });
await api("sandbox/data-analysis/snapshot", { snapshot: "analysis-clean" });
const { id } = await api("sandbox/data-analysis");

await withPage(async (page) => {
  const shot = async (name, full = false) => { // otherwise without the empty part below
    await page.mouse.move(0, 0);
    await page.evaluate(() => { document.activeElement?.blur?.(); return Promise.all(document.getAnimations().filter((a) => a.effect?.getComputedTiming().iterations !== Infinity).map((a) => a.finished.catch(() => {}))); });
    const height = await page.evaluate(() => Math.ceil(Math.min(innerHeight, Math.max(460, (document.querySelector("main > :last-child")?.getBoundingClientRect().bottom ?? innerHeight) + 24))));
    await page.screenshot({ path: `${temp}/${name}.png`, clip: { x: 0, y: 0, width: page.viewportSize().width, height: full ? page.viewportSize().height : height } });
    // 256 colors are enough for pages, and both programs contain some of the pictures.
    execFileSync("ffmpeg", ["-y", "-loglevel", "error", "-i", `${temp}/${name}.png`, "-vf", "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=dither=none", "-update", "1", `${folder}/${name}.png`]);
  };
  await page.goto(base);
  await page.getByRole("row", { name: /Select data-analysis / }).waitFor();
  await until("the usage is measured", async () => (await page.getByRole("meter").count()) >= 6);
  // A minute of samples makes charts.
  await until("there are samples", async () => (await api("sandbox/data-analysis/metrics")).samples.length >= Number(process.env.SAMPLES || 16));
  await shot("dashboard");
  await page.getByRole("button", { name: "Wall", exact: true }).click();
  await page.locator(".tile pre, .tile .did").first().waitFor();
  await until("the tiles are filled", async () => (await page.locator(".tile .spin").count()) === 0);
  await shot("wall");
  await page.getByRole("button", { name: "Table", exact: true }).click();
  await page.goto(`${base}/#sandbox/${id}`);
  await page.getByRole("img", { name: /^CPU during/ }).waitFor();
  await page.getByRole("link", { name: "8000" }).waitFor();
  await shot("overview");
  await page.goto(`${base}/#sandbox/${id}/processes`);
  await page.getByText("system process").first().waitFor();
  await shot("processes");
  await page.goto(`${base}/#activity`);
  await page.getByRole("list", { name: "Entries, latest first" }).getByRole("listitem").first().waitFor();
  await shot("activity");
  await page.goto(`${base}/#sandbox/${id}/activity`);
  await page.locator(".steps > li").first().waitFor();
  await page.getByRole("button", { name: "Replay" }).click();
  await page.locator(".moment").waitFor();
  await page.getByLabel("Moment", { exact: true }).press("End");
  await until("the screen is shown", () => page.getByAltText("The screen at this moment").evaluate((image) => image.complete && image.naturalWidth > 0));
  await shot("replay", true);
  await page.goto(`${base}/#sandboxes`);
  await page.getByRole("button", { name: "New sandbox" }).click();
  await page.getByRole("dialog").getByRole("radio").first().waitFor({ state: "attached" });
  await shot("create", true);
  await page.keyboard.press("Escape");
  // The page of a sandbox: the browser of the agent, a terminal, files and activity.
  await page.setViewportSize({ width: 1440, height: 900 });
  await page.goto(`${base}/sandbox/data-analysis/?panes=browser,terminal,files,activity&layout=grid`);
  await page.locator("footer").getByText("CPU").waitFor();
  const pane = (name) => page.frameLocator(`[data-pane=${name}] iframe`);
  await pane("browser").locator("body.connected canvas").waitFor();
  const rows = pane("terminal").locator(".screen.shown .xterm-rows");
  await rows.getByText(/[#$]/).first().waitFor();
  await pane("terminal").locator(".screen.shown .xterm-helper-textarea").focus();
  await page.keyboard.type("cd analysis && clear && ls --color && head -4 visits.csv && python3 visits.py\n");
  await rows.getByText(/best \d+/).first().waitFor();
  await pane("files").getByRole("treeitem", { name: "analysis" }).click();
  await pane("files").getByRole("treeitem", { name: "visits.py" }).waitFor();
  await pane("files").getByRole("treeitem", { name: "visits.py" }).click();
  await pane("files").locator(".cm-content").getByText("random.seed").first().waitFor();
  await pane("activity").locator(".steps > li").first().waitFor();
  await shot("sandbox", true);
  await page.setViewportSize({ width: 1280, height: 800 });
  await page.goto(`${base}/sandbox/data-analysis/files`);
  await page.getByRole("treeitem", { name: "analysis" }).click();
  await page.getByRole("treeitem", { name: "visits.py" }).click();
  await page.locator(".cm-content").getByText("random.seed").first().waitFor();
  await shot("files", true);
}, { viewport: { width: 1280, height: 800 }, colorScheme: "light" });
rmSync(temp, { recursive: true });
console.log(`ok pictures in ${folder}`);
