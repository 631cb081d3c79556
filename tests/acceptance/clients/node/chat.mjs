// Chat Completions by the unchanged Node SDK and Vercel AI SDK, against BASE_URL.
// Prints one JSON line per case, told apart by `name`. test_chat_completions.py judges them.
import OpenAI from "openai";
import { generateText, streamText, tool, stepCountIs } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const refund = "interruptible-approval";
const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "unused", maxRetries: 0 });
const vercel = createOpenAI({ baseURL: process.env.BASE_URL, apiKey: "unused" });

async function tell(name, act) {
  try {
    console.log(JSON.stringify({ name, ...(await act()) }));
  } catch (error) {
    console.log(JSON.stringify({ name, error: error.message, code: error.code ?? null }));
  }
}

const asked = (n) => [{ role: "user", content: `Refund order ${process.env.ORDER}-${n}` }];
const answer = (messages, message) => [
  ...messages,
  message,
  { role: "tool", tool_call_id: message.tool_calls[0].id, content: "approve" },
];
const inModes = {
  json: (request) => client.chat.completions.create(request),
  helper: (request) => client.chat.completions.stream(request).finalChatCompletion(),
};

for (const [mode, create] of Object.entries(inModes)) {
  await tell(`refund ${mode}`, async () => {
    const paused = await create({ model: refund, messages: asked(mode) });
    const [{ message, finish_reason }] = paused.choices;
    const done = await create({ model: refund, messages: answer(asked(mode), message) });
    return {
      call: message.tool_calls[0].function.name,
      reasons: [finish_reason, done.choices[0].finish_reason],
      final: done.choices[0].message.content,
    };
  });
  await tell(`failed ${mode}`, async () => ({
    final: await create({ model: "failing", messages: asked(mode) }),
  }));
}

const get_weather = tool({
  description: "The weather in a place",
  inputSchema: z.object({ location: z.string() }),
  execute: async ({ location }) => `18 degrees in ${location}`,
});
const request = {
  model: vercel.chat("echo"),
  prompt: "What is the weather in Paris?",
  tools: { get_weather },
  stopWhen: stepCountIs(4),
  maxRetries: 0,
};
await tell("vercel generate", async () => {
  const { text, steps } = await generateText(request);
  return { text, steps: steps.length };
});
await tell("vercel stream", async () => {
  const done = streamText(request);
  return { text: await done.text, steps: (await done.steps).length, reason: await done.finishReason };
});
