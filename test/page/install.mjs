// The notebook of a machine without a Python kernel: the cell shows the installation, and why it fails.
import { audit, withPage } from "./browser.mjs";

const { URL: direct, RELEASE: release } = process.env;

await withPage(async (page) => {
  await page.goto(`${direct}/notebook`);
  const cell = page.getByRole("region", { name: /cell/ }).first();
  await cell.getByLabel("Code").focus();
  await page.keyboard.type("6 * 7");
  await page.keyboard.press("Shift+Enter");
  await cell.getByRole("log").filter({ hasText: "Installing Python: " }).waitFor();
  await audit(page, "an installation in the notebook");
  await fetch(release); // the index of packages responds
  await page.getByText(/install packages with pip.*allow access to a package index/).first().waitFor();
});
