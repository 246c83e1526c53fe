// TLS: which certificates are trusted, and what a client says of another one. A server that is not Forebay.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";

import { CertificateRejected, Client, Problem, Worker } from "../dist/index.js";
import { Server } from "../dist/testing.js";

let folder, cert, server, url;

before(async () => {
  folder = fs.mkdtempSync(path.join(os.tmpdir(), "forebay-tls-"));
  cert = path.join(folder, "cert.pem");
  const key = path.join(folder, "key.pem");
  const words = ["cert", "self-signed", "--name", "localhost", "--cert", cert, "--key", key];
  execFileSync(process.env.FOREBAY_BIN ?? "forebay", words, { stdio: "ignore" });
  server = await Server.start(undefined, ["--tls-cert", cert, "--tls-key", key]);
  url = `https://localhost:${server.port}`;
  delete process.env.FOREBAY_CA;
});

after(async () => {
  await server.stop();
  fs.rmSync(folder, { recursive: true, force: true });
});

async function withVariable(value, story) {
  process.env.FOREBAY_CA = value;
  try {
    return await story();
  } finally {
    delete process.env.FOREBAY_CA;
  }
}

async function publish(server, options) {
  const client = new Client(server, options);
  try {
    return (await client.publish("s", 1)).seq;
  } finally {
    client.close();
  }
}

test("the certificates are those of a variable or an option", async () => {
  assert.equal(await publish(url, { tls: { ca: fs.readFileSync(cert) } }), 1);
  assert.equal(await withVariable(cert, () => publish(url)), 2);
  const worker = await withVariable(cert, () => new Worker("s", "g", { server: url, ensureGroup: {} }));
  const stats = await worker.onAny(() => {}).run({ idle: 0.3, signals: false });
  assert.equal(stats.acked, 2);
});

test("a certificate that is not trusted is refused at once", async () => {
  const begin = Date.now();
  await assert.rejects(publish(url), (error) => {
    assert.ok(error instanceof CertificateRejected, error);
    assert.match(error.message, /invalid certificate: self.signed certificate\. FOREBAY_CA names/);
    return true;
  });
  const worker = new Worker("s", "g", { server: url, ensureGroup: {} }).onAny(() => {});
  await assert.rejects(worker.run({ signals: false }), CertificateRejected);
  // This one is for another name, so other authorities would not help.
  await assert.rejects(
    withVariable(cert, () => publish(url.replace("localhost", "127.0.0.1"))),
    (error) => error instanceof CertificateRejected && !error.message.includes("FOREBAY_CA"),
  );
  assert.ok(Date.now() - begin < 5_000);
});

test("a file without certificates is named", async () => {
  const empty = path.join(folder, "empty.pem");
  fs.writeFileSync(empty, "");
  for (const file of [empty, path.join(folder, "missing.pem")]) {
    await withVariable(file, () => {
      assert.throws(() => new Client("https://localhost"), /FOREBAY_CA must name a file with certificates/);
      new Client("http://localhost").close();
    });
  }
});

test("a server that is not Forebay is named", async () => {
  const other = http.createServer((request, reply) => {
    const isPage = request.url.startsWith("/streams/page");
    reply.writeHead(isPage ? 200 : 404).end(isPage ? "<html>" : "<Unknown/>\n");
  });
  await once(other.listen(0, "127.0.0.1"), "listening");
  const address = `127.0.0.1:${other.address().port}`;
  const client = new Client(address);
  after(() => {
    client.close();
    other.close();
  });
  for (const [stream, status] of [["page", 200], ["orders", 404]]) {
    await assert.rejects(client.stream(stream), (error) => {
      assert.ok(error instanceof Problem && error.status === status && !error.isNotFound, error);
      const begin = `the server at ${address} is not the HTTP API of Forebay, which is on port 7070`;
      assert.ok(error.message.startsWith(begin), error.message);
      return true;
    });
  }
});
