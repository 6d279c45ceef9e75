// Runs a story and exits when it ends, even if responses are unread or connections are open.
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { close } from "./browser.mjs";

await import(pathToFileURL(resolve(process.argv[2])));
await close();
process.exit();
