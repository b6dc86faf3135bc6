// An agent for Node that puts times, ids and random numbers into its prompts.
import crypto, { randomUUID } from 'node:crypto';
import { promisify } from 'node:util';
import { Worker, isMainThread, parentPort } from 'node:worker_threads';

const drawn = async () => [
  Date.now(), new Date().toISOString(), Math.random(), randomUUID(), crypto.randomUUID(), globalThis.crypto.randomUUID(),
  crypto.randomBytes(4).toString('hex'), (await promisify(crypto.randomBytes)(3)).toString('hex'), crypto.randomInt(1e9),
  crypto.getRandomValues(new Uint32Array(2)).join(), crypto.randomFillSync(Buffer.alloc(4), 1).toString('hex'),
].join(' ');

async function chat(text) {
  const body = JSON.stringify({ model: 'm-1', messages: [{ role: 'user', content: text }] });
  const headers = { 'content-type': 'application/json' };
  const answer = await fetch(process.env.OPENAI_BASE_URL + '/chat/completions', { method: 'POST', headers, body });
  console.log(answer.status, await answer.text());
}

if (isMainThread) {
  for (let step = 0; step < 3; step++) await chat(`step ${step}: ${await drawn()}`);
  const worker = new Worker(new URL(import.meta.url));
  await chat(`worker: ${await new Promise((resolve) => worker.once('message', resolve))}`);
  // One that is refused is refused as ever.
  for (const bad of [() => crypto.randomBytes(-1), () => crypto.randomInt(5, 2), () => crypto.getRandomValues([])]) {
    try { bad(); console.log('taken'); } catch (error) { console.log(error.name); }
  }
} else {
  parentPort.postMessage(await drawn());
}
