// The unchanged Vercel AI SDK, the major that AI and PROVIDER name, against BASE_URL.
// Prints one JSON line per case, told apart by `name`. test_vercel_ai_sdk.py judges them.
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const { generateText, streamText, tool, stepCountIs, Output } = await import(process.env.AI);
const { createOpenAI } = await import(process.env.PROVIDER);
const openai = createOpenAI({ baseURL: process.env.BASE_URL, apiKey: "unused" });
const [echo, refund, failing] = ["echo", "interruptible-approval", "failing"].map((id) => openai.responses(id));
const order = (n) => `ORDER-${process.env.PREFIX}-${n}`;

const get_weather = tool({
  description: "The weather in a place",
  inputSchema: z.object({ location: z.string() }),
  execute: async ({ location }) => `18 degrees in ${location}`,
});
const question = z.looseObject({ expects: z.string(), question: z.string() });
const asking = { description: "A person reviews a refund", inputSchema: question };
const answering = tool({ ...asking, execute: async () => "approve" });
const approving = tool({ ...asking, needsApproval: true, execute: async () => "approve" });
const leftOpen = tool(asking);
const stopWhen = stepCountIs(4);

const generate = async (request) => {
  const done = await generateText({ maxRetries: 0, stopWhen, ...request });
  return { text: done.text, steps: done.steps.length, reason: done.finishReason, messages: done.response.messages, done };
};
const stream = async (request) => {
  const errors = [];
  const done = streamText({ maxRetries: 0, stopWhen, onError: ({ error }) => errors.push(error), ...request });
  const pieces = [];
  for await (const piece of done.textStream) pieces.push(piece);
  if (errors.length) throw errors[0];
  const messages = (await done.response).messages;
  return { text: await done.text, steps: (await done.steps).length, reason: await done.finishReason, pieces, messages, done };
};

async function tell(name, act) {
  try {
    console.log(JSON.stringify({ name, ...(await act()) }));
  } catch (error) {
    console.log(JSON.stringify({ name, error: error.message, kind: error.name, status: error.statusCode ?? null }));
  }
}

const brief = ({ text, steps, reason, pieces }) => ({ text, steps, reason, pieces });
const user = (content) => ({ role: "user", content });
const result = (call, value) => ({
  role: "tool",
  content: [{ type: "tool-result", toolCallId: call.toolCallId, toolName: call.toolName, output: { type: "text", value } }],
});

for (const [mode, act] of Object.entries({ generate, stream })) {
  await tell(`${mode} talk`, async () => brief(await act({ model: echo, prompt: "Good morning everybody" })));

  await tell(`${mode} turns`, async () => {
    const messages = [user("Good morning")];
    messages.push(...(await act({ model: echo, messages })).messages, user("And goodbye"));
    return brief(await act({ model: echo, messages })); // earlier text goes as item_reference
  });

  await tell(`${mode} turns unstored`, async () => {
    const providerOptions = { openai: { store: false } };
    const messages = [user("Good morning")];
    messages.push(...(await act({ model: echo, messages, providerOptions })).messages, user("And goodbye"));
    return brief(await act({ model: echo, messages, providerOptions }));
  });

  await tell(`${mode} tools`, async () =>
    brief(await act({ model: echo, prompt: "What is the weather in Paris?", tools: { get_weather } })));

  await tell(`${mode} answers`, async () =>
    brief(await act({ model: refund, prompt: `Refund order ${order(`${mode}-answers`)}`, tools: { review_refund: answering } })));

  for (const value of ["approve", "reject"]) {
    await tell(`${mode} ${value}`, async () => {
      const tools = { review_refund: leftOpen };
      const messages = [user(`Refund order ${order(`${mode}-${value}`)}`)];
      const asked = await act({ model: refund, messages, tools });
      const [call] = await asked.done.toolCalls;
      messages.push(...asked.messages, result(call, value));
      const done = await act({ model: refund, messages, tools });
      messages.push(...done.messages, user("Thanks"));
      const after = await act({ model: refund, messages, tools });
      return { reason: asked.reason, text: done.text, after: after.text };
    });
  }

  for (const approved of [true, false]) {
    await tell(`${mode} needsApproval ${approved}`, async () => {
      const tools = { review_refund: approving };
      const messages = [user(`Refund order ${order(`${mode}-needs-${approved}`)}`)];
      const asked = await act({ model: refund, messages, tools });
      const wanted = (await asked.done.content).find((part) => part.type === "tool-approval-request");
      const answer = { type: "tool-approval-response", approvalId: wanted.approvalId, approved };
      messages.push(...asked.messages, { role: "tool", content: [answer] });
      return brief(await act({ model: refund, messages, tools }));
    });
  }

  await tell(`${mode} unknown`, async () =>
    brief(await act({ model: refund, prompt: `Refund order ${order(`${mode}-unknown`)}`, tools: { get_weather } })));

  await tell(`${mode} failed`, async () => brief(await act({ model: failing, prompt: "hi" })));

  await tell(`${mode} object`, async () => {
    const output = Output.object({ schema: z.object({ city: z.string() }) });
    const done = await act({ model: echo, prompt: "Where is Vienna?", output });
    return { object: await done.done.output };
  });
}
