// Roles and accessible names, for the common part of ARIA.
const inputRoles = {
  button: 'button', submit: 'button', reset: 'button', image: 'button', checkbox: 'checkbox', radio: 'radio',
  range: 'slider', number: 'spinbutton', search: 'searchbox', file: 'button', color: 'textbox',
};
const tagRoles = {
  ARTICLE: 'article', ASIDE: 'complementary', BLOCKQUOTE: 'blockquote', BUTTON: 'button', CAPTION: 'caption',
  CODE: 'code', DD: 'definition', DETAILS: 'group', DIALOG: 'dialog', DT: 'term', EM: 'emphasis', FIELDSET: 'group',
  FIGURE: 'figure', H1: 'heading', H2: 'heading', H3: 'heading', H4: 'heading', H5: 'heading', H6: 'heading',
  HR: 'separator', HTML: 'document', IFRAME: 'iframe', LI: 'listitem', MAIN: 'main', MARK: 'mark', MATH: 'math',
  MENU: 'list', METER: 'meter', NAV: 'navigation', OL: 'list', OPTGROUP: 'group', OPTION: 'option', OUTPUT: 'status',
  P: 'paragraph', PROGRESS: 'progressbar', SEARCH: 'search', STRONG: 'strong', SUMMARY: 'button', TABLE: 'table',
  TBODY: 'rowgroup', TFOOT: 'rowgroup', THEAD: 'rowgroup', TIME: 'time', TR: 'row', UL: 'list', TEXTAREA: 'textbox',
  DIALOGUE: 'dialog',
};

function roleOf(el) {
  const own = (el.getAttribute('role') || '').trim().split(/\s+/)[0];
  if (own && !((own === 'presentation' || own === 'none') && (el.tabIndex >= 0))) return own === 'none' ? 'presentation' : own;
  switch (el.tagName) {
    case 'A': case 'AREA': return el.hasAttribute('href') ? 'link' : '';
    case 'IMG': return el.getAttribute('alt') === '' && !el.title && !el.getAttribute('aria-label') ? 'presentation' : 'img';
    case 'INPUT': {
      const type = el.type;
      if (type === 'hidden') return '';
      if (el.list && /^(text|search|tel|url|email)$/.test(type)) return 'combobox';
      return inputRoles[type] || 'textbox';
    }
    case 'SELECT': return el.multiple || el.size > 1 ? 'listbox' : 'combobox';
    case 'TD': return closest(el, '[role=grid],[role=treegrid]') ? 'gridcell' : 'cell';
    case 'TH': return el.scope === 'row' ? 'rowheader' : 'columnheader';
    case 'HEADER': return closest(upOf(el) || el, 'article,aside,main,nav,section') ? '' : 'banner';
    case 'FOOTER': return closest(upOf(el) || el, 'article,aside,main,nav,section') ? '' : 'contentinfo';
    case 'SECTION': return el.hasAttribute('aria-label') || el.hasAttribute('aria-labelledby') ? 'region' : '';
    case 'FORM': return el.hasAttribute('aria-label') || el.hasAttribute('aria-labelledby') || el.hasAttribute('name') ? 'form' : '';
    case 'svg': return 'img';
  }
  if (el.isContentEditable && el.hasAttribute('contenteditable')) return 'textbox';
  return tagRoles[el.tagName] || '';
}

// isHidden reports whether an element is hidden from assistive technology.
function isHidden(el) {
  for (let at = el; at; at = parentOf(at)) {
    if (at.getAttribute('aria-hidden') === 'true' || at.tagName === 'TEMPLATE') return true;
    const style = styleOf(at);
    if (style.display === 'none' || at.inert) return true;
  }
  return styleOf(el).visibility !== 'visible';
}

const fromContent = new Set([
  'button', 'cell', 'checkbox', 'columnheader', 'gridcell', 'heading', 'link', 'menuitem', 'menuitemcheckbox',
  'menuitemradio', 'option', 'radio', 'row', 'rowheader', 'switch', 'tab', 'tooltip', 'treeitem', 'term', 'legend',
  'caption',
]);

function labelsOf(el) {
  const list = el.labels ? [...el.labels] : [];
  return list;
}

function byIds(el, attribute) {
  const root = el.getRootNode();
  return (el.getAttribute(attribute) || '')
    .split(/\s+/)
    .filter(Boolean)
    .map((id) => root.getElementById && root.getElementById(id))
    .filter(Boolean);
}

// nameOf computes the accessible name.
function nameOf(el) {
  const referred = byIds(el, 'aria-labelledby');
  if (referred.length) return squash(referred.map((r) => contentName(r, new Set([el]), true)).join(' '));
  const label = squash(el.getAttribute('aria-label'));
  if (label) return label;
  const role = roleOf(el);
  const own = nativeName(el, role);
  if (own) return own;
  if (fromContent.has(role) || el.tagName === 'LABEL' || el.tagName === 'SUMMARY') {
    const text = squash(contentName(el, new Set(), false));
    if (text) return text;
  }
  return squash(el.getAttribute('title') || el.getAttribute('placeholder') || '');
}

function nativeName(el, role) {
  switch (el.tagName) {
    case 'INPUT':
      if (/^(submit|reset|button)$/.test(el.type)) return squash(el.value) || {submit: 'Submit', reset: 'Reset', button: ''}[el.type];
      if (el.type === 'image') return squash(el.alt || el.title || 'Submit');
    // falls through
    case 'SELECT': case 'TEXTAREA': case 'METER': case 'PROGRESS': case 'OUTPUT': case 'BUTTON': {
      const labels = labelsOf(el);
      if (labels.length) return squash(labels.map((l) => contentName(l, new Set([el]), true)).join(' '));
      return '';
    }
    case 'IMG': case 'AREA': return squash(el.alt);
    case 'FIELDSET': { const l = el.querySelector(':scope > legend'); return l ? squash(contentName(l, new Set(), true)) : ''; }
    case 'TABLE': { const c = el.querySelector(':scope > caption'); return c ? squash(contentName(c, new Set(), true)) : ''; }
    case 'FIGURE': { const c = el.querySelector(':scope > figcaption'); return c ? squash(contentName(c, new Set(), true)) : ''; }
    case 'svg': { const t = el.querySelector(':scope > title'); return t ? squash(t.textContent) : ''; }
    case 'IFRAME': return squash(el.title || el.name);
    case 'OPTION': case 'OPTGROUP': return squash(el.label);
  }
  return '';
}

// contentName returns the text of an element and its descendants.
function contentName(el, seen, force) {
  if (seen.has(el)) return '';
  seen.add(el);
  let out = '';
  const add = (node) => {
    if (node.nodeType === 3) { out += node.data; return; }
    if (node.nodeType !== 1 || /^(STYLE|SCRIPT|NOSCRIPT|TEMPLATE)$/.test(node.tagName) || seen.has(node)) return;
    const style = styleOf(node);
    if (!force && (style.display === 'none' || style.visibility !== 'visible' || node.getAttribute('aria-hidden') === 'true')) return;
    if (force && style.display === 'none') return;
    const block = style.display !== 'inline' && style.display !== 'contents';
    const label = squash(node.getAttribute('aria-label'));
    let text;
    if (label) text = label;
    else if (node.tagName === 'IMG' || node.tagName === 'svg') text = nativeName(node);
    else if (node.tagName === 'INPUT' || node.tagName === 'TEXTAREA')
      text = /^(checkbox|radio|hidden|file)$/.test(node.type) ? '' : node.value;
    else if (node.tagName === 'SELECT') text = [...node.selectedOptions].map((o) => o.label).join(' ');
    else text = contentName(node, seen, force) || (node.title && !squash(node.textContent) ? node.title : '');
    out += block ? ' ' + text + ' ' : text;
  };
  const pseudo = (which) => {
    const content = getComputedStyle(el, which).content;
    const m = /^"((?:[^"\\]|\\.)*)"$/.exec(content || '');
    return m ? m[1].replace(/\\(.)/g, '$1') : '';
  };
  out += pseudo('::before');
  const children =
    el.tagName === 'SLOT' && el.assignedNodes().length ? el.assignedNodes() : el.shadowRoot ? el.shadowRoot.childNodes : el.childNodes;
  for (const child of children) add(child);
  return out + pseudo('::after');
}

// stateOf lists the visible states of a control.
function stateOf(el, role) {
  const out = {};
  const flag = (name) => el.getAttribute('aria-' + name);
  if (/^(checkbox|radio|switch|menuitemcheckbox|menuitemradio|option|treeitem)$/.test(role) || flag('checked')) {
    if (el.tagName === 'INPUT') out.checked = el.indeterminate ? 'mixed' : el.checked;
    else if (flag('checked')) out.checked = flag('checked') === 'mixed' ? 'mixed' : flag('checked') === 'true';
  }
  if (flag('pressed')) out.pressed = flag('pressed') === 'mixed' ? 'mixed' : flag('pressed') === 'true';
  if (el.tagName === 'OPTION') out.selected = el.selected;
  else if (flag('selected')) out.selected = flag('selected') === 'true';
  if (el.tagName === 'DETAILS') out.expanded = el.open;
  else if (el.tagName === 'SUMMARY' && el.parentElement && el.parentElement.tagName === 'DETAILS') out.expanded = el.parentElement.open;
  else if (flag('expanded')) out.expanded = flag('expanded') === 'true';
  if (isDisabled(el)) out.disabled = true;
  if (role === 'heading') out.level = Number(flag('level')) || Number((/^H([1-6])$/.exec(el.tagName) || [])[1]) || 2;
  return out;
}
