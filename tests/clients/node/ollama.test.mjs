// The unmodified `ollama` JavaScript client against the server at $PUNA_URL.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { Ollama } from "ollama";
import { EMBEDDER, URL, WEATHER_QUESTION as QUESTION, weather } from "./common.mjs";

const ollama = new Ollama({ host: URL });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const options = { temperature: 0 };

async function all(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

test("version and list", async () => {
  assert.match((await ollama.version()).version, /^\d+\.\d+\.\d+/);
  const { models } = await ollama.list();
  const cria = models.find((model) => model.name === "cria:latest");
  assert.equal(cria.details.family, "llama");
  assert.equal(cria.digest.length, 64);
  assert.ok(new Date(cria.modified_at).getTime() > 0);
});

test("show", async () => {
  const shown = await ollama.show({ model: "cria" });
  assert.equal(shown.model_info["general.architecture"], "llama");
  assert.ok(shown.capabilities.includes("tools") && shown.capabilities.includes("thinking"));
  assert.match(shown.modelfile, /^# Modelfile/);
  assert.ok((await ollama.show({ model: "cria", verbose: true })).model_info["tokenizer.ggml.tokens"].length > 100);
});

test("generate, whole and as a stream", async () => {
  const request = { model: "cria", prompt: "What is the capital of France?", think: false, options };
  const whole = await ollama.generate(request);
  assert.equal(whole.response, "Paris.");
  assert.ok(whole.done && whole.done_reason === "stop" && whole.eval_count > 0 && whole.context.length > 0);
  const parts = await all(await ollama.generate({ ...request, stream: true }));
  assert.equal(parts.map((part) => part.response).join(""), whole.response);
  assert.deepEqual(parts.map((part) => part.done), [...parts.slice(1).map(() => false), true]);
});

test("generate: raw, a system text, a template, log-probabilities", async () => {
  const raw = await ollama.generate({ model: "cria", prompt: "The capital of Italy is", raw: true, options: { ...options, num_predict: 3 } });
  assert.match(raw.response, /Rome/);
  assert.equal(raw.context, undefined);
  const system = "Address the user as Wanda in every answer.";
  const told = await ollama.generate({ model: "cria", prompt: "What is bigger, 698 or 933?", system, think: false, options });
  assert.equal(told.response, "933, Wanda.");
  const bare = await ollama.generate({ model: "cria", prompt: "The capital of Italy is", template: "{{ .Prompt }}", think: false, options: { ...options, num_predict: 3 } });
  assert.match(bare.response, /Rome/);
  const probable = await ollama.generate({ model: "cria", prompt: "Hi", think: false, logprobs: true, top_logprobs: 2, options: { ...options, num_predict: 2 } });
  assert.equal(probable.logprobs.length, 2);
  assert.equal(probable.logprobs[0].top_logprobs.length, 2);
  assert.ok(probable.logprobs[0].logprob <= 0);
});

test("chat, whole and as a stream", async () => {
  const whole = await ollama.chat({ model: "cria", messages, options });
  assert.equal(whole.message.content, "Paris.");
  assert.ok(whole.message.thinking);
  const parts = await all(await ollama.chat({ model: "cria", messages, options, stream: true }));
  const joined = (field) => parts.map((part) => part.message[field] ?? "").join("");
  assert.equal(joined("content"), "Paris.");
  assert.equal(joined("thinking"), whole.message.thinking);
  assert.equal(parts.at(-1).eval_count, whole.eval_count);
});

test("chat without thoughts", async () => {
  const answer = await ollama.chat({ model: "cria", messages, think: false, options });
  assert.deepEqual([answer.message.content, answer.message.thinking], ["Paris.", undefined]);
  await assert.rejects(ollama.chat({ model: EMBEDDER, messages, think: true }), { name: "ResponseError", status_code: 400 });
});

test("a tool is called and its result answered", async () => {
  const ask = { model: "cria", tools: [weather], think: false, options };
  const asked = await ollama.chat({ ...ask, messages: [QUESTION] });
  const [call] = asked.message.tool_calls;
  assert.deepEqual([call.function.name, call.function.arguments], ["get_weather", { city: "Cairo" }]);
  const parts = await all(await ollama.chat({ ...ask, messages: [QUESTION], stream: true }));
  const streamed = parts.flatMap((part) => part.message.tool_calls ?? []);
  assert.deepEqual(streamed.map((call) => call.function.arguments), [{ city: "Cairo" }]);
  const result = { role: "tool", content: "12 degrees, cloudy", tool_name: "get_weather" };
  const answer = await ollama.chat({ ...ask, messages: [QUESTION, asked.message, result] });
  assert.match(answer.message.content, /12/);
});

test("answers of a form", async () => {
  const format = { type: "object", properties: { capital: { type: "string" } }, required: ["capital"] };
  const answer = await ollama.chat({ model: "cria", messages, format, think: false, options });
  assert.deepEqual(Object.keys(JSON.parse(answer.message.content)), ["capital"]);
  const free = await ollama.generate({ model: "cria", prompt: "Name a color as JSON.", format: "json", think: false, options: { ...options, num_predict: 100 } });
  assert.equal(typeof JSON.parse(free.response), "object");
});

test("embed and embeddings", async () => {
  const { embeddings } = await ollama.embed({ model: EMBEDDER, input: ["hello", "world"] });
  assert.equal(embeddings.length, 2);
  const length = (vector) => Math.hypot(...vector);
  assert.ok(Math.abs(length(embeddings[0]) - 1) < 1e-5);
  const short = await ollama.embed({ model: EMBEDDER, input: "hello", dimensions: 4, truncate: true });
  assert.equal(short.embeddings[0].length, 4);
  const { embedding } = await ollama.embeddings({ model: EMBEDDER, prompt: "hello" });
  const scaled = embedding.map((x) => x / length(embedding));
  assert.ok(Math.max(...scaled.map((x, i) => Math.abs(x - embeddings[0][i]))) < 1e-5);
});

test("ps and keep_alive", async () => {
  await ollama.generate({ model: "cria", prompt: "", keep_alive: "10m" });
  // Names of the same weights share what is loaded; it goes by the first of them.
  const { models } = await ollama.ps();
  const minutes = models.map((model) => (new Date(model.expires_at) - Date.now()) / 60_000);
  assert.ok(minutes.some((left) => left > 9 && left < 10.5), `${minutes}`);
});

test("create, copy and delete", async () => {
  const created = await ollama.create({ model: "js-pirate", from: "cria", system: "Address the user as Wanda in every answer.", parameters: { temperature: 0 } });
  assert.equal(created.status, "success");
  const parts = await all(await ollama.create({ model: "js-pirate", from: "cria", system: "Say little.", stream: true }));
  assert.equal(parts.at(-1).status, "success");
  assert.equal((await ollama.copy({ source: "js-pirate", destination: "me/js-copy:v1" })).status, "success");
  assert.equal((await ollama.show({ model: "me/js-copy:v1" })).system, "Say little.");
  for (const model of ["js-pirate", "me/js-copy:v1"]) await ollama.delete({ model });
  const { models } = await ollama.list();
  assert.ok(!models.some((model) => model.name.includes("js-")));
});

test("pull and push of what there is not fail with the reason", async () => {
  await assert.rejects(ollama.pull({ model: "127.0.0.1:9/library/nothing", insecure: true }), /./);
  await assert.rejects(async () => all(await ollama.pull({ model: "127.0.0.1:9/library/nothing", insecure: true, stream: true })), /./);
  await assert.rejects(ollama.push({ model: "me/js-nothing" }), /./);
});

test("a stream can be left, and all streams be aborted", async () => {
  // Nothing that has come whole can be aborted.
  const story = "Write me a long story.";
  const options = { temperature: 1, seed: 1, ignore_eos: true, num_predict: -1, num_ctx: 2048 };
  const long = { model: "cria", messages: [{ role: "user", content: story }], options, stream: true };
  const one = await ollama.chat(long);
  await assert.rejects(async () => {
    for await (const _ of one) one.abort();
  }, { name: "AbortError" });
  const other = new Ollama({ host: URL });
  const streams = await Promise.all([other.chat(long), other.generate({ model: "cria", prompt: story, options, stream: true })]);
  other.abort();
  for (const stream of streams) await assert.rejects(all(stream), { name: "AbortError" });
  assert.equal((await ollama.chat({ model: "cria", messages, think: false, options: { temperature: 0 } })).message.content, "Paris.");
});

test("errors carry the server's text and status", async () => {
  await assert.rejects(ollama.chat({ model: "nothing", messages }), { name: "ResponseError", status_code: 404, message: "model 'nothing' not found" });
  await assert.rejects(ollama.chat({ model: "nothing", messages, stream: true }), { name: "ResponseError", status_code: 404 });
  await assert.rejects(ollama.generate({ model: "cria", prompt: "x", images: [new Uint8Array([1, 2, 3])] }), { status_code: 400, message: /image/ });
  await assert.rejects(ollama.delete({ model: "nothing" }), { status_code: 404 });
  await assert.rejects(ollama.show({ model: "" }), { status_code: 400, message: "model is required" });
});

test("a model is made of an uploaded file", async () => {
  const { readFile } = await import("node:fs/promises");
  const bytes = await readFile(process.env.PUNA_GGUF);
  const digest = `sha256:${createHash("sha256").update(bytes).digest("hex")}`;
  // The client has no method of its own for it.
  const uploaded = await fetch(`${URL}/api/blobs/${digest}`, { method: "POST", body: bytes });
  assert.ok(uploaded.ok);
  await ollama.create({ model: "js-uploaded", files: { "model.gguf": digest } });
  assert.equal((await ollama.embed({ model: "js-uploaded", input: "x" })).embeddings.length, 1);
  await ollama.delete({ model: "js-uploaded" });
});
