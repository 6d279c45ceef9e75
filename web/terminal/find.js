// Find in the output of a terminal.
import { IconButton, html, useEffect, useRef, useState } from "../ui/ui.js";
import { SearchAddon } from "../vendor/xterm-search/search.js";

const colours = { matchBackground: "#8a6d1f", matchOverviewRuler: "#8a6d1f", activeMatchBackground: "#c2410c", activeMatchColorOverviewRuler: "#c2410c" };

// Finder finds text in one terminal.
export class Finder {
  constructor(term) {
    this.addon = new SearchAddon({ highlightLimit: 1000 });
    term.loadAddon(this.addon);
    this.Bar = this.Bar.bind(this);
  }

  // Bar is the field with the text to find. Enter finds the next match above, Shift+Enter below.
  Bar({ onClose }) {
    const [text, setText] = useState("");
    const [found, setFound] = useState({ resultIndex: -1, resultCount: 0 });
    const field = useRef(null);
    useEffect(() => {
      field.current.focus();
      const heard = this.addon.onDidChangeResults(setFound);
      return () => { heard.dispose(); this.addon.clearDecorations(); };
    }, []);
    const go = (up, incremental = false) => (up ? this.addon.findPrevious(field.current.value, { decorations: colours, incremental }) : this.addon.findNext(field.current.value, { decorations: colours, incremental }));
    const key = (event) => {
      if (event.key === "Escape") onClose();
      else if (event.key === "Enter") go(!event.shiftKey);
      else return;
      event.preventDefault();
    };
    const count = text === "" ? "" : found.resultCount === 0 ? "Nothing found" : `${found.resultIndex + 1} of ${found.resultCount}`;
    return html`<div class="find" role="search"><input ref=${field} type="search" aria-label="Find in the terminal" placeholder="Find" value=${text} onInput=${(e) => { setText(e.target.value); if (e.target.value) go(true, true); else this.addon.clearDecorations(); }} onKeyDown=${key} />
      <span class="dim" role="status">${count}</span><${IconButton} sign="up" label="Find above" onClick=${() => go(true)} /><${IconButton} sign="down" label="Find below" onClick=${() => go(false)} /><${IconButton} sign="close" label="Close" onClick=${onClose} /></div>`;
  }
}
