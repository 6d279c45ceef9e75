// The TypeScript clients with sessions: a call whose connection is cut gets its result when the stream is resumed.
import { Client as Client1 } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as Transport1 } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { Client as Client2, StreamableHTTPClientTransport as Transport2 } from '@modelcontextprotocol/client';

const [generation, url, call] = process.argv.slice(2);
const options = {
  reconnectionOptions: { initialReconnectionDelay: 200, maxReconnectionDelay: 2000, reconnectionDelayGrowFactor: 1.5, maxRetries: 50 },
};
const Client = generation === '1' ? Client1 : Client2,
  Transport = generation === '1' ? Transport1 : Transport2;
const client = new Client({ name: 'resume', version: '1' }, generation === '2' ? { versionNegotiation: { mode: 'legacy' } } : {});
await client.connect(new Transport(new URL(url), options));
const params = JSON.parse(call);
const limit = { timeout: 240_000 };
const result = await (generation === '1' ? client.callTool(params, undefined, limit) : client.callTool(params, limit));
console.log(result.content[0].text);
process.exit(0);
