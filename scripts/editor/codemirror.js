// The editor of the Files page and of notebook cells: the used parts of CodeMirror as one module.
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { css } from "@codemirror/lang-css";
import { html } from "@codemirror/lang-html";
import { javascript } from "@codemirror/lang-javascript";
import { json } from "@codemirror/lang-json";
import { markdown } from "@codemirror/lang-markdown";
import { python } from "@codemirror/lang-python";
import { xml } from "@codemirror/lang-xml";
import { yaml } from "@codemirror/lang-yaml";
import {
  HighlightStyle, StreamLanguage, bracketMatching, foldGutter, foldKeymap, indentOnInput, syntaxHighlighting,
} from "@codemirror/language";
import { c, cpp, csharp, java, kotlin, scala } from "@codemirror/legacy-modes/mode/clike";
import { diff } from "@codemirror/legacy-modes/mode/diff";
import { dockerFile } from "@codemirror/legacy-modes/mode/dockerfile";
import { go } from "@codemirror/legacy-modes/mode/go";
import { lua } from "@codemirror/legacy-modes/mode/lua";
import { properties } from "@codemirror/legacy-modes/mode/properties";
import { ruby } from "@codemirror/legacy-modes/mode/ruby";
import { rust } from "@codemirror/legacy-modes/mode/rust";
import { shell } from "@codemirror/legacy-modes/mode/shell";
import { standardSQL } from "@codemirror/legacy-modes/mode/sql";
import { toml } from "@codemirror/legacy-modes/mode/toml";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { Compartment, EditorState } from "@codemirror/state";
import {
  EditorView, drawSelection, highlightActiveLine, highlightActiveLineGutter, highlightSpecialChars, keymap, lineNumbers,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";

const legacy = (mode) => () => StreamLanguage.define(mode);
const byName = {
  c: legacy(c), h: legacy(cpp), cc: legacy(cpp), cpp: legacy(cpp), hpp: legacy(cpp), cxx: legacy(cpp),
  cs: legacy(csharp), java: legacy(java), kt: legacy(kotlin), scala: legacy(scala), css, scss: css, diff: legacy(diff),
  patch: legacy(diff), go: legacy(go), html, htm: html, vue: html, svelte: html, lua: legacy(lua), js: javascript,
  mjs: javascript, cjs: javascript,
  jsx: () => javascript({ jsx: true }),
  ts: () => javascript({ typescript: true }),
  tsx: () => javascript({ typescript: true, jsx: true }),
  json, jsonl: json, ipynb: json, webmanifest: json, map: json, md: markdown, markdown, py: python, pyi: python,
  rs: legacy(rust), sql: legacy(standardSQL), rb: legacy(ruby), xml, svg: xml, xhtml: xml, plist: xml, yml: yaml, yaml,
  sh: legacy(shell), bash: legacy(shell), zsh: legacy(shell), bashrc: legacy(shell), profile: legacy(shell),
  toml: legacy(toml), ini: legacy(properties), cfg: legacy(properties), conf: legacy(properties),
  env: legacy(properties), properties: legacy(properties), dockerfile: legacy(dockerFile),
  containerfile: legacy(dockerFile),
};

// languageOf returns the language of a file by its name.
function languageOf(name) {
  const base = name.toLowerCase().split("/").pop();
  const make = byName[base] || byName[base.split(".").pop()];
  return make ? make() : [];
}

// Use the colours of the page.
const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.modifier], color: "var(--code-keyword)" },
  { tag: [tags.string, tags.special(tags.string), tags.regexp], color: "var(--code-string)" },
  { tag: [tags.comment, tags.meta], color: "var(--code-comment)", fontStyle: "italic" },
  { tag: [tags.number, tags.bool, tags.null, tags.atom], color: "var(--code-number)" },
  {
    tag: [tags.function(tags.variableName), tags.function(tags.propertyName), tags.definition(tags.function(tags.variableName))],
    color: "var(--code-function)",
  },
  { tag: [tags.typeName, tags.className, tags.namespace, tags.tagName], color: "var(--code-type)" },
  { tag: [tags.propertyName, tags.attributeName], color: "var(--code-property)" },
  { tag: tags.heading, fontWeight: "bold", color: "var(--code-keyword)" },
  { tag: [tags.link, tags.url], color: "var(--code-function)", textDecoration: "underline" },
  { tag: tags.emphasis, fontStyle: "italic" },
  { tag: tags.strong, fontWeight: "bold" },
  { tag: tags.invalid, color: "var(--code-invalid)" },
]);

const theme = EditorView.theme({
  "&": { height: "100%", fontSize: "13px", color: "var(--text)", backgroundColor: "var(--surface)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5" },
  ".cm-content": { caretColor: "var(--text)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "var(--surface)", color: "var(--dim)", borderRight: "1px solid var(--line)" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in oklab, var(--accent) 7%, transparent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "color-mix(in oklab, var(--accent) 30%, transparent)",
  },
  ".cm-selectionMatch": { backgroundColor: "color-mix(in oklab, var(--accent) 18%, transparent)" },
  ".cm-searchMatch": { backgroundColor: "color-mix(in oklab, var(--warn) 30%, transparent)" },
  ".cm-panels": { backgroundColor: "var(--raised)", color: "var(--text)", borderColor: "var(--line)" },
  ".cm-textfield, .cm-button": {
    backgroundColor: "var(--surface)", backgroundImage: "none", color: "var(--text)", border: "1px solid var(--line)",
    borderRadius: "5px",
  },
  ".cm-foldPlaceholder": { backgroundColor: "var(--raised)", borderColor: "var(--line)", color: "var(--dim)" },
});

// What a file has in addition to a cell.
const file = [lineNumbers(), foldGutter(), highlightActiveLine(), highlightActiveLineGutter(), search({ top: true })];

// A cell is as high as its text.
const cellTheme = EditorView.theme({
  "&": { height: "auto" },
  ".cm-scroller": { overflowX: "auto" },
  ".cm-content": { padding: "6px 0", minHeight: "1.5em" },
  ".cm-line": { padding: "0 9px" },
});

// open shows a text in an editor. It calls onChange when the user changes the text, onSave on Ctrl+S. cell shows a cell of a
// notebook instead of a file: its label, and functions for keys.
export function open({ parent, text, name, readOnly, onChange, onSave, cell }) {
  const editable = new Compartment();
  let quiet = false;
  // In a shadow root, its styles need no style element, which the page's policy forbids.
  const root = parent.attachShadow({ mode: "open" });
  const view = new EditorView({
    parent: root,
    root,
    state: EditorState.create({
      doc: text,
      extensions: [
        cell
          ? [
              cellTheme,
              keymap.of(
                Object.entries(cell.keys).map(([key, run]) => ({
                  key, preventDefault: true,
                  run: () => {
                    run();
                    return true;
                  },
                })),
              ),
            ]
          : file,
        highlightSpecialChars(),
        history(),
        drawSelection(),
        indentOnInput(),
        bracketMatching(),
        highlightSelectionMatches(),
        syntaxHighlighting(colours),
        theme,
        languageOf(name),
        EditorView.lineWrapping,
        keymap.of([
          ...(cell
            ? []
            : [
                {
                  key: "Mod-s", preventDefault: true,
                  run: () => {
                    onSave();
                    return true;
                  },
                },
                ...searchKeymap,
              ]),
          indentWithTab,
          ...defaultKeymap,
          ...historyKeymap,
          ...foldKeymap,
        ]),
        editable.of(EditorState.readOnly.of(Boolean(readOnly))),
        EditorView.contentAttributes.of({ "aria-label": cell ? cell.label : `Content of ${name}` }),
        EditorView.updateListener.of((update) => { if (update.docChanged && !quiet) onChange(); }),
      ],
    }),
  });
  return {
    text: () => view.state.doc.toString(),
    // replace sets another text and keeps the caret position if possible.
    replace(next) {
      quiet = true;
      const at = Math.min(view.state.selection.main.head, next.length);
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next }, selection: { anchor: at } });
      quiet = false;
    },
    goTo(line) {
      const at = view.state.doc.line(Math.max(1, Math.min(line, view.state.doc.lines)));
      view.dispatch({ selection: { anchor: at.from }, effects: EditorView.scrollIntoView(at.from, { y: "center" }) });
      view.focus();
    },
    focus: () => view.focus(),
    close: () => view.destroy(),
  };
}
