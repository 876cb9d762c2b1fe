// Runs @ag-ui/client's HttpAgent: a line of JSON on stdin is a command, a line on stdout its answer.
import { createInterface } from "node:readline";
import { HttpAgent } from "@ag-ui/client";

const agents = new Map();

function open({ name, ...config }) {
  agents.set(name, new HttpAgent(config));
  return {};
}

async function run({ name, messages = [], abortAt, ...parameters }) {
  const agent = agents.get(name);
  agent.addMessages(messages);
  const events = [];
  let error = null;
  const subscriber = {
    onEvent({ event }) {
      events.push(event);
      if (event.type === abortAt) agent.abortRun();
    },
    onRunFailed({ error: failure }) {
      error = String(failure.message);
    },
  };
  try {
    await agent.runAgent(parameters, subscriber);
  } catch (failure) {
    error = String(failure.message);
  }
  const { messages: history, state, pendingInterrupts } = agent;
  return { events, messages: history, state, interrupts: pendingInterrupts, error };
}

const commands = { open, run };
for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...values } = JSON.parse(line);
  console.log(JSON.stringify(await commands[command](values)));
}
