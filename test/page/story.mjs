// Runs the story that it is given, and ends with it: an answer that nobody read or a connection that is kept holds nobody up.
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { close } from "./browser.mjs";

await import(pathToFileURL(resolve(process.argv[2])));
await close();
process.exit();
