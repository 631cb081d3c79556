// The unchanged OpenAI Agents SDK for JavaScript against BASE_URL.
// Prints one JSON line per case, told apart by `name`. test_openai_agents_js.py judges them.
import { Agent, OpenAIResponsesModel, Runner, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "unused", maxRetries: 0 });
const runner = new Runner({ tracingDisabled: true });
const get_weather = tool({
  name: "get_weather",
  description: "The weather in a place",
  parameters: z.object({ location: z.string() }),
  execute: async ({ location }) => `18 degrees in ${location}`,
});
const anything = { type: "object", properties: {}, required: [], additionalProperties: true };
const review_refund = tool({
  name: "review_refund",
  description: "A person reviews a refund",
  parameters: anything,
  strict: false,
  needsApproval: true,
  execute: async () => "approve",
});
const agent = (model, ...tools) =>
  new Agent({ name: "clerk", instructions: "Be brief.", model: new OpenAIResponsesModel(client, model), tools });

async function tell(name, act) {
  try {
    console.log(JSON.stringify({ name, ...(await act()) }));
  } catch (error) {
    console.log(JSON.stringify({ name, error: error.message, kind: error.constructor.name }));
  }
}

for (const stream of [false, true]) {
  const mode = stream ? "stream" : "json";
  const run = async (who, said) => {
    const done = await runner.run(who, said, { stream });
    if (stream) await done.completed;
    return done;
  };

  await tell(`${mode} turns`, async () => {
    const clerk = agent("echo");
    const first = await run(clerk, "Good morning");
    const second = await run(clerk, [...first.history, { role: "user", content: "And goodbye" }]);
    return { texts: [first.finalOutput, second.finalOutput] };
  });
  await tell(`${mode} tools`, async () => {
    const done = await run(agent("echo", get_weather), "What is the weather in Paris?");
    return { text: done.finalOutput };
  });
  for (const approve of [true, false]) {
    await tell(`${mode} approve ${approve}`, async () => {
      const clerk = agent("interruptible-approval", review_refund);
      const paused = await run(clerk, `Refund order ORDER-JS-${mode}-${approve}`);
      const [asked] = paused.interruptions;
      if (approve) paused.state.approve(asked);
      else paused.state.reject(asked);
      return { text: (await run(clerk, paused.state)).finalOutput };
    });
  }
  await tell(`${mode} unknown`, async () => {
    const done = await run(agent("interruptible-approval", get_weather), `Refund order ORDER-JS-${mode}-unknown`);
    return { text: done.finalOutput };
  });
}
