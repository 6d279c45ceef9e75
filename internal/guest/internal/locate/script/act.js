// Prepares an element for an action: it must be visible, stable, enabled, in view, and receive events at its point.

function retarget(el, want) {
  if (want !== 'control') return el;
  if (el.tagName === 'LABEL' && el.control) return el.control;
  const label = !isEditable(el) && !el.isContentEditable ? closest(el, 'label') : null;
  return label && label.control ? label.control : el;
}

// resolve finds the element that a spec selects.
function resolve(spec) {
  if (spec.id) {
    const el = held.get(spec.id);
    return el && el.isConnected ? {el} : {s: 'stale'};
  }
  let found;
  try {
    found = find(spec.parts || spec.selector);
  } catch (e) {
    if (e instanceof SelectorError) return {s: 'bad', why: e.message};
    throw e;
  }
  if (found.frame) return {s: 'frame', id: hold(found.frame), rest: found.rest};
  let list = found.list;
  if (!list.length) return {s: 'none'};
  if (list.length > 1 && spec.strict) {
    const shown = list.filter(isVisible);
    if (shown.length !== 1)
      return {
        s: 'many',
        count: list.length,
        list: (shown.length ? shown : list).slice(0, 5).map((el) => describe(el) + '  ' + uniqueSelector(el)),
      };
    list = shown;
  }
  return {el: list[0]};
}

// pointOf returns the point to click: the center of the first visible part.
function pointOf(el) {
  const w = innerWidth, h = innerHeight;
  for (const r of el.getClientRects()) {
    const left = Math.max(0, r.left), right = Math.min(w, r.right), top = Math.max(0, r.top), bottom = Math.min(h, r.bottom);
    if (right - left >= 1 && bottom - top >= 1) return {x: (left + right) / 2, y: (top + bottom) / 2};
  }
  return null;
}

function hitAt(x, y) {
  let root = document, el = null;
  for (;;) {
    const inner = root.elementFromPoint(x, y);
    if (!inner || inner === el) return el;
    el = inner;
    if (!el.shadowRoot) return el;
    root = el.shadowRoot;
  }
}

// belongs reports whether an event at hit reaches el: hit is in el or in its label.
function belongs(hit, el) {
  if (!hit) return false;
  if (isWithin(hit, el)) return true;
  const label = closest(hit, 'label');
  if (label && label.control === el) return true;
  return el.tagName === 'LABEL' && el.control && isWithin(hit, el.control);
}

// topCover returns the outermost element that covers el at hit, such as an overlay.
function topCover(hit, el) {
  let top = hit;
  for (let at = hit; at; at = parentOf(at)) {
    if (isWithin(el, at)) break;
    top = at;
  }
  return top;
}

const scrolls = [
  {block: 'center', inline: 'center'},
  {block: 'end', inline: 'end'},
  {block: 'start', inline: 'start'},
  {block: 'nearest', inline: 'nearest'},
];

const sameBox = (a, b) => a.left === b.left && a.top === b.top && a.width === b.width && a.height === b.height;

// colours are the properties that an animation can change without moving elements, and the other entries of keyframes.
const colours = /^(opacity|visibility|filter|.*[cC]olor|background.*|.*[sS]hadow|fill.*|stroke.*|offset|computedOffset|easing|composite)$/;

// movers returns the animations that move el or one of its ancestors.
function movers(el) {
  const moves = (a) =>
    a.playState === 'running' &&
    a.effect &&
    a.effect.getKeyframes().some((frame) => Object.keys(frame).some((name) => !colours.test(name)));
  const found = [];
  for (let at = el; at; at = parentOf(at)) {
    if (at.getAnimations) found.push(...at.getAnimations().filter(moves));
  }
  return found;
}

// rests reports whether el keeps its position. Equal positions are not sufficient: an animation may wait for its first frame,
// frames may be far apart, and an alternating animation has the same position twice.
async function rests(el) {
  const before = el.getBoundingClientRect();
  const moved = () =>
    !sameBox(before, el.getBoundingClientRect()) || (undrawnSince && performance.now() - undrawnSince < maxUndrawn && movers(el).length);
  await nextFrame();
  if (moved()) return false;
  const now = movers(el);
  if (!now.length) return true;
  if (now.some((a) => a.pending)) return false;
  await nextFrame();
  return !moved();
}

// judge checks an element once. It returns null if the action can start, otherwise the reason.
async function judge(el, spec, round) {
  const need = new Set(spec.need);
  const no = (why, by) => ({s: 'wait', why, what: describe(el), by: by ? describe(by) : ''});
  if (!el.isConnected) return no('not attached to the document');
  if (need.has('visible') && !isVisible(el)) return no('not visible');
  if (need.has('stable')) {
    const still = await rests(el);
    if (!el.isConnected) return no('not attached to the document');
    if (!still) return no('not stable: it moves or changes its size');
  }
  if (need.has('enabled') && isDisabled(el)) return no('not enabled');
  if (need.has('editable') && isReadOnly(el)) return no('not editable: it is read-only');
  if (!need.has('view')) return null;
  let point = pointOf(el);
  if (round || !point || !inView(el)) {
    el.scrollIntoView({...scrolls[round % scrolls.length], behavior: 'instant'});
    if (need.has('stable') && !await rests(el)) return no('not stable: it moves or changes its size');
    point = pointOf(el);
  }
  if (!point) return no('outside of the viewport, and cannot be scrolled into it');
  if (spec.at) {
    const r = el.getBoundingClientRect();
    point = {x: r.left + spec.at.x, y: r.top + spec.at.y};
  }
  if (need.has('hit')) {
    const hit = hitAt(point.x, point.y);
    if (!belongs(hit, el)) return no('covered by another element', topCover(hit, el));
  }
  spec.point = point;
  return null;
}

function inView(el) {
  const r = el.getClientRects()[0];
  if (!r) return false;
  let box = {
    left: Math.max(0, r.left),
    top: Math.max(0, r.top),
    right: Math.min(innerWidth, r.right),
    bottom: Math.min(innerHeight, r.bottom),
  };
  for (let at = parentOf(el); at; at = parentOf(at)) {
    const style = styleOf(at);
    if (
      /(auto|scroll|hidden|clip)/.test(style.overflow + style.overflowX + style.overflowY) &&
      at !== document.documentElement &&
      at !== document.body
    ) {
      const p = at.getBoundingClientRect();
      box = {
        left: Math.max(box.left, p.left),
        top: Math.max(box.top, p.top),
        right: Math.min(box.right, p.right),
        bottom: Math.min(box.bottom, p.bottom),
      };
    }
  }
  const cx = (r.left + r.right) / 2,
    cy = (r.top + r.bottom) / 2;
  return (
    cx >= box.left && cx <= box.right && cy >= box.top && cy <= box.bottom && cx < innerWidth && cy < innerHeight && cx >= 0 && cy >= 0
  );
}

// prepare waits up to spec.patience milliseconds until the element is ready.
async function prepare(spec) {
  const end = performance.now() + spec.patience;
  let last = {s: 'none'};
  for (let round = spec.round || 0; ; round++) {
    const r = resolve(spec);
    if (r.el) {
      const el = retarget(r.el, spec.retarget);
      const why = await judge(el, spec, why0(last) ? round : spec.round || 0);
      if (!why) return {s: 'ok', id: hold(el), ...spec.point, box: boxOf(el), tag: el.tagName.toLowerCase(), what: describe(el)};
      last = why;
    } else if (r.s === 'none' && !spec.id) last = r;
    else return r;
    if (performance.now() >= end) return last;
    await nextFrame();
  }
}

// why0 reports whether another way of scrolling could help.
const why0 = (last) => last.s === 'wait' && /covered|viewport/.test(last.why);

function boxOf(el) {
  const r = el.getBoundingClientRect();
  return {x: r.x, y: r.y, width: r.width, height: r.height};
}

// arm checks the trusted events of the next action. The first one decides whether all of them pass or are stopped.
function arm(id, move) {
  const el = held.get(id);
  const state = {el, seen: false, by: null};
  coveBoot.listen();
  coveBoot.state = state;
  coveBoot.guard = (e) => {
    if (!e.isTrusted) return;
    const moving = e.type === 'pointermove' || e.type === 'mousemove';
    if (moving !== move && moving) return;
    if (!state.seen) {
      state.seen = true;
      const hit = e.composedPath()[0];
      if (el && !belongs(hit.nodeType === 1 ? hit : null, el)) state.by = topCover(hit, el);
    }
    if (state.by && !moving) {
      e.preventDefault();
      e.stopImmediatePropagation();
    }
  };
}

function disarm() {
  const state = coveBoot.state;
  coveBoot.guard = coveBoot.state = null;
  if (!state) return {seen: true, over: true, by: ''};
  return {seen: state.seen, over: !state.el?.isConnected || state.el.matches(':hover'), by: state.by ? describe(state.by) : ''};
}

// contentOffset returns the position of the content of an iframe, and its scale.
function contentOffset(id) {
  const el = held.get(id), r = el.getBoundingClientRect(), style = styleOf(el);
  const sx = el.offsetWidth ? r.width / el.offsetWidth : 1, sy = el.offsetHeight ? r.height / el.offsetHeight : 1;
  return {
    x: r.left + (el.clientLeft + parseFloat(style.paddingLeft || 0)) * sx,
    y: r.top + (el.clientTop + parseFloat(style.paddingTop || 0)) * sy,
    sx, sy,
  };
}

// covers describes what covers an iframe at a point, if anything.
function coverOf(id, x, y) {
  const el = held.get(id), hit = hitAt(x, y);
  return belongs(hit, el) ? '' : describe(topCover(hit, el));
}

const insertTypes = /^(|text|email|password|search|tel|url|number)$/;

// beginFill prepares a field for text, or sets the value of a field with a picker.
function beginFill(id, value) {
  const el = held.get(id);
  if (!el || !el.isConnected) return {s: 'stale'};
  if (el.tagName === 'INPUT') {
    const type = el.getAttribute('type') ? el.type : 'text';
    if (!insertTypes.test(type)) {
      if (/^(checkbox|radio)$/.test(type))
        return {s: 'bad', why: 'an input of type "' + type + '" cannot be filled; use check, uncheck or click'};
      if (/^(file|submit|button|reset|image|hidden)$/.test(type))
        return {s: 'bad', why: 'an input of type "' + type + '" cannot be filled' + (type === 'file' ? '; use upload_file' : '')};
      el.focus();
      const want = type === 'color' ? value.trim().toLowerCase() : value.trim();
      el.value = want;
      if (el.value !== want && !(type === 'range' && Number(el.value) === Number(want)))
        return {s: 'bad', why: 'the ' + type + ' field does not accept "' + value + '"; ' + formats[type]};
      el.dispatchEvent(new Event('input', {bubbles: true, composed: true}));
      el.dispatchEvent(new Event('change', {bubbles: true}));
      return {s: 'done'};
    }
    if (type === 'number' && value.trim() !== '' && isNaN(Number(value)))
      return {s: 'bad', why: 'the number field does not accept "' + value + '"'};
    el.focus();
    el.select();
    return {s: 'insert'};
  }
  if (el.tagName === 'TEXTAREA') { el.focus(); el.select(); return {s: 'insert'}; }
  if (el.isContentEditable) {
    el.focus();
    const range = document.createRange();
    range.selectNodeContents(el);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    return {s: 'insert'};
  }
  if (el.tagName === 'SELECT') return {s: 'bad', why: 'a <select> cannot be filled; use select_option'};
  return {s: 'bad', why: describe(el) + ' is not an input, textarea or editable element'};
}

const formats = {
  date: 'use YYYY-MM-DD', time: 'use HH:MM', 'datetime-local': 'use YYYY-MM-DDTHH:MM', month: 'use YYYY-MM',
  week: 'use YYYY-Www', color: 'use #rrggbb', range: 'use a number within its limits',
};

// choose selects options by value, label or index.
function choose(id, wants) {
  const el = held.get(id);
  if (!el || !el.isConnected) return {s: 'stale'};
  if (el.tagName !== 'SELECT') return {s: 'bad', why: describe(el) + ' is not a <select>; click it and then its option'};
  const options = [...el.options], chosen = [];
  if (wants.length > 1 && !el.multiple) return {s: 'bad', why: 'the <select> accepts only one option'};
  for (const w of wants) {
    const o = options.find((o, i) =>
      w.index !== undefined
        ? i === w.index
        : w.label !== undefined
          ? squash(o.label) === squash(w.label)
          : o.value === w.value || squash(o.label) === squash(w.value),
    );
    if (!o)
      return {
        s: 'wait',
        why: 'without the option ' + JSON.stringify(w.value ?? w.label ?? w.index),
        what: describe(el),
        by: 'options: ' + shorten(options.map((o) => JSON.stringify(squash(o.label))).join(', '), 300),
      };
    if (isDisabled(o))
      return {s: 'wait', why: 'with the option ' + JSON.stringify(squash(o.label)) + ' disabled', what: describe(el), by: ''};
    chosen.push(o);
  }
  el.focus();
  const before = [...el.selectedOptions];
  for (const o of options) if (el.multiple || chosen.length === 0) o.selected = chosen.includes(o);
  if (!el.multiple && chosen.length) chosen[0].selected = true;
  const after = [...el.selectedOptions];
  el.dispatchEvent(new Event('input', {bubbles: true, composed: true}));
  el.dispatchEvent(new Event('change', {bubbles: true}));
  return {s: 'done', values: after.map((o) => o.value), changed: before.length !== after.length || before.some((o, i) => o !== after[i])};
}

function checkedOf(id) {
  const el = held.get(id);
  if (!el) return null;
  if (el.tagName === 'INPUT' && /^(checkbox|radio)$/.test(el.type)) return {checked: el.checked, radio: el.type === 'radio'};
  const aria = el.getAttribute('aria-checked');
  return aria === null ? null : {checked: aria === 'true', radio: el.getAttribute('role') === 'radio'};
}

// scroller returns the nearest ancestor of el that can scroll in a direction, or the page.
function scroller(el, dx, dy) {
  const page = document.scrollingElement || document.documentElement;
  for (let at = el; at && at !== page && at !== document.body; at = parentOf(at)) {
    const style = styleOf(at);
    if (dy && /(auto|scroll)/.test(style.overflowY) && at.scrollHeight > at.clientHeight) return at;
    if (dx && /(auto|scroll)/.test(style.overflowX) && at.scrollWidth > at.clientWidth) return at;
  }
  return page;
}

function scrollState(id, x, y, dx, dy) {
  const at = scroller(id ? held.get(id) : hitAt(x, y), dx, dy);
  return {
    id: hold(at),
    x: at.scrollLeft,
    y: at.scrollTop,
    room:
      dy > 0
        ? at.scrollHeight - at.clientHeight - at.scrollTop > 1
        : dy < 0
          ? at.scrollTop > 0
          : dx > 0
            ? at.scrollWidth - at.clientWidth - at.scrollLeft > 1
            : at.scrollLeft > 0,
  };
}

// scrollSettled waits until a scroller has stopped, and scrolls it if the wheel did not move it.
async function scrollSettled(id, from, dx, dy) {
  const el = held.get(id);
  let x = el.scrollLeft, y = el.scrollTop, still = 0;
  for (let i = 0; i < 120 && still < 3; i++) {
    await nextFrame();
    still = el.scrollLeft === x && el.scrollTop === y ? still + 1 : 0;
    x = el.scrollLeft; y = el.scrollTop;
    if (still === 3 && from.room && x === from.x && y === from.y && i < 12) still = 0; // the wheel event may arrive later
  }
  if (from.room && el.scrollLeft === from.x && el.scrollTop === from.y) el.scrollBy({left: dx, top: dy, behavior: 'instant'});
  return {x: el.scrollLeft, y: el.scrollTop, at_end: el.scrollTop + el.clientHeight >= el.scrollHeight - 1};
}

// probe returns the state of a selector.
function probe(selector, parts) {
  const r = resolve({selector, parts, strict: false});
  if (!r.el) return r;
  return {s: 'ok', visible: isVisible(r.el), what: describe(r.el)};
}

function uniqueSelector(el) {
  const root = el.getRootNode();
  const only = (s) => { try { return root.querySelectorAll(s).length === 1; } catch { return false; } };
  const pick = (e) => {
    const tag = e.tagName.toLowerCase();
    if (e.id && only('#' + CSS.escape(e.id))) return '#' + CSS.escape(e.id);
    for (const a of ['data-testid', 'name', 'aria-label', 'placeholder', 'href', 'title']) {
      const v = e.getAttribute(a);
      if (v && v.length < 80) { const s = tag + '[' + a + '=' + JSON.stringify(v) + ']'; if (only(s)) return s; }
    }
    return '';
  };
  let path = pick(el);
  if (path) return hostPath(root, path);
  const steps = [];
  for (let at = el; at && at.nodeType === 1; at = at.parentElement) {
    const known = at !== el && pick(at);
    if (known) { steps.unshift(known); break; }
    const tag = at.tagName.toLowerCase();
    const same = at.parentElement ? [...at.parentElement.children].filter((c) => c.tagName === at.tagName) : [at];
    steps.unshift(same.length > 1 ? tag + ':nth-of-type(' + (same.indexOf(at) + 1) + ')' : tag);
    if (only(steps.join(' > '))) break;
  }
  return hostPath(root, steps.join(' > '));
}

const hostPath = (root, path) => (root.host ? uniqueSelector(root.host) + ' ' + path : path);
