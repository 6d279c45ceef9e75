// The TypeScript clients, 1.x and 2.x: list, call, stream, cancel.
import { Client as Client1 } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as Transport1 } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { Client as Client2, StreamableHTTPClientTransport as Transport2 } from '@modelcontextprotocol/client';

const check = (ok, what) => { if (!ok) { console.error('failed: ' + what); process.exit(1); } };

async function story({ url, sandbox, mark }, version, Client, Transport) {
  const call = (name, args) =>
    sandbox
      ? { name: 'sandboxExecutor', arguments: { sandbox_name: sandbox, tool_name: name, arguments: args } }
      : { name, arguments: args };
  const client = new Client({ name: 'story', version: '1' });
  await client.connect(new Transport(new URL(url)));
  const send = (params, options = {}) => {
    options = { timeout: 240_000, ...options };
    return version === '1' ? client.callTool(params, undefined, options) : client.callTool(params, options);
  };
  const run = (command, options) => send(call('bash_exec', { command, timeout: 120 }), options);
  const gate = `/tmp/mcp-node${version}-${mark}`;
  const { tools } = await client.listTools();
  check(tools.some(t => t.name === 'bash_exec' || t.name === 'sandboxExecutor'), 'list');
  const got = await run('echo hello; seq 200000');
  check(got.content[0].text.startsWith('hello'), 'call: ' + JSON.stringify(got).slice(0, 300));
  let heard = 0, ended;
  await run(`until [ -e ${gate} ]; do sleep 0.05; done`, { onprogress: () => { if (!heard++) ended = run('touch ' + gate); } });
  check(heard > 0, version + ': no progress was reported');
  await ended;
  const stop = new AbortController();
  const endless = run(`touch ${gate}.runs; sleep ${mark}`, { signal: stop.signal }).then(() => false, () => true);
  await run(`until [ -e ${gate}.runs ]; do sleep 0.05; done`);
  stop.abort('enough');
  check(await endless, version + ': the call was not canceled');
  await run(`rm -f ${gate} ${gate}.runs`);
  await client.close();
  console.log('client ' + version + ' ok');
}

for (const target of JSON.parse(process.argv[2])) {
  console.log(JSON.stringify(target));
  await story(target, '1', Client1, Transport1);
  await story(target, '2', Client2, Transport2);
}
process.exit(0);
