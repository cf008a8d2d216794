// LM Studio's SDK for JavaScript: node lmstudio_client.mjs PATH_OF_THE_SDK HOST:PORT, prints one object of JSON.
import { createRequire } from "node:module";

const [path, host] = process.argv.slice(2);
const { LMStudioClient, rawFunctionTool } = createRequire(path)("@lmstudio/sdk");
const warnings = [];
const keep = (...args) => warnings.push(args.join(" "));
const logger = { info() {}, debug() {}, warn: keep, error: keep };
const client = new LMStudioClient({ baseUrl: `ws://${host}`, logger });

const downloaded = await client.system.listDownloadedModels();
const model = await client.llm.model();
const stream = model.respond([{ role: "user", content: "Say hello." }], { maxTokens: 8, temperature: 0 });
const pieces = [];
for await (const fragment of stream) pieces.push(fragment.content);
const result = await stream.result();
const completion = await model.complete("One, two,", { maxTokens: 4 });
const notFound = await client.llm.model("no-such-model").catch((error) => error.message);

let city = null;
const weather = rawFunctionTool({
  name: "get_weather",
  description: "Weather of a city.",
  parametersJsonSchema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  implementation: async (asked) => { city = asked.city; return `18 C in ${asked.city}`; },
});
const said = [];
let rounds = 0;
if (process.env.WITH_TOOLS) {
  rounds = (await model.act("What is the weather?", [weather], { onMessage: (m) => said.push(m.toString()) })).rounds;
}
console.log(JSON.stringify({
  models: downloaded.map((m) => m.modelKey), identifier: model.identifier, context: await model.getContextLength(),
  tokens: await model.countTokens("One, two"), pieces, content: result.content, stopReason: result.stats.stopReason,
  completion: completion.content, notFound, city, said, rounds, warnings,
}));
process.exit(0);
