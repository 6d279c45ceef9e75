// A program that uses the unmodified public SDK.
import assert from "node:assert/strict"
import { createHash, randomBytes } from "node:crypto"

// The package to use, and whether to run the long part.
const [name = "e2b", long] = process.argv.slice(2)
const { Sandbox, CommandExitError, NotFoundError, FileType, FilesystemEventType } = await import(name)

const until = async (what, check) => {
  for (const end = Date.now() + 240000; !(await check()); await new Promise((r) => setTimeout(r, 20))) assert(Date.now() < end, "timed out: " + what)
}

async function commands(sb) {
  let r = await sb.commands.run("echo out; echo err >&2; pwd; echo $HOME $FOO $CALL", { envs: { CALL: "yes" } })
  assert.deepEqual([r.stdout, r.stderr, r.exitCode], ["out\n/home/user\n/home/user bar yes\n", "err\n", 0])
  await assert.rejects(sb.commands.run("exit 3"), (e) => e instanceof CommandExitError && e.exitCode === 3)
  let out = ""
  await sb.commands.run("for i in 1 2 3; do echo $i; done", { onStdout: (d) => (out += d) })
  assert.equal(out, "1\n2\n3\n")
  const h = await sb.commands.run("cat", { background: true, stdin: true })
  await sb.commands.sendStdin(h.pid, "line\n")
  assert((await sb.commands.list()).some((p) => p.pid === h.pid))
  await until("input comes back", () => h.stdout === "line\n")
  assert.equal(await h.kill(), true)
  await assert.rejects(h.wait())
  assert.equal((await sb.commands.run("id -u", { user: "root" })).stdout, "0\n")
  // A thousand short commands, some of them concurrently.
  for (let i = 0; i < (long ? 1000 : 20); i += 20)
    await Promise.all(Array.from({ length: 20 }, async (_, j) => assert.equal((await sb.commands.run("echo " + (i + j))).stdout, i + j + "\n")))
}

async function files(sb) {
  const info = await sb.files.write("a/b.txt", "hello")
  assert.equal(info.path, "/home/user/a/b.txt")
  assert.equal(await sb.files.read("a/b.txt"), "hello")
  const big = new Uint8Array(5 << 20).map((_, i) => i * 31)
  await sb.files.write("/tmp/big", big.buffer)
  assert.deepEqual(await sb.files.read("/tmp/big", { format: "bytes" }), big)
  await assert.rejects(sb.files.read("none"), NotFoundError)
  assert.equal(await sb.files.makeDir("d"), true)
  assert.equal(await sb.files.makeDir("d"), false)
  const list = await sb.files.list("a")
  assert.deepEqual([list[0].name, list[0].type, list[0].size], ["b.txt", FileType.FILE, 5])
  await sb.files.rename("a/b.txt", "d/c.txt")
  assert.equal(await sb.files.exists("a/b.txt"), false)
  await sb.files.remove("d")
  const seen = new Set()
  const w = await sb.files.watchDir("a", (e) => seen.add(e.type + " " + e.name), { recursive: true })
  await sb.files.write("a/new.txt", "1")
  await until("events", () => seen.has(FilesystemEventType.WRITE + " new.txt") && seen.has(FilesystemEventType.CREATE + " new.txt"))
  await w.stop()
  await sb.files.write("link.txt", "by link")
  const url = await sb.downloadUrl("link.txt", { useSignatureExpiration: 60 })
  assert.equal(await (await fetch(url)).text(), "by link")
  assert.equal((await fetch(url.replace("link.txt", "other.txt"))).status, 401)
}

// Upload and download 200 MB.
async function big(sb) {
  const piece = randomBytes(1_000_000), pieces = Array(200).fill(piece), sum = createHash("sha256")
  for (const p of pieces) sum.update(p)
  const want = sum.digest("hex")
  await sb.files.write("/tmp/huge", new Blob(pieces), { requestTimeoutMs: 240000 })
  assert.equal((await sb.commands.run("sha256sum < /tmp/huge", { timeoutMs: 240000 })).stdout.split(" ")[0], want)
  const back = createHash("sha256")
  for await (const chunk of await sb.files.read("/tmp/huge", { format: "stream", requestTimeoutMs: 240000 })) back.update(chunk)
  assert.equal(back.digest("hex"), want)
  await sb.files.remove("/tmp/huge")
}

async function terminal(sb) {
  let out = ""
  const h = await sb.pty.create({ cols: 90, rows: 30, timeoutMs: 0, onData: (d) => (out += Buffer.from(d).toString()) })
  await sb.pty.sendInput(h.pid, Buffer.from("stty size\n"))
  await until("size", () => out.includes("30 90"))
  await sb.pty.resize(h.pid, { cols: 44, rows: 11 })
  await sb.pty.sendInput(h.pid, Buffer.from("stty size; exit\n"))
  await until("new size", () => out.includes("11 44"))
  await h.wait()
}

async function life(sb) {
  assert.equal(await sb.isRunning(), true)
  await sb.setTimeout(600_000)
  const info = await sb.getInfo()
  assert.deepEqual([info.sandboxId, info.metadata, info.state], [sb.sandboxId, { js: "a b&c", by: String(process.pid) }, "running"])
  const found = await Sandbox.list({ query: { metadata: { js: "a b&c", by: String(process.pid) } } }).nextItems()
  assert.deepEqual(found.map((x) => x.sandboxId), [sb.sandboxId])
  await sb.commands.run("echo kept > kept")
  await (sb.pause ?? sb.betaPause).call(sb)
  assert.equal(await sb.isRunning(), false)
  await assert.rejects(sb.commands.run("true"))
  const again = await Sandbox.connect(sb.sandboxId)
  assert.equal((await again.commands.run("cat kept")).stdout, "kept\n")
  await assert.rejects(Sandbox.connect("sb0000000000000000"))
}

const sandbox = await Sandbox.create({ metadata: { js: "a b&c", by: String(process.pid) }, envs: { FOO: "bar" }, timeoutMs: 3_600_000 })
try {
  for (const story of [commands, files, big, terminal, life]) {
    await story(sandbox)
    console.log("passed", story.name)
  }
} finally {
  assert.equal(await sandbox.kill(), true)
}
assert.equal(await sandbox.isRunning(), false)
assert.equal(await sandbox.kill(), false)
process.exit(0)
