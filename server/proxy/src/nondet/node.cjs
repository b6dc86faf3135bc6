'use strict';
// Loaded into Node before the program. Node's random numbers come from its own copy of OpenSSL, which mixes in the
// process id and memory addresses, so the same entropy gives different numbers. Here they come from /dev/urandom,
// which is recorded and served.
const fs = require('fs');
const crypto = require('crypto');

const { openSync, readSync } = fs;
let device;
try {
  device = openSync('/dev/urandom', 'r');
} catch (error) {
  process.emitWarning(`annals does not capture random numbers: ${error.message}`);
  return;
}

// Functions that cannot be replaced are reported, and the program continues.
function stand(object, name, value) {
  try {
    const { enumerable } = Object.getOwnPropertyDescriptor(object, name);
    Object.defineProperty(object, name, { value, enumerable, writable: true, configurable: true });
  } catch (error) {
    process.emitWarning(`annals does not capture ${name}: ${error.message}`);
  }
}

function fill(view) {
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  for (let at = 0; at < bytes.length;) at += readSync(device, bytes, at, bytes.length - at, null);
  return view;
}

// Small fast counter (sfc32, by Chris Doty-Humphrey), seeded once for each thread.
const state = new Uint32Array(4);
let seeded = false;
function next() {
  if (!seeded) {
    seeded = true;
    fill(state);
    for (let round = 0; round < 12; round++) next();
  }
  const sum = (state[0] + state[1] + state[3]) >>> 0;
  state[3] += 1;
  state[0] = state[1] ^ (state[1] >>> 9);
  state[1] = state[2] + (state[2] << 3);
  state[2] = ((state[2] << 21) | (state[2] >>> 11)) + sum;
  return sum;
}
stand(Math, 'random', function () {
  return ((next() >>> 5) * 67108864 + (next() >>> 6)) / 9007199254740992;
});

// The original functions check the arguments; their results are overwritten.
const { randomBytes, randomFillSync, randomInt, randomUUID } = crypto;
const later = (done, value) => setImmediate(done, null, value);

stand(crypto, 'randomBytes', function (size, done) {
  const bytes = fill(randomBytes(size));
  if (done === undefined) return bytes;
  if (typeof done !== 'function') return randomBytes(size, done);
  later(done, bytes);
});
stand(crypto, 'randomFillSync', function (buffer, offset, size) {
  const given = randomFillSync(buffer, offset, size);
  const memory = ArrayBuffer.isView(buffer) ? buffer : new Uint8Array(buffer);
  const unit = memory.BYTES_PER_ELEMENT ?? 1;
  const from = (offset ?? 0) * unit;
  const length = size === undefined ? memory.byteLength - from : size * unit;
  fill(new Uint8Array(memory.buffer, memory.byteOffset + from, length));
  return given;
});
stand(crypto, 'randomFill', function (buffer, offset, size, done) {
  const call = [offset, size, done].find((argument) => typeof argument === 'function');
  const [from, length] = [offset, size].map((argument) => typeof argument === 'function' ? undefined : argument);
  crypto.randomFillSync(buffer, from, length);
  later(call, buffer);
});
stand(crypto, 'randomUUID', function (options) {
  randomUUID(options);
  const bytes = fill(Buffer.alloc(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  return bytes.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
});
stand(crypto, 'randomInt', function (min, max, done) {
  if (max === undefined || typeof max === 'function') [min, max, done] = [0, min, max];
  randomInt(min, max);
  const range = max - min;
  const limit = 2 ** 48 - (2 ** 48 % range);
  let drawn;
  do drawn = fill(Buffer.alloc(6)).readUIntBE(0, 6); while (drawn >= limit);
  const number = min + (drawn % range);
  if (done === undefined) return number;
  later(done, number);
});
const web = Object.getPrototypeOf(crypto.webcrypto);
const { getRandomValues } = web;
stand(web, 'getRandomValues', function (view) {
  getRandomValues.call(this, view);
  return fill(view);
});
stand(web, 'randomUUID', function () {
  return crypto.randomUUID();
});

require('module').syncBuiltinESMExports();
