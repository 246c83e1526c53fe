// The official client of KurrentDB for Node.js: persistent subscriptions. It creates them in the oldest form of the
// protocol.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { after, before, test } from "node:test";

import {
  END,
  KurrentDBClient,
  PARK,
  PINNED,
  PersistentSubscriptionDoesNotExistError,
  PersistentSubscriptionDroppedError,
  PersistentSubscriptionExistsError,
  PersistentSubscriptionFailedError,
  PersistentSubscriptionMaximumSubscribersReachedError,
  RETRY,
  ROUND_ROBIN,
  SKIP,
  START,
  STOP,
  jsonEvent,
  persistentSubscriptionToAllSettingsFromDefaults as settingsOfAll,
  persistentSubscriptionToStreamSettingsFromDefaults as settings,
  streamNameFilter,
} from "@kurrent/kurrentdb-client";

import { startServer } from "./server.js";

let server;
let client;

before(async () => {
  server = await startServer();
  client = KurrentDBClient.connectionString(server.url);
});

after(async () => {
  await client.dispose();
  await server.stop();
});

const PATIENCE_MS = 20_000;
const name = (stem) => `${stem}-${randomUUID()}`;

async function append(stream, count) {
  const events = Array.from({ length: count }, (_, n) => jsonEvent({ type: "Tested", data: { n } }));
  await client.appendToStream(stream, events);
}

/** Creates a stream with events and a subscription to it. */
async function subscription(count, given = {}) {
  const [stream, group] = [name("orders"), name("group")];
  await append(stream, count);
  await client.createPersistentSubscriptionToStream(stream, group, settings({ startFrom: START, ...given }));
  return { stream, group, info: () => client.getPersistentSubscriptionToStreamInfo(stream, group) };
}

/** Reads events one by one. */
function consumer({ stream, group }, bufferSize = 10) {
  const call = client.subscribeToPersistentSubscriptionToStream(stream, group, { bufferSize });
  const events = call[Symbol.asyncIterator]();
  return {
    call,
    next: async () => (await events.next()).value,
    stop: () => call.unsubscribe(),
  };
}

async function eventually(condition) {
  const until = Date.now() + PATIENCE_MS;
  while (!(await condition())) {
    assert.ok(Date.now() < until, "it did not come about");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

test("defaults are kept", async () => {
  const [stream, group] = [name("orders"), name("group")];
  await client.createPersistentSubscriptionToStream(stream, group, settings());
  const info = await client.getPersistentSubscriptionToStreamInfo(stream, group);
  assert.equal(info.groupName, group);
  assert.equal(info.eventSource, stream);
  assert.equal(info.settings.startFrom, END);
  assert.equal(info.settings.consumerStrategyName, ROUND_ROBIN);
  assert.equal(info.settings.messageTimeout, 30_000);
  assert.equal(info.settings.maxRetryCount, 10);
  assert.equal(info.settings.checkPointUpperBound, 1_000);
  assert.equal(info.settings.historyBufferSize, 500);
});

test("settings are kept and updated", async () => {
  const given = { startFrom: 5n, consumerStrategyName: PINNED, maxRetryCount: 3, extraStatistics: true };
  const of = await subscription(0, given);
  const before = (await of.info()).settings;
  assert.equal(before.startFrom, 5n);
  assert.equal(before.consumerStrategyName, PINNED);
  assert.equal(before.maxRetryCount, 3);
  assert.equal(before.extraStatistics, true);
  await client.updatePersistentSubscriptionToStream(of.stream, of.group, { ...before, maxRetryCount: 4 });
  assert.deepEqual((await of.info()).settings, { ...before, maxRetryCount: 4 });
});

test("events are acked, and no more are held than fit", async () => {
  const of = await subscription(5);
  const one = consumer(of, 2);
  const first = await one.next();
  assert.equal(first.event.revision, 0n);
  assert.equal(first.retryCount, 0);
  assert.equal((await one.next()).event.revision, 1n);
  await eventually(async () => (await of.info()).stats.outstandingMessagesCount === 2);
  await one.call.ack(first);
  assert.equal((await one.next()).event.revision, 2n);
  await one.stop();
});

test("every nack does what it says", async () => {
  const of = await subscription(4, { maxRetryCount: 1 });
  const one = consumer(of);
  const events = [];
  for (let n = 0; n < 4; n++) events.push(await one.next());
  await one.call.nack(PARK, "not now", events[0]);
  await one.call.nack(SKIP, "", events[1]);
  await one.call.nack(STOP, "", events[2]);
  await one.call.nack(RETRY, "again", events[3]);
  const again = await one.next();
  assert.equal(again.event.revision, 3n);
  assert.equal(again.retryCount, 1);
  await one.call.nack(RETRY, "again", again);
  await eventually(async () => (await of.info()).stats.parkedMessageCount === 2n);
  await client.replayParkedMessagesToStream(of.stream, of.group, { stopAt: 1 });
  const back = await one.next();
  assert.equal(back.event.revision, 0n);
  await one.call.ack(back);
  await client.replayParkedMessagesToStream(of.stream, of.group);
  assert.equal((await one.next()).event.revision, 3n);
  await one.stop();
});

test("lists name every subscription", async () => {
  const of = await subscription(1);
  const listed = await client.listPersistentSubscriptionsToStream(of.stream);
  assert.deepEqual(listed.map(({ groupName }) => groupName), [of.group]);
  const all = await client.listAllPersistentSubscriptions();
  assert.ok(all.some(({ groupName }) => groupName === of.group));
});

test("an update, a restart and a deletion drop consumers", async () => {
  const of = await subscription(1);
  for (const drop of [
    () => client.updatePersistentSubscriptionToStream(of.stream, of.group, settings({ startFrom: START })),
    () => client.restartPersistentSubscriptionSubsystem(),
    () => client.deletePersistentSubscriptionToStream(of.stream, of.group),
  ]) {
    const one = consumer(of);
    assert.equal((await one.next()).event.revision, 0n);
    const failed = once(one.call, "error");
    await drop();
    const [error] = await failed;
    assert.ok(error instanceof PersistentSubscriptionDroppedError, String(error));
  }
});

test("each error has its type", async () => {
  const of = await subscription(0, { maxSubscriberCount: 1 });
  const create = (given) =>
    client.createPersistentSubscriptionToStream(of.stream, given.group ?? of.group, settings(given));
  await assert.rejects(create({}), PersistentSubscriptionExistsError);
  await assert.rejects(
    create({ group: name("group"), readBatchSize: 500, historyBufferSize: 500 }),
    PersistentSubscriptionFailedError,
  );
  const missing = name("group");
  for (const call of [
    () => client.getPersistentSubscriptionToStreamInfo(of.stream, missing),
    () => client.updatePersistentSubscriptionToStream(of.stream, missing, settings()),
    () => client.deletePersistentSubscriptionToStream(of.stream, missing),
    () => client.replayParkedMessagesToStream(of.stream, missing),
    () => client.listPersistentSubscriptionsToStream(name("orders")),
  ]) {
    await assert.rejects(call(), PersistentSubscriptionDoesNotExistError);
  }
  const first = consumer(of);
  await once(first.call, "confirmation");
  const second = consumer(of);
  await assert.rejects(second.next(), PersistentSubscriptionMaximumSubscribersReachedError);
  await first.stop();
});

test("a subscription to all streams has a filter, and each call finds it", async () => {
  const [stem, group] = [name("orders"), name("group")];
  await append(`${stem}-1`, 2);
  await append(`${stem}-2`, 1);
  const filter = streamNameFilter({ prefixes: [stem] });
  await client.createPersistentSubscriptionToAll(group, settingsOfAll({ startFrom: START }), { filter });
  const call = client.subscribeToPersistentSubscriptionToAll(group, { bufferSize: 10 });
  const events = call[Symbol.asyncIterator]();
  const taken = [];
  for (let n = 0; n < 3; n++) taken.push((await events.next()).value);
  const places = taken.map(({ event }) => `${event.streamId}@${event.revision}`);
  assert.deepEqual(places, [`${stem}-1@0`, `${stem}-1@1`, `${stem}-2@0`]);
  assert.ok(taken.every(({ link }) => link === undefined));
  await call.ack(taken[0], taken[1]);
  await call.nack(PARK, "not now", taken[2]);
  const info = () => client.getPersistentSubscriptionToAllInfo(group);
  await eventually(async () => (await info()).stats.parkedMessageCount === 1n);
  assert.equal((await info()).eventSource, "$all");
  assert.equal((await info()).settings.startFrom, START);
  await client.replayParkedMessagesToAll(group);
  const again = (await events.next()).value;
  assert.equal(again.event.id, taken[2].event.id);
  await call.ack(again);
  await eventually(async () => (await info()).stats.parkedMessageCount === 0n);
  const listed = await client.listPersistentSubscriptionsToAll();
  assert.ok(listed.some(({ groupName }) => groupName === group));
  const twice = client.createPersistentSubscriptionToAll(group, settingsOfAll(), { filter });
  await assert.rejects(twice, PersistentSubscriptionExistsError);
  const [ended] = await Promise.all([
    once(call, "error"),
    client.updatePersistentSubscriptionToAll(group, settingsOfAll({ startFrom: START, maxRetryCount: 3 })),
  ]);
  assert.ok(ended[0] instanceof PersistentSubscriptionDroppedError);
  assert.equal((await info()).settings.maxRetryCount, 3);
  await client.deletePersistentSubscriptionToAll(group);
  await assert.rejects(info(), PersistentSubscriptionDoesNotExistError);
});

test("a category is read with its links resolved", async () => {
  const category = name("orders").replaceAll("-", "");
  await append(`${category}-1`, 2);
  const places = [];
  for await (const { event, link } of client.readStream(`$ce-${category}`, { resolveLinkTos: true })) {
    places.push(`${event.revision} by ${link.revision}`);
  }
  assert.deepEqual(places, ["0 by 0", "1 by 1"]);
});
