// What the accumulating helpers of the official SDKs make of scripted answers. Reads {orders, tools} from standard input, asks the
// server at $PUNA_URL for each order by each helper, and writes what they put together.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { URL } from "./common.mjs";

const { orders, tool } = JSON.parse(await new Response(process.stdin).text());
const openai = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: URL, apiKey: "none", maxRetries: 0 });
const question = (order) => [{ role: "user", content: `ORDER ${order}.` }];

const helpers = {
  async chat(order) {
    const tools = [{ type: "function", function: { ...tool, strict: true } }];
    const stream = openai.chat.completions.stream({ model: "script", messages: question(order), tools, stream_options: { include_usage: true } });
    const done = await stream.finalChatCompletion();
    const [{ message, finish_reason }] = done.choices;
    const calls = (message.tool_calls ?? []).map((call) => [call.id, call.function.name, call.function.arguments]);
    return { text: message.content ?? "", calls, finish: finish_reason, usage: done.usage && [done.usage.prompt_tokens, done.usage.completion_tokens] };
  },
  async responses(order) {
    const tools = [{ type: "function", ...tool, strict: true }];
    const done = await openai.responses.stream({ model: "script", input: question(order), tools }).finalResponse();
    const calls = done.output.filter((item) => item.type === "function_call").map((item) => [item.call_id, item.name, item.arguments]);
    return { text: done.output_text, calls, finish: done.status, usage: done.usage && [done.usage.input_tokens, done.usage.output_tokens] };
  },
  async messages(order) {
    const tools = [{ name: tool.name, input_schema: tool.parameters }];
    const done = await anthropic.messages.stream({ model: "script", max_tokens: 1000, messages: question(order), tools }).finalMessage();
    const calls = done.content.filter((block) => block.type === "tool_use").map((block) => [block.id, block.name, JSON.stringify(block.input)]);
    const text = done.content.filter((block) => block.type === "text").map((block) => block.text);
    return { text: text.join(""), calls, finish: done.stop_reason, usage: [done.usage.input_tokens, done.usage.output_tokens] };
  },
};

const results = {};
for (const order of orders) {
  for (const [name, ask] of Object.entries(helpers)) {
    try {
      results[`${name} ${order}`] = await ask(order);
    } catch (error) {
      results[`${name} ${order}`] = { error: error.constructor.name, message: String(error.message) };
    }
  }
}
console.log(JSON.stringify(results));
