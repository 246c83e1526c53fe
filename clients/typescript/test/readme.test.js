// The README's program runs, and prints what it shows.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import fs from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { Server } from "../dist/testing.js";

test("the worker of the README", async () => {
  const text = fs.readFileSync(new URL("../README.md", import.meta.url), "utf8");
  const blocks = [...text.matchAll(/^```(\w*)\n([^]*?)^```$/gm)];
  const program = blocks.find(([, language]) => language === "js")[2];
  const shown = blocks.find(([, , text]) => text.startsWith("to ann@example.com"))[2];
  // Beside the package, so that it is found by its name.
  const file = fileURLToPath(new URL(`readme-${process.pid}.mjs`, import.meta.url));
  const server = await Server.start();
  try {
    fs.writeFileSync(file, program.replace('from "forebay"', 'from "../dist/index.js"'));
    const env = { ...process.env, FOREBAY_SERVER: server.url };
    const { stdout } = await promisify(execFile)(process.execPath, [file], { env, timeout: 60_000 });
    assert.equal(stdout, shown);
  } finally {
    fs.rmSync(file, { force: true });
    await server.stop();
  }
});
