// Reads pages: text, elements, links, text search, Markdown.

// visibleText returns the visible text: innerText, and the text of shadow roots.
function visibleText() {
  const body = document.body || document.documentElement;
  if (!body) return '';
  if (rootsOf(document).length === 1) return body.innerText || '';
  let out = '';
  const newline = (n) => {
    out = out.replace(/[ \t]+$/, '');
    const have = /\n*$/.exec(out)[0].length;
    if (out) out += '\n'.repeat(Math.max(0, n - have));
  };
  const visit = (node) => {
    if (node.nodeType === 3) {
      const pre = node.parentElement && /^(pre|pre-wrap|break-spaces)/.test(styleOf(node.parentElement).whiteSpace);
      const text = pre ? node.data : node.data.replace(/\s+/g, ' ');
      out += !pre && /\s$/.test(out) ? text.replace(/^ /, '') : text;
      return;
    }
    if (node.nodeType !== 1 || /^(SCRIPT|STYLE|NOSCRIPT|TEMPLATE|HEAD|TITLE|TEXTAREA|SELECT|OPTION)$/.test(node.tagName)) return;
    const style = styleOf(node);
    if (style.display === 'none') return;
    if (node.tagName === 'BR') { out += '\n'; return; }
    const block = !/^(inline|contents|inline-block|inline-flex)/.test(style.display);
    if (block) newline(node.tagName === 'P' ? 2 : 1);
    if (style.visibility === 'visible' || node.children.length) for (const child of childrenOf(node)) visit(child);
    if (/^(TD|TH)$/.test(node.tagName)) out += '\t';
    if (block) newline(node.tagName === 'P' ? 2 : 1);
  };
  visit(body);
  return out.trim();
}

const childrenOf = (el) =>
  el.tagName === 'SLOT' && el.assignedNodes().length ? el.assignedNodes() : el.shadowRoot ? el.shadowRoot.childNodes : el.childNodes;

const interactive =
  'a[href],area[href],button,input:not([type=hidden]),select,textarea,summary,[contenteditable=""],[contenteditable=true],' +
  '[onclick],[tabindex]:not([tabindex="-1"]),[role=button],[role=link],[role=checkbox],[role=radio],[role=switch],[role=tab],' +
  '[role=option],[role=menuitem],[role=menuitemcheckbox],[role=menuitemradio],[role=combobox],[role=textbox],' +
  '[role=searchbox],[role=slider],[role=spinbutton],[role=treeitem],video[controls],audio[controls]';

function listElements() {
  const out = [];
  const seen = new Set();
  for (const el of deepAll(document, '*')) {
    let fits = el.matches(interactive);
    // Elements that react to the pointer without markup for it.
    if (!fits && el.nodeType === 1 && styleOf(el).cursor === 'pointer') {
      const up = upOf(el);
      fits = (!up || styleOf(up).cursor !== 'pointer') && el.tagName !== 'LABEL' && el.tagName !== 'BODY' && el.tagName !== 'HTML';
    }
    if (!fits || seen.has(el) || !isVisible(el)) continue;
    seen.add(el);
    const role = roleOf(el);
    const state = stateOf(el, role);
    const one = {
      id: hold(el),
      tag: el.tagName.toLowerCase(),
      text: shorten(
        squash(
          el.tagName === 'SELECT'
            ? [...el.selectedOptions].map((o) => o.label).join(', ')
            : el.tagName === 'INPUT' || el.tagName === 'TEXTAREA'
              ? /^(submit|button|reset)$/.test(el.type)
                ? el.value
                : ''
              : el.innerText || el.textContent,
        ),
        200,
      ),
      role,
      name: shorten(nameOf(el), 200),
      href: typeof el.href === 'string' ? el.href : null,
      placeholder: el.getAttribute('placeholder'),
      type: el.getAttribute('type') || (el.tagName === 'INPUT' ? 'text' : null),
      value: valueOf(el), bounding_box: boxOf(el), is_visible: true,
      is_enabled: !isDisabled(el),
      checked: state.checked === undefined ? null : state.checked === true,
      selector: uniqueSelector(el),
    };
    out.push(one);
    if (out.length >= 5000) break;
  }
  return out;
}

function valueOf(el) {
  if (el.tagName === 'SELECT') return el.value;
  if (el.tagName === 'TEXTAREA') return shorten(el.value, 1000);
  if (el.tagName === 'INPUT' && !/^(checkbox|radio|submit|button|reset|image|file)$/.test(el.type))
    return el.type === 'password' ? '•'.repeat(Math.min(8, el.value.length)) : shorten(el.value, 1000);
  return null;
}

const readLinks = () =>
  deepAll(document, 'a[href]')
    .filter(isVisible)
    .slice(0, 5000)
    .map((a) => ({text: shorten(squash(a.innerText || a.textContent) || nameOf(a), 200), href: a.href}));

function findText(keyword) {
  const want = squash(keyword).toLowerCase(), out = [];
  const hits = byText(document, (s) => squash(s).toLowerCase().includes(want));
  for (const el of hits) {
    if (!isVisible(el)) continue;
    const all = squash(textOf(el)), low = all.toLowerCase();
    for (let at = low.indexOf(want); at >= 0; at = low.indexOf(want, at + want.length)) {
      out.push({
        text: all.slice(at, at + want.length),
        context:
          (at > 60 ? '…' : '') + all.slice(Math.max(0, at - 60), at + want.length + 60) + (at + want.length + 60 < all.length ? '…' : ''),
        selector: uniqueSelector(el), bounding_box: boxOf(el),
      });
      if (out.length >= 500) return out;
    }
  }
  return out;
}

// Markdown of the readable content.
function toMarkdown() {
  const body = document.body;
  if (!body) return {title: document.title, markdown: ''};
  const root = mainContent(body);
  const write = (el, skip) => {
    const o = {skip, codes: []};
    const text = block(el, o).replace(/[ \t]+\n/g, '\n').replace(/\n{3,}/g, '\n\n').trim();
    return text.replace(/\u0001(\d+)\u0001/g, (_, i) => o.codes[i]);
  };
  const skip =
    root === body
      ? 'nav,aside,footer,[role=navigation],[role=contentinfo],[role=complementary],dialog:not([open])'
      : 'nav,[role=navigation]';
  let text = write(root, skip);
  if (text.length < 40) text = write(body, 'none') || text;
  return {title: document.title, markdown: text};
}

function mainContent(body) {
  const candidates = [...body.querySelectorAll('main,[role=main],article')].filter(isVisible);
  const size = (el) => (el.innerText || '').length;
  const best = candidates.sort((a, b) => size(b) - size(a))[0];
  return best && size(best) > size(body) * 0.3 ? best : body;
}

const escapeMD = (s) => s.replace(/([\\`*_\[\]])/g, '\\$1');

function inline(el, o) {
  let out = '';
  for (const node of childrenOf(el)) out += piece(node, o);
  return out;
}

function piece(node, o) {
  if (node.nodeType === 3) return escapeMD(node.data.replace(/\s+/g, ' '));
  if (node.nodeType !== 1) return '';
  if (/^(SCRIPT|STYLE|NOSCRIPT|TEMPLATE|IFRAME|OBJECT|HEAD)$/.test(node.tagName)) return '';
  if (node.matches(o.skip)) return '';
  const style = styleOf(node);
  if (style.display === 'none' || style.visibility === 'hidden') return '';
  switch (node.tagName) {
    case 'BR':
      return '\n';
    case 'B':
    case 'STRONG': {
      const t = inline(node, o).trim();
      return t ? '**' + t + '** ' : '';
    }
    case 'I':
    case 'EM': {
      const t = inline(node, o).trim();
      return t ? '*' + t + '* ' : '';
    }
    case 'DEL':
    case 'S': {
      const t = inline(node, o).trim();
      return t ? '~~' + t + '~~' : '';
    }
    case 'CODE':
    case 'KBD':
    case 'SAMP': {
      const t = node.textContent;
      return t ? (t.includes('`') ? '`` ' + t + ' ``' : '`' + t + '`') : '';
    }
    case 'A': {
      const t = inline(node, o).replace(/\s+/g, ' ').trim() || squash(nameOf(node));
      if (!t) return '';
      if (/^H[1-6]$|^(P|DIV|UL|TABLE)$/.test((node.firstElementChild || {}).tagName || '') && node.children.length > 1)
        return block(node, o);
      return node.href && !node.href.startsWith('javascript:')
        ? '[' + t + '](' + node.href.replace(/[()\s]/g, encodeURIComponent) + ')'
        : t;
    }
    case 'IMG':
      return node.alt && node.currentSrc && !node.currentSrc.startsWith('data:')
        ? '![' + escapeMD(squash(node.alt)) + '](' + node.currentSrc + ')'
        : '';
    case 'INPUT':
    case 'TEXTAREA':
    case 'SELECT':
      return '';
  }
  const display = style.display;
  if (/^inline-/.test(display) && !/^(UL|OL|TABLE|PRE)$/.test(node.tagName)) return ' ' + inline(node, o).trim() + ' ';
  if (/^(P|H[1-6]|UL|OL|TABLE|PRE|BLOCKQUOTE|HR|DL|FIGURE|LI)$/.test(node.tagName) || !/^(inline|contents)/.test(display))
    return '\n\n' + block(node, o) + '\n\n';
  return inline(node, o);
}

function block(el, o) {
  const one = () =>
    inline(el, o)
      .replace(/[ \t]+\n/g, '\n')
      .replace(/\n (?! )/g, '\n')
      .replace(/\n{3,}/g, '\n\n')
      .replace(/([^\n ]) +/g, '$1 ')
      .trim();
  switch (el.tagName) {
    case 'H1':
    case 'H2':
    case 'H3':
    case 'H4':
    case 'H5':
    case 'H6': {
      const t = one().replace(/\s+/g, ' ');
      return t ? '#'.repeat(Number(el.tagName[1])) + ' ' + t : '';
    }
    case 'HR':
      return '---';
    case 'PRE': {
      const code = el.querySelector('code') || el;
      const lang = (/(?:lang|language)-([\w+#-]+)/.exec(code.className + ' ' + el.className) || [])[1] || '';
      return '\u0001' + (o.codes.push('```' + lang + '\n' + el.textContent.replace(/\n+$/, '') + '\n```') - 1) + '\u0001';
    }
    case 'BLOCKQUOTE': return one().split('\n').map((l) => '> ' + l).join('\n');
    case 'UL': case 'OL': case 'MENU': {
      let n = Number(el.getAttribute('start') || 1);
      return [...el.children].filter((li) => li.tagName === 'LI').map((li) => {
        const mark = el.tagName === 'OL' ? n++ + '. ' : '- ';
        const t = inline(li, o).replace(/\n{2,}/g, '\n').trim();
        return t ? mark + t.split('\n').map((l, i) => (i ? '  ' + l : l)).join('\n') : '';
      }).filter(Boolean).join('\n');
    }
    case 'DL':
      return [...el.children]
        .map((c) => (c.tagName === 'DT' ? '**' + squash(inline(c, o)) + '**' : ': ' + squash(inline(c, o))))
        .join('\n');
    case 'TABLE':
      return table(el, o);
  }
  return one();
}

function table(el, o) {
  const rows = [...el.rows]
    .filter(isVisible)
    .map((row) => [...row.cells].map((c) => inline(c, o).replace(/\s+/g, ' ').trim().replace(/\|/g, '\\|')));
  if (!rows.length) return '';
  if (el.rows[0] && el.rows.length === 1 && rows[0].length === 1) return rows[0][0];
  const width = Math.max(...rows.map((r) => r.length));
  const line = (r) => '| ' + Array.from({length: width}, (_, i) => r[i] || '').join(' | ') + ' |';
  const head = [...el.rows][0] && [...el.rows[0].cells].some((c) => c.tagName === 'TH') ? rows.shift() : Array(width).fill('');
  return [line(head), '|' + ' --- |'.repeat(width), ...rows.map(line)].join('\n');
}

// Storage of an origin, for saving and loading state.
async function readStorage() {
  const items = (s) => { try { return Object.keys(s).map((name) => ({name, value: s.getItem(name)})); } catch { return []; } };
  let local = [], session = [];
  try { local = items(localStorage); session = items(sessionStorage); } catch { /* a page without an origin */ }
  let databases = [];
  try { databases = await readDatabases(); } catch { /* a page without an origin */ }
  return {origin: location.origin, localStorage: local, sessionStorage: session, indexedDB: databases};
}

const request = (r) =>
  new Promise((done, fail) => {
    r.onsuccess = () => done(r.result);
    r.onerror = () => fail(r.error);
    r.onblocked = () => fail(new Error('blocked'));
  });

async function readDatabases() {
  const out = [];
  for (const info of await indexedDB.databases()) {
    const db = await request(indexedDB.open(info.name));
    const stores = [];
    const names = [...db.objectStoreNames];
    if (names.length) {
      const tx = db.transaction(names, 'readonly');
      for (const name of names) {
        const store = tx.objectStore(name);
        const [keys, values] = await Promise.all([request(store.getAllKeys()), request(store.getAll())]);
        stores.push({
          name,
          keyPath: store.keyPath,
          autoIncrement: store.autoIncrement,
          indexes: [...store.indexNames].map((n) => {
            const x = store.index(n);
            return {name: n, keyPath: x.keyPath, multiEntry: x.multiEntry, unique: x.unique};
          }),
          records: keys.map((key, i) => ({key: pack(key), value: pack(values[i])})),
        });
      }
    }
    out.push({name: info.name, version: info.version, stores});
    db.close();
  }
  return out;
}

async function writeStorage(data, session) {
  for (const {name, value} of data.localStorage || []) localStorage.setItem(name, value);
  if (session) for (const {name, value} of data.sessionStorage || []) sessionStorage.setItem(name, value);
  for (const d of data.indexedDB || []) {
    await request(indexedDB.deleteDatabase(d.name));
    const open = indexedDB.open(d.name, d.version);
    open.onupgradeneeded = () => {
      for (const s of d.stores) {
        const store = open.result.createObjectStore(s.name, {keyPath: s.keyPath ?? null, autoIncrement: s.autoIncrement});
        for (const x of s.indexes) store.createIndex(x.name, x.keyPath, {unique: x.unique, multiEntry: x.multiEntry});
      }
    };
    const db = await request(open);
    for (const s of d.stores) {
      if (!s.records.length) continue;
      const tx = db.transaction(s.name, 'readwrite');
      const store = tx.objectStore(s.name);
      for (const r of s.records)
        s.keyPath === null || s.keyPath === undefined ? store.put(unpack(r.value), unpack(r.key)) : store.put(unpack(r.value));
      await new Promise((done, fail) => {
        tx.oncomplete = done;
        tx.onerror = tx.onabort = () => fail(tx.error);
      });
    }
    db.close();
  }
  return true;
}

// pack converts values of IndexedDB to JSON; unpack reverses it.
function pack(v) {
  if (v === undefined) return {$: 'undefined'};
  if (typeof v === 'bigint') return {$: 'bigint', v: String(v)};
  if (typeof v === 'number' && !Number.isFinite(v)) return {$: 'number', v: String(v)};
  if (v === null || typeof v !== 'object') return v;
  if (v instanceof Date) return {$: 'date', v: v.getTime()};
  if (v instanceof ArrayBuffer || ArrayBuffer.isView(v)) {
    const bytes = new Uint8Array(v.buffer || v, v.byteOffset || 0, v.byteLength);
    let s = '';
    for (const b of bytes) s += String.fromCharCode(b);
    return {$: v.constructor.name, v: btoa(s)};
  }
  if (v instanceof Map) return {$: 'map', v: [...v].map(([k, x]) => [pack(k), pack(x)])};
  if (v instanceof Set) return {$: 'set', v: [...v].map(pack)};
  if (v instanceof RegExp) return {$: 'regexp', v: v.source, f: v.flags};
  if (Array.isArray(v)) return v.map(pack);
  return {$: 'object', v: Object.fromEntries(Object.entries(v).map(([k, x]) => [k, pack(x)]))};
}

function unpack(v) {
  if (v === null || typeof v !== 'object') return v;
  if (Array.isArray(v)) return v.map(unpack);
  switch (v.$) {
    case 'undefined': return undefined;
    case 'bigint': return BigInt(v.v);
    case 'number': return Number(v.v);
    case 'date': return new Date(v.v);
    case 'map': return new Map(v.v.map(([k, x]) => [unpack(k), unpack(x)]));
    case 'set': return new Set(v.v.map(unpack));
    case 'regexp': return new RegExp(v.v, v.f);
    case 'object': return Object.fromEntries(Object.entries(v.v).map(([k, x]) => [k, unpack(x)]));
  }
  const bytes = Uint8Array.from(atob(v.v), (c) => c.charCodeAt(0));
  return v.$ === 'ArrayBuffer' ? bytes.buffer : new globalThis[v.$](bytes.buffer);
}
