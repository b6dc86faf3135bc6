// The page and the report in Chromium. Each test says what a reader could not do if it failed.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { chromium } from 'playwright-core';
import { BesideRecorder, Daemon, ForkedAgent, fill } from './daemon.mjs';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const images = process.env.PAGE_IMAGES;
mkdirSync(images, { recursive: true });
const only = process.argv[2];
const tests = [];
const isQuick = process.env.PAGE_QUICK === '1';
const test = (name, run) => { if (!isQuick) tests.push([name, run]); };
/// A test that is short enough for every change.
const quick = (name, run) => tests.push([name, run]);
const figures = {};

const daemon = await Daemon.start();
const decision = await fill(daemon);
const browser = await chromium.launch({ executablePath: process.env.PAGE_CHROMIUM, args: ['--no-sandbox'] });

/// A page that fails the test on an error of its scripts or a breach of its policy.
async function tab(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1400, height: 860 }, colorScheme: 'light', ...options });
  const page = await context.newPage();
  page.problems = [];
  page.on('pageerror', (error) => page.problems.push(`${error.stack}`));
  page.on('console', (message) => {
    if (message.type() === 'error' && !/status of (401|403|404|410)/.test(message.text())) page.problems.push(message.text());
  });
  return page;
}

/// A page with a session, at an address.
async function opened(hash, options = {}) {
  const page = await tab(options);
  const link = newLink();
  await page.goto(`${link}?to=${encodeURIComponent(hash.slice(1))}`);
  await settled(page);
  return page;
}

function newLink() {
  return execFileSync(process.env.PAGE_ANNALS, ['--store', daemon.store, 'open', '--web', '--json'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] }).split('"')[3];
}

/// No request is on its way, except the streams of events.
async function settled(page) {
  await page.waitForFunction(() => document.querySelector('main') && !document.querySelector('.skeleton'));
  await page.waitForTimeout(250);
}

async function done(page) {
  assert.deepEqual(page.problems, []);
  assert.equal(await page.evaluate(() => window.hacked), undefined, 'recorded text ran as a script');
  await page.context().close();
}

async function accessible(page, what) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  const serious = violations.filter((of) => ['serious', 'critical'].includes(of.impact));
  assert.deepEqual(serious.map((of) => [of.id, of.nodes.slice(0, 3).map((node) => node.html.slice(0, 200))]), [], what);
}

const shot = (page, name) => page.screenshot({ path: join(images, `${name}.png`) });

quick('login link opens the runs once', async () => {
  const page = await tab();
  await page.goto(daemon.link);
  await page.waitForSelector('tbody tr a');
  assert.ok(!page.url().includes('login'), 'the code left the address');
  await page.reload();
  await page.waitForSelector('tbody tr a');
  await done(page);
  const again = await tab();
  await again.goto(daemon.link);
  await again.waitForSelector('.notice');
  assert.match(await again.textContent('.notice'), /no longer valid.*used before/s);
  await shot(again, 'used-link');
  await done(again);
});

/// A recorder holds the store, so the page reads beside it. Nothing on the page said why a pin was refused.
quick('page beside a recorder says that it only reads', async () => {
  const beside = await BesideRecorder.start();
  const page = await tab();
  await page.goto(beside.link);
  await page.waitForSelector('tbody tr a');
  await page.waitForFunction(() => document.querySelector('header').textContent.includes('read only'));
  assert.match(await page.textContent('tbody'), /live/);
  await page.reload();
  await page.waitForFunction(() => document.querySelector('header').textContent.includes('read only'));
  await accessible(page, 'read only');
  await shot(page, 'read-only');
  await done(page);
  await beside.stop();
  const own = await opened('#/runs');
  assert.ok(!(await own.textContent('header')).includes('read only'), 'a daemon with its own store writes');
  await done(own);
});

test('page without a session takes a token', async () => {
  const page = await tab();
  await page.goto(daemon.base);
  await page.waitForSelector('.notice');
  assert.match(await page.textContent('.notice'), /needs a session/);
  await shot(page, 'no-session');
  await page.fill('input[type=password]', daemon.token);
  await page.keyboard.press('Enter');
  await page.waitForSelector('tbody tr a');
  assert.equal(await page.evaluate(() => JSON.stringify(localStorage)), '{}', 'the token is not stored');
  await done(page);
});

quick('text is found in its frame', async () => {
  const page = await opened('#/runs');
  await page.keyboard.press('/');
  await page.keyboard.type('upstream timed out after');
  await page.keyboard.press('Enter');
  await page.waitForSelector('.hits li a');
  // The first search indexes the store, and asks again until that is done.
  await page.waitForFunction(() => !document.querySelector('[role=status]').textContent.includes('being indexed'));
  assert.match(await page.textContent('.hits li'), /timed@3.*as it stands.*upstream timed out after 5 s/s);
  assert.equal(await page.textContent('.hits mark'), 'upstream timed out after');
  // The request of frame 4 repeats the result of frame 3: it is found once.
  assert.ok(!(await page.textContent('.hits')).includes('timed@4'));
  await page.keyboard.press('Escape');
  await page.keyboard.press('j');
  await page.keyboard.press('Enter');
  await page.waitForSelector('.frame h1:has-text("Frame 3")');
  await page.goto(`${daemon.base}#/search?q=xylophone`);
  await page.waitForSelector('[role=status]:has-text("No frame says this")');
  await done(page);
});

quick('runs are found by the meaning of their questions', async () => {
  const page = await opened('#/runs');
  await page.keyboard.press('m');
  await page.keyboard.type('why was the mortgage rejected?');
  await page.keyboard.press('Enter');
  await page.waitForSelector('.hits li');
  assert.ok(page.url().endsWith('#/search?by=meaning&q=why+was+the+mortgage+rejected%3F'), page.url());
  const hits = await page.locator('.hits li').allTextContents();
  assert.equal(hits.length, 3, hits.join('\n'));
  const of = (run) => hits.find((text) => text.startsWith(run));
  assert.match(of('loan-7'), /loan-7@2.*F failed.*of bank\/_\/_.*Why was the mortgage.*The credit.*also@4/s);
  assert.match(of('house-2'), /agency\/_\/_/);
  // Its frames are gone: a link would lead nowhere.
  assert.match(of('old-3'), /gone: only its memory is left/);
  assert.equal(await page.locator('.hits li:has-text("old-3") a').count(), 0);
  assert.match(await page.textContent('[role=status]'), /3 runs\. Compared by annals-words-1, the built-in/);
  assert.match(await page.textContent('.limits'), /without an entry in memory.*--no-memory.*of another embedder are not compared/);
  // Recorded text stays text.
  assert.equal(await page.evaluate(() => document.querySelectorAll('main script, main img').length), 0);
  await accessible(page, 'search by meaning');
  await page.keyboard.press('Escape');
  await page.keyboard.press('j');
  await page.keyboard.press('m');
  await page.waitForFunction(() => location.hash === '#/search?q=why+was+the+mortgage+rejected%3F');
  await page.waitForSelector('nav.ways a[aria-current]:has-text("words")');
  await page.click('nav.ways a:has-text("meaning")');
  // The frames that the words found name loan-7, too: their list is not the one to press keys in.
  await page.waitForSelector('[role=status]:has-text("Compared by")');
  await page.waitForSelector('.hits li:has-text("loan-7")');
  await page.keyboard.press('j');
  await page.keyboard.press('Enter');
  await page.waitForSelector('.frame h1');
  await page.goto(`${daemon.base}#/search?by=meaning&q=xylophone`);
  await page.waitForSelector('[role=status]:has-text("No question of a run is near to this")');
  await shot(page, 'meaning-none');
  await page.goto(`${daemon.base}#/search?by=meaning`);
  await page.waitForSelector('[role=status]:has-text("Finds runs by the questions")');
  await done(page);
});

/// Entries of one embedder cannot be compared with a question of another.
quick('error of another embedder stands in the search and names both', async () => {
  const page = await opened('#/search');
  const detail = 'the question\'s vector is of the embedder "letters", but the stored entries are of "annals-words-1"';
  await page.route('**/v1/search?**', (route) => route.fulfill({ status: 400, contentType: 'application/problem+json', body: JSON.stringify({ code: 'ERR', detail }) }));
  await page.goto(`${daemon.base}#/search?by=meaning&q=mortgage`);
  await page.waitForSelector('.hits [role=alert]');
  assert.equal(await page.textContent('.hits [role=alert]'), detail);
  assert.equal(await page.inputValue('input[name=q]'), 'mortgage');
  await shot(page, 'meaning-mismatch');
  page.problems = page.problems.filter((text) => !text.includes('status of 400'));
  await done(page);
});

quick('redacted reader sees a banner and no raw content', async () => {
  const page = await tab();
  await page.goto(`${daemon.base}#/run/timed/1`);
  await page.waitForSelector('.notice, .frame h1');
  if (await page.$('input[type=password]')) {
    await page.fill('input[type=password]', daemon.reader);
    await page.keyboard.press('Enter');
  }
  await page.waitForSelector('.frame h1');
  assert.match(await page.textContent('.banner'), /Redacted by profile safe/);
  await done(page);
});

const VIEWS = [
  ['runs', '#/runs', /fork-99.*failed/s], ['failed-runs', '#/runs?status=failed', /fork-98/], ['no-match', '#/runs?agent=nobody', /No run matches.*agent nobody/s],
  ['run', '#/run/timed/4', /as before.*SK1472.*Answer/s], ['run-failed', '#/run/timed', /Failed: search answered: upstream timed out after 5 s/],
  ['raw', '#/run/timed/4?raw=request', /"model":"gpt-4o"/], ['compare', '#/compare/timed/fork-4', /differ.*the same in both|only in the/s], ['forks', '#/forks/timed', /99 forks.*fork-1 /s],
  ['memory', '#/memory?q=May%20the%20basic%20economy%20reservation%20ZFA04Y%20be%20cancelled%3F&tenant=airline', /airline\/_\/zfa04y.*what a prompt would get/s], ['decisions', '#/decisions', /Keep the ledger/], ['decision', `#/decisions?id=${decision}`, /Read the load.*2 inputs converge/s],
  ['search', '#/search?q=book%20me%20a%20flight', /as it stands.*Book me a flight to Oslo/s],
  ['meaning', '#/search?by=meaning&q=why%20was%20the%20mortgage%20rejected%3F', /loan-7@2.*also@4.*gone: only its memory/s], ['lessons', '#/lessons', /test_failure.*airline\/_\/k1nw8n\/turn-2.*refund-5/s], ['store', '#/store', /bodies of frames.*ledger root/s],
  ['hostile', `#/run/${encodeURIComponent(`hostile <script> ${'\u202e'}txt`)}/1`, /<script>window/], ['gone', '#/run/none', /No such run/],
];

for (const theme of ['light', 'dark']) {
  test(`every view is readable in ${theme} colours`, async () => {
    for (const [name, hash, shows] of VIEWS) {
      const page = await opened(hash, { colorScheme: theme });
      await page.waitForTimeout(300);
      assert.match(await page.textContent('main'), shows, `${name} shows its data`);
      await shot(page, `${name}-${theme}`);
      await accessible(page, `${name}, ${theme}`);
      await done(page);
    }
  });
}

for (const [width, height] of [[900, 700], [480, 800]]) {
  test(`views fit a window of ${width} columns`, async () => {
    for (const name of ['runs', 'run', 'compare']) {
      const page = await opened(VIEWS.find(([of]) => of === name)[1], { viewport: { width, height } });
      await shot(page, `${name}-${width}`);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(wide <= width, `${name}: ${wide} > ${width}`);
      await done(page);
    }
  });
}

quick('failed run opens at its failed frame with the reason', async () => {
  const page = await opened('#/run/timed');
  assert.match(await page.textContent('.frame h1'), /Frame 3/);
  assert.match(await page.textContent('.banner'), /failed/i);
  assert.match(await page.textContent('.frame'), /timed out after 5 s/);
  await done(page);
});

quick('hostile text stays text in every view', async () => {
  const name = encodeURIComponent(`hostile <script> ${'\u202e'}txt`);
  for (const hash of ['#/runs', `#/run/${name}/1`, `#/run/${name}/2`, `#/run/${name}/3`, `#/run/${name}/1?raw=request`, `#/run/${name}/2?raw=response`, `#/run/${name}/3?raw=response`, `#/compare/${name}/timed`, `#/forks/${name}`]) {
    const page = await opened(hash);
    await page.waitForTimeout(300);
    assert.equal(await page.evaluate(() => document.querySelectorAll('main script, main img[src=x], main iframe').length), 0, hash);
    await done(page);
  }
  const page = await opened(`#/run/${name}/1`);
  assert.match(await page.textContent('.frame'), /<script>window\.hacked=1<\/script>/);
  assert.match(await page.textContent('.banner'), /\\u202e/, 'a name cannot turn the text beside it');
  assert.match(await page.textContent('.frame'), /change the direction of text/);
  assert.equal(await page.textContent('.fork code'), `annals fork $'hostile <script> \\u202etxt@1'`, 'a command cannot turn its own text');
  await done(page);
});

test('body of 10 MB shows its beginning and all on request', async () => {
  const name = encodeURIComponent(`hostile <script> ${'\u202e'}txt`);
  const page = await opened(`#/run/${name}/3?raw=response`);
  await page.waitForSelector('pre.body');
  assert.match(await page.textContent('.frame'), /first 200\.0 KB of 10\.0 MB/);
  await page.click('text=show all');
  await page.waitForFunction(() => document.querySelector('pre.body').textContent.length === 10_000_000);
  await done(page);
});

quick('every action has a key', async () => {
  const page = await opened('#/runs');
  await page.keyboard.press('j');
  await page.keyboard.press('j');
  await page.keyboard.press('Enter');
  await page.waitForSelector('.frame h1');
  await page.goto(`${daemon.base}#/run/timed/1`);
  await settled(page);
  const title = () => page.textContent('.frame h1');
  const at = (seq) => page.waitForFunction((text) => document.querySelector('.frame h1')?.textContent === text, `Frame ${seq}`);
  await at(1);
  await page.keyboard.press('j');
  await at(2);
  await page.keyboard.press('k');
  await at(1);
  await page.keyboard.type('g5');
  await at(5);
  await page.keyboard.press('r');
  await page.waitForSelector('pre.body');
  assert.match(await page.textContent('pre.body'), /"model":"gpt-4o"/);
  await page.keyboard.press('r');
  await page.waitForSelector('.message');
  await page.keyboard.press('s');
  await page.waitForSelector('[aria-label="what changed"]');
  assert.match(await page.textContent('[aria-label="what changed"]'), /\$\.step.*"asked".*"booked"/s);
  await page.keyboard.press('m');
  await page.waitForFunction(() => document.querySelectorAll('.message').length > 5);
  await page.keyboard.press('[');
  assert.ok(await page.$('.run.no-left'));
  await page.keyboard.press(']');
  assert.ok(await page.$('.run.no-right'));
  await page.keyboard.press('x');
  await page.waitForFunction(() => document.activeElement.textContent === 'copy');
  const theme = await page.evaluate(() => document.documentElement.dataset.theme);
  await page.keyboard.press('t');
  assert.notEqual(await page.evaluate(() => document.documentElement.dataset.theme), theme);
  await page.keyboard.press('?');
  await page.waitForSelector('dialog[open]');
  await shot(page, 'keys');
  await page.keyboard.press('Escape');
  await page.keyboard.press('/');
  await page.keyboard.type('timed@2');
  await page.keyboard.press('Enter');
  await at(2);
  assert.match(await title(), /2/);
  await done(page);
});

quick('from a failure last night to a fork that no longer fails in eight actions', async () => {
  const provider = await ForkedAgent.start();
  const page = await tab();
  let actions = 0;
  const act = async (what) => { actions += 1; await what; };
  await act(page.goto(provider.daemon.link));
  await settled(page);
  await act(page.selectOption('[name=status]', 'failed'));
  await page.waitForFunction(() => location.hash.includes('status=failed'));
  await settled(page);
  await act(page.click('tbody a:has-text("night")'));
  await page.waitForSelector('.banner:has-text("the program ended with 1")');
  await act(page.click('.timeline a >> nth=0'));
  await page.waitForSelector('.frame h1:has-text("Frame 1")');
  await act(page.keyboard.press('x'));
  assert.equal(await page.textContent('.fork-form code'), provider.command.join(' '));
  await act(page.selectOption('.fork-form select', { label: 'another answer' }));
  const area = page.locator('.fork-form textarea');
  await page.waitForFunction(() => document.querySelector('.fork-form textarea').value.includes('OSL'));
  await act(area.fill((await area.inputValue()).replace('OSL', 'BGO')));
  await shot(page, 'fork-form');
  await accessible(page, 'the form of a fork');
  await act(page.click('.fork-form button[type=submit]'));
  await page.waitForSelector('.banner:has-text("night-fork-1")');
  await page.waitForSelector('.fork-status:has-text("the fork ended with 0")');
  figures['actions from the login to a fork that no longer fails'] = actions;
  assert.ok(actions <= 8, `${actions} actions`);
  await page.click('.fork-status summary');
  assert.match(await page.textContent('.fork-status pre'), /^booked BGO\nannals: forked into night-fork-1/);
  // Nothing was recorded when the page opened; its frames come by themselves.
  await page.waitForSelector('.frame h1:has-text("Frame")');
  await settled(page);
  await shot(page, 'fork-ended');
  await accessible(page, 'a fork that has ended');
  assert.equal((await provider.daemon.ask('GET', '/v1/runs/night-fork-1')).status, 'ok');

  // A fork that cannot be made says why, and the form stays.
  await page.goto(`${provider.daemon.base}#/run/night/1`);
  await page.waitForSelector('.fork-form select');
  await page.selectOption('.fork-form select', { label: 'another parameter' });
  await page.fill('.fork-form input >> nth=0', 'temperature');
  await page.click('.fork-form button[type=submit]');
  await page.waitForSelector('.fork-form [role=alert]:has-text("temperature")');
  assert.equal(await page.inputValue('.fork-form input >> nth=0'), 'temperature');
  page.problems = page.problems.filter((text) => !text.includes('status of 422'));

  // The answer as it came, in parts.
  await page.goto(`${provider.daemon.base}#/run/night/1?raw=arrivals`);
  await page.waitForSelector('.arrivals tbody tr');
  assert.deepEqual(await page.locator('.arrivals td:last-child').evaluateAll((cells) => [cells.length, cells.map((cell) => cell.textContent).join('').includes('"content":"OSL"')]), [2, true]);
  await shot(page, 'arrivals');
  await done(page);

  // A daemon that starts no forks shows the commands only.
  const other = await opened('#/run/timed/1');
  await other.keyboard.press('x');
  assert.equal(await other.textContent('.fork code'), 'annals fork timed@1');
  assert.equal(await other.locator('.fork-form').count(), 0);
  await done(other);
  await provider.stop();
});

quick('run that is recorded shows new frames on request', async () => {
  await daemon.begin('live');
  await daemon.frame('live', { component: 'user', request: '', response: 'first' });
  const page = await opened('#/run/live/1');
  assert.match(await page.textContent('.banner'), /being recorded/);
  await page.waitForFunction(() => document.querySelector('.live').textContent === 'live');
  for (let at = 0; at < 12; at += 1) await daemon.frame('live', { component: 'user', request: '', response: `more ${at}` });
  await page.waitForSelector('.newer:has-text("12 new frames")');
  assert.match(await page.textContent('.frame h1'), /Frame 1/, 'the view stays where its reader is');
  await shot(page, 'live');
  await page.click('.newer');
  await page.waitForSelector('.frame h1:has-text("Frame 13")');
  await daemon.end('live', 'failed');
  await page.waitForSelector('.banner:has-text("failed")');
  await done(page);
});

test('new runs are counted and rows stay in place', async () => {
  const page = await opened('#/runs');
  const first = await page.textContent('tbody a');
  await page.waitForFunction(() => document.querySelector('.live').textContent === 'live');
  await daemon.begin('newest');
  await page.waitForSelector('button:has-text("1 new run")');
  assert.equal(await page.textContent('tbody a'), first);
  await page.click('button:has-text("1 new run")');
  await page.waitForSelector('tbody a:has-text("newest")');
  await daemon.end('newest');
  await page.waitForFunction(() => [...document.querySelectorAll('tbody tr')].some((row) => row.textContent.includes('newest') && row.textContent.includes('ok')));
  await done(page);
});

test('two ticked runs are compared at their first difference', async () => {
  const page = await opened('#/runs');
  const ticks = await page.$$('tbody input[type=checkbox]');
  await ticks[0].check();
  await ticks[1].check();
  await page.click('button:has-text("compare")');
  await page.waitForSelector('.compare .pairs a[aria-current]');
  await done(page);
});

/// The longest task of the browser's main thread while `act` runs, in milliseconds.
async function longestTask(page, act) {
  await page.evaluate(() => {
    window.tasks = [];
    new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((entry) => entry.duration))).observe({ type: 'longtask' });
  });
  await act();
  await page.waitForTimeout(300);
  return page.evaluate(() => Math.max(0, ...window.tasks));
}

test('2,000 frames scroll without a long task', async () => {
  const page = await opened('#/run/long/1');
  await page.waitForFunction(() => document.querySelector('.timeline .head').textContent.includes('2,000'));
  await page.waitForTimeout(500);
  figures['longest task, timeline of 2,000 frames (ms)'] = await longestTask(page, async () => {
    for (let top = 0; top < 48_000; top += 1200) {
      await page.evaluate((to) => { document.querySelector('.timeline .scroll').scrollTop = to; }, top);
      await page.waitForTimeout(16);
    }
  });
  await done(page);
});

test('request of 1 MB opens at once', async () => {
  const page = await opened('#/run/long/1999');
  const began = Date.now();
  await page.keyboard.press('j');
  await page.waitForFunction(() => document.querySelector('.frame h1')?.textContent === 'Frame 2000');
  figures['a frame with a request of 1 MB (ms)'] = Date.now() - began;
  assert.match(await page.textContent('.frame'), /messages as before, 1\.0 MB/);
  await done(page);
});

test('first view is there at once', async () => {
  const page = await opened('#/runs');
  const times = [];
  for (let at = 0; at < 5; at += 1) {
    await page.reload();
    await page.waitForSelector('tbody tr a');
    times.push(await page.evaluate(() => performance.getEntriesByName('annals-first-rows')[0].startTime));
  }
  figures['first rows after navigation, median of 5 (ms)'] = Math.round(times.sort((a, b) => a - b)[2]);
  await done(page);
});

test('report opens from disk without a network', async () => {
  const out = join(daemon.folder, 'report.html');
  daemon.cli('report', 'timed', '-o', out);
  const page = await tab();
  const requests = [];
  page.on('request', (request) => requests.push(request.url()));
  await page.goto(pathToFileURL(out).href);
  await page.waitForSelector('.frame h1');
  assert.match(await page.textContent('.banner'), /timed/);
  assert.deepEqual(requests.filter((url) => !url.startsWith('file:') && !url.startsWith('data:')), []);
  await page.keyboard.press('j');
  await page.waitForSelector('.frame h1:has-text("Frame 4")');
  await shot(page, 'report');
  await accessible(page, 'report');
  await done(page);
  const hostile = join(daemon.folder, 'hostile.html');
  daemon.cli('report', `hostile <script> ${'\u202e'}txt`, '-o', hostile);
  const other = await tab();
  await other.goto(pathToFileURL(hostile).href);
  await other.waitForSelector('.frame h1');
  await other.keyboard.press('k');
  await other.waitForTimeout(300);
  await done(other);
  const pair = join(daemon.folder, 'pair.html');
  daemon.cli('report', 'timed', 'fork-4', '-o', pair);
  const both = await tab();
  await both.goto(pathToFileURL(pair).href);
  await both.waitForSelector('.compare .pairs a[aria-current]');
  await shot(both, 'report-compare');
  await done(both);
  // A blame as `annals blame` stores it: badges at the left, the ranking with its intervals at the right.
  const rows = [[4, 0.82, 0.6, 0.93], [1, 0.1, 0.02, 0.35]].map(([step, flip_rate, low, high]) => ({ step, flip_rate, interval: { low, high }, flips: 8, valid: 10 }));
  const blamed = join(daemon.folder, 'blamed.html');
  const text = readFileSync(out, 'utf8');
  assert.equal(text.split('"blame":null').length, 2);
  writeFileSync(blamed, text.replace('"blame":null', `"blame":${JSON.stringify({ state: 'done', rows, pairs: [] })}`));
  const ranked = await tab();
  await ranked.goto(`${pathToFileURL(blamed).href}#/run/timed/4`);
  await ranked.waitForSelector('.inspector svg[aria-label="0.82, 95% interval 0.60 to 0.93"]');
  assert.match(await ranked.textContent('.timeline a[aria-current]'), /0\.82/);
  assert.match(await ranked.textContent('.frame'), /SK1472 costs 129 euro/);
  assert.equal((await ranked.$$('.inspector .rank')).length, 2);
  assert.match(await ranked.textContent('.inspector'), /Blame, with 95% intervals/);
  await shot(ranked, 'report-blame');
  await accessible(ranked, 'report with a blame');
  await done(ranked);
  // A step that was decided early keeps a 97.5% interval: the page called it one of 95%. Rows beyond the twelfth were
  // cut without a word.
  const many = Array.from({ length: 15 }, (_, at) => ({ ...rows[at === 0 ? 0 : 1], step: at === 0 ? 4 : 1, stopped_early: at === 0 }));
  const early = join(daemon.folder, 'early.html');
  writeFileSync(early, text.replace('"blame":null', `"blame":${JSON.stringify({ state: 'done', rows: many, pairs: [] })}`));
  const decided = await tab();
  await decided.goto(`${pathToFileURL(early).href}#/run/timed/4`);
  await decided.waitForSelector('.inspector svg[aria-label="0.82, 97.5% interval 0.60 to 0.93"]');
  const inspector = await decided.textContent('.inspector');
  assert.match(inspector, /Blame, with 95% and 97\.5% intervals/);
  assert.match(inspector, /decided early \(97\.5% interval\)/);
  assert.match(inspector, /3 further steps not shown/);
  assert.equal((await decided.$$('.inspector .rank')).length, 12);
  await accessible(decided, 'report with a step that was decided early');
  await done(decided);
  const long = join(daemon.folder, 'real.html');
  const runs = (await daemon.ask('GET', '/v1/runs?count=1000')).runs.filter((run) => run.frames >= 45 && run.frames <= 65);
  if (runs[0]) {
    daemon.cli('report', runs[0].name, '-o', long);
    figures[`report of a real run of ${runs[0].frames} frames (bytes)`] = statSync(long).size;
    assert.ok(statSync(long).size < 500_000);
  }
});

test('100,000 runs scroll without a long task', async () => {
  const many = await Daemon.many(Number(process.env.PAGE_RUNS_MANY ?? 100_000));
  try {
    const page = await tab();
    await page.goto(many.link);
    await page.waitForSelector('tbody tr a');
    const longest = await longestTask(page, async () => {
      for (;;) {
        const shown = await page.evaluate(() => {
          const scroll = document.querySelector('.scroll');
          scroll.scrollTop = scroll.scrollHeight;
          return document.querySelector('[role=status]').textContent;
        });
        if (!/ of | more below/.test(shown)) break;
        await page.waitForTimeout(16);
      }
      // Through all of them, a screen at a time at first, then in long jumps.
      const height = await page.evaluate(() => document.querySelector('.scroll').scrollHeight);
      for (let top = 0; top < height; top += top < 60_000 ? 600 : 60_000) {
        await page.evaluate((to) => { document.querySelector('.scroll').scrollTop = to; }, top);
        await page.waitForTimeout(16);
      }
    });
    figures['longest task, list of 100,000 runs (ms)'] = longest;
    assert.ok(longest < 50, `${longest} ms`);
    assert.match(await page.textContent('[role=status]'), /^100,000 runs|^[0-9,]+ runs$/);
    await done(page);
  } finally {
    await many.stop();
  }
});

let failed = 0;
for (const [name, run] of tests) {
  if (only && !name.includes(only)) continue;
  try {
    await run();
    console.log(`ok      ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}\n${error.stack}`);
  }
}
await browser.close();
await daemon.stop();
for (const [name, value] of Object.entries(figures)) console.log(`${name}: ${value}`);
console.log(failed ? `${failed} failed` : 'all passed');
process.exit(failed ? 1 : 0);
