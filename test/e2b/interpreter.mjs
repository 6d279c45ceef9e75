// A program that uses the unmodified public code interpreter.
import assert from "node:assert/strict"

const { Sandbox } = await import(process.argv[2] ?? "@e2b/code-interpreter")

const sb = await Sandbox.create({ timeoutMs: 3_600_000 })
try {
  let e = await sb.runCode("x = 1; print('hi'); x + 1")
  assert.deepEqual([e.text, e.logs.stdout.join(""), e.error], ["2", "hi\n", undefined])
  e = await sb.runCode("undefined_name")
  assert.equal(e.error.name, "NameError")
  e = await sb.runCode("const n = await Promise.resolve(20); n + 1", { language: "js" })
  assert.equal(e.text, "21")
  const c = await sb.createCodeContext({ language: "python", cwd: "/tmp" })
  assert.equal((await sb.runCode("import os; os.getcwd()", { context: c })).text, "/tmp")
  console.log("passed interpreter")
} finally {
  await sb.kill()
}
process.exit(0)
