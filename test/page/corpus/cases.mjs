// The corpus: pages and steps that agents meet. Each step is run by playwright-core and by our operation; what the page
// records and its final state must be the same.
//
// A case is [name, body, steps]. A step is [action, selector, argument]. ORIGIN2 is replaced by the URL of another site.
const later = (ms, code) => `<script>setTimeout(() => { ${code} }, ${ms})</script>`;
const button = (extra = '') => `<button id="b" ${extra}>Go</button>`;
const click = ['click', '#b'];
const frame = (src, more = '') => `<iframe id="f" ${more} src="${src}" width="400" height="200"></iframe>`;
const many = Array.from({length: 60}, (_, i) => `<p>Line ${i}</p>`).join('');

const acting = [
  ['plain', button(), [click]],
  ['late', '<div id="at"></div>' + later(300, `at.innerHTML = '<button id="b">Go</button>'`), [click]],
  ['disabled for 500 ms', button('disabled') + later(500, 'b.disabled = false'), [click]],
  ['aria-disabled for a while', button('aria-disabled="true"') + later(300, `b.removeAttribute('aria-disabled')`), [click]],
  ['disabled fieldset', `<fieldset id="s" disabled>${button()}</fieldset>` + later(300, 's.disabled = false'), [click]],
  ['hidden, then shown', button('style="display:none"') + later(300, `b.style.display = ''`), [click]],
  ['invisible, then visible', button('style="visibility:hidden"') + later(300, `b.style.visibility = ''`), [click]],
  ['without size, then with', button('style="width:0;height:0;padding:0;border:0;overflow:hidden"') + later(300, `b.removeAttribute('style')`), [click]],
  ['moving', '<style>@keyframes m { to { transform: translateX(300px) } } #b { animation: m .6s forwards }</style>' + button(), [click]],
  ['moving by script', button('style="position:absolute;left:0"') + `<script>let n = 0; const t = setInterval(() => { b.style.left = 5 * ++n + 'px'; if (n > 60) clearInterval(t) }, 8)</script>`, [click]],
  ['overlay that vanishes', button() + '<div id="o" style="position:fixed;inset:0;background:#0008"></div>' + later(400, 'o.remove()'), [click]],
  ['overlay that fades', button() + '<div id="o" style="position:fixed;inset:0;background:#0008;transition:opacity .2s"></div>' + later(200, `o.style.opacity = 0; setTimeout(() => o.style.pointerEvents = 'none', 250)`), [click]],
  ['below the fold', many + button(), [click]],
  ['above the fold', button() + many + '<script>scrollTo(0, 99999)</script>', [click]],
  ['sticky header', '<div style="position:sticky;top:0;height:150px;background:#ccc">Header</div>' + many + button() + many, [click]],
  ['sticky footer', many + button() + many + '<div style="position:fixed;bottom:0;left:0;right:0;height:200px;background:#ccc">Footer</div>', [click]],
  ['inner scroller', `<div style="height:100px;overflow:auto">${many}${button()}</div>`, [click]],
  ['two scrollers', `<div style="height:200px;overflow:auto">${many}<div style="width:100px;overflow:auto"><div style="width:900px;text-align:right">${button()}</div></div></div>`, [click]],
  ['no pointer events for a while', button('style="pointer-events:none"') + later(300, `b.style.pointerEvents = ''`), [click]],
  ['rendered again', '<div id="at"></div><script>let n = 0; const t = setInterval(() => { at.innerHTML = `<button id="b">${n}</button>`; if (++n > 6) clearInterval(t) }, 40)</script>', [click]],
  ['inner element', '<button id="b"><span><b id="x">Go</b></span></button>', [['click', '#x'], click]],
  ['link over two lines', `<div style="width:120px">some words before <a id="b" href="#x">a link that is long enough to wrap</a></div>`, [click]],
  ['transformed', `<div style="transform:scale(.5) rotate(10deg);transform-origin:0 0">${button()}</div>`, [click]],
  ['display contents', `<div style="display:contents">${button()}</div>`, [click]],
  ['modal dialog', `<dialog id="d">${button()}</dialog><script>d.showModal()</script>`, [click]],
  ['popover', `<div popover id="d">${button()}</div><script>d.showPopover()</script>`, [click]],
  ['details', `<details><summary id="s">More</summary>${button()}</details>`, [['click', '#s'], click]],
  ['svg', '<svg width="100" height="40"><rect id="b" width="80" height="30" fill="green"/></svg>', [click]],
  ['label', '<label id="l">Agree <input type="checkbox" id="c"></label>', [['click', '#l'], ['click', '#c']]],
  ['double click', button(), [['dblclick', '#b']]],
  ['right click', button('oncontextmenu="return false"'), [['rightclick', '#b']]],
  ['middle click', button(), [['middleclick', '#b']]],
  ['shift click', button(), [['shiftclick', '#b']]],
  ['hover menu', '<style>#m { display: none } #h:hover #m { display: block }</style><div id="h">Menu<div id="m"><button id="b">Go</button></div></div>', [['hover', '#h'], click]],
  ['hover moves', '<div id="h" onmouseenter="document.title = \'over\'">Here</div>', [['hover', '#h']]],
  ['text button', '<input type="submit" id="b" value="Send">', [['click', 'text=Send']]],
  ['animated in', '<style>@keyframes i { from { opacity: 0; margin-top: 200px } } #b { animation: i .5s }</style>' + button(), [click]],
  ['virtual list', `<div id="v" style="height:200px;overflow:auto"><div style="height:20000px;position:relative" id="w"></div></div><script>
    const draw = () => { w.innerHTML = ''; const from = Math.floor(v.scrollTop / 20); for (let i = from; i < from + 12; i++) w.insertAdjacentHTML('beforeend', '<button style="position:absolute;top:' + i * 20 + 'px" id="r' + i + '">Row ' + i + '</button>') };
    v.onscroll = draw; draw()</script>`, [['click', '#r3'], ['click', '#r9']]],
];

const shadow = (inner) => `<div id="host"></div><script>host.attachShadow({mode: 'open'}).innerHTML = ${JSON.stringify(inner)}</script>`;
const roots = [
  ['shadow root', shadow('<button id="b">Go</button>'), [click, ['click', '#host button'], ['click', 'text=Go']]],
  ['nested shadow roots', `<x-a></x-a><script>
    customElements.define('x-b', class extends HTMLElement { constructor() { super(); this.attachShadow({mode: 'open'}).innerHTML = '<button id="b">Deep</button><input id="i">' } });
    customElements.define('x-a', class extends HTMLElement { constructor() { super(); this.attachShadow({mode: 'open'}).innerHTML = '<x-b></x-b>' } })</script>`, [click, ['fill', '#i', 'deep'], ['click', 'role=button[name="Deep"]']]],
  ['slot', `<x-c><button id="b">Slotted</button></x-c><script>customElements.define('x-c', class extends HTMLElement { constructor() { super(); this.attachShadow({mode: 'open'}).innerHTML = '<p><slot></slot></p>' } })</script>`, [click]],
];

const frames = [
  ['frame', frame('/inner'), [['click', '#f >> #ib'], ['fill', '#f >> #ii', 'in a frame']]],
  ['frame of another site', frame('ORIGIN2/inner'), [['click', '#f >> #ib'], ['fill', '#f >> #ii', 'across'], ['press', '#f >> #ii', 'Enter']]],
  ['frame in a frame', frame('/middle'), [['click', '#f >> #m >> #ib'], ['fill', '#f >> #m >> #ii', 'deep']]],
  ['frame with a margin', frame('ORIGIN2/inner', 'style="border:0;margin:11px 30px"'), [['click', '#f >> #ib']]],
  ['frame below the fold', many + frame('ORIGIN2/inner'), [['click', '#f >> #ib']]],
  ['scrolled frame', frame('/long'), [['click', '#f >> #ib']]],
  ['scrolled frame of another site', many + frame('ORIGIN2/long'), [['click', '#f >> #ib']]],
  ['frame that comes late', '<div id="at"></div>' + later(300, `at.innerHTML = '<iframe id="f" src="/inner"></iframe>'`), [['click', '#f >> #ib']]],
  ['srcdoc', `<iframe id="f" srcdoc="<button id=ib onclick='parent.document.title = 1'>In</button>"></iframe>`, [['click', '#f >> #ib']]],
  ['select in a frame', frame('ORIGIN2/inner'), [['select', '#f >> #is', {value: '2'}], ['check', '#f >> #ic']]],
  ['scaled frame', frame('/inner', 'style="transform:scale(.5);transform-origin:0 0"'), [['click', '#f >> #ib']]],
];

const selectors = '<h1>Title</h1><label for="n">Name</label><input id="n" placeholder="Your name" data-testid="name"><button id="b1" title="First one">Save all</button><button id="b2">Save</button><a id="a" href="#t">Read more</a><img id="i" alt="A picture" width="20" height="20"><ul><li id="l1">One</li><li id="l2">Two</li><li id="l3">Three</li></ul><button id="h" style="display:none">Save</button>';
const locating = [
  ['css', '#b2'], ['attribute', '[data-testid=name]'], ['child', 'ul > li:nth-child(2)'], ['sibling', 'h1 ~ a'], ['next', '#b1 + button'], ['text', 'text=Read more'], ['text in any case', 'text=read MORE'], ['exact text', 'text="Save all"'],
  ['quoted text', '"Save all"'], ['regular expression', 'text=/^Save\\s+a/'], ['xpath', '//button[2]'], ['xpath engine', 'xpath=//li[3]'], ['role', 'role=heading'], ['role and name', 'role=button[name="Save all"]'], ['role and part of a name', 'role=link[name=/more/i]'],
  ['nth', 'li >> nth=1'], ['last', 'li >> nth=-1'], ['chain', 'ul >> text=Two'], ['has-text', 'button:has-text("all")'], ['visible', 'button:visible >> nth=1'], ['not', 'li:not(#l1):not(#l2)'], ['has', 'ul:has(#l2) >> nth=0'], ['text-is', 'button:text-is("Save all")'],
  ['id engine', 'id=l3'], ['data-testid engine', 'data-testid=name'], ['list', '#nothing, #l1'], ['nth-match', ':nth-match(li, 2)'],
].map(([name, selector]) => ['selector: ' + name, selectors, [['click', selector]]]);

const input = (type, value, more = '') => ['fill ' + type, `<form onsubmit="return false"><input id="i" type="${type}" ${more}></form>`, [['fill', '#i', value]]];
const filling = [
  input('text', 'Hello world'), input('email', 'a@b.example'), input('password', 'sécret'), input('search', 'x'), input('tel', '+1 2'), input('url', 'http://x.example/'), input('number', '12.5', 'step="any"'), input('date', '2026-02-28'), input('time', '13:45'),
  input('datetime-local', '2026-02-28T13:45'), input('month', '2026-02'), input('week', '2026-W09'), input('color', '#ff8800'), input('range', '70'),
  ['fill textarea', '<textarea id="i">old</textarea>', [['fill', '#i', 'two\nlines']]],
  ['fill twice', '<input id="i" value="old">', [['fill', '#i', 'new'], ['fill', '#i', '']]],
  ['fill editable', '<div id="i" contenteditable>old <b>text</b></div>', [['fill', '#i', 'new text']]],
  ['fill late', '<div id="at"></div>' + later(200, `at.innerHTML = '<input id="i">'`), [['fill', '#i', 'x']]],
  ['fill after read-only', '<input id="i" readonly>' + later(300, 'i.readOnly = false'), [['fill', '#i', 'x']]],
  ['fill by label', '<label>Name <input id="i"></label>', [['fill', 'text=Name', 'Bob']]],
  ['fill controlled', `<input id="i"><script>i.oninput = () => { i.value = i.value.toUpperCase() }</script>`, [['fill', '#i', 'abc'], ['type', '#i', 'def']]],
  ['fill unicode', '<input id="i">', [['fill', '#i', '世界 🌍 ñ']]],
  ['type', '<input id="i">', [['type', '#i', 'Hello, World! 12']]],
  ['type unicode', '<input id="i">', [['type', '#i', 'zwölf 世']]],
  ['type lines', '<textarea id="i"></textarea>', [['type', '#i', 'a\nb']]],
  ['press keys', '<input id="i" value="abc">', [['press', '#i', 'End'], ['press', '#i', 'Backspace'], ['press', '#i', 'x'], ['press', '#i', 'Shift+A'], ['press', '#i', 'Home'], ['press', '#i', 'Delete'], ['press', '#i', 'ArrowRight'], ['press', '#i', '$']]],
  ['select all and type', '<input id="i" value="abc">', [['press', '#i', 'Control+A'], ['type', '#i', 'z']]],
  ['tab through', '<input id="i"><input id="j">', [['press', '#i', 'Tab'], ['key', '', 'Shift+Tab'], ['key', '', 'F2'], ['key', '', 'Escape']]],
  ['enter submits', '<form action="/form"><input id="i" name="q"></form>', [['fill', '#i', 'x'], ['press', '#i', 'Enter']]],
  ['space on a button', button(), [['press', '#b', ' '], ['press', '#b', 'Enter']]],
  ['maxlength', '<input id="i" maxlength="3">', [['type', '#i', 'abcdef']]],
];

const options = '<option value="1">One</option><option value="2">Two</option><option value="3">Three</option>';
const choosing = [
  ['select by value', `<select id="s">${options}</select>`, [['select', '#s', {value: '2'}], ['select', '#s', {value: '2'}]]],
  ['select by label', `<select id="s">${options}</select>`, [['select', '#s', {label: 'Three'}]]],
  ['select by index', `<select id="s">${options}</select>`, [['select', '#s', {index: 1}]]],
  ['select several', `<select id="s" multiple>${options}</select>`, [['select', '#s', ['1', '3']], ['select', '#s', ['2']], ['select', '#s', []]]],
  ['late option', `<select id="s">${options}</select>` + later(300, `s.add(new Option('Four', '4'))`), [['select', '#s', {value: '4'}]]],
  ['option group', `<select id="s"><optgroup label="A">${options}</optgroup></select>`, [['select', '#s', {value: '3'}]]],
  ['late select', `<select id="s" disabled>${options}</select>` + later(300, 's.disabled = false'), [['select', '#s', {value: '3'}]]],
  ['checkbox', '<input type="checkbox" id="c">', [['check', '#c'], ['check', '#c'], ['uncheck', '#c'], ['uncheck', '#c']]],
  ['radio', '<input type="radio" name="r" id="c"><input type="radio" name="r" id="d" checked>', [['check', '#c'], ['check', '#d']]],
  ['checkbox in a label', '<label><input type="checkbox" id="c"> Yes</label>', [['check', 'text=Yes'], ['uncheck', '#c']]],
  ['slow checkbox', '<label><input type="checkbox" id="c" onmousedown="const t = Date.now(); while (Date.now() - t < 600);"> Yes</label>', [['check', '#c'], ['uncheck', '#c']]],
  ['switch', `<div role="switch" id="c" aria-checked="false" tabindex="0" onclick="this.setAttribute('aria-checked', this.getAttribute('aria-checked') !== 'true')">On</div>`, [['check', '#c'], ['uncheck', '#c']]],
  ['disabled checkbox', '<input type="checkbox" id="c" disabled>' + later(300, 'c.disabled = false'), [['check', '#c']]],
];

const going = [
  ['link', '<a id="b" href="/other">Other</a>', [click, ['back'], ['forward'], ['reload']]],
  ['form', '<form action="/form"><input id="i" name="q" value="1"><button id="b">Go</button></form>', [click]],
  ['form by POST', '<form action="/form" method="post"><input id="i" name="q" value="1"><button id="b">Go</button></form>', [click]],
  ['hash', '<a id="b" href="#part">Part</a><p id="part">x</p>', [click, ['back']]],
  ['single-page', `<a id="b" href="/spa" onclick="history.pushState({}, '', '/spa'); document.title = 'spa'; return false">Go</a>`, [click]],
  ['redirect', '<a id="b" href="/redirect?to=/other">Go</a>', [click]],
  ['redirect to another site', '<a id="b" href="/redirect?to=ORIGIN2/other">Go</a>', [click]],
  ['redirect by script', '<a id="b" href="/scripted">Go</a>', [click, ['url', '', '**/other']]],
  ['slow page', '<a id="b" href="/slow">Go</a>', [click]],
  ['page with a slow picture', '<a id="b" href="/slow-picture">Go</a>', [click]],
  ['missing page', '<a id="b" href="/missing">Go</a>', [click]],
  ['navigation by a timer', `<button id="b" onclick="setTimeout(() => location.href = '/other', 50)">Go</button>`, [click, ['url', '', '**/other']]],
  ['page in a frame', '<iframe id="f" name="f" src="/inner"></iframe><a id="b" href="/long" target="f">Go</a>', [click, ['click', '#f >> #ib']]],
  ['service worker', `<button id="b" onclick="fetch('/worked').then(r => r.text()).then(t => document.title = t)">Go</button><script>document.title = 'wait'; navigator.serviceWorker.register('/worker.js').then(() => navigator.serviceWorker.ready).then(() => new Promise(r => navigator.serviceWorker.controller ? r() : navigator.serviceWorker.addEventListener('controllerchange', r))).then(() => document.title = 'ready')</script>`, [['title', '', 'ready'], click, ['title', '', 'from the worker']]],
  ['popup', '<a id="b" href="/other" target="_blank">Go</a>', [['popup', '#b']]],
  ['popup by script', `<button id="b" onclick="window.open('/other')">Go</button>`, [['popup', '#b']]],
  ['broken response', `<button id="b" onclick="fetch('/broken').then(r => r.text()).then(() => document.title = 'ok', () => document.title = 'failed')">Go</button>`, [click, ['title', '', 'failed']]],
];

const meeting = [
  ['alert', `<button id="b" onclick="alert('x'); document.title = 'after'">Go</button>`, [click]],
  ['confirm', `<button id="b" onclick="document.title = confirm('x')">Go</button>`, [click]],
  ['prompt', `<button id="b" onclick="document.title = prompt('x', 'y')">Go</button>`, [click]],
  ['two alerts', `<button id="b" onclick="alert(1); alert(2); document.title = 'after'">Go</button>`, [click]],
  ['beforeunload', `<a id="b" href="/other">Go</a><input id="i"><script>onbeforeunload = (e) => { e.preventDefault(); return '' }</script>`, [['fill', '#i', 'x'], click]],
  ['upload', '<input type="file" id="i" onchange="document.title = this.files[0].name + this.files[0].size">', [['upload', '#i', 1]]],
  ['upload several', `<input type="file" id="i" multiple onchange="document.title = [...this.files].map((f) => f.name).join()">`, [['upload', '#i', 2]]],
  ['upload hidden', `<input type="file" id="i" style="display:none" onchange="document.title = this.files[0].name">`, [['upload', '#i', 1]]],
  ['drag and drop', `<div id="x" draggable="true" ondragstart="event.dataTransfer.setData('text/plain', 'data')" style="width:80px;height:40px;background:#8c8">Drag</div><div id="y" style="width:200px;height:100px;background:#ccc" ondragover="event.preventDefault()" ondrop="event.preventDefault(); document.title = event.dataTransfer.getData('text/plain')">Drop</div>`, [['drag', '#x', '#y']]],
  ['drag by mouse', `<div id="x" style="position:absolute;left:10px;top:10px;width:50px;height:50px;background:#8c8"></div><div id="y" style="position:absolute;left:300px;top:200px;width:80px;height:80px;background:#ccc"></div><script>
    x.onpointerdown = () => { document.onpointermove = (e) => { x.style.left = e.clientX - 25 + 'px'; x.style.top = e.clientY - 25 + 'px' }; document.onpointerup = (e) => { document.onpointermove = document.onpointerup = null; document.title = Math.round(e.clientX) + ',' + Math.round(e.clientY) } }</script>`, [['drag', '#x', '#y']]],
  ['download', '<a id="b" href="/file.txt" download>Get</a>', [['download', '#b']]],
  ['download by header', '<a id="b" href="/attachment">Get</a>', [['download', '#b']]],
  ['scroll to an element', many + button() + many, [['into-view', '#b']]],
];

export const cases = [...acting, ...roots, ...frames, ...locating, ...filling, ...choosing, ...going, ...meeting];

const recorder = `<script>
  window.record = [];
  for (const type of ['pointerdown', 'mousedown', 'pointerup', 'mouseup', 'click', 'dblclick', 'auxclick', 'contextmenu', 'input', 'change', 'keydown', 'keyup', 'submit', 'dragstart', 'drop', 'toggle'])
    addEventListener(type, (e) => { const at = e.composedPath()[0]; record.push([type, at.id || at.tagName || 'document', at.type === 'file' || e.isTrusted, e.key || e.inputType || e.button || ''].join(' ')); if (top !== window) top.postMessage({event: record[record.length - 1]}, '*') }, true);
  window.framed = [];
  addEventListener('message', (e) => { if (e.data.event) framed.push(e.data.event) });
</script>`;

export const document = (name, body) => `<!doctype html><meta charset="utf-8"><title>${name}</title><style>body{margin:20px;font:16px sans-serif}</style>${recorder}${body}`;

export const fixed = {
  '/other': document('other', '<p>Other page</p>'),
  '/inner': document('inner', '<button id="ib">In</button><input id="ii"><select id="is"><option value="1">One</option><option value="2">Two</option></select><input type="checkbox" id="ic">'),
  '/long': document('long', many + '<button id="ib">In</button>' + many),
  '/middle': document('middle', '<iframe id="m" src="ORIGIN2/inner"></iframe>'),
  '/scripted': document('scripted', `<script>location.replace('/other')</script>`),
  '/slow-picture': document('slow picture', '<img src="/slow.png"><p>Text</p>'),
};
