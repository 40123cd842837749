// The unmodified `@anthropic-ai/sdk` client for Node against the server at $PUNA_URL.
import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { URL, WEATHER_QUESTION, schema } from "./common.mjs";

const client = new Anthropic({ baseURL: URL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const ask = { model: "cria", max_tokens: 200, temperature: 0, messages };
const brief = { ...ask, thinking: { type: "disabled" } };
const tools = [{ name: "get_weather", description: "Get the weather in a city", input_schema: schema }];

test("messages, whole and by the streaming helper", async () => {
  const whole = await client.messages.create(ask);
  assert.deepEqual(whole.content.map((block) => block.type), ["thinking", "text"]);
  assert.equal(whole.content[1].text, "Paris.");
  const stream = client.messages.stream(ask);
  const seen = { text: "", thinking: "", blocks: [] };
  stream.on("text", (delta, snapshot) => {
    seen.text += delta;
    assert.equal(snapshot, seen.text);
  });
  stream.on("thinking", (delta) => (seen.thinking += delta));
  stream.on("contentBlock", (block) => seen.blocks.push(block.type));
  const message = await stream.finalMessage();
  assert.deepEqual([seen.text, await stream.finalText()], ["Paris.", "Paris."]);
  assert.deepEqual(seen.blocks, ["thinking", "text"]);
  assert.equal(seen.thinking, whole.content[0].thinking);
  assert.deepEqual(message.content, whole.content);
  assert.equal(message.usage.output_tokens, whole.usage.output_tokens);
});

test("a tool is called and its result answered", async () => {
  const stream = client.messages.stream({ ...brief, messages: [WEATHER_QUESTION], tools });
  let json = "";
  stream.on("inputJson", (partial) => (json += partial));
  const asked = await stream.finalMessage();
  const use = asked.content.find((block) => block.type === "tool_use");
  assert.deepEqual([use.input, JSON.parse(json), asked.stop_reason], [{ city: "Cairo" }, { city: "Cairo" }, "tool_use"]);
  const result = { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "12 degrees, cloudy" }] };
  const answer = await client.messages.create({ ...brief, messages: [WEATHER_QUESTION, { role: "assistant", content: asked.content }, result], tools });
  assert.match(answer.content.find((block) => block.type === "text").text, /12/);
});

test("the tool runner calls functions until there is an answer", async () => {
  const asked = [];
  const run = ({ city }) => asked.push(city) && "12 degrees, cloudy";
  const runner = client.beta.messages.toolRunner({ ...brief, messages: [WEATHER_QUESTION], tools: [{ ...tools[0], run, parse: (input) => input }] });
  const answer = await runner;
  assert.deepEqual(asked, ["Cairo"]);
  assert.match(answer.content.find((block) => block.type === "text").text, /12/);
});

test("tokens are counted and models listed", async () => {
  assert.ok((await client.messages.countTokens({ model: "cria", messages })).input_tokens > 5);
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert.ok(ids.includes("cria:latest"));
});

test("errors have their classes", async () => {
  await assert.rejects(client.messages.create({ ...ask, model: "nothing" }), (error) => {
    assert.ok(error instanceof Anthropic.NotFoundError);
    return error.error.error.type === "not_found_error";
  });
  await assert.rejects(client.messages.create({ ...ask, messages: [] }), Anthropic.BadRequestError);
  await assert.rejects(client.messages.stream({ ...ask, model: "nothing" }).finalMessage(), Anthropic.NotFoundError);
});
