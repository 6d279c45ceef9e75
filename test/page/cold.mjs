// Duration of a cold visit to VS Code and the lab: until our page shows progress, and until their own page is usable.
import { withPage } from "./browser.mjs";

const { URL: direct } = process.env;
for (const [name, path, usable] of [["VS Code", "/code-server/", ".monaco-workbench .explorer-viewlet"], ["JupyterLab", "/jupyter/lab", ".jp-Launcher"]]) {
  await withPage(async (page) => {
    const began = performance.now();
    await page.goto(direct + path, { waitUntil: "commit" });
    await page.getByRole("progressbar").waitFor();
    const progress = performance.now() - began;
    await page.locator(usable).first().waitFor();
    console.log(`cold visit to ${name}: progress after ${Math.round(progress)} ms, usable after ${((performance.now() - began) / 1000).toFixed(1)} s (target 10)`);
  }, { ignore: /./ });
}
