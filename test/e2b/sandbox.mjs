// A program that uses the unmodified public SDK.
import assert from "node:assert/strict"
import { createHash, randomBytes } from "node:crypto"
import http from "node:http"
import https from "node:https"
import { text } from "node:stream/consumers"

// The package to use, and whether to run the long part.
const [name = "e2b", long] = process.argv.slice(2)
const { Sandbox, CommandExitError, NotFoundError, FileType, FilesystemEventType } = await import(name)

const until = async (what, check) => {
  for (const end = Date.now() + 240000; !(await check()); await new Promise((r) => setTimeout(r, 20)))
    assert(Date.now() < end, "timed out: " + what)
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
    await Promise.all(
      Array.from({ length: 20 }, async (_, j) => assert.equal((await sb.commands.run("echo " + (i + j))).stdout, i + j + "\n")),
    )
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
  await watch(sb, "a")
  // Like E2B's daemon, which is root: outside of the home, root creates what then belongs to the user.
  assert.equal(await sb.files.makeDir("/workspace/deep"), true)
  await sb.files.write("/solution/a/b.sh", "b")
  assert.equal((await sb.commands.run("stat -c %U /workspace/deep /solution/a/b.sh")).stdout, "user\nuser\n")
  await sb.commands.run("mkdir -m 700 /var/closed", { user: "root" })
  await watch(sb, "/var/closed", { user: "root" })
  await watch(sb, "/var/closed")
  await sb.files.write("link.txt", "by link")
  const url = await sb.downloadUrl("link.txt", { useSignatureExpiration: 60 })
  assert.equal(await (await fetch(url)).text(), "by link")
  assert.equal((await fetch(url.replace("link.txt", "other.txt"))).status, 401)
}

// The events of an operation precede its response, as TestEventsPrecedeResponse asserts. The client reads them on another connection, so
// it may see them later.
async function watch(sb, folder, user = {}) {
  let seen = []
  const w = await sb.files.watchDir(folder, (e) => seen.push(e.type + " " + e.name), { recursive: true, timeoutMs: 0, ...user })
  for (let i = 0; i < 20; i++) {
    const saw = (...types) => until(`${types} of new${i}`, () => types.every((type) => seen.includes(`${type} new${i}`)))
    await sb.files.write(`${folder}/new${i}`, "1", user)
    await saw(FilesystemEventType.CREATE, FilesystemEventType.WRITE)
    await sb.files.remove(`${folder}/new${i}`, user)
    await saw(FilesystemEventType.REMOVE)
    seen = []
  }
  await w.stop()
}

// Get a port. Without host names, the header selects the port.
function get(sb, port) {
  const named = process.env.E2B_DOMAIN
  const host = named ? sb.getHost(port) : `${port}-${sb.sandboxId}.localhost`
  const url = named ? "https://" + host : process.env.E2B_SANDBOX_URL
  return new Promise((resolve, reject) =>
    (named ? https : http)
      .get(url, { headers: { host }, agent: false }, async (res) => resolve([res.statusCode, await text(res)]))
      .on("error", reject),
  )
}

// A port that other sandboxes reserve is free, and the creator can select the Host header.
async function ports() {
  const sb = await Sandbox.create({ network: { maskRequestHost: "app.example:${PORT}", denyOut: ["192.0.2.1"] } })
  try {
    const serve = "require('http').createServer((q, r) => r.end('host ' + q.headers.host)).listen(8080)"
    await sb.commands.run(`node -e "${serve}"`, { background: true, timeoutMs: 0 })
    let reply
    await until("the port answers", async () => (reply = await get(sb, 8080))[0] === 200)
    assert.equal(reply[1], "host app.example:8080")
    const info = await sb.getInfo()
    if ("network" in info) assert.deepEqual([info.allowInternetAccess, info.network.maskRequestHost], [true, "app.example:${PORT}"])
  } finally {
    await sb.kill()
  }
}

async function copies(sb) {
  if (!sb.createSnapshot) return
  const name = `_${process.pid}_snap_`
  const snapshot = await sb.createSnapshot({ name })
  const made = await Sandbox.create(snapshot.snapshotId)
  assert.equal(await made.kill(), true)
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
  const metrics = await sb.getMetrics()
  assert(metrics.length > 0 && metrics.every((m) => m.memTotal > 0))
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

async function killed() {
  const victim = await Sandbox.create()
  const command = await victim.commands.run("sleep 1000", { background: true, timeoutMs: 0 })
  await victim.kill()
  await assert.rejects(command.wait(), /sandbox was killed or reached its end of life/)
}

const sandbox = await Sandbox.create({ metadata: { js: "a b&c", by: String(process.pid) }, envs: { FOO: "bar" }, timeoutMs: 3_600_000 })
try {
  for (const story of [commands, files, ports, copies, big, terminal, life, killed]) {
    await story(sandbox)
    console.log("passed", story.name)
  }
} finally {
  assert.equal(await sandbox.kill(), true)
}
assert.equal(await sandbox.isRunning(), false)
assert.equal(await sandbox.kill(), false)
process.exit(0)
