// Runs blocks of the guide, one after the other: a line of JSON in, a line of JSON out. A block that begins with a comment
// with a file's name becomes that file, for others to import.
import { writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { format } from "node:util";

const reply = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
let out = "";
console.log = (...values) => { out += `${format(...values)}\n`; };
let count = 0;
for await (const line of createInterface({ input: process.stdin })) {
  const { code } = JSON.parse(line);
  const file = /^\/\/ (\w+\.ts)\n/.exec(code)?.[1] || `block${++count}.ts`;
  writeFileSync(file, code);
  out = "";
  let error = "";
  try {
    await import(pathToFileURL(file).href);
  } catch (failure) {
    error = failure.stack || String(failure);
  }
  reply({ out, error });
}
