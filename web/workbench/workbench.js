// Shown at the URL of VS Code and JupyterLab until they are ready: the progress of the start, a notice after a crash, or an offer
// to install them.
import { Connection, Logo, Sign, at, call, html, render, useEffect, usePoll, useState } from "../ui/ui.js";

/** @param {string} name */
const meta = (name) => /** @type {HTMLMetaElement | null} */ (document.querySelector(`meta[name="${name}"]`))?.content || "";
const component = meta("component");
const note = meta("note");
const title = document.title;
/** go loads the page of the program, which is now served at the same URL. */
const go = () => (meta("origin") === "framed" ? location.replace("?pane") : location.reload());

/** notebook returns the URL of our own notebook, which is on the host name of the sandbox, not on that of JupyterLab. */
function notebook() {
  const to = at("notebook");
  to.hostname = to.hostname.replace(/^jupyter\./, "");
  return to.href + location.search;
}

function App() {
  const [now, set] = useState(/** @type {any} */ (null));
  const [fault, setFault] = useState("");
  const [asked, ask] = useState(false);
  usePoll(async () => {
    const list = await call("v1/sandbox/components");
    set(list.find((/** @type {any} */ c) => c.name === component));
  }, 400);
  const state = now?.state || "starting";
  const ready = state === "ready";
  const again = state === "idle"; // it has just been installed or has stopped
  const leave = again || (ready && !note); // a note stays until the user dismisses it
  useEffect(() => { if (leave) go(); }, [leave]);

  const install = async () => {
    ask(true);
    setFault("");
    try {
      set(await call(`v1/sandbox/components/${component}/install`, { body: { wait: false } }));
    } catch (error) {
      setFault(error instanceof Error ? error.message : String(error));
    }
    ask(false);
  };

  return html`<${Connection} />
    <main class="card" aria-busy=${String(state === "starting" || state === "installing")}>
      <div class="brand"><${Logo} />Cove</div>
      <h1><${Sign} of=${component === "code-server" ? "code" : "jupyter"} />${title}</h1>
      ${note && html`<p class="note" role="alert">${note}</p>`}
      <${Progress} now=${now} state=${state} />
      ${(fault || now?.failure) && state === "absent" && html`<p class="fault bad" role="alert">${fault || now.failure}</p>`}
      ${state === "failed" && html`<p class="fault bad" role="alert">${now.why}</p>`}
      <div class="row">
        ${state === "absent" && html`<button class="primary" disabled=${asked} onClick=${install}>${now.failure || fault ? "Try again" : `Install ${title}`}</button>`}
        ${component === "jupyterlab" && (state === "absent" || state === "failed") && html`<a class="button" href=${notebook()}>Open the small notebook</a>`}
        ${state === "failed" && html`<button class="primary" onClick=${go}>Try again</button>`}
        ${ready && note && html`<button class="primary" autofocus onClick=${go}>Open ${title}</button>`}
      </div>
    </main>`;
}

/** Progress shows the current state. @param {{ now: any, state: string }} props */
function Progress({ now, state }) {
  switch (state) {
    case "absent":
      return html`<p>${title} is not installed in this sandbox. The installation downloads it once, in about a minute.</p>
        <p class="dim">The same from a terminal: <code>aio component install ${component}</code></p>`;
    case "installing":
      return html`<p role="status">${now.installing?.step || "Installing"}…</p><progress aria-label="Installation" max="100" value=${now.installing?.percent || 0}></progress>`;
    case "failed":
      return html`<p>${title} did not start.</p>`;
    case "ready":
      return html`<p role="status">${title} is running.</p>`;
  }
  return html`<p role="status">Starting ${title}…</p><progress aria-label="Start"></progress>`;
}

/** NoOrigin explains why the program cannot be shown at this URL. */
function NoOrigin() {
  const named = new URL(location.href);
  named.pathname = named.pathname.replace(/\/~[^/]+/, "");
  const local = /^(127\.|\[::1\])/.test(location.hostname);
  if (local) named.hostname = "localhost";
  return html`<main class="card"><h1>${title}</h1>
    <p>${title} needs its own host name. At this address it would share one with the API, and what it shows could use the API.</p>
    ${local ? html`<p>Open it by name: <a href=${named.href} target="_blank" rel="noopener">${named.href}</a></p>` : html`<p>Open the server by a host name that is in its setting <code>domains</code> (hub) or <code>public_hosts</code> (sandbox, such as <code>*.box.example.com</code>).</p>`}
  </main>`;
}

/** NoStorage explains why the program cannot be shown in a pane and links to a tab. */
function NoStorage() {
  const tab = new URL(location.href);
  tab.pathname = tab.pathname.replace(/\/~[^/]+/, "");
  return html`<main class="card"><h1>${title}</h1>
    <p>Your browser blocks the storage that ${title} needs in a pane, because it blocks third-party cookies.</p>
    <div class="row"><a class="button primary" href=${tab.href} target="_blank" rel="noopener">Open ${title} in a tab</a></div>
  </main>`;
}

function hasStorage() {
  try {
    return Boolean(localStorage);
  } catch {
    return false;
  }
}

function choose() {
  switch (meta("origin")) {
    case "none":
      return html`<${NoOrigin} />`;
    case "framed":
      return hasStorage() ? html`<${App} />` : html`<${NoStorage} />`;
  }
  return html`<${App} />`;
}
render(choose(), /** @type {Element} */ (document.getElementById("app")));
