// The unchanged Node SDK, the major that SDK names, against BASE_URL.
// Prints one JSON line per case, told apart by `mode`. test_openai_node.py judges them.
const { default: OpenAI } = await import(process.env.SDK);
const { zodTextFormat } = await import(`${process.env.SDK}/helpers/zod`);
const { z } = await import("zod");

const model = "interruptible-approval";
const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "unused", maxRetries: 0 });
const tell = (told) => console.log(JSON.stringify(told));

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
const said = (response) =>
  response.output
    .flatMap((item) => item.content ?? [])
    .map((part) => part.text)
    .join("");
const callOf = (response) => response.output.find((item) => item.type === "function_call");
const outputFor = (call, output) => [{ type: "function_call_output", call_id: call.call_id, output }];

for (const [mode, create] of Object.entries(inModes)) {
  for (const reply of ["approve", "reject", "Only 10 EUR please"]) {
    const paused = await create({ model, input: "Refund order ORDER-123" });
    const call = callOf(paused.response);
    const done = await create({
      model,
      previous_response_id: paused.response.id,
      input: outputFor(call, reply),
    });
    tell({
      reply,
      mode,
      types: paused.response.output.map((item) => item.type),
      call: { name: call.name, status: call.status, arguments: JSON.parse(call.arguments) },
      notice: text(paused.events),
      final: said(done.response),
      deltas: text(done.events),
      statuses: [paused.response.status, done.response.status],
      last: [paused.events.at(-1)?.type ?? null, done.events.at(-1)?.type ?? null],
    });
  }

  const question = { role: "user", content: "What is the weather in Paris?" };
  const parameters = { type: "object", properties: { location: { type: "string" } }, required: ["location"] };
  const tools = [{ type: "function", name: "get_weather", description: "Weather", parameters, strict: false }];
  const asked = await create({ model: "echo", input: [question], tools });
  const call = callOf(asked.response);
  const done = await create({
    model: "echo",
    input: [question, ...asked.response.output, ...outputFor(call, "18 degrees")],
    store: false,
  });
  tell({ mode: `tools ${mode}`, arguments: JSON.parse(call.arguments), final: said(done.response) });

  const failed = await create({ model: "failing", input: "hi" });
  tell({ mode: `failed ${mode}`, status: failed.response.status, error: failed.response.error.code });
}

const parsed = await client.responses.parse({
  model: "echo",
  input: "Where is Vienna?",
  text: { format: zodTextFormat(z.object({ city: z.string() }), "place") },
});
tell({ mode: "parse", parsed: parsed.output_parsed });

{
  const seen = [];
  const broken = await client.responses.create({ model: "sleepy", input: "0.5", background: true, stream: true });
  for await (const event of broken) {
    seen.push(event);
    if (event.type === "response.in_progress") break; // the connection is closed, the run goes on
  }
  const { id } = seen[0].response;
  const starting_after = seen.at(-1).sequence_number;
  for await (const event of await client.responses.retrieve(id, { stream: true, starting_after })) seen.push(event);
  const helper = client.responses.stream({ response_id: id });
  tell({
    mode: "resumed",
    numbers: seen.map((event) => event.sequence_number),
    last: seen.at(-1).type,
    final: said(seen.at(-1).response),
    helper: said(await helper.finalResponse()),
    polled: (await client.responses.retrieve(id)).output_text,
  });
}

try {
  await client.responses.create({ model: "no-such-graph", input: "hello" });
} catch (error) {
  tell({ mode: "error", status: error.status, code: error.code, name: error.constructor.name });
}
