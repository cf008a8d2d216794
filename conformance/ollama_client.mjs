// Ollama's client for JavaScript: node ollama_client.mjs PATH_OF_THE_CLIENT URL, prints one object of JSON.
import { createRequire } from "node:module";

const [path, host] = process.argv.slice(2);
const { Ollama } = createRequire(path)("ollama");
const client = new Ollama({ host });

const { models } = await client.list();
const model = models[0].name;
const { capabilities, model_info: facts } = await client.show({ model });
const options = { num_predict: 8, temperature: 0 };
const messages = [{ role: "user", content: "What is the weather?" }];
const tools = [{ type: "function", function: {
  name: "get_weather", description: "Weather of a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
} }];

const parts = [];
for await (const part of await client.chat({ model, messages, options, stream: true })) parts.push(part);
const generated = await client.generate({ model, prompt: "Hi", options });
const called = process.env.WITH_TOOLS ? (await client.chat({ model, messages, tools })).message : null;
let answered = null;
if (called) {
  const result = { role: "tool", content: "18 C", tool_name: "get_weather" };
  answered = (await client.chat({ model, messages: [...messages, called, result], tools })).message.content;
}
const missing = await client.chat({ model: "no-such-model", messages }).catch((error) => error.message);
console.log(JSON.stringify({
  model, capabilities, architecture: facts["general.architecture"],
  content: parts.map((part) => part.message.content).join(""), last: parts.at(-1),
  response: generated.response, called, answered, missing,
}));
