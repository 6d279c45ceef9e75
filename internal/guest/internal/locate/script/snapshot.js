// The accessibility snapshot: a compact tree for language models. The reference of an element never changes.
const refs = new Map(); // reference → WeakRef
const refNames = new WeakMap();
let lastRef = 0;

function refFor(el, prefix) {
  let name = refNames.get(el);
  if (!name) {
    name = prefix + 'e' + ++lastRef;
    refNames.set(el, name);
    refs.set(name, new WeakRef(el));
  }
  return name;
}

function refOf(name) {
  const weak = refs.get(name), el = weak && weak.deref();
  if (el && el.isConnected) return el;
  refs.delete(name);
  return null;
}

const acting = new Set([
  'button', 'link', 'checkbox', 'radio', 'switch', 'textbox', 'searchbox', 'combobox', 'listbox', 'slider',
  'spinbutton', 'tab', 'menuitem', 'menuitemcheckbox', 'menuitemradio', 'option', 'treeitem', 'gridcell',
]);
const plain = new Set([
  '', 'generic', 'presentation', 'paragraph', 'emphasis', 'strong', 'code', 'rowgroup', 'time', 'mark', 'document',
  'term', 'definition', 'none', 'caption',
]);

function snapshot(prefix, urls) {
  const lines = [], frames = [];
  let size = 0;
  const emit = (depth, text) => {
    if (size > 400000) return;
    size += text.length;
    lines.push(' '.repeat(depth) + text);
  };
  // collect returns the descendants of an element: texts and nodes without wrappers.
  const collect = (el, out) => {
    for (const node of childrenOf(el)) {
      if (node.nodeType === 3) {
        const text = node.data.replace(/\s+/g, ' ');
        if (text.trim() || (out.length && typeof out[out.length - 1] === 'string')) {
          if (out.length && typeof out[out.length - 1] === 'string') out[out.length - 1] += text;
          else out.push(text);
        }
        continue;
      }
      if (node.nodeType !== 1 || /^(SCRIPT|STYLE|NOSCRIPT|TEMPLATE|HEAD|META|LINK)$/.test(node.tagName)) continue;
      if (node.getAttribute('aria-hidden') === 'true' || node.inert) continue;
      const style = styleOf(node);
      if (style.display === 'none') continue;
      if (node.tagName === 'BR') { out.push(' '); continue; }
      const role = roleOf(node);
      const shown = style.visibility === 'visible';
      const clickable =
        acting.has(role) ||
        (plain.has(role) &&
          (node.hasAttribute('onclick') ||
            (node.tabIndex >= 0 && node.hasAttribute('tabindex')) ||
            (style.cursor === 'pointer' && pointerStarts(node))));
      if ((plain.has(role) && !clickable) || !shown) {
        const block = !/^(inline|contents)/.test(style.display);
        if (block) out.push('\n');
        collect(node, out);
        if (block) out.push('\n');
        continue;
      }
      if (node.tagName === 'OPTION') continue;
      out.push({el: node, role: role || 'clickable'});
    }
    return out;
  };
  const texts = (s) => s.replace(/\s+/g, ' ').trim();
  const tidy = (parts) => {
    const out = [];
    let fresh = true;
    for (const p of parts) {
      if (p === '\n') { fresh = true; continue; }
      if (typeof p !== 'string') { out.push(p); fresh = true; continue; }
      if (!p.trim()) continue;
      if (!fresh && out.length && typeof out[out.length - 1] === 'string') out[out.length - 1] += ' ' + texts(p);
      else out.push(texts(p));
      fresh = false;
    }
    return out;
  };
  const visit = (part, depth) => {
    const {el, role} = part;
    if (role === 'iframe') {
      emit(depth, 'iframe' + (nameOf(el) ? ' ' + JSON.stringify(shorten(nameOf(el), 100)) : ''));
      frames.push({id: hold(el), line: lines.length, depth: depth + 1});
      return;
    }
    const parts = tidy(collect(el, []));
    let name = nameOf(el);
    if (role === 'clickable' && !name) name = shorten(texts(parts.filter((p) => typeof p === 'string').join(' ')), 200);
    const only = parts.every((p) => typeof p === 'string');
    const interactiveHere = acting.has(role) || role === 'clickable';
    if (
      role === 'row' &&
      parts.length &&
      parts.every((p) => typeof p === 'string' || /^(cell|columnheader|rowheader|gridcell)$/.test(p.role))
    ) {
      const cells = parts.map((p) => (typeof p === 'string' ? {text: p} : {p, inner: tidy(collect(p.el, []))}));
      if (cells.every((c) => c.text !== undefined || c.inner.every((i) => typeof i === 'string'))) {
        emit(depth, 'row ' + cells.map((c) => c.text ?? c.inner.join(' ')).join(' | '));
        return;
      }
    }
    if (role === 'listitem' && only) {
      if (parts.length) emit(depth, '- ' + parts.join(' '));
      return;
    }
    if (/^(cell|gridcell|columnheader|rowheader)$/.test(role) && only && !(role === 'gridcell' && el.tabIndex >= 0)) {
      emit(depth, role + (parts.length ? ' ' + parts.join(' ') : ''));
      return;
    }
    if (role === 'img' && !name) return;
    let line = role === 'clickable' ? 'click' : role === 'listitem' ? '-' : role;
    const state = stateOf(el, role);
    if (role === 'heading') line = 'h' + state.level;
    if (name)
      line += ' ' + (interactiveHere || role === 'heading' || role === 'img' ? quote(shorten(name, 300)) : quote(shorten(name, 100)));
    if (interactiveHere) line += ' @' + refFor(el, prefix);
    for (const key of ['checked', 'pressed', 'selected', 'expanded', 'disabled']) {
      if (state[key] === true) line += ' ' + key;
      else if (state[key] === 'mixed') line += ' ' + key + '=mixed';
      else if (state[key] === false && key === 'expanded') line += ' collapsed';
    }
    if (el === document.activeElement && el !== document.body) line += ' focused';
    const value = valueOf(el);
    if (value && role !== 'button')
      line += ' = ' + quote(shorten(el.tagName === 'SELECT' ? [...el.selectedOptions].map((o) => o.label).join(', ') : value, 300));
    else if (el.getAttribute('placeholder') && name !== squash(el.getAttribute('placeholder')))
      line += ' placeholder ' + quote(el.getAttribute('placeholder'));
    if (el.tagName === 'SELECT' && el.options.length <= 30) line += ' of ' + [...el.options].map((o) => quote(squash(o.label))).join(' ');
    if (urls && role === 'link') line += ' ' + el.getAttribute('href');
    const rest = parts.filter((p) => typeof p !== 'string' || !inName(p, name));
    const inner = rest.filter((p) => typeof p !== 'string');
    if (/^(list|table|paragraph)$/.test(role) && !name && depth >= 0 && role === 'list') {
      for (const p of rest) typeof p === 'string' ? emit(depth, p) : visit(p, depth);
      return;
    }
    if (el.tagName === 'SELECT' || role === 'img' || el.tagName === 'TEXTAREA') { emit(depth, line); return; }
    if (role === 'heading' && !inner.length) { emit(depth, line); return; }
    if (interactiveHere && !inner.length) { emit(depth, line); return; }
    if (!interactiveHere && rest.length === 1 && typeof rest[0] === 'string') { emit(depth, line + ': ' + rest[0]); return; }
    if (!rest.length && !name && !interactiveHere) { return; }
    emit(depth, line);
    for (const p of rest) typeof p === 'string' ? emit(depth + 1, p) : visit(p, depth + 1);
  };
  const quote = (s) => '"' + s.replace(/"/g, "'") + '"';
  const inName = (text, name) => name && squash(name).includes(squash(text));
  const body = document.body || document.documentElement;
  if (body) for (const p of tidy(collect(body, []))) typeof p === 'string' ? emit(0, p) : visit(p, 0);
  return {lines, frames};
}

function pointerStarts(el) {
  const up = upOf(el);
  return (!up || styleOf(up).cursor !== 'pointer') && el.tagName !== 'LABEL' && el.tagName !== 'BODY' && el.tagName !== 'HTML';
}

// Detects captchas of common services.
const captchas = [
  [
    'recaptcha', 'iframe[src*="google.com/recaptcha"],iframe[src*="recaptcha.net/recaptcha"],.g-recaptcha,#g-recaptcha',
    'textarea[name="g-recaptcha-response"],#g-recaptcha-response',
  ],
  ['hcaptcha', 'iframe[src*="hcaptcha.com"],.h-captcha', 'textarea[name="h-captcha-response"]'],
  ['turnstile', 'iframe[src*="challenges.cloudflare.com"],.cf-turnstile', 'input[name="cf-turnstile-response"]'],
  ['cloudflare', '#challenge-form,#challenge-running,#cf-challenge-running,body.no-js #challenge-stage', ''],
  ['arkose', 'iframe[src*="arkoselabs.com"],iframe[src*="funcaptcha.com"],#FunCaptcha,#funcaptcha', 'input[name="fc-token"]'],
  ['geetest', '.geetest_holder,.geetest_captcha,.geetest_radar_tip', 'input[name="geetest_validate"]'],
  ['datadome', 'iframe[src*="captcha-delivery.com"]', ''],
  ['perimeterx', '#px-captcha', ''],
  ['awswaf', '#captcha-container awswaf-captcha,awswaf-captcha,iframe[src*="awswaf.com"]', ''],
  ['yandex', 'iframe[src*="smartcaptcha.yandexcloud.net"],.smart-captcha', 'input[name="smart-token"]'],
  ['tencent', 'iframe[src*="captcha.qq.com"],#tcaptcha_iframe,#tcaptcha_iframe_dy', ''],
  ['friendly', '.frc-captcha', 'input[name="frc-captcha-solution"]'],
  ['image', 'img[src*="captcha" i],img[id*="captcha" i],img[alt*="captcha" i],input[name*="captcha" i]:not([type=hidden])', ''],
];

function detectCaptcha() {
  for (const [type, where, token] of captchas) {
    const el = deepAll(document, where).find((e) => isVisible(e) || /^(DIV|FORM)$/.test(e.tagName) && !token && isVisible(e));
    if (!el) continue;
    const answer = token && deepAll(document, token).some((t) => t.value && t.value.length > 0 && !/^\./.test(t.value));
    if (answer) continue;
    return {
      detected: true, type, selector: uniqueSelector(el),
      site_key: el.getAttribute('data-sitekey') || (/[?&](?:k|sitekey)=([^&]+)/.exec(el.src || '') || [])[1] || null,
    };
  }
  return {detected: false, type: null, selector: null, site_key: null};
}

// drawNumbers draws the numbers of elements over the page, for models with vision.
function drawNumbers(list) {
  const layer = document.createElement('cove-numbers');
  layer.style.cssText =
    'position:fixed!important;inset:0!important;z-index:2147483647!important;pointer-events:none!important;display:block!important';
  for (const {id, n} of list) {
    const el = held.get(id);
    if (!el) continue;
    const r = el.getBoundingClientRect();
    if (r.bottom < 0 || r.top > innerHeight * 50 || !r.width) continue;
    const hue = (n * 67) % 360;
    const box = document.createElement('div');
    box.style.cssText =
      `position:absolute;left:${r.left}px;top:${r.top}px;width:${r.width}px;height:${r.height}px;` +
      `outline:2px solid hsl(${hue} 90% 40%);box-sizing:border-box`;
    const tag = document.createElement('span');
    tag.textContent = String(n);
    tag.style.cssText =
      `position:absolute;left:0;top:0;transform:translateY(${r.top > 14 ? '-100%' : '0'});` +
      `font:bold 11px/13px sans-serif;color:#fff;background:hsl(${hue} 90% 35%);padding:0 3px`;
    box.append(tag);
    layer.append(box);
  }
  document.documentElement.append(layer);
  return true;
}

function drawMasks(selectors, color) {
  const layer = document.createElement('cove-numbers');
  layer.style.cssText =
    'position:absolute!important;left:0!important;top:0!important;z-index:2147483647!important;' +
    'pointer-events:none!important;display:block!important';
  let n = 0;
  for (const s of selectors) {
    for (const el of find(s).list || []) {
      const r = el.getBoundingClientRect();
      const box = document.createElement('div');
      box.style.cssText =
        `position:absolute;left:${r.left + scrollX}px;top:${r.top + scrollY}px;` +
        `width:${r.width}px;height:${r.height}px;background:${color}`;
      layer.append(box);
      n++;
    }
  }
  document.documentElement.append(layer);
  return n;
}

function removeDrawings() {
  for (const el of document.querySelectorAll('cove-numbers')) el.remove();
  return true;
}

globalThis.cove = {
  prepare, arm, disarm, beginFill, choose, checkedOf, scrollState, scrollSettled, probe, contentOffset, coverOf,
  boxOf: (id) => boxOf(held.get(id)),
  held: (id) => held.get(id),
  hold, visibleText, listElements, readLinks, findText, toMarkdown, readStorage, writeStorage, snapshot, detectCaptcha,
  drawNumbers, drawMasks, removeDrawings,
  labelOf: (id) => {
    const l = held.get(id).labels;
    return l && l.length ? hold(l[0]) : 0;
  },
  isFileInput: (id) => held.get(id).tagName === 'INPUT' && held.get(id).type === 'file',
  afterFrame: async () => {
    await nextFrame();
    await nextFrame();
    return true;
  },
  describe: (id) => describe(held.get(id)),
  focus: (id) => held.get(id).focus(),
  unholdAll: () => held.clear(),
};
