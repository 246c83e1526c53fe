// Every call, against a real server.

import assert from "node:assert/strict";
import net from "node:net";
import { after, before, test } from "node:test";

import { Client, ConnectionFailed, OutcomeUnknown, Problem } from "../dist/index.js";
import { Server } from "../dist/testing.js";

let server, client;
let streams = 0;
const fresh = () => `stream ü/${(streams += 1)}`;

before(async () => {
  server = await Server.start();
  client = new Client(server.url);
});

after(async () => {
  client.close();
  await server.stop();
});

const all = async (items) => {
  const found = [];
  for await (const item of items) found.push(item);
  return found;
};

test("a message goes through", async () => {
  const stream = fresh();
  await client.createGroup(stream, "g");
  const sent = await client.publish(stream, { to: "ann" }, { id: "m-1", type: "email", key: "u", headers: { a: "b" } });
  assert.deepEqual([sent.seq, sent.id, sent.duplicate], [1, "m-1", false]);
  assert.equal((await client.publish(stream, { to: "ann" }, { id: "m-1" })).duplicate, true);
  const [message] = await client.receive(stream, "g", { max: 10, wait: 5, timeout: 30, consumer: "me" });
  assert.deepEqual(message.body, { to: "ann" });
  assert.deepEqual([message.id, message.type, message.key, message.headers.a], ["m-1", "email", "u", "b"]);
  assert.equal(message.attempt, 1);
  const left = message.deadline.getTime() - Date.now();
  assert.ok(left > 20_000 && left < 31_000, `${left}`);
  assert.deepEqual(await client.extend(stream, "g", message, 60), ["extended"]);
  assert.deepEqual(await client.ack(stream, "g", [message]), ["acked"]);
  assert.deepEqual(await client.ack(stream, "g", message.lease), ["not_yours"]);
});

test("bodies come back as they were", async () => {
  const stream = fresh();
  const texts = ["", "größe", '{"a": 1}', "42"];
  const bodies = [null, 0, ...texts, [1, { a: null }], { a: 1.5 }, Buffer.alloc(0), Buffer.from([0, 255])];
  await client.publishBatch(stream, bodies.map((body) => ({ body })));
  assert.deepEqual((await all(client.read(stream))).map((one) => one.body), bodies);
});

test("text is the same text for other clients", async () => {
  const stream = fresh();
  const path = `${server.url}/streams/${encodeURIComponent(stream)}/messages`;
  for (const body of ["hello", '{"a": 1}', ""]) await client.publish(stream, body);
  const { messages } = await (await fetch(path)).json();
  assert.deepEqual(messages.map((one) => one.body_text), ["hello", '{"a": 1}', ""]);
  assert.ok(messages.every((one) => !("body" in one)));
  const sent = JSON.stringify({ messages: [{ body_text: "[1]" }] });
  await fetch(path, { method: "POST", body: sent, headers: { "content-type": "application/json" } });
  assert.equal((await all(client.read(stream))).at(-1).body, "[1]");
});

test("a delivery says whether it is the first", async () => {
  const stream = fresh();
  await client.createGroup(stream, "g");
  await client.publish(stream, 1);
  const [first] = await client.receive(stream, "g", { wait: 5 });
  assert.deepEqual(await client.nack(stream, "g", first, { action: "return" }), ["returned"]);
  const [again] = await client.receive(stream, "g", { wait: 5 });
  assert.deepEqual([first.redelivered, again.redelivered], [false, true]);
  assert.deepEqual([first.attempt, again.attempt], [1, 1], "a return costs no attempt");
});

test("keys and headers may be bytes, and bodies have types", async () => {
  const stream = fresh();
  const sent = await client.publish(stream, Buffer.from("PNG"), {
    key: Buffer.from([255, 0]),
    headers: { raw: Buffer.from([254]), plain: "a" },
    contentType: "image/png",
    ttl: 60,
  });
  assert.ok(sent.logPosition >= 1);
  await client.publish(stream, "a,b", { contentType: "text/csv", key: Buffer.from("text") });
  const [image, table] = await all(client.read(stream));
  assert.deepEqual([image.body, image.contentType, image.key], [Buffer.from("PNG"), "image/png", undefined]);
  assert.deepEqual([image.keyBytes, image.headers], [Buffer.from([255, 0]), { plain: "a" }]);
  assert.deepEqual(image.headersBytes, { raw: Buffer.from([254]) });
  const left = image.expiresAt.getTime() - Date.now();
  assert.ok(left > 50_000 && left < 61_000, `${left}`);
  assert.deepEqual([table.body, table.contentType, table.key, table.keyBytes], ["a,b", "text/csv", "text", undefined]);
});

test("a batch is stored whole or not at all, and pages follow each other", async () => {
  const stream = fresh();
  await client.publishBatch(stream, Array.from({ length: 2500 }, (_, n) => ({ body: n })));
  const refused = client.publishBatch(stream, [{ body: "late" }], 4);
  await assert.rejects(refused, (error) => error instanceof Problem && error.kind === "wrong-last-seq");
  assert.equal((await all(client.read(stream))).length, 2500);
  assert.equal((await all(client.read(stream, { fromSeq: 2001 })))[0].seq, 2001);
});

test("messages that fail are parked and replayed", async () => {
  const stream = fresh();
  await client.createGroup(stream, "g", { max_retries: 0 });
  await client.publish(stream, "poison");
  const [message] = await client.receive(stream, "g", { wait: 5 });
  assert.deepEqual(await client.nack(stream, "g", message, { reason: "bad" }), ["parked"]);
  const [dead] = await all(client.parked(stream, "g"));
  assert.deepEqual([dead.seq, dead.reason, dead.message.body], [1, "bad", "poison"]);
  assert.deepEqual(dead.history.map((one) => [one.attempt, one.reason]), [[1, "bad"]]);
  assert.deepEqual(await client.parkedReasons(stream, "g"), { bad: 1 });
  assert.equal(await client.replay(stream, "g", { filter: { reason: "bad" } }), 1);
  const [again] = await client.receive(stream, "g", { wait: 5 });
  assert.deepEqual(await client.nack(stream, "g", again, { action: "skip" }), ["skipped"]);
});

test("operators' calls", async () => {
  const stream = fresh();
  assert.equal((await client.createStream(stream, { dedupe_window: "1h" })).settings.dedupe_window, "1h");
  await client.changeStream(stream, { limits: { max_messages: 3 } });
  assert.equal((await client.stream(stream)).settings.limits.max_messages, 3);
  await client.createGroup(stream, "g");
  await client.changeGroup(stream, "g", { max_retries: 4 });
  await client.pause(stream, "g");
  await client.publish(stream, 1, { delay: 0 });
  assert.deepEqual(await client.receive(stream, "g"), []);
  await client.resume(stream, "g");
  assert.equal((await client.receive(stream, "g", { wait: 5 })).length, 1);
  assert.equal((await client.group(stream, "g")).settings.max_retries, 4);
  assert.ok((await all(client.streams())).some((one) => one.stream === stream));
  assert.deepEqual((await all(client.groups(stream))).map((one) => one.group), ["g"]);
  assert.ok((await all(client.groups())).some((one) => one.stream === stream));
  await client.reset(stream, "g", "end");
  assert.deepEqual(await client.receive(stream, "g"), []);
  await client.reset(stream, "g", 1);
  assert.equal((await client.receive(stream, "g", { wait: 5 })).length, 1);
  assert.equal(await client.purge(stream), 1);
  await client.deleteGroup(stream, "g");
  await client.deleteStream(stream);
  await assert.rejects(client.stream(stream), (error) => error instanceof Problem && error.isNotFound);
});

test("refusals name the field, and mistakes are told at once", async () => {
  const refused = client.createGroup(fresh(), "g", { max_retries: -1 });
  await assert.rejects(refused, (error) => error.document.field === "max_retries" && /max_retries/.test(error.message));
  assert.throws(() => new Client("ftp://example.com"), /a server is/);
  await assert.rejects(client.publish(fresh(), 1, { delay: -1 }), /a duration/);
});

test("a receive that is aborted leases nothing", async () => {
  const stream = fresh();
  await client.createGroup(stream, "g");
  const waiting = client.receive(stream, "g", { wait: 30, signal: AbortSignal.timeout(200) });
  await assert.rejects(waiting, { name: "TimeoutError" });
  await client.publish(stream, 1);
  assert.equal((await client.receive(stream, "g", { wait: 5 }))[0].attempt, 1);
});

test("a call is repeated only if that is safe", async () => {
  let requests = 0;
  const cutter = net.createServer((socket) => socket.once("data", () => ((requests += 1), socket.destroy())));
  await new Promise((resolve) => cutter.listen(0, "127.0.0.1", resolve));
  const port = cutter.address().port;
  const other = new Client(`127.0.0.1:${port}`, { retryFor: 0.5 });
  await assert.rejects(other.deleteStream("s"), OutcomeUnknown);
  assert.equal(requests, 1);
  await assert.rejects(other.publish("s", 1), OutcomeUnknown);
  assert.ok(requests > 2);
  await new Promise((resolve) => cutter.close(resolve));
  await assert.rejects(other.publish("s", 1), ConnectionFailed);
  other.close();
});
