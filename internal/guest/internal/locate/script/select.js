// The selector engine: CSS with extensions, text, xpath, role, label and so on, joined by >>.
class SelectorError extends Error {}

// splitTop splits a text at a separator outside of quotes and brackets.
function splitTop(text, separator) {
  const parts = [];
  let depth = 0, quote = '', from = 0;
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (c === '\\') { i++; continue; }
    if (quote) { if (c === quote) quote = ''; continue; }
    if (c === '"' || c === "'" || c === '`') {
      // An apostrophe within a word is text.
      if (c === "'" && i && /\w/.test(text[i - 1]) && depth === 0) continue;
      quote = c;
    } else if (c === '(' || c === '[') depth++;
    else if (c === ')' || c === ']') depth = Math.max(0, depth - 1);
    else if (!depth && text.startsWith(separator, i)) {
      parts.push(text.slice(from, i));
      i += separator.length - 1;
      from = i + 1;
    }
  }
  parts.push(text.slice(from));
  return parts;
}

const engineName = /^\s*([a-zA-Z_][\w:-]*)\s*=/;
const engines = new Set([
  'css', 'text', 'xpath', 'role', 'nth', 'label', 'placeholder', 'alt', 'title', 'testid', 'data-testid',
  'data-test-id', 'data-test', 'id', 'visible', 'ref', 'aria-ref', 'has-text', 'has', 'name',
]);

function parseSelector(selector) {
  selector = String(selector).trim();
  if (!selector) throw new SelectorError('the selector is empty');
  if (/^(@|\[?ref=)?(f\d+)?e\d+\]?$/.test(selector)) return [{engine: 'ref', body: /(f\d+)?e\d+/.exec(selector)[0]}];
  return splitTop(selector, '>>').map((part) => {
    const text = part.trim();
    if (!text) throw new SelectorError('the selector "' + selector + '" has an empty part between >>');
    const m = engineName.exec(text);
    if (m && engines.has(m[1])) return {engine: m[1], body: text.slice(m[0].length).trim()};
    if (text.startsWith('//') || text.startsWith('..') || text.startsWith('(//')) return {engine: 'xpath', body: text};
    if (/^(["']).*\1$/.test(text) && text.length > 1) return {engine: 'text', body: text};
    return {engine: 'css', body: text};
  });
}

// matcher returns a predicate on text: "exact", /regex/flags, or a case-insensitive part.
function matcher(body, exactByDefault) {
  body = body.trim();
  const re = /^\/(.*)\/([a-z]*)$/s.exec(body);
  if (re) { const r = new RegExp(re[1], re[2].replace(/[gy]/g, '')); return (s) => r.test(squash(s)); }
  const quoted = /^(["'])(.*)\1(\s*[is])?$/s.exec(body);
  if (quoted) {
    const want = squash(quoted[2].replace(/\\(["'\\])/g, '$1'));
    if (quoted[3] && quoted[3].trim() === 'i') return (s) => squash(s).toLowerCase().includes(want.toLowerCase());
    return (s) => squash(s) === want;
  }
  const want = squash(body);
  if (exactByDefault) return (s) => squash(s) === want;
  return (s) => squash(s).toLowerCase().includes(want.toLowerCase());
}

// textOf returns the text for text selectors.
function textOf(el) {
  if (el.tagName === 'INPUT' && /^(submit|button|reset)$/.test(el.type)) return el.value;
  if (/^(SCRIPT|STYLE|NOSCRIPT|HEAD|TEMPLATE|TITLE)$/.test(el.tagName)) return '';
  let out = '';
  const nodes = el.shadowRoot ? [...el.shadowRoot.childNodes, ...el.childNodes] : el.childNodes;
  for (const node of nodes) {
    if (node.nodeType === 3) out += node.data;
    else if (node.nodeType === 1) out += node.tagName === 'BR' ? '\n' : textOf(node);
  }
  return out;
}

function byText(scope, test) {
  const found = [];
  // visit returns whether a descendant of the element matches.
  const visit = (el) => {
    if (/^(SCRIPT|STYLE|NOSCRIPT|HEAD|TEMPLATE)$/.test(el.tagName)) return false;
    let inner = false;
    const children = el.shadowRoot ? [...el.shadowRoot.children, ...el.children] : el.children;
    for (const child of children) if (visit(child)) inner = true;
    if (inner) return true;
    if (!test(textOf(el))) return false;
    found.push(el);
    return true;
  };
  for (const el of scope.nodeType === 1 ? [scope] : scope.children || []) visit(el);
  return scope.nodeType === 1 ? found : found;
}

// deepAll is querySelectorAll through open shadow roots.
function deepAll(scope, selector) {
  const roots = rootsOf(scope);
  let out = [];
  try {
    for (const root of roots) out.push(...root.querySelectorAll(selector));
  } catch {
    throw new SelectorError('"' + selector + '" is not a valid CSS selector');
  }
  return roots.length > 1 ? inOrder(out) : out;
}

// CSS: a list of complex selectors; each is compounds joined by combinators.
const custom = new Set(['has-text', 'text', 'text-is', 'text-matches', 'visible', 'nth-match', 'has', 'not', 'is', 'light', 'near']);

function parseCSS(text) {
  return splitTop(text, ',').map((one) => {
    const parts = []; // {combinator, native, tests}
    let combinator = ' ', native = '', tests = [], i = 0;
    const push = () => {
      if (native || tests.length) parts.push({combinator, native: native || '*', tests});
      native = ''; tests = [];
    };
    one = one.trim();
    if (!one) throw new SelectorError('"' + text + '" is not a valid CSS selector');
    while (i < one.length) {
      const c = one[i];
      if (/[\s>+~]/.test(c)) {
        let mark = ' ';
        while (i < one.length && /[\s>+~]/.test(one[i])) { if (one[i] !== ' ' && /\S/.test(one[i])) mark = one[i]; i++; }
        push();
        combinator = mark;
        continue;
      }
      if (c === '\\') { native += one.slice(i, i + 2); i += 2; continue; }
      if (c === '[') { const end = closing(one, i, '[', ']'); native += one.slice(i, end); i = end; continue; }
      const m = c === ':' && one[i + 1] !== ':' ? /^:([\w-]+)/.exec(one.slice(i)) : null;
      if (m) {
        let end = i + m[0].length, arg = null;
        if (one[end] === '(') { const close = closing(one, end, '(', ')'); arg = one.slice(end + 1, close - 1); end = close; }
        if (custom.has(m[1])) tests.push({name: m[1], arg});
        else native += one.slice(i, end);
        i = end;
        continue;
      }
      native += c;
      i++;
    }
    push();
    return parts;
  });
}

function closing(text, at, open, close) {
  let depth = 0, quote = '';
  for (let i = at; i < text.length; i++) {
    const c = text[i];
    if (c === '\\') { i++; continue; }
    if (quote) { if (c === quote) quote = ''; continue; }
    if (c === '"' || c === "'") quote = c;
    else if (c === open) depth++;
    else if (c === close && --depth === 0) return i + 1;
  }
  throw new SelectorError('"' + text + '" has an unclosed ' + open);
}

const argText = (arg) => matcher(/^["']/.test((arg || '').trim()) ? arg.trim().slice(1, -1) : arg || '');

function passes(el, test) {
  switch (test.name) {
    case 'visible': return isVisible(el);
    case 'light': return true;
    case 'has-text': return argText(test.arg)(textOf(el));
    case 'text': return argText(test.arg)(textOf(el)) && ![...el.children].some((c) => argText(test.arg)(textOf(c)));
    case 'text-is': return matcher(/^["']/.test(test.arg) ? test.arg : '"' + test.arg + '"')(textOf(el));
    case 'text-matches': {
      const [re, flags] = splitTop(test.arg, ',').map((s) => s.trim().replace(/^["']|["']$/g, ''));
      return new RegExp(re.replace(/\\\\/g, '\\'), flags || '').test(squash(textOf(el)));
    }
    case 'has': return splitTop(test.arg, ',').some((s) => runCSS(el, s.trim().replace(/^>/, ':scope >')).length > 0);
    case 'not': return !parseCSS(test.arg).some((parts) => matchesParts(el, parts, parts.length - 1, null));
    case 'is': return parseCSS(test.arg).some((parts) => matchesParts(el, parts, parts.length - 1, null));
  }
  throw new SelectorError('":' + test.name + '" cannot be used here');
}

function matchesParts(el, parts, i, scope) {
  const part = parts[i];
  try {
    if (part.native === ':scope' ? el !== scope : !el.matches(part.native)) return false;
  } catch {
    throw new SelectorError('"' + part.native + '" is not a valid CSS selector');
  }
  for (const test of part.tests) if (test.name !== 'nth-match' && !passes(el, test)) return false;
  if (i === 0) return true;
  switch (part.combinator) {
    case '>': {
      const up = upOf(el);
      return !!up && matchesParts(up, parts, i - 1, scope);
    }
    case '+': {
      const left = el.previousElementSibling;
      return !!left && matchesParts(left, parts, i - 1, scope);
    }
    case '~':
      for (let at = el.previousElementSibling; at; at = at.previousElementSibling) if (matchesParts(at, parts, i - 1, scope)) return true;
      return false;
  }
  for (let at = upOf(el); at; at = upOf(at)) if (matchesParts(at, parts, i - 1, scope)) return true;
  return false;
}

function runCSS(scope, text) {
  const complex = parseCSS(text);
  const found = new Set();
  for (const parts of complex) {
    const last = parts[parts.length - 1];
    const nth = last.tests.find((t) => t.name === 'nth-match');
    if (nth) {
      const args = splitTop(nth.arg, ',');
      const n = Number(args.pop());
      const list = runCSS(scope, args.join(','));
      if (list[n - 1]) found.add(list[n - 1]);
      continue;
    }
    const native = last.native === ':scope' ? '*' : last.native;
    for (const el of deepAll(scope, native)) if (matchesParts(el, parts, parts.length - 1, scope)) found.add(el);
  }
  const list = [...found];
  return complex.length > 1 ? inOrder(list) : list;
}

function runXPath(scope, body) {
  const out = [];
  try {
    const expression = scope.nodeType === 9 || !body.startsWith('/') ? body : '.' + body;
    const result = document.evaluate(expression, scope, null, XPathResult.ORDERED_NODE_SNAPSHOT_TYPE);
    for (let i = 0; i < result.snapshotLength; i++) if (result.snapshotItem(i).nodeType === 1) out.push(result.snapshotItem(i));
  } catch (e) {
    throw new SelectorError('"' + body + '" is not a valid XPath: ' + e.message);
  }
  return out;
}

function runRole(scope, body) {
  const m = /^([\w-]+)\s*/.exec(body);
  if (!m) throw new SelectorError('"role=' + body + '" has no role; use role=button[name="Save"]');
  const role = m[1], tests = [];
  let rest = body.slice(m[0].length).trim(), hidden = false;
  while (rest) {
    const a = /^\[\s*([\w-]+)\s*(?:=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\/(?:[^/\\]|\\.)*\/[a-z]*|[^\]\s]*)\s*([is])?)?\s*\]\s*/.exec(
      rest,
    );
    if (!a) throw new SelectorError('cannot read "' + rest + '" in "role=' + body + '"; write role=button[name="Save"]');
    rest = rest.slice(a[0].length);
    const [, key, value, flag] = a;
    if (key === 'name') {
      let test = matcher(value || '');
      if (flag === 'i' || !/^["'/]/.test(value || '')) {
        const want = squash((value || '').replace(/^["']|["']$/g, '')).toLowerCase();
        test = (s) => squash(s).toLowerCase().includes(want);
      }
      tests.push((el) => test(nameOf(el)));
    } else if (key === 'include-hidden') hidden = value !== 'false';
    else {
      const want =
        value === undefined || value === ''
          ? true
          : value === 'true'
            ? true
            : value === 'false'
              ? false
              : value.replace(/^["']|["']$/g, '');
      tests.push((el) => {
        const got = stateOf(el, role)[key];
        return String(got === undefined ? false : got) === String(want);
      });
    }
  }
  return deepAll(scope, '*').filter((el) => roleOf(el) === role && (hidden || !isHidden(el)) && tests.every((t) => t(el)));
}

function runLabel(scope, body) {
  const test = matcher(body);
  const out = new Set();
  for (const el of deepAll(scope, '*')) {
    if (el.getAttribute('aria-label') && test(el.getAttribute('aria-label'))) out.add(el);
    else if (el.hasAttribute('aria-labelledby') && test(byIds(el, 'aria-labelledby').map((r) => textOf(r)).join(' '))) out.add(el);
    else if (el.labels && [...el.labels].some((l) => test(textOf(l)))) out.add(el);
  }
  return [...out];
}

const byAttribute = (scope, name, body) => {
  const test = matcher(body);
  return deepAll(scope, '[' + name + ']').filter((el) => test(el.getAttribute(name)));
};
const byExact = (scope, name, body) => {
  const test = matcher(body, true);
  return deepAll(scope, '[' + name + ']').filter((el) => test(el.getAttribute(name)));
};

function runEngine(part, scope) {
  switch (part.engine) {
    case 'css': return runCSS(scope, part.body);
    case 'text': return byText(scope, matcher(part.body));
    case 'xpath': return runXPath(scope, part.body);
    case 'role': return runRole(scope, part.body);
    case 'label': return runLabel(scope, part.body);
    case 'placeholder': case 'alt': case 'title': return byAttribute(scope, part.engine, part.body);
    case 'testid': return byExact(scope, 'data-testid', part.body);
    case 'data-testid': case 'data-test-id': case 'data-test': case 'id': case 'name': return byExact(scope, part.engine, part.body);
    case 'ref': case 'aria-ref': { const el = refOf(part.body); return el ? [el] : []; }
  }
  throw new SelectorError('unknown selector engine "' + part.engine + '"');
}

// find returns {list}, or {frame, rest} if a part before the last is an iframe.
function find(selector) {
  const parts = typeof selector === 'string' ? parseSelector(selector) : selector;
  let list = [document];
  for (let i = 0; i < parts.length; i++) {
    const part = parts[i];
    switch (part.engine) {
      case 'nth': {
        const n = Number(part.body);
        if (!Number.isInteger(n)) throw new SelectorError('"nth=' + part.body + '" is not a whole number');
        const one = list[n < 0 ? list.length + n : n];
        list = one ? [one] : [];
        break;
      }
      case 'visible': list = list.filter((el) => isVisible(el) === (part.body !== 'false')); break;
      case 'has-text': { const test = matcher(part.body); list = list.filter((el) => test(textOf(el))); break; }
      case 'has': list = list.filter((el) => runCSS(el, part.body.replace(/^["']|["']$/g, '')).length > 0); break;
      default: {
        const frame = i && list.length ? list.find((el) => el.tagName === 'IFRAME' || el.tagName === 'FRAME') : null;
        if (frame) return {frame, rest: parts.slice(i)};
        const found = new Set();
        for (const scope of list) for (const el of runEngine(part, scope)) found.add(el);
        list = list.length > 1 ? inOrder([...found]) : [...found];
      }
    }
  }
  return {list: list.filter((el) => el !== document)};
}
