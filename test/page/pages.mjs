// All our pages, with what must be present before each is usable. A new page needs a new line.
// at: the server of the page. open: steps before the checks. own: whether another story tests the keyboard,
// because the page captures the Tab key. kept: requires a hub that keeps records.
const press = (name) => (page) => page.getByRole("button", { name, exact: true }).first().click();
// The other pages of the dashboard, with a text of each.
const parts = { Activity: "Activity", Snapshots: "Snapshots", Volumes: "New volume", Records: "Activity records", Secrets: "New secret", Usage: "Usage and quotas", Keys: "Tenants and keys", Events: "Live events", Audit: "Verify", Machine: "Supported features" };
// A tab of the view of the sandbox "a".
const one = (tab, ready) => ({ at: "hub", path: "/", ready: (page) => page.getByRole("row", { name: /Select a / }), open: async (page) => { await page.getByRole("link", { name: "a", exact: true }).click(); await page.getByRole("navigation", { name: "Parts of the sandbox" }).getByRole("link", { name: tab, exact: true }).click(); await ready(page).waitFor(); } });
const part = (name, text) => ({ at: "hub", path: `/#${name.toLowerCase()}`, ready: (page) => page.getByRole("main").getByText(text).first() });

export const pages = {
  "the sandbox's page": { at: "sandbox", path: "/?panes=terminal,files,activity", ready: (page) => page.locator("footer").getByText("CPU"), own: true },
  files: { at: "sandbox", path: "/files?path=DIR", ready: (page) => page.getByRole("treeitem").first() },
  "the editor": { at: "sandbox", path: "/files?path=DIR", ready: (page) => page.getByRole("treeitem").first(), open: async (page) => { await page.getByRole("treeitem", { name: "hello.py" }).click(); await page.locator(".cm-content").getByText("print").waitFor(); }, own: true },
  terminal: { at: "sandbox", path: "/terminal", ready: (page) => page.locator(".xterm-rows").getByText(/[#$]/).first(), own: true },
  desktop: { at: "sandbox", path: "/vnc/index.html?autoconnect=true", ready: (page) => page.locator("body.connected canvas"), own: true },
  notebook: { at: "sandbox", path: "/notebook", ready: (page) => page.getByLabel("Kernel session"), own: true },
  activity: { at: "sandbox", path: "/activity", ready: (page) => page.locator(".steps > li").first() },
  "the detail of an activity": { at: "sandbox", path: "/activity", ready: (page) => page.locator(".steps > li").first(), open: async (page) => { await page.locator(".steps > li button").first().click(); await page.locator(".detail").waitFor(); } },
  replay: { at: "sandbox", path: "/activity", ready: (page) => page.locator(".steps > li").first(), open: async (page) => { await press("Replay")(page); await page.locator(".moment").waitFor(); } },
  docs: { at: "sandbox", path: "/v1/docs", ready: (page) => page.locator(".op").first() },
  "an operation": { at: "sandbox", path: "/v1/docs#bash_exec", ready: (page) => page.getByRole("button", { name: "Try it" }), open: async (page) => { await press("Try it")(page); await page.getByText(/^200 OK/).waitFor(); } },
  guide: { at: "sandbox", path: "/guide", ready: (page) => page.locator("main h2").first() },
  "VS Code, not installed": { at: "sandbox", path: "/code-server/", ready: (page) => page.getByRole("button", { name: "Install VS Code" }) },
  "JupyterLab, not installed": { at: "sandbox", path: "/jupyter/", ready: (page) => page.getByRole("button", { name: "Install JupyterLab" }) },
  "sign in": { at: "stranger", path: "/", ready: (page) => page.getByLabel("API key or token") },
  "nothing behind a port": { at: "hub", path: "/sandbox/a/proxy/1/", ready: (page) => page.getByRole("heading", { name: "Nothing runs on port 1" }) },
  "no such page": { at: "hub", path: "/nowhere", ready: (page) => page.getByRole("heading", { name: "Not Found" }) },
  "no such sandbox": { at: "hub", path: "/sandbox/nobody/", ready: (page) => page.getByRole("heading", { name: "Not Found" }) },
  dashboard: { at: "hub", path: "/", ready: (page) => page.getByRole("row", { name: /Select a / }) },
  "a new sandbox": { at: "hub", path: "/", ready: (page) => page.getByRole("row", { name: /Select a / }), open: async (page) => { await press("New sandbox")(page); await page.getByRole("dialog").getByText("Advanced").click(); } },
  "one sandbox": one("Overview", (page) => page.getByRole("img", { name: /^CPU during/ })),
  "processes of a sandbox": one("Processes", (page) => page.getByText("system process").first()),
  "activity of a sandbox": one("Activity", (page) => page.locator(".steps > li").first()),
  "snapshots of a sandbox": one("Snapshots", (page) => page.getByRole("button", { name: "New snapshot" })),
  "logs of a sandbox": one("Logs", (page) => page.getByLabel("Logs")),
  "changed files of a sandbox": one("Changed files", (page) => page.getByLabel("Filter files")),
  "settings of a sandbox": one("Settings", (page) => page.getByText("Environment variables")),
  "links of a sandbox": one("Links", (page) => page.getByText("No active links.")),
  "share a sandbox": { at: "hub", path: "/", ready: (page) => page.getByRole("row", { name: /Select a / }), open: async (page) => { await page.getByRole("link", { name: "a", exact: true }).click(); await press("Share")(page); await page.getByRole("dialog").waitFor(); }, after: (page) => page.keyboard.press("Escape") },
  "deleted sandboxes": { at: "hub", path: "/", ready: (page) => page.getByRole("row", { name: /Select a / }), open: async (page) => { await press("Deleted")(page); await page.getByRole("row", { name: /gone/ }).waitFor(); }, after: press("Table"), kept: true },
  wall: { at: "hub", path: "/", ready: (page) => page.getByRole("row", { name: /Select a / }), open: async (page) => { await press("Wall")(page); await page.locator(".tile pre").first().waitFor(); }, after: press("Table") },
  ...Object.fromEntries(Object.entries(parts).map(([name, text]) => [name, part(name, text)])),
  "a tenant": { at: "hub", path: "/#usage/operator", ready: (page) => page.getByRole("heading", { name: "Quotas" }) },
  "a record that the hub keeps": { at: "hub", path: "/#records", ready: (page) => page.getByRole("button", { name: "Show the record of gone" }), open: async (page) => { await page.getByRole("button", { name: "Show the record of gone" }).click(); await page.locator(".steps > li").first().waitFor(); }, kept: true },
  "the command palette": { at: "hub", path: "/", ready: (page) => page.getByRole("row", { name: /Select a / }), open: async (page) => { await page.keyboard.press("Control+k"); await page.getByRole("option").first().waitFor(); }, after: (page) => page.keyboard.press("Escape") },
  "what needs attention": { at: "hub", path: "/", ready: (page) => page.getByRole("row", { name: /Select a / }), open: async (page) => { await page.getByRole("button", { name: /attention/ }).click(); await page.getByRole("region", { name: "Needs attention" }).waitFor(); }, after: (page) => page.keyboard.press("Escape") },
  "a sandbox that was deleted": { at: "hub", path: "/#sandbox/GONE", ready: (page) => page.getByRole("heading", { name: /^gone was deleted/ }), kept: true },
  "a stopped sandbox": { at: "hub", path: "/sandbox/STOPPED/", ready: (page) => page.getByRole("link", { name: "Start" }), kept: true },
  "the page of a watcher": { at: "watcher", path: "WATCH", ready: (page) => page.getByText("Watching"), kept: true },
  "a link that was revoked": { at: "watcher", path: "REVOKED", ready: (page) => page.getByRole("heading").first(), kept: true },
  "the hub's docs": { at: "hub", path: "/v1/docs", ready: (page) => page.locator(".op").first() },
};
