// What the suites share: the server that pytest started, and a tool.
export const URL = process.env.PUNA_URL;
export const EMBEDDER = process.env.PUNA_EMBEDDER;

export const WEATHER_QUESTION = { role: "user", content: "What's the weather like in Cairo?" };

export const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
export const weather = { type: "function", function: { name: "get_weather", description: "Get the weather in a city", parameters: schema } };
