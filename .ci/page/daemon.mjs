// A daemon on a scratch store, and its API as a client of its own uses it.
import { once } from 'node:events';
import { createServer } from 'node:http';
import { spawn, execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const annals = process.env.PAGE_ANNALS;

export class Daemon {
  static async start(...options) {
    const daemon = Daemon.empty();
    daemon.cli('import', '--format', 'chat', '--id', '{task_id}-{trial}', '--status-from', 'reward', process.env.PAGE_RUNS);
    daemon.remember('bank', ['loan-7', 0, 'Why was the mortgage for 14 Elm Street rejected? <img src=x onerror="window.hacked=1">', 'The credit score of 580 is below the floor of 600. A second applicant would change that.',
      'May a rejected mortgage be asked for again, and when?', 'After three months, or once the score is above 600.']);
    daemon.remember('agency', ['house-2', 1, 'Was the mortgage of the buyer rejected by the bank?', 'Yes, on Tuesday. The seller was told.'], ['viewing-9', 1, 'When can I see the flat in Harbour Road?', 'On Friday at four.']);
    return daemon.serve(...options);
  }

  /// Imports runs of a tenant, each a name, a reward, questions and answers, into its memory too.
  remember(tenant, ...runs) {
    const file = join(this.folder, 'remembered.jsonl');
    const turn = (content, at) => ({ role: at % 2 ? 'assistant' : 'user', content });
    writeFileSync(file, runs.map(([id, reward, ...turns]) => JSON.stringify({ id, reward, messages: turns.map(turn) })).join('\n'));
    this.cli('import', '--format', 'chat', '--status-from', 'reward', '--remember', '--tenant', tenant, file);
  }

  /// A daemon with this many small runs.
  static async many(count) {
    const daemon = Daemon.empty();
    const file = join(daemon.folder, 'runs.jsonl');
    const line = (at) => JSON.stringify({ id: `run-${at}`, reward: at % 7 ? 1 : 0, messages: [{ role: 'user', content: `question ${at}` }, { role: 'assistant', content: `answer ${at}` }] });
    writeFileSync(file, Array.from({ length: count }, (_, at) => line(at)).join('\n'));
    daemon.cli('import', '--format', 'chat', '--status-from', 'reward', file);
    return daemon.serve();
  }

  static empty() {
    const daemon = new Daemon();
    daemon.folder = mkdtempSync(join(tmpdir(), 'annals-page-'));
    daemon.store = join(daemon.folder, 'store');
    return daemon;
  }

  async serve(...options) {
    const daemon = this;
    daemon.token = daemon.cli('token', 'add', 'test').trim();
    daemon.reader = daemon.cli('token', 'add', 'reader', '--profile', 'safe').trim();
    daemon.process = spawn(annals, ['--store', daemon.store, 'serve', '--http', '127.0.0.1:0', ...options], { stdio: ['ignore', 'ignore', 'pipe'] });
    let text = '';
    daemon.link = await new Promise((resolve, reject) => {
      daemon.process.stderr.on('data', (data) => {
        text += data;
        const link = /http:\S+#\/login\/[0-9a-f]{64}/.exec(text);
        if (link && text.includes('ready')) resolve(link[0]);
      });
      daemon.process.on('exit', () => reject(new Error(text)));
    });
    daemon.base = daemon.link.split('#')[0];
    return daemon;
  }

  cli(...words) {
    return execFileSync(annals, ['--store', this.store, ...words], { encoding: 'utf8', maxBuffer: 64 << 20, stdio: ['ignore', 'pipe', 'pipe'] });
  }

  async ask(method, path, body) {
    const response = await fetch(new URL(path, this.base), {
      method, headers: { authorization: `Bearer ${this.token}`, 'content-type': 'application/json' }, body: body && JSON.stringify(body),
    });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    return response.status === 204 ? null : response.json();
  }

  begin(name, more = {}) { return this.ask('POST', '/v1/runs', { name, ...more }); }
  end(name, status = 'ok') { return this.ask('POST', `/v1/runs/${encodeURIComponent(name)}/end`, { status }); }
  frame(run, frame) { return this.ask('POST', `/v1/runs/${encodeURIComponent(run)}/frames`, frame); }

  async stop() {
    this.process.removeAllListeners('exit');
    const ended = new Promise((resolve) => { this.process.on('exit', resolve); });
    this.process.kill('SIGINT');
    await ended;
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/// The recorded failure of a program, and a daemon that may fork it. The program asks where to fly, and books; it
/// fails if the answer was Oslo.
export class ForkedAgent {
  static async start() {
    const agent = new ForkedAgent();
    agent.upstream = createServer((request, response) => {
      request.resume();
      const message = { role: 'assistant', content: 'OSL' };
      response.setHeader('content-type', 'application/json');
      // In two parts, the second once the first is on its way.
      response.write(`{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"finish_reason":"stop",`);
      setTimeout(() => response.end(`"message":${JSON.stringify(message)}}]}`), 50);
    });
    await once(agent.upstream.listen(0, '127.0.0.1'), 'listening');
    const url = `http://127.0.0.1:${agent.upstream.address().port}`;
    agent.daemon = Daemon.empty();
    const program = join(agent.daemon.folder, 'agent.py');
    writeFileSync(program, `
import json, os, sys, urllib.request

def ask(text):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]

place = ask("Where shall I fly?")
ask("Book " + place)
print("booked", place)
sys.exit(place == "OSL")
`);
    agent.command = ['python3', '-B', program];
    process.env.OPENAI_API_KEY = 'sk-test';
    const record = spawn(annals, ['--store', agent.daemon.store, 'record', '--run', 'night', '--upstream', url, '--', ...agent.command], { stdio: 'ignore' });
    await once(record, 'exit');
    await agent.daemon.serve('--allow-fork', '--', ...agent.command);
    return agent;
  }

  async stop() {
    await this.daemon.stop();
    this.upstream.closeAllConnections();
    this.upstream.close();
  }
}

/// A page beside a recorder that holds the store.
export class BesideRecorder {
  static async start() {
    const beside = new BesideRecorder();
    beside.store = Daemon.empty();
    beside.recorder = spawn(annals, ['--store', beside.store.store, 'record', '--allow-empty', '--run', 'live', '--', 'sh', '-c', 'echo begun; exec cat'], { stdio: ['pipe', 'pipe', 'ignore'] });
    await once(beside.recorder.stdout, 'data');
    const { DISPLAY, WAYLAND_DISPLAY, ...env } = process.env;
    beside.page = spawn(annals, ['--store', beside.store.store, 'open', '--web'], { env, stdio: ['ignore', 'pipe', 'pipe'] });
    let text = '';
    beside.link = await new Promise((resolve, reject) => {
      const look = (data) => {
        text += data;
        const link = /http:\S+#\/login\/[0-9a-f]{64}/.exec(text);
        if (link) resolve(link[0]);
      };
      beside.page.stdout.on('data', look);
      beside.page.stderr.on('data', look);
      beside.page.on('exit', () => reject(new Error(text)));
    });
    return beside;
  }

  async stop() {
    this.page.removeAllListeners('exit');
    const ended = Promise.all([this.page, this.recorder].map((process) => once(process, 'exit')));
    this.page.kill('SIGINT');
    this.recorder.stdin.end();
    await ended;
    rmSync(this.store.folder, { recursive: true, force: true });
  }
}

/// A model call with these messages, as an import has it.
export function call(messages, answer, more = {}) {
  return { component: 'llm', request: JSON.stringify({ model: 'gpt-4o', messages }), response: JSON.stringify(answer), ...more };
}

/// Text that would be markup, move other text, or end a script if the page did not take it as text.
export const HOSTILE = '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=1"> \u202egnitirw tfel\u202c \u001b[31mred\u001b[0m \u0000 ﷽ 👩‍👩‍👧';

export async function fill(daemon) {
  const second = 1_000_000_000n;
  const start = BigInt(Date.now()) * 1_000_000n - 3600n * second;
  const at = (seconds) => Number(start + BigInt(Math.round(seconds * 1e9)));

  // Hostile text in every place that a recorder fills.
  await daemon.begin(`hostile <script> ${'\u202e'}txt`, { agent: '<img src=x onerror="window.hacked=1">', model: '"><script>window.hacked=1</script>', tags: { '<b>': '<i>' } });
  const hostile = `hostile <script> ${'\u202e'}txt`;
  await daemon.frame(hostile, call([{ role: '<script>', content: HOSTILE }], { role: 'assistant', content: HOSTILE, tool_calls: [{ id: '"><x', type: 'function', function: { name: '<script>alert(1)</script>.sh', arguments: '{"a":"</script>"}' } }] }));
  await daemon.frame(hostile, { component: '<script>', request: { base64: Buffer.from([0xff, 0xfe, 0x00, 0x80, 0x3c, 0x73]).toString('base64') }, response: { base64: Buffer.from([0xc3, 0x28]).toString('base64') } });
  await daemon.frame(hostile, { component: 'tool', request: 'one line', response: 'x'.repeat(10_000_000), error: true, severity: 'escalated' });
  await daemon.end(hostile, 'failed');

  // Parallel calls with times.
  await daemon.begin('timed', { agent: 'planner', model: 'gpt-4o', tags: { team: 'red' }, started_ns: at(0) });
  const messages = [{ role: 'system', content: 'You book flights.' }, { role: 'user', content: 'Book me a flight to Oslo.' }];
  const answer = { role: 'assistant', content: 'I look at two airlines.', tool_calls: ['SAS', 'Norwegian'].map((name, index) => ({ id: `call-${index}`, type: 'function', function: { name: 'search', arguments: JSON.stringify({ airline: name, to: 'OSL' }) } })) };
  await daemon.frame('timed', call(messages, answer, { started_ns: at(0.2), duration_ns: 1_800_000_000 }));
  await daemon.frame('timed', { component: 'tool', request: '{"airline":"SAS"}', response: '[{"flight":"SK1472","price":129}]', metadata: { tool: { name: 'search' } }, parent: 1, started_ns: at(2.1), duration_ns: 2_400_000_000 });
  await daemon.frame('timed', { component: 'tool', request: '{"airline":"Norwegian"}', response: 'upstream timed out after 5 s', metadata: { tool: { name: 'search' } }, parent: 1, error: true, severity: 'flagged', started_ns: at(2.2), duration_ns: 5_000_000_000 });
  const results = [...messages, answer, { role: 'tool', tool_call_id: 'call-0', content: '[{"flight":"SK1472","price":129}]' }, { role: 'tool', tool_call_id: 'call-1', content: 'upstream timed out after 5 s' }];
  await daemon.frame('timed', call(results, { role: 'assistant', content: 'SK1472 costs 129 euro. Shall I book it?' }, { started_ns: at(7.4), duration_ns: 1_200_000_000 }));
  await daemon.ask('POST', '/v1/runs/timed/snapshots', { state: '{"step":"asked","flights":["SK1472"]}' });
  await daemon.frame('timed', call([...results, { role: 'assistant', content: 'SK1472 costs 129 euro. Shall I book it?' }, { role: 'user', content: 'Yes.' }], { role: 'assistant', content: 'Booked.' }, { started_ns: at(20), duration_ns: 900_000_000 }));
  await daemon.ask('POST', '/v1/runs/timed/snapshots', { state: '{"step":"booked","flights":["SK1472"],"price":129}' });
  await daemon.end('timed', 'failed');

  // A tree of forks.
  const lengths = new Map([['timed', 5]]);
  for (let number = 1; number < 100; number += 1) {
    const from = number % 3 === 0 && number > 3 ? `fork-${number - 3}` : 'timed';
    const shared = Math.min(1 + (number % 4), lengths.get(from));
    lengths.set(`fork-${number}`, shared + 1);
    await daemon.ask('POST', `/v1/runs/${from}/fork`, { at: shared, name: `fork-${number}` });
    await daemon.frame(`fork-${number}`, call(messages, { role: 'assistant', content: `Another answer, number ${number}.` }));
    await daemon.end(`fork-${number}`, number % 5 === 0 ? 'ok' : 'failed');
  }

  // A long run, whose last requests have 1 MB.
  await daemon.begin('long');
  const frames = Number(process.env.PAGE_FRAMES ?? 2000);
  for (let from = 0; from < frames - 3; from += 50) {
    for (let at = from; at < Math.min(from + 50, frames - 3); at += 1) {
      await daemon.frame('long', { component: at % 2 ? 'tool' : 'user', request: `question ${at}`, response: `answer ${at}`, duration_ns: 1000 * at });
    }
  }
  const big = [{ role: 'system', content: 'word '.repeat(200_000) }, { role: 'user', content: 'A short question.' }];
  for (let at = 0; at < 3; at += 1) {
    big.push({ role: 'user', content: `Question ${at}` });
    await daemon.frame('long', call(big, { role: 'assistant', content: `Answer ${at}` }));
  }
  await daemon.end('long');

  // The memory of a run that is gone.
  await daemon.ask('POST', '/v1/memory/entries', { entries: [{ id: 'run-old-3', createdAt: Date.now() - 40 * 86400e3, metadata: { run: 'old-3', frame: 1, status: 'ok' },
    value: { query: 'Mortgage rejected for a missing payslip: why was it not asked for?', finalContent: 'The form lists payslips as optional. It should not.' } }], embed: true, tenant: 'broker' });

  // Memories of two conversations, and sessions that one of them misled.
  const remember = (id, query, finalContent, conversation, toolCalls = []) => daemon.ask('POST', '/v1/memory/entries', {
    entries: [{ id, createdAt: Date.now() - 3 * 86400e3, value: { query, finalContent, toolCalls } }], embed: true, tenant: 'airline', conversation });
  await remember('turn-1', 'May reservation ZFA04Y be cancelled? It is basic economy, booked yesterday.', 'Cancelled: it was booked 20 hours ago, and within 24 hours every reservation may be cancelled.', 'zfa04y',
    [{ name: 'get_reservation_details', args: '{"reservation_id":"ZFA04Y"}', resultPreview: '{"cabin":"basic_economy","created_at":"2024-05-14T19:00:00"}' }]);
  await remember('turn-1', 'May reservation K1NW8N be cancelled? It is basic economy without insurance.', 'REJECTED: basic economy without insurance, booked nine days ago.', 'k1nw8n');
  await remember('turn-2', 'Which compensation is due for a delayed flight?', 'A certificate of 50 dollars for each passenger, once the delay is confirmed.', 'k1nw8n');
  const session = (sessionId, outcome, more) => daemon.ask('POST', '/v1/diagnostics/sessions', { session: { sessionId, outcome, orgId: 'airline', ...more } });
  for (let number = 0; number < 6; number += 1) {
    await session(`refund-${number}`, number === 4 ? 'rework' : 'rejected', { injectedObservationIds: ['airline/_/k1nw8n/turn-2'],
      toolCallSummary: [{ tool: number % 3 ? 'pytest' : 'issue_certificate', success: false }], errorsEncountered: [{ message: number % 3 ? '1 test failed' : 'the amount is wrong', tool: number % 3 ? 'pytest' : 'issue_certificate', recoverable: false }] });
  }
  for (let number = 0; number < 3; number += 1) await session(`cancel-${number}`, 'accepted', { injectedObservationIds: ['airline/_/zfa04y/turn-1'] });

  // A decision with two inputs.
  const decided = await daemon.ask('POST', '/v1/cstp', { jsonrpc: '2.0', id: 1, method: 'cstp.recordDecision', params: {
    decision: 'Keep the ledger in Postgres', confidence: 0.85, category: 'architecture', reasons: [{ type: 'analysis', text: 'It is there already.' }],
    deliberation: { inputs: [{ id: 'a', text: 'The team runs Postgres' }, { id: 'b', text: 'The load is 40 writes a second' }],
      steps: [{ step: 1, thought: 'Read the load', inputs_used: ['b'] }, { step: 2, thought: 'Postgres takes the load', inputs_used: ['a', 'b'] }] },
  } });
  return decided.result.id;
}
