// Runs cells of JavaScript in a Node process: many in a session, or one in a call without a
// session, after which the process ends when its event loop is empty.
//
// Cells are read as lines of JSON from descriptor 3. Events are written as frames to
// descriptor 4, another end of the stdout pipe, so that they are in order with the output of
// programs that the code starts. Descriptor 5 carries interrupts to a thread that can stop
// this one during an endless loop.
//
// The code runs in this context, so that it shares built-ins such as Array with the modules
// that it loads. V8's REPL mode provides top-level await and redeclaration of const, let and
// class.
(once, marker, load) => {
  "use strict";
  const { Console } = require("node:console");
  const { writeSync } = require("node:fs");
  const { Session } = require("node:inspector");
  const Module = require("node:module");
  const { Socket } = require("node:net");
  const path = require("node:path");
  const { Readable, Writable } = require("node:stream");
  const { pathToFileURL } = require("node:url");
  const { inspect, types } = require("node:util");
  const { Worker } = require("node:worker_threads");
  // The code may replace these globals.
  const { parse, stringify } = JSON;
  const { defineProperty } = Object;
  const soon = setImmediate;
  const realStdin = Object.getOwnPropertyDescriptor(process, "stdin");

  // A frame is a marker that occurs nowhere else, a kind, flags (1: a message starts, 2: it
  // ends), the length of its data, and the data. The kernel never splits a write of this
  // size: it is not mixed with other output, and an interrupt leaves no partial frame.
  const FRAME = 4096;
  const frame = Buffer.alloc(FRAME);
  const MARKER = Buffer.from(marker, "hex").copy(frame);
  const HEAD = MARKER + 4;

  function send(kind, data) {
    const bytes = typeof data === "string" ? Buffer.from(data) : data;
    let at = 0;
    do {
      const n = Math.min(bytes.length - at, FRAME - HEAD);
      frame[MARKER] = kind.charCodeAt(0);
      frame[MARKER + 1] = (at === 0 ? 1 : 0) | (at + n === bytes.length ? 2 : 0);
      frame.writeUInt16BE(n, MARKER + 2);
      bytes.copy(frame, HEAD, at, at + n);
      writeSync(4, frame, 0, HEAD + n);
      at += n;
    } while (at < bytes.length);
  }

  // The streams write synchronously: an endless loop buffers no output, and an interrupt
  // loses none. They keep no state that an interrupt could corrupt.
  function stdio(kind, name, fd) {
    const stream = new Writable();
    stream.fd = fd;
    stream._type = "pipe";
    stream._isStdio = true;
    stream.write = (chunk, encoding, callback) => {
      if (typeof chunk === "string") chunk = Buffer.from(chunk, typeof encoding === "string" ? encoding : "utf8");
      else if (!Buffer.isBuffer(chunk)) chunk = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength);
      send(kind, chunk);
      const done = typeof encoding === "function" ? encoding : callback;
      if (typeof done === "function") process.nextTick(done);
      return true;
    };
    // A pipe ends the stream after use, but other code still needs it.
    stream.destroy = stream.destroySoon = () => stream;
    stream.end = (...rest) => {
      const done = rest.find((f) => typeof f === "function");
      if (rest[0] !== undefined && rest[0] !== null && rest[0] !== done) stream.write(rest[0], rest[1]);
      else if (done) process.nextTick(done);
      return stream;
    };
    defineProperty(process, name, { configurable: true, enumerable: true, get: () => stream });
    return stream;
  }
  const plain = new Console({ stdout: stdio("o", "stdout", 1), stderr: stdio("e", "stderr", 2), ignoreErrors: false });
  // The default console keeps its arguments for a debugger, which wastes memory.
  for (const key of Object.keys(plain)) {
    if (typeof console[key] === "function") console[key] = plain[key];
  }

  // Stack traces exclude the frames of the worker.
  const NAME = "cove:worker";
  Error.prepareStackTrace = (error, trace) => {
    let end = trace.findIndex((f) => f.getFileName() === NAME);
    while (end > 0 && /^node:(inspector|internal)/.test(trace[end - 1].getFileName() ?? "")) end--;
    const shown = end < 0 ? trace : trace.slice(0, end);
    return [headline(error), ...shown.map((f) => "    at " + f)].join("\n");
  };

  function headline(error) {
    try {
      if (String(error.code).startsWith("ERR_") && Object.hasOwn(error, "toString")) return error.toString();
      return Error.prototype.toString.call(error);
    } catch {
      return "Error";
    }
  }

  // describe describes a thrown value. where is the place of a syntax error.
  function describe(thrown, where) {
    const is = types.isNativeError(thrown) || thrown instanceof Error;
    const read = (get, fallback) => {
      try {
        return String(get());
      } catch {
        return fallback;
      }
    };
    let text = read(() => inspect(thrown), "a value that cannot be shown");
    if (is && text === `[${thrown.stack}]`) text = text.slice(1, -1); // it has no frames
    if (!is) text = "Uncaught " + text;
    if (where) text = where + "\n\n" + text;
    return {
      ename: is ? read(() => thrown.name, "Error") : "Error",
      evalue: is ? read(() => thrown.message, "") : text.slice("Uncaught ".length),
      traceback: text.split("\n"),
    };
  }

  // excerpt shows the line of a syntax error.
  function excerpt(details, cell) {
    if (details.exception?.className !== "SyntaxError" || !details.scriptId || cell.translated) return "";
    const lines = cell.code.split("\n");
    const number = Math.min(details.lineNumber, lines.length - 1);
    const column = number === details.lineNumber ? details.columnNumber : lines[number].length;
    return `${cell.name}:${number + 1}\n${lines[number]}\n${" ".repeat(column)}^`;
  }

  // The debugger returns object IDs. Passing one to a function converts it to the value.
  const session = new Session();
  session.connect();
  const holder = {};
  let holderID;
  const KEY = "\u0000cove";
  globalThis[KEY] = holder;
  session.post("Runtime.evaluate", { expression: `globalThis[${stringify(KEY)}]` }, (error, reply) => {
    holderID = reply.result.objectId;
  });
  delete globalThis[KEY];

  function valueOf({ type, objectId, unserializableValue, value }) {
    if (type === "undefined") return undefined;
    const argument = objectId ? { objectId } : unserializableValue ? { unserializableValue } : { value };
    session.post("Runtime.callFunctionOn", {
      objectId: holderID, functionDeclaration: "function (v) { this.value = v }", arguments: [argument], silent: true,
    });
    const found = holder.value;
    holder.value = undefined;
    return found;
  }

  // The folder for relative names in require and import.
  let base;
  function setBase(dir) {
    base = dir;
    const file = path.join(dir, "[cell]");
    const module = new Module(file);
    module.filename = file;
    module.paths = Module._nodeModulePaths(dir);
    const require = Module.createRequire(file);
    require.main = module;
    const url = pathToFileURL(file).href;
    importModule.meta = { url, filename: file, dirname: dir, resolve: (name) => pathToFileURL(require.resolve(name)).href };
    for (const [key, value] of Object.entries({
      require, module, exports: module.exports, __filename: file, __dirname: dir, [IMPORT]: importModule,
    })) {
      defineProperty(globalThis, key, { value, writable: true, configurable: true, enumerable: false });
    }
  }

  function importModule(name, options) {
    name = String(name);
    if (/^\.{1,2}\//.test(name) || path.isAbsolute(name)) name = new URL(name, pathToFileURL(base + "/")).href;
    return load(name, options).catch((error) => {
      // Only require finds some modules, such as packages in NODE_PATH.
      if (error?.code !== "ERR_MODULE_NOT_FOUND" || name.includes(":")) throw error;
      let found;
      try {
        found = globalThis.require.resolve(name);
      } catch {
        throw error;
      }
      return load(pathToFileURL(found).href, options);
    });
  }

  // IMPORT replaces the word import, which V8 rejects in REPL mode. It has the same length.
  const IMPORT = "imp\u00f8rt";

  // translate replaces every import in a cell by a call of importModule.
  function translate(code) {
    if (!/\bimport\b/.test(code)) return code;
    let out = "";
    let copied = 0;
    scan(code, (at, begins) => {
      CALL.lastIndex = DECLARATION.lastIndex = at;
      let text = CALL.test(code) && IMPORT;
      let length = "import".length;
      const found = !text && begins && DECLARATION.exec(code);
      if (found) {
        text = declaration(found);
        length = found[0].length;
      }
      if (text) {
        out += code.slice(copied, at) + text;
        copied = at + length;
      }
      return length;
    });
    return out + code.slice(copied);
  }

  const CALL = /import\s*(?:\(|\.\s*meta\b)/y;
  const WORD = "[\\p{ID_Start}$_][\\p{ID_Continue}$]*";
  const DECLARATION = new RegExp(
    `import\\b\\s*(?:(?:(${WORD})\\s*)?,?\\s*(?:(?:\\*\\s*as\\s+(${WORD})|(\\{[^}]*\\}))\\s*)?\\bfrom\\b\\s*|(?=["']))` +
      `("[^"\\n]+"|'[^'\\n]+')(?:\\s*(?:with|assert)\\s*(\\{[^}]*\\}))?[ \\t]*;?`, "uy");

  // declaration converts an import declaration to a constant with the same number of lines.
  function declaration([all, name, space, names, from, attributes]) {
    const call = `await ${IMPORT}(${from}${attributes ? `, { with: ${attributes} }` : ""})`;
    const parts = [];
    if (space) parts.push(`${space} = ${call}`);
    if (name) parts.push(`{ default: ${name} } = ${call}`);
    if (names) parts.push(`${names.replace(/(\s)as(\s)/g, "$1:$2")} = ${call}`);
    const text = parts.length ? `const ${parts.join(", ")};` : `void ${call};`;
    const lines = all.split("\n").length - text.split("\n").length;
    return text + "\n".repeat(Math.max(0, lines));
  }

  // scan finds the word import outside of strings, comments and regular expressions. It calls
  // found with the position and whether a statement starts there; found returns the length to
  // skip.
  function scan(code, found) {
    const SPACE = /\s+|\/\/.*|\/\*[^]*?\*\//u;
    const WORD = /[\p{ID_Start}$_#@\\][\p{ID_Continue}$\u200c\u200d\\]*|\d[\w.]*/u;
    const STRING = /"(?:[^"\\\n]|\\[^])*"?|'(?:[^'\\\n]|\\[^])*'?/u;
    const TOKEN = new RegExp([SPACE, WORD, STRING, /=>|\+\+|--|[^]/u].map((r) => r.source).join("|"), "uy");
    const TEMPLATE = /(?:[^`\\$]|\\[^]|\$(?!\{))*(`|\$\{|$)/y;
    const REGEXP = /\/(?:[^\\/[\n]|\\.|\[(?:[^\\\]\n]|\\.)*\])+\/\w*/y;
    // An operand follows these words, so a slash starts a regular expression.
    const OPERATOR = /^(?:return|typeof|case|in|of|delete|void|throw|new|instanceof|do|else|await|yield)$/;
    const open = []; // open brackets; head: the parenthesis of a statement such as if
    let last = ""; // the previous token
    let operand = false; // the previous token ends a value
    let newline = true;
    for (let at = 0; at < code.length; ) {
      TOKEN.lastIndex = REGEXP.lastIndex = at;
      let token = TOKEN.exec(code)[0];
      if (/^(?:\s|\/[/*])/.test(token)) {
        newline ||= token.includes("\n");
        at += token.length;
        continue;
      }
      if (token === "/" && !operand) token = REGEXP.exec(code)?.[0] ?? token;
      at += token.length;
      let next = token.length > 1 || /[\p{ID_Start}$_\d\])]/u.test(token);
      if (token === "import" && last !== ".") {
        const length = found(at - token.length, open.length === 0 && (newline || last === ";" || last === "}"));
        if (length > token.length) token = ";";
        at += length - "import".length;
      } else if (OPERATOR.test(token) && last !== ".") {
        next = false;
      } else if (token === "(" || token === "[" || token === "{") {
        open.push(token === "(" && /^(?:if|while|for|with)$/.test(last) ? "head" : token);
      } else if (token === ")") {
        next = open.pop() !== "head";
      } else if (token === "]") {
        open.pop();
      } else if (token === "`" || (token === "}" && open.pop() === "${")) {
        TEMPLATE.lastIndex = at;
        const end = TEMPLATE.exec(code);
        at += end[0].length;
        next = end[1] !== "${";
        if (!next) open.push("${");
      } else if (token === "=>") {
        next = false;
      }
      operand = next;
      newline = false;
      last = token;
    }
  }

  let count = 0;
  let current; // the running cell
  let exiting = false; // replies of the debugger are then ignored
  process.on("exit", () => {
    exiting = true;
  });
  let underscore = true; // _ is the last value, until the code assigns it
  function remember(value) {
    if (!underscore) return;
    defineProperty(globalThis, "_", {
      configurable: true,
      get: () => value,
      set(own) {
        underscore = false;
        defineProperty(globalThis, "_", { value: own, writable: true, configurable: true, enumerable: true });
      },
    });
  }

  function run(cell) {
    current = cell;
    cell.name = once ? "cell" : `cell${++count}`;
    try {
      if (cell.cwd) process.chdir(cell.cwd);
      if (cell.cwd || !base) setBase(cell.base || process.cwd());
    } catch (error) {
      return finish(cell, "error", error);
    }
    if (!once) {
      const input = typeof cell.stdin === "string" ? Readable.from([Buffer.from(cell.stdin)]) : undefined;
      defineProperty(process, "stdin", input ? { configurable: true, enumerable: true, get: () => input } : realStdin);
    }
    let code = cell.code;
    try {
      code = translate(code);
    } catch {
      // The text is too long for a regular expression; V8 reports the import.
    }
    cell.translated = code !== cell.code;
    session.post("Runtime.evaluate", {
      expression: `${code}\n//# sourceURL=${cell.name}`, replMode: true, awaitPromise: true, objectGroup: "cell",
    }, (error, reply) => evaluated(cell, error, reply));
  }

  function evaluated(cell, error, reply) {
    if (exiting) return;
    if (error) return finish(cell, "interrupted");
    const value = valueOf(reply.exceptionDetails?.exception ?? reply.result);
    session.post("Runtime.releaseObjectGroup", { objectGroup: "cell" });
    if (reply.exceptionDetails) return finish(cell, "error", value, excerpt(reply.exceptionDetails, cell));
    cell.value = value;
    cell.evaluated = true;
    if (!types.isPromise(value)) return finish(cell, "ok");
    // A cell that ends with main() ends when main does.
    value.then(
      (settled) => {
        cell.value = settled;
        finish(cell, "ok");
      },
      (reason) => finish(cell, "error", reason),
    );
  }

  // finish reports the end of a cell, after pending callbacks such as reports of unhandled
  // rejections.
  function finish(cell, status, thrown, where) {
    const end = () => {
      if (status === "error") send("x", stringify(describe(thrown, where)));
      if (cell.over) return; // it has timed out
      if (status === "ok" && cell.value !== undefined) show(cell.value);
      reportEnd(cell, status);
    };
    if (once && status === "error") return process.emit("uncaughtException", thrown, "uncaughtException", where);
    status === "interrupted" ? end() : soon(end);
  }

  function show(value) {
    let text;
    try {
      text = inspect(value, { maxStringLength: 100_000 });
    } catch (error) {
      return send("x", stringify(describe(error)));
    }
    remember(value);
    send("v", text);
  }

  function reportEnd(cell, status) {
    cell.over = true;
    current = undefined;
    let cwd = "";
    try {
      cwd = process.cwd();
    } catch {
      // It was removed.
    }
    send("d", stringify({ id: cell.id, status, cwd }));
  }

  // Uncaught errors are reported. A session continues; a call without a session ends, as a
  // script does. The code may install another handler.
  process.on("uncaughtException", (error, origin, where) => {
    if (current) current.thrown = true;
    if (process.listenerCount("uncaughtException") > 1) return;
    send("x", stringify(describe(error, where)));
    if (once) process.exit(1);
  });

  function serve() {
    let pieces = [];
    const socket = new Socket({ fd: 3, readable: true, writable: false });
    socket.setEncoding("utf8");
    socket.on("data", (piece) => {
      pieces.push(piece);
      if (!piece.includes("\n")) return;
      const lines = pieces.join("").split("\n");
      pieces = [lines.pop()];
      for (const line of lines) {
        const message = parse(line);
        if (message.code !== undefined) run(message);
        else if (current?.id === message.interrupt) reportEnd(current, "waiting");
      }
    });
    socket.on("end", () => process.exit());
    // Interrupts of programs that a cell runs also reach this process.
    process.on("SIGINT", () => {});
    const watcher = new Worker(`
      const { writeSync } = require("node:fs");
      const { Session } = require("node:inspector");
      const { Socket } = require("node:net");
      new Socket({ fd: 5, readable: true, writable: false }).on("data", () => {
        const session = new Session();
        session.connectToMainThread();
        session.post("Runtime.terminateExecution", () => session.disconnect());
        writeSync(4, Buffer.from("${marker}69030000", "hex")); // a frame of kind i without data
      });`, { eval: true, execArgv: [], stdin: false });
    watcher.unref();
    watcher.on("error", () => {}); // the code then runs, but cannot be interrupted
  }

  function single() {
    const socket = new Socket({ fd: 3, readable: true, writable: false });
    const pieces = [];
    socket.setEncoding("utf8");
    socket.on("data", (piece) => pieces.push(piece));
    socket.on("end", () => run(parse(pieces.join(""))));
    let drained = false; // the event loop is empty; process.exit() emits no beforeExit
    process.on("beforeExit", () => { drained = true; });
    process.on("exit", (code) => {
      if (!current) return;
      // No pending work can settle its promise.
      if (current.evaluated) show(current.value);
      else if (drained && code === 0 && !current.thrown) {
        process.exitCode = 13;
        send("x", stringify(describe(new Error("the code awaits a promise that never settles"))));
      }
    });
  }

  // Otherwise programs forked by the code would run the worker again.
  process.execArgv = [];
  delete process._eval;
  once ? single() : serve();
  send("r", process.versions.node);
};
