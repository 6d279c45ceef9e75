// The guide: one chapter at a time, a search over all of them, and languages to choose from. Without this script the page
// shows all chapters below each other.

/** @template {Element} T @param {string} selector @param {new () => T} type @param {ParentNode} [within] */
function one(selector, type, within = document) {
  const node = within.querySelector(selector);
  if (!(node instanceof type)) throw new Error(`no ${selector}`);
  return node;
}

/** @param {string} tag @param {Record<string, string>} attributes @param {(Node | string)[]} children */
function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const main = one("main", HTMLElement);
const contents = one("#contents", HTMLElement);
const search = one("#search", HTMLInputElement);
const found = one("#found", HTMLElement);
const chapters = [...document.querySelectorAll(".chapter")];

/** show brings the chapter of the address into view. */
function show() {
  const target = document.getElementById(location.hash.slice(1)); // all identifiers are plain letters
  const chapter = target?.closest(".chapter") || chapters[0];
  for (const other of chapters) other.classList.toggle("shown", other === chapter);
  document.title = `${chapter.querySelector("h2")?.textContent} · Guide – Cove`;
  for (const link of contents.querySelectorAll("a")) {
    const current = link.hash === `#${chapter.id}`;
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (link.parentElement?.parentElement?.parentElement === contents) link.parentElement.classList.toggle("open", current);
  }
  found.hidden = true;
  main.classList.add("chosen");
  if (target && target !== chapter) target.scrollIntoView();
  else scrollTo(0, 0);
}
contents.classList.add("folded");
addEventListener("hashchange", () => { search.value = ""; show(); });
// A link to the chapter that is shown already changes no address, but ends a search.
document.addEventListener("click", (event) => {
  if (event.target instanceof Element && event.target.closest("a")?.getAttribute("href") === (location.hash || "#start") && search.value) {
    search.value = "";
    show();
  }
});

/** @typedef {{ id: string, title: string, from: string, text: string, low: string }} Section */
/** @type {Section[] | undefined} */
let index;

/** sections cuts all chapters at their headings. @returns {Section[]} */
function sections() {
  /** @type {Section[]} */
  const list = [];
  for (const chapter of chapters) {
    const from = chapter.querySelector("h2")?.textContent || "";
    for (const node of chapter.children) {
      if (/^H[2-4]$/.test(node.tagName)) list.push({ id: node.tagName === "H2" ? chapter.id : node.id, title: node.textContent || "", from, text: "", low: "" });
      else if (list.length && node.className !== "next") list[list.length - 1].text += `${node.textContent} `;
    }
  }
  for (const section of list) {
    section.text = section.text.replace(/\s+/g, " ");
    section.low = `${section.title} ${section.text}`.toLowerCase();
  }
  return list;
}

/** excerpt is the text around the first word that is found. @param {Section} section @param {string[]} words */
function excerpt(section, words) {
  const low = section.text.toLowerCase();
  const at = Math.max(0, Math.min(...words.map((word) => low.indexOf(word)).filter((i) => i >= 0), low.length) - 60);
  const part = section.text.slice(at, at + 220);
  const line = make("p", {}, at > 0 ? "…" : "");
  let rest = part;
  while (rest) {
    const next = words.map((word) => ({ word, i: rest.toLowerCase().indexOf(word) })).filter(({ i }) => i >= 0).sort((a, b) => a.i - b.i)[0];
    if (!next) break;
    line.append(rest.slice(0, next.i), make("mark", {}, rest.slice(next.i, next.i + next.word.length)));
    rest = rest.slice(next.i + next.word.length);
  }
  line.append(rest, at + 220 < section.text.length ? "…" : "");
  return line;
}

search.addEventListener("input", () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return show();
  index ??= sections();
  const rank = (/** @type {Section} */ s) => (words.every((word) => s.title.toLowerCase().includes(word)) ? 0 : 1);
  const hits = index.filter((section) => words.every((word) => section.low.includes(word))).sort((a, b) => rank(a) - rank(b)).slice(0, 30);
  const list = make("ol", {}, ...hits.map((section) => make("li", {}, make("a", { href: `#${section.id}` }, section.title), make("span", { class: "from" }, section.from), excerpt(section, words))));
  found.replaceChildren(make("h2", {}, hits.length ? `Found in ${hits.length} ${hits.length === 1 ? "place" : "places"}` : "Nothing found"), list);
  found.hidden = false;
  for (const chapter of chapters) chapter.classList.remove("shown");
  main.classList.add("chosen");
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !(event.target instanceof HTMLInputElement)) {
    event.preventDefault();
    search.focus();
  }
  if (event.key === "Escape" && event.target === search) {
    search.value = "";
    show();
  }
});

// Languages: one is shown, in all groups that have it.
/** @type {{ group: Element, choose: (language: string) => void }[]} */
const groups = [];
for (const group of document.querySelectorAll(".blocks")) {
  const blocks = [...group.children];
  if (blocks.length < 2) continue;
  const names = blocks.map((block) => block.querySelector("figcaption")?.textContent || "");
  if (new Set(names).size < names.length) continue;
  group.classList.add("tabbed");
  const tabs = names.map((name) => make("button", { type: "button", role: "tab" }, name));
  const choose = (/** @type {string} */ language) => {
    if (!names.includes(language)) return;
    for (const [i, name] of names.entries()) {
      blocks[i].classList.toggle("shown", name === language);
      tabs[i].setAttribute("aria-selected", String(name === language));
      tabs[i].tabIndex = name === language ? 0 : -1;
    }
  };
  for (const [i, tab] of tabs.entries()) {
    tab.addEventListener("click", () => { for (const other of groups) other.choose(names[i]); });
    tab.addEventListener("keydown", (event) => {
      const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
      if (!step) return;
      const next = tabs[(i + step + tabs.length) % tabs.length];
      next.click();
      next.focus();
    });
  }
  group.prepend(make("div", { class: "tabs", role: "tablist", "aria-label": "Language" }, ...tabs));
  choose(names[0]);
  groups.push({ group, choose });
}
for (const block of document.querySelectorAll(".block")) {
  const button = make("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("code")?.textContent || "");
    button.textContent = "Copied";
  });
  block.append(button);
}
show();
