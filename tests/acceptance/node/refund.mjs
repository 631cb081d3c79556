// The refund approval through the unchanged Node SDK, against BASE_URL.
// Prints one JSON line per case: {reply, mode, pause, final, deltas}. test_node.py judges them.
import OpenAI from "openai";

const model = "interruptible-approval";
const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "unused", maxRetries: 0 });

const inModes = {
  json: async (request) => ({ response: await client.responses.create(request), events: [] }),
  stream: async (request) => {
    const events = [];
    for await (const event of await client.responses.create({ ...request, stream: true })) {
      events.push(event);
    }
    return { response: events.at(-1).response, events };
  },
  helper: async (request) => {
    const events = [];
    const stream = client.responses.stream(request);
    for await (const event of stream) events.push(event);
    return { response: await stream.finalResponse(), events };
  },
};

const text = (events) =>
  events
    .filter((event) => event.type === "response.output_text.delta")
    .map((event) => event.delta)
    .join("");

for (const [mode, create] of Object.entries(inModes)) {
  for (const reply of ["approve", "reject", "Only 10 EUR please"]) {
    const paused = await create({ model, input: "Refund order ORDER-123" });
    const call = paused.response.output.find((item) => item.type === "function_call");
    const done = await create({
      model,
      previous_response_id: paused.response.id,
      input: [{ type: "function_call_output", call_id: call.call_id, output: reply }],
    });
    console.log(
      JSON.stringify({
        reply,
        mode,
        types: paused.response.output.map((item) => item.type),
        call: { name: call.name, status: call.status, arguments: JSON.parse(call.arguments) },
        notice: text(paused.events),
        final: done.response.output.flatMap((item) => item.content).map((part) => part.text).join(""),
        deltas: text(done.events),
        statuses: [paused.response.status, done.response.status],
        last: [paused.events.at(-1)?.type ?? null, done.events.at(-1)?.type ?? null],
      }),
    );
  }
}

try {
  await client.responses.create({ model: "no-such-graph", input: "hello" });
} catch (error) {
  console.log(JSON.stringify({ mode: "error", status: error.status, code: error.code, name: error.constructor.name }));
}
