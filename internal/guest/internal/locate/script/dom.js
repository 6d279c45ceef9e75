// Shared functions: traversal of the composed tree, visibility, descriptions, held elements.
const squash = (s) => (s || '').replace(/[\u200b\u00ad]/g, '').replace(/\s+/g, ' ').trim();
const shorten = (s, n) => (s.length > n ? s.slice(0, n - 1) + '…' : s);

// parentOf returns the parent in the composed tree: the slot of a slotted element, the host of a shadow root.
function parentOf(el) {
  if (el.assignedSlot) return el.assignedSlot;
  if (el.parentElement) return el.parentElement;
  const root = el.parentNode;
  return root && root.host ? root.host : null;
}

// upOf returns the parent for selectors: light children belong to their host, not to its slots.
function upOf(el) {
  if (el.parentElement) return el.parentElement;
  const root = el.parentNode;
  return root && root.host ? root.host : null;
}

function isWithin(el, outer) {
  for (let at = el; at; at = parentOf(at)) if (at === outer) return true;
  for (let at = el; at; at = upOf(at)) if (at === outer) return true;
  return false;
}

function closest(el, selector) {
  for (let at = el; at; at = upOf(at)) if (at.matches(selector)) return at;
  return null;
}

// rootsOf lists a root and all open shadow roots in it.
function rootsOf(root) {
  const roots = [root];
  for (let i = 0; i < roots.length; i++) {
    if (roots[i].shadowRoot) roots.push(roots[i].shadowRoot);
    for (const el of roots[i].querySelectorAll('*')) if (el.shadowRoot) roots.push(el.shadowRoot);
  }
  return roots;
}

// inOrder sorts elements by their position in the composed document.
function inOrder(list) {
  const path = (el) => {
    const out = [];
    for (let at = el; at; at = upOf(at)) out.unshift(at);
    return out;
  };
  const known = new Map(list.map((el) => [el, path(el)]));
  return list.sort((a, b) => {
    const p = known.get(a), q = known.get(b);
    let i = 0;
    while (i < p.length && i < q.length && p[i] === q[i]) i++;
    if (i === p.length || i === q.length) return p.length - q.length;
    const x = p[i], y = q[i];
    if (x.getRootNode() !== y.getRootNode()) return x.getRootNode() instanceof ShadowRoot ? -1 : 1;
    return x.compareDocumentPosition(y) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1;
  });
}

const styleOf = (el) => getComputedStyle(el);

function isVisible(el) {
  if (!el.isConnected) return false;
  const style = styleOf(el);
  if (style.display === 'contents') {
    for (const child of el.childNodes) {
      if (child.nodeType === 1 && isVisible(child)) return true;
      if (child.nodeType === 3 && squash(child.data)) return true;
    }
    return false;
  }
  if (!el.checkVisibility({contentVisibilityAuto: false, visibilityProperty: true})) return false;
  if (el.tagName === 'OPTION' || el.tagName === 'OPTGROUP') return !!el.parentElement && isVisible(el.parentElement);
  const box = el.getBoundingClientRect();
  return box.width > 0 && box.height > 0;
}

const controls = /^(BUTTON|INPUT|SELECT|TEXTAREA|OPTION|OPTGROUP|FIELDSET)$/;

function isDisabled(el) {
  if (controls.test(el.tagName)) {
    if (el.disabled) return true;
    if (el.tagName === 'OPTION' && el.parentElement && el.parentElement.tagName === 'OPTGROUP' && el.parentElement.disabled) return true;
    const set = closest(upOf(el) || el, 'fieldset[disabled]');
    if (set && set !== el) {
      const legend = set.querySelector(':scope > legend');
      if (!legend || !legend.contains(el)) return true;
    }
  }
  for (let at = el; at; at = upOf(at)) {
    const aria = at.getAttribute('aria-disabled');
    if (aria === 'true') return true;
    if (aria === 'false') return false;
  }
  return false;
}

const isEditable = (el) => el.isContentEditable || el.tagName === 'TEXTAREA' || el.tagName === 'SELECT' || el.tagName === 'INPUT';
const isReadOnly = (el) => !!el.readOnly || el.getAttribute('aria-readonly') === 'true';

// describe returns an element for a message.
function describe(el) {
  if (!el || el.nodeType !== 1) return 'the document';
  const tag = el.tagName.toLowerCase();
  let out = '<' + tag;
  for (const name of ['id', 'class', 'name', 'type', 'role', 'aria-label', 'placeholder', 'href', 'data-testid']) {
    const value = el.getAttribute(name);
    if (value) out += ' ' + name + '="' + shorten(squash(value), 40) + '"';
  }
  const text = shorten(squash(el.textContent), 40);
  return out + '>' + text + (text ? '</' + tag + '>' : '');
}

// Elements that the Go code refers to by number.
const held = new Map();
let lastHeld = 0;
function hold(el) {
  held.set(++lastHeld, el);
  if (held.size > 2000) held.delete(held.keys().next().value);
  return lastHeld;
}

// undrawnSince is the time when a frame was first missed, or 0 if the last one was in time.
let undrawnSince = 0;

// nextFrame waits until the next frame is drawn, or for a short time if the page is not drawn.
const nextFrame = () => new Promise((done) => {
  const began = performance.now();
  const timer = setTimeout(() => { undrawnSince ||= began; done(); }, 100);
  requestAnimationFrame(() => { undrawnSince = 0; clearTimeout(timer); done(); });
});

// maxUndrawn is the maximum time in ms between frames on a busy machine. After it the page counts as not drawn.
const maxUndrawn = 2000;
