// Runs in the isolated world of every document before the page's own scripts. Its listeners are first, so that the engine
// can check each trusted event before the page receives it.
(() => {
  if (globalThis.coveBoot) return;
  const boot = (globalThis.coveBoot = {guard: null});
  const pass = (e) => boot.guard && boot.guard(e);
  const types = [
    'pointerdown', 'mousedown', 'pointerup', 'mouseup', 'click', 'auxclick', 'dblclick', 'contextmenu', 'pointermove',
    'mousemove', 'dragstart',
  ];
  // document.open() removes all listeners; adding them twice has no effect.
  boot.listen = () => { for (const type of types) window.addEventListener(type, pass, {capture: true}); };
  boot.listen();
})();
