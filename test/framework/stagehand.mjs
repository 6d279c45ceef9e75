// Stagehand in the browser of a sandbox: stagehand.mjs CDP-URL SITE
import { Stagehand } from "@browserbasehq/stagehand"
import { z } from "zod"

const [cdpUrl, site] = process.argv.slice(2)
const stagehand = new Stagehand({
  env: "LOCAL", verbose: 0, localBrowserLaunchOptions: { cdpUrl }, experimental: false,
  model: { modelName: "openai/gpt-4o", apiKey: "none", baseURL: process.env.OPENAI_BASE_URL },
})
await stagehand.init()
const page = stagehand.context.pages()[0]
await page.goto(site)
await stagehand.act("click the greet button")
const { title } = await stagehand.extract("the heading", z.object({ title: z.string() }))
console.log(await page.title(), title)
await stagehand.close()
process.exit(0)
