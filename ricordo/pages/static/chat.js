"use strict";
// The chat beyond its forms: streaming, files, and memory with its changes marked. Nothing in a message is read as HTML before the server has rendered it.

const transcript = document.getElementById("transcript");
const live = document.getElementById("live");
const sayForm = document.getElementById("say");
const stopForm = document.getElementById("stop-form");
const stopButton = document.getElementById("stop"), sendButton = document.getElementById("send");
const progress = document.getElementById("progress"), toNew = document.getElementById("to-new");
const errorLine = document.getElementById("chat-error");
const base = document.body.dataset.base;
const { conversation, agent } = transcript.dataset;
const draftKey = `ricordo-draft-${conversation}`, againKey = `ricordo-again-${conversation}`;
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

// While a turn runs, the Stop button replaces Send. If one of the two has the focus, the focus moves to Stop, and at the end to the message box.
function setRunning(running) {
  isRunning = running;
  const hadFocus = document.activeElement === sendButton || document.activeElement === stopButton;
  if (sendButton) sendButton.hidden = running;
  if (stopButton) stopButton.hidden = !running;
  if (hadFocus) (running ? stopButton : document.getElementById("message"))?.focus();
  if (!running) tell("");
}

// One line under the messages shows the state of the turn. Screen readers read it out, instead of each word that streams.
function tell(words) {
  if (progress.textContent !== words) progress.textContent = words;
  progress.hidden = !words;
}

// --- following: the page stays at its end, unless the reader scrolled up ---

let isFollowing = true;
function fromEnd() {
  return document.documentElement.scrollHeight - innerHeight - scrollY;
}
function goToEnd() {
  isFollowing = true;
  toNew.hidden = true;
  scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
}
function toEnd() {
  if (isFollowing) goToEnd();
  else toNew.hidden = false;
}
addEventListener("scroll", () => {
  const isAtEnd = fromEnd() < 60;
  if (isAtEnd) toNew.hidden = true;
  isFollowing = isAtEnd;
}, { passive: true });
toNew.addEventListener("click", goToEnd);
// Stay at the end also if a picture loads or a line arrives late, which change the height.
new ResizeObserver(() => { if (isFollowing && transcript.dataset.newest) goToEnd(); }).observe(document.querySelector("main"));

// --- events from the server ---

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
    case "assistant_message": {
      const text = made("div", "message agent");
      if (!text.firstChild) text.append(element("div", "markdown"));
      text.dataset.source = (text.dataset.source ?? "") + (typeof message.content === "string" ? message.content : "");
      drawSoon(text);
      tell("Answering …");
      break;
    }
    case "reasoning_message": {
      const fold = made("details", "fold");
      if (!fold.firstChild) fold.append(element("summary", "", "Thinking …"), element("pre", "plain"));
      fold.lastChild.append(message.reasoning ?? "");
      tell("Thinking …");
      break;
    }
    case "tool_call_message":
    case "approval_request_message": {
      const line = made("p", "fold mono");
      line.dataset.name = (line.dataset.name ?? "") + (message.tool_call?.name ?? "");
      line.textContent = `${line.dataset.name} …`;
      if (message.tool_call?.tool_call_id) line.dataset.call = message.tool_call.tool_call_id;
      tell(`Using ${line.dataset.name} …`);
      break;
    }
    case "ping": {
      const running = message.progress && live.querySelector(`[data-call="${CSS.escape(message.tool_call_id)}"]`);
      if (running) running.textContent = `${running.dataset.name} … ${message.progress}`;
      break;
    }
    case "tool_return_message": {
      const line = live.querySelector(`[data-call="${CSS.escape(message.tool_call_id ?? "")}"]`);
      if (line) line.textContent = `${line.dataset.name} · ${stateOf(message)}`;
      tell("Thinking …");
      refreshMemory();
      break;
    }
  }
  toEnd();
}

function stateOf(message) {
  if (message.status !== "success") return "failed";
  return /\bwas proposed\b|\bwaits for the owner\b/.test(String(message.tool_return)) ? "proposed" : "done";
}

// While an answer streams it is drawn in the same shapes as the server renders it, so that nothing jumps at its end.
// Only texts are put into elements: nothing in an answer is read as HTML.
const drawn = new WeakSet();
function drawSoon(message) {
  if (drawn.has(message)) return;
  drawn.add(message);
  requestAnimationFrame(() => {
    drawn.delete(message);
    if (!message.isConnected) return;
    message.firstChild.replaceChildren(...blocksOf(message.dataset.source));
    toEnd();
  });
}

function inlineOf(text) {
  const parts = [], pattern = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*/g;
  let from = 0;
  for (const match of text.matchAll(pattern)) {
    parts.push(text.slice(from, match.index));
    const tag = match[1] !== undefined ? "code" : match[2] !== undefined ? "strong" : "em";
    parts.push(element(tag, "", match[1] ?? match[2] ?? match[3]));
    from = match.index + match[0].length;
  }
  return [...parts, text.slice(from)];
}

function blocksOf(text) {
  if (text.length > MOST_TEXT / 10) return [element("pre", "plain", text)];
  const shown = [];
  let list = null, paragraph = null, code = null;
  for (const line of text.split("\n")) {
    if (code) {
      if (/^\s*```/.test(line)) code = null;
      else code.append(`${line}\n`);
      continue;
    }
    const item = line.match(/^\s*([-*+]|\d+[.)])\s+(.*)/), title = line.match(/^(#{1,6})\s+(.*)/);
    if (/^\s*```/.test(line)) {
      code = element("code");
      const pre = element("pre");
      pre.append(code);
      shown.push(pre);
      list = paragraph = null;
    } else if (title) {
      const heading = element(`h${title[1].length}`);
      heading.append(...inlineOf(title[2]));
      shown.push(heading);
      list = paragraph = null;
    } else if (item) {
      const tag = /\d/.test(item[1]) ? "ol" : "ul";
      if (list?.localName !== tag) shown.push(list = element(tag));
      const entry = element("li");
      entry.append(...inlineOf(item[2]));
      list.append(entry);
      paragraph = null;
    } else if (!line.trim()) {
      paragraph = null;
    } else {
      list = null;
      if (paragraph) paragraph.append(element("br"));
      else shown.push(paragraph = element("p"));
      paragraph.append(...inlineOf(line));
    }
  }
  return shown;
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
  tell("Sending …");
  isFollowing = true;
  toEnd();
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
    tell("Thinking …");
    fail(await follow(response));
    await settle();
  } catch {
    fail("The connection was lost. The turn goes on; this page shows it when the server can be reached.");
    setTimeout(settle, 2000);
  } finally {
    setRunning(false);
  }
}

// Replaces the live part by the new messages as the server renders them. Repeats this while the turn still runs.
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
    // The rendered turn now gives the reason for a missing answer, so the error line is not needed.
    const last = [...transcript.querySelectorAll(".message, .ending")].at(-1);
    if (last?.matches(".ending")) fail("");
    if (isRunning && last && !last.matches(".user")) document.getElementById("spoken").textContent = (last.querySelector(".markdown, .plain") ?? last).innerText.slice(0, 2000);
    transcript.dataset.last = messages[messages.length - 1].dataset.message;
  }
  live.replaceChildren();
  const chats = document.querySelector(".chats"), fresh = part.querySelector("[data-chats] .chats");
  if (chats && fresh && !chats.contains(document.activeElement)) {
    chats.replaceWith(fresh);
    localTimes(fresh);
  }
  toEnd();
  if (part.dataset.running) setTimeout(settle, 1500);
  else setRunning(false);
}

// --- memory beside the chat ---

// For each changed line, the time until which it is marked; SHOWN is in milliseconds.
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
  if (panel.querySelector(".line-form")) return; // a line is being edited
  const before = new Map();
  for (const block of panel.querySelectorAll("[data-block]")) {
    before.set(block.dataset.block, new Set([...block.querySelectorAll("[data-line]")].map(textOfLine)));
  }
  panel.replaceChildren(...fresh.childNodes);
  for (const block of panel.querySelectorAll("[data-block]")) {
    const known = before.get(block.dataset.block);
    for (const line of block.querySelectorAll("[data-line]")) {
      const place = `${block.dataset.block} ${textOfLine(line)}`;
      if (!known?.has(textOfLine(line))) changedUntil.set(place, Date.now() + SHOWN);
      if (!(changedUntil.get(place) > Date.now())) continue;
      line.classList.add("flash", "changed");
      line.parentElement.scrollTop = line.offsetTop - line.parentElement.offsetTop;
    }
  }
}

function textOfLine(line) {
  return line.firstElementChild.textContent;
}

// A decision about a proposal on this page may change the memory beside the chat.
document.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.successful && event.detail.pathInfo.requestPath.includes("/ui/proposals/")) refreshMemory();
});

// A line of memory is edited in place: Enter saves, an empty text deletes the line, Escape leaves it unchanged.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-edit-line]");
  if (!button) return;
  const line = button.closest("[data-line]"), block = button.closest("[data-block]");
  const form = element("form", "line-form"), area = element("textarea"), row = element("div", "row");
  const save = element("button", "primary", "Save"), forget = element("button", "", "Forget"), cancel = element("button", "quiet", "Cancel");
  area.value = button.dataset.text;
  area.setAttribute("aria-label", "This line");
  forget.type = cancel.type = "button";
  row.append(save, forget, cancel);
  form.append(area, row);
  line.hidden = true;
  line.after(form);
  area.focus();
  const close = () => { form.remove(); line.hidden = false; button.focus(); };
  const send = async (text) => {
    const fields = { conversation, block: block.dataset.block, user: block.dataset.user, label: block.dataset.label, number: line.dataset.line, old: button.dataset.text, new: text };
    const response = await fetch(`${base}/ui/agents/${agent}/chat/line`, { method: "POST", headers: { "hx-request": "true" }, body: new URLSearchParams(fields) });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    form.remove();
    line.hidden = false;
    const fresh = page.querySelector("[data-memory]");
    if (fresh) putMemory(fresh);
    else fail(page.body.textContent.trim());
  };
  form.addEventListener("submit", (submitted) => { submitted.preventDefault(); send(area.value); });
  forget.addEventListener("click", () => send(""));
  cancel.addEventListener("click", close);
  area.addEventListener("keydown", (pressed) => {
    if (pressed.key === "Enter" && !pressed.shiftKey && !pressed.isComposing) { pressed.preventDefault(); form.requestSubmit(); }
    else if (pressed.key === "Escape") close();
  });
});

// --- copying, and answering again in another version of the conversation ---

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy-source]");
  if (!button) return;
  const message = button.closest(".message");
  const text = message.dataset.source ?? message.querySelector(".plain, .markdown").innerText;
  navigator.clipboard.writeText(text).then(() => {
    button.setAttribute("aria-label", "Copied");
    button.querySelector("use").setAttribute("href", "#i-check");
  });
});

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.querySelector("[data-again]")) return;
  event.preventDefault();
  if (isRunning) {
    tell("Wait for the end of the answer.");
    return;
  }
  const question = document.getElementById(form.elements.message.value);
  const shown = [...(question?.querySelectorAll("img.picture") ?? [])].map((picture) => picture.src.match(/^data:([^;]+);base64,(.*)$/)).filter(Boolean);
  const fields = { conversation, message: form.elements.message.value, edit: "yes" };
  const response = await fetch(`${base}/ui/agents/${agent}/chat/fork`, { method: "POST", body: new URLSearchParams(fields) });
  const target = new URL(response.url);
  const version = target.searchParams.get("conversation");
  if (!response.ok || !version || version === conversation) {
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    fail(page.querySelector(".error")?.textContent || "This cannot be answered again.");
    return;
  }
  sessionStorage.setItem(`ricordo-again-${version}`, JSON.stringify(shown.map(([, media_type, data]) => ({ media_type, data }))));
  location.assign(target);
});

// --- the box ---

function said(text) {
  const parts = pictures.map(({ media_type, data }) => ({ type: "image", source: { type: "base64", media_type, data } }));
  return parts.length ? [...(text ? [{ type: "text", text }] : []), ...parts] : text;
}

if (sayForm) {
  const box = sayForm.querySelector("textarea"), list = document.getElementById("files");
  const forget = () => sessionStorage.removeItem(draftKey);
  const file = document.getElementById("file");
  document.getElementById("attach").addEventListener("click", () => file.click());
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
      const shown = element("div", "message user");
      shown.append(element("div", "plain", text));
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
  file.addEventListener("change", (event) => { take([...event.target.files]); event.target.value = ""; });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => { event.preventDefault(); take([...event.dataTransfer.files]); });

  // This version of the conversation was created to answer its last message again, so that message is sent at once.
  const again = sessionStorage.getItem(againKey);
  if (again !== null) {
    sessionStorage.removeItem(againKey);
    history.replaceState(null, "", `${location.pathname}?${new URLSearchParams({ conversation })}`);
    pictures = JSON.parse(again);
    if (box.value.trim() || pictures.length) queueMicrotask(() => sayForm.requestSubmit());
  }
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
  tell("Stopping …");
  fetch(`${base}/v1/conversations/${conversation}/cancel`, { method: "POST" });
});

// Follows a turn that already runs when the page is opened; from its beginning, if its stream is stored.
async function resume() {
  setRunning(true);
  tell("Thinking …");
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
