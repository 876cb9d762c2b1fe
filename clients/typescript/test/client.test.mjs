// Runs the built client against the server at RICORDO_URL: `npm test`.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Ricordo, RicordoError } from "../dist/src/index.js";
import { GET, POST } from "../dist/examples/nextjs-route.js";

const ricordo = new Ricordo({ url: process.env.RICORDO_URL, key: process.env.RICORDO_API_KEY });

test("blocks are written, changed, restored and deleted", async () => {
  const memory = ricordo.user("ada");
  const block = await memory.writeBlock("plans/this week", { body: "Practise." });
  assert.equal(block.label, "plans/this week");
  await memory.writeBlock("plans/this week", { body: "Rest." }, block.version);
  await assert.rejects(
    memory.writeBlock("plans/this week", { body: "Run." }, block.version),
    (error) => error instanceof RicordoError && error.status === 412 && error.message.length > 10,
  );
  const changed = await memory.changeBlock("plans/this week", { policy: "propose" });
  assert.equal(changed.policy, "propose");
  const versions = await memory.history("plans/this week");
  const restored = await memory.restore("plans/this week", versions.at(-1).sha);
  assert.equal(restored.body, "Practise.");
  assert.deepEqual((await memory.blocks()).map(({ label }) => label), ["plans/this week"]);
  await memory.deleteBlock("plans/this week");
  await assert.rejects(memory.block("plans/this week"), { status: 404 });
});

test("proposals are made, approved and rejected, also by the routes for Next.js", async () => {
  const memory = ricordo.user("bo");
  await memory.writeBlock("human", { body: "His name is Bo." });
  const edit = (word) => ({
    old_string: "His name is Bo.",
    new_string: `His name is Bo. ${word}`,
    reasoning: "He said so.",
  });
  const first = await memory.propose("human", edit("He sings."));
  assert.deepEqual((await memory.proposals({ status: "open" })).map(({ id }) => id), [first.id]);
  await memory.reject([first.id], "Not now.");
  const second = await memory.propose("human", edit("He dances."));
  const address = "http://localhost/api/memory";
  const headers = { "x-user": "bo" };
  const shown = await (await GET(new Request(address, { headers }))).json();
  assert.deepEqual(shown.map(({ id }) => id), [second.id]);
  const body = JSON.stringify({ id: second.id, approve: true });
  const decided = await POST(new Request(address, { method: "POST", headers, body }));
  assert.equal(decided.status, 200);
  assert.equal((await memory.block("human")).body, "His name is Bo. He dances.");
});

test("facts are added, changed and deleted", async () => {
  const memory = ricordo.user("cy");
  await memory.writeBlock("human", { body: "Her name is Cy." });
  const fact = await memory.addFact({ sentence: "Cy plays chess.", kind: "skill" });
  const changed = await memory.changeFact(fact.id, { sentence: "Cy plays chess well." });
  assert.equal(changed.sentence, "Cy plays chess well.");
  assert.ok((await memory.facts()).some(({ sentence }) => sentence === "Cy plays chess well."));
  await memory.deleteFact(changed.id);
  assert.deepEqual(await memory.facts(), []);
});

test("messages are kept and found, questions answered and the profile read", async () => {
  const memory = ricordo.user("di");
  const messages = [{ role: "user", content: "My cat is called Tom." }];
  const added = await memory.addMemories({ messages, infer: false });
  assert.ok(added.agent_id);
  const { results } = await memory.searchMemories({ query: "cat" });
  assert.ok(results.length > 0);
  const answer = await memory.ask("What is my cat called?");
  assert.equal(typeof answer.answer, "string");
  const profile = await memory.profile({ tokens: 100 });
  assert.equal(typeof profile.text, "string");
});

test("a refusal is an error with the server's reason", async () => {
  const broken = new Ricordo({ url: process.env.RICORDO_URL, key: "wrong" });
  await assert.rejects(broken.user("ada").blocks(), (error) => error.status === 401);
});
