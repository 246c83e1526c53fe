// The README's program runs, and prints what it shows.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { Server } from "../dist/testing.js";

const text = fs.readFileSync(new URL("../README.md", import.meta.url), "utf8");
const blocks = [...text.matchAll(/^```(\w*)\n([^]*?)^```$/gm)];
const programs = blocks.filter(([, language]) => language === "js").map(([, , program]) => program);

async function run(program) {
  // Beside the package, so that it is found by its name.
  const file = fileURLToPath(new URL(`readme-${process.pid}.mjs`, import.meta.url));
  const server = await Server.start();
  try {
    const here = program.replace('from "forebay"', 'from "../dist/index.js"').replace("127.0.0.1:7070", server.url);
    fs.writeFileSync(file, here);
    const env = { ...process.env, FOREBAY_SERVER: server.url };
    const { stdout } = await promisify(execFile)(process.execPath, [file], { env, timeout: 60_000 });
    return stdout;
  } finally {
    fs.rmSync(file, { force: true });
    await server.stop();
  }
}

test("the worker of the README", async () => {
  const shown = blocks.find(([, , text]) => text.startsWith("to ann@example.com"))[2];
  assert.equal(await run(programs[0]), shown);
});

test("the package is installed as shown", async () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "forebay-readme-"));
  const server = await Server.start();
  try {
    const from = fileURLToPath(new URL("..", import.meta.url));
    const filter = (name) => !["node_modules", "dist"].includes(path.basename(name));
    fs.cpSync(from, path.join(folder, "clients", "typescript"), { recursive: true, filter });
    fs.writeFileSync(path.join(folder, "mailer.mjs"), programs[0]);
    const steps = blocks.filter(([, language]) => language === "").map(([, , commands]) => commands);
    const env = { ...process.env, FOREBAY_SERVER: server.url, npm_config_loglevel: "silent" };
    const options = { cwd: folder, env, timeout: 240_000 };
    const { stdout } = await promisify(execFile)("sh", ["-ec", steps.join("")], options);
    assert.ok(stdout.endsWith(blocks.find(([, , text]) => text.startsWith("to ann@example.com"))[2]), stdout);
  } finally {
    fs.rmSync(folder, { recursive: true, force: true });
    await server.stop();
  }
});

test("the client of the README", async () => {
  // The first message has a delay, so it is not received.
  assert.equal(await run(programs[1]), "2 { sku: 'A-2' }\n3 <Buffer 00 01>\n");
  assert.equal(programs.length, 2, "every program is run");
});
