// The row of keys that soft keyboards lack. It is shown on devices with a touch screen. Ctrl and Alt apply to the next key.
import { html, render } from "./ui.js";

/** @typedef {{ ctrl: boolean, alt: boolean }} Held */

/** @type {[string, string][]} names and labels */
const keys = [["Escape", "Esc"], ["Tab", "Tab"], ["ctrl", "Ctrl"], ["alt", "Alt"], ["ArrowLeft", "←"], ["ArrowUp", "↑"], ["ArrowDown", "↓"], ["ArrowRight", "→"], ["Home", "Home"], ["End", "End"]];
/** @type {Record<string, string>} */
const spoken = { ArrowLeft: "Left", ArrowUp: "Up", ArrowDown: "Down", ArrowRight: "Right" };

/** keyRow shows the keys in a place. press receives a key and the held keys. take returns the held keys and releases them. @param {Element} place @param {(key: string, held: Held) => void} press */
export function keyRow(place, press) {
  /** @type {Held} */
  let held = { ctrl: false, alt: false };
  const take = () => { const now = held; held = { ctrl: false, alt: false }; if (now.ctrl || now.alt) draw(); return now; };
  const hit = (/** @type {string} */ key) => {
    if (key === "ctrl" || key === "alt") { held = { ...held, [key]: !held[key] }; draw(); } else press(key, take());
  };
  // A press does not take the focus, which would close the soft keyboard.
  const keep = (/** @type {Event} */ event) => event.preventDefault();
  const draw = () => render(html`<div class="keyrow" role="toolbar" aria-label="Keys">${keys.map(([key, label]) => html`<button key=${key} type="button" aria-label=${spoken[key] || label} aria-pressed=${key === "ctrl" || key === "alt" ? String(held[/** @type {"ctrl" | "alt"} */ (key)]) : undefined} onPointerDown=${keep} onMouseDown=${keep} onClick=${() => hit(key)}>${label}</button>`)}</div>`, place);
  draw();
  return { take };
}

/** fitKeyboard makes the page as high as what a soft keyboard leaves visible. */
export function fitKeyboard() {
  const view = window.visualViewport;
  if (!view || !matchMedia("(pointer: coarse)").matches) return;
  const fit = () => { document.body.style.height = `${Math.round(view.height)}px`; scrollTo(0, 0); };
  view.addEventListener("resize", fit);
  fit();
}
