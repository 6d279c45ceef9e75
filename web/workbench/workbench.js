// What is shown at the address of VS Code and JupyterLab until they are there: how they start, that they have died, or
// that they are not installed and can be.
import { Connection, Sign, at, call, html, render, useEffect, usePoll, useState } from "../ui/ui.js";

/** @param {string} name */
const meta = (name) => /** @type {HTMLMetaElement | null} */ (document.querySelector(`meta[name="${name}"]`))?.content || "";
const component = meta("component");
const note = meta("note");
const title = document.title;
/** go loads the same address again, which is the program's own page by now. */
const go = () => location.reload();

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
  const again = state === "idle"; // it was installed just now, or has stopped meanwhile
  const leave = again || (ready && !note); // a note stays until a person has read it
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
      <h1><${Sign} of=${component === "code-server" ? "code" : "jupyter"} />${title}</h1>
      ${note && html`<p class="note" role="alert">${note}</p>`}
      <${Progress} now=${now} state=${state} />
      ${(fault || now?.failure) && state === "absent" && html`<p class="fault bad" role="alert">${fault || now.failure}</p>`}
      ${state === "failed" && html`<p class="fault bad" role="alert">${now.why}</p>`}
      <div class="row">
        ${state === "absent" && html`<button class="primary" disabled=${asked} onClick=${install}>${now.failure || fault ? "Try again" : `Install ${title}`}</button>`}
        ${component === "jupyterlab" && (state === "absent" || state === "failed") && html`<a class="button" href=${at("notebook").href + location.search}>Open the small notebook</a>`}
        ${state === "failed" && html`<button class="primary" onClick=${go}>Try again</button>`}
        ${ready && note && html`<button class="primary" autofocus onClick=${go}>Open ${title}</button>`}
      </div>
    </main>`;
}

/** Progress says what happens now. @param {{ now: any, state: string }} props */
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

/** NoOrigin says why the program cannot be shown here. */
function NoOrigin() {
  const named = new URL(location.href);
  named.pathname = named.pathname.replace(/\/~[^/]+/, "");
  const local = /^(127\.|\[::1\])/.test(location.hostname);
  if (local) named.hostname = "localhost";
  return html`<main class="card"><h1>${title}</h1>
    <p>${title} needs storage of its own, which no page has at a bare address of a hub: there all sandboxes share one host.</p>
    ${local ? html`<p>By name it has: <a href=${named.href} target="_blank" rel="noopener">${named.href}</a></p>` : html`<p>Open the hub by a host name below which sandboxes have names (its setting <code>domains</code>).</p>`}
  </main>`;
}

render(meta("origin") === "none" ? html`<${NoOrigin} />` : html`<${App} />`, /** @type {Element} */ (document.getElementById("app")));
