// Makes versions of Node.js without NODE_USE_ENV_PROXY send fetch, http and https through the proxy of the environment.
// Newer versions support this themselves.
'use strict';
(() => {
  const [major, minor] = process.versions.node.split('.').map(Number);
  if (major > 24 || (major === 24 && minor >= 5) || (major === 22 && minor >= 21)) return;
  const via = process.env.https_proxy || process.env.HTTPS_PROXY || process.env.http_proxy || process.env.HTTP_PROXY;
  if (!via) return;
  let proxy;
  try { proxy = new URL(via); } catch { return; }
  if (proxy.protocol !== 'http:') return;
  const exceptions = (process.env.no_proxy || process.env.NO_PROXY || '').split(',').map((s) => s.trim().toLowerCase()).filter(Boolean);
  const direct = (host) => {
    host = String(host || '').toLowerCase().replace(/^\[|\]$/g, '');
    return host === '' || host === 'localhost' || host === '::1' || host.startsWith('127.') ||
      exceptions.some((e) => e === '*' || e.replace(/^\*?\./, '') === host || host.endsWith('.' + e.replace(/^\*?\./, '')));
  };
  const net = require('net'), tls = require('tls'), http = require('http'), https = require('https');

  // tunnel opens a connection to host:port through the proxy.
  const tunnel = (host, port, secure, options, done) => {
    const socket = net.connect({ host: proxy.hostname, port: proxy.port || 80 });
    const fail = (err) => { socket.destroy(); done(err); };
    socket.once('error', fail);
    socket.once('connect', () => {
      const target = (host.includes(':') ? `[${host}]` : host) + ':' + port;
      const credentials = decodeURIComponent(proxy.username) + ':' + decodeURIComponent(proxy.password);
      const auth = proxy.username ? 'Proxy-Authorization: Basic ' + Buffer.from(credentials).toString('base64') + '\r\n' : '';
      socket.write(`CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n${auth}\r\n`);
      let head = Buffer.alloc(0);
      const read = (chunk) => {
        head = Buffer.concat([head, chunk]);
        const end = head.indexOf('\r\n\r\n');
        if (end < 0) { if (head.length > 65536) fail(new Error('the proxy sent no valid response')); return; }
        socket.removeListener('data', read);
        const status = Number(head.toString('latin1').split(' ')[1]);
        if (status !== 200) {
          const reason = head.subarray(end + 4).toString().trim() || 'the proxy responded ' + status;
          fail(new Error(`connect to ${target}: ${reason}`));
          return;
        }
        socket.pause();
        socket.removeListener('error', fail);
        if (!secure) {
          done(null, socket);
          socket.resume();
          return;
        }
        const secured = tls.connect({
          ...options,
          socket,
          servername: options.servername || (net.isIP(host) ? undefined : host),
          host, port,
        });
        secured.once('error', done);
        secured.once('secureConnect', () => { secured.removeListener('error', done); done(null, secured); });
      };
      socket.on('data', read);
    });
  };

  const patch = (module, secure) => {
    const original = module.Agent.prototype.createConnection;
    module.Agent.prototype.createConnection = function (options, callback) {
      const host = options.host || options.hostname;
      if (options.socketPath || (options.path && options.path.startsWith && !host) || direct(host))
        return original.call(this, options, callback);
      tunnel(host, options.port || (secure ? 443 : 80), secure, { ...options, path: undefined, ALPNProtocols: ['http/1.1'] }, callback);
    };
  };
  patch(http, false);
  patch(https, true);

  // fetch loads its library on first use, and then stores its dispatcher under this symbol.
  const symbol = Symbol.for('undici.globalDispatcher.1');
  const original = globalThis.fetch;
  if (typeof original !== 'function') return;
  let ready = false;
  const prepare = () => {
    if (ready) return;
    ready = true;
    try {
      original('data:,').catch(() => {});
      const Agent = globalThis[symbol] && globalThis[symbol].constructor;
      if (!Agent) return;
      const connect = (options, callback) => {
        const secure = options.protocol === 'https:',
          host = options.hostname.replace(/^\[|\]$/g, ''),
          port = Number(options.port) || (secure ? 443 : 80);
        if (!direct(host)) {
          tunnel(host, port, secure, { servername: options.servername }, callback);
          return;
        }
        const socket = secure
          ? tls.connect({ host, port, servername: options.servername || (net.isIP(host) ? undefined : host) })
          : net.connect({ host, port });
        socket.once('error', callback);
        socket.once(secure ? 'secureConnect' : 'connect', () => { socket.removeListener('error', callback); callback(null, socket); });
      };
      globalThis[symbol] = new Agent({ connect });
    } catch { /* fetch is unchanged */ }
  };
  globalThis.fetch = function fetch(...args) { prepare(); return original.apply(this, args); };
})();
