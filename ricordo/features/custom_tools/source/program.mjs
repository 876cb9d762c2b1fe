// The program of a call of JavaScript or TypeScript, in the sandbox: it calls the function of its source and answers in JSON.
// The request on standard input: {function, arguments: […]}. The answer on descriptor 3: {value} or {error}, as program.py.
import { readFileSync, writeSync } from "node:fs";

const LONGEST_ANSWER = 800_000;
const file = process.argv[2];
const { function: name, arguments: given } = JSON.parse(readFileSync(0, "utf8"));
const lines = readFileSync(file, "utf8").split("\n");

// Returns the error with its frames in the tool's source, each with its line of source.
function trace(error) {
  const [first, ...frames] = String(error?.stack ?? error).split("\n    at ");
  const own = frames.flatMap((frame) => {
    const at = frame.match(/^(?:(.*) \()?.*\/tool\.m[jt]s:(\d+):\d+\)?$/);
    const called = at?.[1]?.replace("calledFunction", name) ?? name;
    return at ? [`    at ${called} (<${name}>, line ${at[2]})\n      ${(lines[at[2] - 1] ?? "").trim()}`] : [];
  });
  return [first, ...own.slice(0, 20)].join("\n").slice(0, 6000);
}

function written(value) {
  let text;
  try {
    text = JSON.stringify({ value: value === undefined ? null : value });
  } catch {
    text = JSON.stringify({ value: String(value) });
  }
  if (text.length <= LONGEST_ANSWER) return text;
  const whole = typeof value === "string" ? value : text;
  return JSON.stringify({ value: `${whole.slice(0, LONGEST_ANSWER)}… [cut: the tool returned ${whole.length} characters]` });
}

let answer;
try {
  const { calledFunction } = await import(`./${file}`);
  answer = written(await calledFunction(...given));
} catch (error) {
  if (error instanceof SyntaxError && !error.stack.includes("tool.m")) throw error; // Node itself shows the line
  answer = JSON.stringify({ error: trace(error) });
}
const bytes = Buffer.from(answer);
for (let sent = 0; sent < bytes.length; ) sent += writeSync(3, bytes, sent);
process.exit(0);
