// A command that a link suggests. Any website can link to this page, so the page only shows the command. It types and runs
// nothing until the user has seen the whole command and presses Run.
const $ = (id) => document.getElementById(id);

// Characters that a terminal interprets or that are invisible. A command with one of them is shown, but cannot be run. So the
// command that runs is exactly the command that is shown.
const unseen = /(?! )[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\u2800]/u;

// settle is how long Run stays disabled after the page appeared or changed under the pointer. It is longer than a double click,
// because the first click may have opened this page.
const settle = 1000;

// offer shows the command. It calls run once, when the user presses Run.
export function offer(link, run) {
  const command = link.replace(/[\r\n]+$/, "");
  if (!command) return;
  const bar = $("suggestion");
  const button = $("run");
  const ends = fill($("suggested"), command);
  const runnable = !unseen.test(command);
  const seen = new Set();
  let calm = false;
  let pressed = false;
  let timer;
  const draw = () => {
    button.disabled = !(runnable && calm && ends.every((end) => seen.has(end)));
    if (button.disabled) pressed = false;
    $("unrunnable").hidden = runnable;
  };
  const disturb = () => {
    calm = false;
    clearTimeout(timer);
    if (document.visibilityState === "visible") timer = setTimeout(() => { calm = true; draw(); }, settle);
    draw();
  };
  // A small window or a long command can hide a part of the command. So both ends must have been visible.
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) seen.add(entry.target);
    draw();
  });
  const stop = new AbortController();
  const watch = (target, types, act) => { for (const type of types) target.addEventListener(type, act, { signal: stop.signal }); };
  const close = () => {
    stop.abort();
    observer.disconnect();
    clearTimeout(timer);
    bar.hidden = true;
  };
  watch(window, ["focus", "pageshow", "resize"], disturb);
  watch(document, ["visibilitychange"], disturb);
  // A click counts only if it was pressed on the button while the button was enabled.
  watch(button, ["pointerdown", "mousedown", "keydown"], (event) => { if (event.isTrusted && !event.repeat) pressed = true; });
  watch(button, ["click"], (event) => {
    if (!event.isTrusted || !pressed || button.disabled) return;
    close();
    run(command);
  });
  watch($("dismiss"), ["click"], close);
  bar.hidden = false;
  for (const end of ends) observer.observe(end);
  disturb();
}

// fill writes the command as text and returns elements at its beginning and end. Invisible characters are shown as escapes.
// Repeated spaces are marked, because they could move the rest out of view.
function fill(box, command) {
  const ends = [document.createElement("i"), document.createElement("i")];
  const parts = [...command.matchAll(/ {2,}|[^ ]| /gsu)].map(([part]) => {
    if (part.length > 1 && part[0] === " ") return mark("␣".repeat(part.length));
    return unseen.test(part) ? mark(code(part)) : part;
  });
  box.replaceChildren(ends[0], ...parts, ends[1]);
  return ends;
}

function mark(text) {
  return Object.assign(document.createElement("mark"), { textContent: text });
}

// code returns the escape of a character in JavaScript and bash.
function code(character) {
  const point = character.codePointAt(0);
  const named = { 9: "\\t", 10: "\\n", 13: "\\r" }[point];
  if (named) return named;
  if (point < 0x100) return "\\x" + point.toString(16).padStart(2, "0");
  return point < 0x10000 ? "\\u" + point.toString(16).padStart(4, "0") : `\\u{${point.toString(16)}}`;
}

// ignoreHeldKeys drops events of keys that were pressed on another page. A key that is held during navigation to this page repeats
// here. A key counts from its first press on this page.
export function ignoreHeldKeys() {
  const pressed = new Set();
  const drop = (event) => {
    event.preventDefault();
    event.stopImmediatePropagation();
  };
  addEventListener("keydown", (event) => {
    if (!event.isTrusted || (event.repeat && !pressed.has(event.code))) return drop(event);
    pressed.add(event.code);
  }, true);
  addEventListener("keyup", (event) => { if (!pressed.delete(event.code)) drop(event); }, true);
  addEventListener("blur", () => pressed.clear());
  document.addEventListener("visibilitychange", () => pressed.clear());
}
