"use strict";
// The chat beyond its forms: streaming, files, memory that shows what changed. What is said is text until the server has rendered it.

const transcript = document.getElementById("transcript");
const live = document.getElementById("live");
const sayForm = document.getElementById("say");
const stopForm = document.getElementById("stop");
const end = document.getElementById("end");
const errorLine = document.getElementById("chat-error");
const base = document.body.dataset.base;
const { conversation, agent } = transcript.dataset;
const draftKey = `ricordo-draft-${conversation}`;
const MOST_PICTURE = 5_000_000, MOST_TEXT = 200_000;
let pictures = [];
let isRunning = false;

document.documentElement.classList.add("has-script");

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function fail(words) {
  errorLine.textContent = words;
  errorLine.hidden = !words;
}

function setRunning(running) {
  isRunning = running;
  if (stopForm) stopForm.hidden = !running;
  if (sayForm) sayForm.querySelector("button.primary").disabled = running;
}

function toEnd() {
  if (end.getBoundingClientRect().top < innerHeight + 400) goToEnd();
}

function goToEnd() {
  (sayForm ?? end).scrollIntoView({ block: "end" });
}

// --- what the server says ---

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    waiting += value;
    const pieces = waiting.split("\n\n");
    waiting = pieces.pop();
    for (const piece of pieces) {
      const lines = piece.split("\n");
      const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (!data || data === "[DONE]") continue;
      yield { ...JSON.parse(data), is_error: lines.includes("event: error") };
    }
  }
}

// The live part: one element for each message that comes in, by its id and kind.
function show(message) {
  const place = `${message.id}-${message.message_type}`;
  let shown = live.querySelector(`[data-live="${CSS.escape(place)}"]`);
  const made = (tag, className) => {
    if (!shown) {
      shown = element(tag, className);
      shown.dataset.live = place;
      live.append(shown);
    }
    return shown;
  };
  switch (message.message_type) {
    case "assistant_message":
      made("div", "message agent plain").append(typeof message.content === "string" ? message.content : "");
      break;
    case "reasoning_message": {
      const fold = made("details", "fold");
      if (!fold.firstChild) fold.append(element("summary", "", "Thinking …"), element("pre", "plain"));
      fold.lastChild.append(message.reasoning ?? "");
      break;
    }
    case "tool_call_message":
    case "approval_request_message": {
      const line = made("p", "quiet mono");
      line.textContent = `${(line.dataset.name ?? "") + (message.tool_call?.name ?? "")} …`;
      line.dataset.name = (line.dataset.name ?? "") + (message.tool_call?.name ?? "");
      if (message.tool_call?.tool_call_id) line.dataset.call = message.tool_call.tool_call_id;
      break;
    }
    case "ping": {
      const running = message.progress && live.querySelector(`[data-call="${CSS.escape(message.tool_call_id)}"]`);
      if (running) running.textContent = `${running.dataset.name} … ${message.progress}`;
      break;
    }
    case "tool_return_message":
      refreshMemory();
      break;
  }
  toEnd();
}

async function follow(response) {
  let refused = "";
  for await (const event of eventsOf(response)) {
    if (event.message_type === "error_message" || event.is_error) refused = event.message ?? event.error?.message ?? "The turn failed.";
    else show(event);
  }
  return refused;
}

// --- sending ---

async function explain(response) {
  const told = await response.json().catch(() => ({}));
  const words = told.detail ?? told.error?.message ?? `The server answered ${response.status}.`;
  return response.status === 409 ? `${words} What you wrote is still in the box.` : String(words);
}

async function send(messages, begun) {
  fail("");
  setRunning(true);
  try {
    const response = await fetch(`${base}/v1/conversations/${conversation}/messages`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ messages, streaming: true, stream_tokens: true, background: true }),
    });
    if (!response.ok) {
      fail(await explain(response));
      return;
    }
    begun();
    fail(await follow(response));
    await settle();
  } catch {
    fail("The connection was lost. The turn goes on; this page shows it when the server can be reached.");
    setTimeout(settle, 2000);
  } finally {
    setRunning(false);
  }
}

// Puts what was said since, as the server renders it, in the place of the live part. Tries again while the turn still runs.
async function settle() {
  const query = new URLSearchParams({ conversation, after: transcript.dataset.last });
  const response = await fetch(`${base}/ui/agents/${agent}/chat/part?${query}`, { headers: { "hx-request": "true" } });
  if (!response.ok) throw new Error(response.statusText);
  const part = new DOMParser().parseFromString(await response.text(), "text/html").querySelector("[data-part]");
  const turns = part.querySelector("[data-turns]");
  const messages = turns.querySelectorAll("[data-message]");
  putMemory(part.querySelector("[data-memory]"));
  if (messages.length) {
    document.getElementById("nothing")?.remove();
    for (const turn of [...turns.children]) {
      transcript.append(turn);
      htmx.process(turn);
    }
    localTimes(transcript);
    transcript.dataset.last = messages[messages.length - 1].dataset.message;
  }
  live.replaceChildren();
  toEnd();
  if (part.dataset.running) setTimeout(settle, 1500);
  else setRunning(false);
}

// --- memory beside the chat ---

// Until when a line counts as one that just changed, in milliseconds.
const changedUntil = new Map(), SHOWN = 10_000;
let isRefreshing = false;
async function refreshMemory() {
  if (isRefreshing) return;
  isRefreshing = true;
  try {
    const query = new URLSearchParams({ conversation, after: transcript.dataset.last });
    const response = await fetch(`${base}/ui/agents/${agent}/chat/part?${query}`, { headers: { "hx-request": "true" } });
    if (response.ok) putMemory(new DOMParser().parseFromString(await response.text(), "text/html").querySelector("[data-memory]"));
  } finally {
    isRefreshing = false;
  }
}

function putMemory(fresh) {
  const panel = document.getElementById("memory");
  const before = new Map();
  for (const block of panel.querySelectorAll("[data-block]")) {
    before.set(block.dataset.block, new Set([...block.querySelectorAll("[data-line]")].map((line) => line.textContent)));
  }
  panel.replaceChildren(...fresh.childNodes);
  for (const block of panel.querySelectorAll("[data-block]")) {
    const known = before.get(block.dataset.block);
    for (const line of block.querySelectorAll("[data-line]")) {
      const place = `${block.dataset.block} ${line.textContent}`;
      if (!known?.has(line.textContent)) changedUntil.set(place, Date.now() + SHOWN);
      if (!(changedUntil.get(place) > Date.now())) continue;
      line.classList.add("flash", "changed");
      line.parentElement.scrollTop = line.offsetTop - line.parentElement.offsetTop;
    }
  }
}

// --- the box ---

function said(text) {
  const parts = pictures.map(({ media_type, data }) => ({ type: "image", source: { type: "base64", media_type, data } }));
  return parts.length ? [...(text ? [{ type: "text", text }] : []), ...parts] : text;
}

if (sayForm) {
  const box = sayForm.querySelector("textarea"), list = document.getElementById("files");
  const forget = () => sessionStorage.removeItem(draftKey);
  if (!box.value.trim()) box.value = sessionStorage.getItem(draftKey) ?? "";
  box.addEventListener("input", () => sessionStorage.setItem(draftKey, box.value));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      sayForm.requestSubmit();
    }
  });
  sayForm.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = box.value.trim();
    if ((!text && !pictures.length) || isRunning) return;
    const otid = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
    send([{ role: "user", content: said(text), otid }], () => {
      const shown = element("div", "message user plain", text);
      live.append(shown);
      box.value = "";
      pictures = [];
      list.replaceChildren();
      forget();
      toEnd();
    });
  });

  const take = async (files) => {
    for (const file of files) {
      const isPicture = /^image\/(png|jpeg|gif|webp)$/.test(file.type);
      if (file.size > (isPicture ? MOST_PICTURE : MOST_TEXT)) {
        fail(`${file.name} is too large. A picture may have ${MOST_PICTURE / 1e6} MB, a text ${MOST_TEXT / 1e3} kB.`);
      } else if (isPicture) {
        const address = await new Promise((give) => {
          const reader = new FileReader();
          reader.onload = () => give(reader.result);
          reader.readAsDataURL(file);
        });
        const picture = { name: file.name, media_type: file.type, data: address.split(",")[1] };
        pictures.push(picture);
        const item = element("li", "chip", file.name), remove = element("button", "quiet", "Remove");
        remove.type = "button";
        remove.onclick = () => { pictures = pictures.filter((one) => one !== picture); item.remove(); };
        item.append(remove);
        list.append(item);
      } else {
        const text = await file.text();
        if (text.includes("\u0000") || text.includes("\ufffd")) fail(`${file.name} is neither a picture nor a text. Send one of those.`);
        else box.value += `${box.value ? "\n\n" : ""}${file.name}:\n\`\`\`\n${text}\n\`\`\`\n`;
      }
    }
    box.required = !pictures.length;
    box.focus();
  };
  document.getElementById("file").addEventListener("change", (event) => { take([...event.target.files]); event.target.value = ""; });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => { event.preventDefault(); take([...event.dataTransfer.files]); });
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("[data-decide]")) return;
  event.preventDefault();
  const given = new FormData(form), approve = event.submitter?.value === "approve";
  const answer = { type: "approval", approve, approval_request_id: given.get("request"), reason: given.get("reason") || null };
  send([answer], () => form.remove());
});

stopForm?.addEventListener("submit", (event) => {
  event.preventDefault();
  fetch(`${base}/v1/conversations/${conversation}/cancel`, { method: "POST" });
});

// A turn that runs while the page is opened is followed, from its beginning where its stream is kept.
async function resume() {
  setRunning(true);
  if (transcript.dataset.background) {
    const response = await fetch(`${base}/v1/runs/${transcript.dataset.running}/stream`, {
      method: "POST", headers: { "content-type": "application/json" }, body: "{}",
    });
    if (response.ok) fail(await follow(response));
  }
  await settle();
}

if (transcript.dataset.newest) {
  if (transcript.dataset.running) resume().catch(() => setRunning(false));
  goToEnd();
} else document.querySelector(".message.selected")?.scrollIntoView({ block: "center" });
