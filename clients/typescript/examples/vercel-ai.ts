/** An agent of Ricordo in the AI SDK of Vercel: `node vercel-ai.js AGENT "I like tea."` */

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";

const [agent = "Nina", prompt = "Hello."] = process.argv.slice(2);
const url = process.env["RICORDO_URL"] ?? "http://127.0.0.1:8283";
const ricordo = createOpenAICompatible({
  name: "ricordo",
  baseURL: `${url}/v1`,
  apiKey: process.env["RICORDO_API_KEY"] ?? "none",
  includeUsage: true,
});

const { textStream, usage } = streamText({ model: ricordo.chatModel(agent), prompt });
for await (const text of textStream) process.stdout.write(text);
const { inputTokens, outputTokens } = await usage;
console.log(`\n(${inputTokens} tokens read, ${outputTokens} written)`);
