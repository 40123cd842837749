// The unmodified `openai` client for Node against the server at $PUNA_URL.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { EMBEDDER, URL, WEATHER_QUESTION, schema, weather } from "./common.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const ask = { model: "cria", messages, temperature: 0 };
const brief = { ...ask, reasoning_effort: "none" };

test("models", async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert.ok(ids.includes("cria:latest"));
  assert.equal((await client.models.retrieve("cria")).id, "cria");
});

test("chat completions, whole and as a stream", async () => {
  const whole = await client.chat.completions.create(ask);
  assert.equal(whole.choices[0].message.content, "Paris.");
  assert.equal(whole.choices[0].finish_reason, "stop");
  let text = "";
  let usage;
  for await (const chunk of await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, "Paris.");
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("several parts, several roles, and what else a conversation may hold", async () => {
  const answer = await client.chat.completions.create({
    ...brief,
    messages: [
      { role: "developer", content: [{ type: "text", text: "Address the user as Wanda in every answer." }] },
      { role: "user", name: "rosa", content: [{ type: "text", text: "What is bigger, 698 or 933?" }] },
      { role: "assistant", content: null, refusal: "I will not say." },
      { role: "assistant", content: [{ type: "refusal", refusal: "I still will not." }] },
      { role: "user", content: [{ type: "text", text: "What is bigger, 698 or 933?" }] },
    ],
    max_completion_tokens: 20,
    user: "rosa",
    store: false,
    metadata: { a: "b" },
  });
  assert.equal(answer.choices[0].finish_reason === "stop" || answer.choices[0].finish_reason === "length", true);
});

test("the streaming helper tells events and the whole", async () => {
  const stream = client.chat.completions.stream({ ...brief, logprobs: true, top_logprobs: 1, stream_options: { include_usage: true } });
  const seen = { content: "", done: "", logprobs: 0 };
  stream.on("content.delta", ({ delta, snapshot }) => {
    seen.content += delta;
    assert.equal(snapshot, seen.content);
  });
  stream.on("content.done", ({ content }) => (seen.done = content));
  stream.on("logprobs.content.delta", ({ content }) => (seen.logprobs += content.length));
  const completion = await stream.finalChatCompletion();
  assert.deepEqual([seen.content, seen.done, await stream.finalContent()], ["Paris.", "Paris.", "Paris."]);
  assert.equal(completion.choices[0].logprobs.content.length, seen.logprobs);
  assert.ok((await stream.totalUsage()).total_tokens > 0);
});

test("the streaming helper puts calls together", async () => {
  const stream = client.chat.completions.stream({ ...brief, messages: [WEATHER_QUESTION], tools: [weather] });
  let done;
  stream.on("tool_calls.function.arguments.done", (event) => (done = event));
  const call = await stream.finalFunctionToolCall();
  assert.deepEqual([call.name, JSON.parse(call.arguments)], ["get_weather", { city: "Cairo" }]);
  assert.deepEqual([done.name, JSON.parse(done.arguments)], ["get_weather", { city: "Cairo" }]);
  assert.equal((await stream.finalChatCompletion()).choices[0].finish_reason, "tool_calls");
});

async function runTools(stream) {
  const asked = [];
  const answer = ({ city }) => asked.push(city) && "12 degrees, cloudy";
  const tool = { type: "function", function: { ...weather.function, parse: JSON.parse, function: answer } };
  const runner = client.chat.completions.runTools({ ...brief, messages: [WEATHER_QUESTION], tools: [tool], stream });
  assert.match(await runner.finalContent(), /12/);
  assert.deepEqual(asked, ["Cairo"]);
  assert.deepEqual(runner.messages.map((message) => message.role), ["user", "assistant", "tool", "assistant"]);
}

test("runTools calls functions until there is an answer", () => runTools(false));

test("runTools calls functions while it streams", () => runTools(true));

test("parse takes a form from zod", async () => {
  const Capital = z.object({ capital: z.string(), country: z.enum(["France", "Italy"]) });
  const completion = await client.chat.completions.parse({ ...brief, response_format: zodResponseFormat(Capital, "capital") });
  const { parsed } = completion.choices[0].message;
  assert.deepEqual(Object.keys(parsed), ["capital", "country"]);
  assert.ok(Capital.safeParse(parsed).success);
  const stream = client.chat.completions.stream({ ...brief, response_format: zodResponseFormat(Capital, "capital") });
  assert.ok(Capital.safeParse((await stream.finalChatCompletion()).choices[0].message.parsed).success);
});

test("parse takes arguments of strict functions from zod", async () => {
  const tool = zodFunction({ name: "get_weather", description: "Get the weather in a city", parameters: z.object({ city: z.string() }) });
  const completion = await client.chat.completions.parse({ ...brief, messages: [WEATHER_QUESTION], tools: [tool], tool_choice: "required" });
  assert.deepEqual(completion.choices[0].message.tool_calls[0].function.parsed_arguments, { city: "Cairo" });
});

test("completions", async () => {
  const answer = await client.completions.create({ model: "cria", prompt: "What is the capital of France?", temperature: 0, max_tokens: 200 });
  assert.equal(answer.choices[0].text.trim(), "Paris.");
  let text = "";
  for await (const chunk of await client.completions.create({ model: "cria", prompt: "What is the capital of France?", temperature: 0, max_tokens: 200, stream: true })) {
    text += chunk.choices[0]?.text ?? "";
  }
  assert.equal(text, answer.choices[0].text);
});

test("embeddings, which the client asks for in base64", async () => {
  const [decoded, plain] = await Promise.all([
    client.embeddings.create({ model: EMBEDDER, input: ["hello", "world"] }),
    client.embeddings.create({ model: EMBEDDER, input: ["hello", "world"], encoding_format: "float" }),
  ]);
  assert.deepEqual(plain.data.map((one) => one.index), [0, 1]);
  const worst = Math.max(...plain.data[1].embedding.map((x, i) => Math.abs(x - decoded.data[1].embedding[i])));
  assert.ok(worst < 1e-6, `${worst}`);
  const short = await client.embeddings.create({ model: EMBEDDER, input: "hello", dimensions: 4 });
  assert.equal(short.data[0].embedding.length, 4);
  const raw = await client.embeddings.create({ model: EMBEDDER, input: "hello", encoding_format: "base64" });
  assert.equal(typeof raw.data[0].embedding, "string");
});

test("responses, whole, as events and by the helper", async () => {
  const request = { model: "cria", input: "What is the capital of France?", temperature: 0 };
  const whole = await client.responses.create(request);
  assert.equal(whole.output_text, "Paris.");
  const kinds = [];
  for await (const event of await client.responses.create({ ...request, stream: true })) kinds.push(event.type);
  assert.deepEqual([kinds[0], kinds.at(-1)], ["response.created", "response.completed"]);
  const stream = client.responses.stream(request);
  let text = "";
  stream.on("response.output_text.delta", ({ delta, snapshot }) => {
    text += delta;
    assert.equal(snapshot, text);
  });
  assert.equal((await stream.finalResponse()).output_text, "Paris.");
});

test("responses go on, are retrieved and deleted", async () => {
  const request = { model: "cria", temperature: 0, reasoning: { effort: "none" } };
  const first = await client.responses.create({ ...request, input: "My name is Rosa.", instructions: "Be brief." });
  const second = await client.responses.create({ ...request, input: "What is my name?", previous_response_id: first.id });
  assert.match(second.output_text, /Rosa/);
  assert.equal((await client.responses.retrieve(first.id)).id, first.id);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
});

test("responses call functions and parse forms", async () => {
  const request = { model: "cria", temperature: 0, reasoning: { effort: "none" } };
  const tools = [{ type: "function", name: "get_weather", description: "Get the weather in a city", parameters: schema, strict: true }];
  const input = [{ role: "user", content: "What is the weather in Paris?" }];
  const asked = await client.responses.create({ ...request, input, tools });
  const call = asked.output.find((item) => item.type === "function_call");
  assert.deepEqual(JSON.parse(call.arguments), { city: "Paris" });
  const turn = [...input, ...asked.output, { type: "function_call_output", call_id: call.call_id, output: "18 degrees, sunny" }];
  assert.match((await client.responses.create({ ...request, input: turn, tools })).output_text, /18/);
  const Capital = z.object({ capital: z.string() });
  const parsed = await client.responses.parse({ ...request, input: "What is the capital of France?", text: { format: zodTextFormat(Capital, "capital") } });
  assert.ok(Capital.safeParse(parsed.output_parsed).success);
});

test("a stream can be left", async () => {
  const stream = await client.chat.completions.create({ ...ask, messages: [{ role: "user", content: "Write me a long story." }], ignore_eos: true, max_tokens: 4000, stream: true });
  for await (const _ of stream) break;
  assert.ok(stream.controller.signal.aborted);
  assert.equal((await client.chat.completions.create(brief)).choices[0].message.content, "Paris.");
});

test("errors have their classes", async () => {
  await assert.rejects(client.chat.completions.create({ ...ask, model: "nothing" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.deepEqual([error.status, error.type, error.code], [404, "not_found_error", null]);
    return /model 'nothing' not found/.test(error.message);
  });
  await assert.rejects(client.chat.completions.create({ ...ask, messages: [] }), OpenAI.BadRequestError);
  await assert.rejects(client.chat.completions.create({ ...ask, stream: true, max_tokens: 0 }), OpenAI.BadRequestError);
  await assert.rejects(client.embeddings.create({ model: "nothing", input: "x" }), OpenAI.NotFoundError);
});
